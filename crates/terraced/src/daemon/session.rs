//! The engine at this host's time: its events and decisions are recorded, and its news for people become events.

use std::time::Duration;

use anyhow::{Context as _, Result};
use terrace_config::Config;
use terrace_core::provision::ProvisionConfig;
use terrace_core::{Engine, EngineConfig, Log as _, Session};
use terrace_host::Finding;
use terrace_proto::{Action, Event, Tick};
use terrace_sys::MonotonicClock;

use crate::events::Events;
use crate::provisioning::Provisioning;
use crate::record::Recorder;
use crate::registry::Registry;

/// The engine and its log, their clock, and the events for people.
pub struct LiveSession {
    session: Session<Recorder>,
    clock: MonotonicClock,
    events: Events,
}

impl LiveSession {
    /// A session whose time begins now.
    ///
    /// # Errors
    /// If the log cannot be started, or the engine cannot work by the configuration.
    pub fn start(config: &Config, provision: ProvisionConfig) -> Result<Self> {
        let engine = EngineConfig {
            provision,
            ..config.engine.clone()
        };
        let recorder = match &config.log {
            None => Recorder::off(),
            Some((path, limit)) => Recorder::start(path, *limit, serde_json::to_string(&engine)?)?,
        };
        Ok(Self {
            session: Session::new(Engine::new(engine)?, recorder),
            clock: MonotonicClock::start(),
            events: Events::default(),
        })
    }

    /// The engine.
    pub fn engine(&self) -> &Engine {
        self.session.engine()
    }

    /// Time since the start.
    pub fn now(&self) -> Tick {
        self.clock.now()
    }

    /// The events for people.
    pub fn events(&self) -> &Events {
        &self.events
    }

    /// Time until the engine is due; `None` if it waits for events alone.
    pub fn sleep(&self) -> Option<Duration> {
        let timeout = self.engine().poll_timeout();
        timeout.map(|at| at.since(self.now()))
    }

    /// Whether the time that the engine waits for has come.
    pub fn is_due(&self) -> bool {
        let timeout = self.engine().poll_timeout();
        timeout.is_some_and(|at| at <= self.now())
    }

    /// Gives the engine an event and returns its decisions. If the log ends by it, a message for people is logged.
    pub fn hear(&mut self, event: Event) -> Vec<Action> {
        let recorded = self.session.log().is_on();
        let actions = self.session.hear(self.clock.now(), event);
        if recorded && let Some(end) = self.log_ended() {
            self.tell(None, end);
        }
        actions
    }

    /// Adds an event for people; `vm` is the VM's name if it is about one.
    pub fn tell(&mut self, vm: Option<&str>, text: String) {
        self.events.push(self.clock.now(), vm, text);
    }

    /// Makes the engine's new reasons events.
    pub fn tell_reasons(&mut self, vms: &mut Registry, provisioning: &mut Provisioning) {
        let engine = self.session.engine();
        vms.tell_reasons(engine, &mut self.events);
        provisioning.tell_reasons(engine, vms, &mut self.events);
    }

    /// The reason why the log ended early; `None` if it did not.
    pub fn log_ended(&self) -> Option<String> {
        self.session.log().ended().map(str::to_owned)
    }

    /// The finding about a log that ended early, for `doctor`.
    pub fn log_finding(&self) -> Option<Finding> {
        self.session.log().ended().map(|why| {
            let advice = "give the log another disk or limit ([log]), and start terraced again";
            Finding::degraded("log", why, advice)
        })
    }

    /// Writes the part of the log that still waits.
    ///
    /// # Errors
    /// If not all could be written.
    pub fn finish(&mut self) -> Result<()> {
        self.session
            .log_mut()
            .finish()
            .context("cannot finish the log")
    }
}
