//! `terraced --simulate`: a simulated host instead of this one, with the same commands and API.
//!
//! Responsible for: the pace of the simulated host's time, and the view of that host. The machine, the engine on it
//! and their time are left to [`terrace_sim`], the API to [`crate::api`]. A simulation needs no privileges, and
//! touches nothing of this host but its socket and its log.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use anyhow::{Context as _, Result};
use terrace_api::provision::{ProvisioningStatus, Resize};
use terrace_api::types;
use terrace_config::LOG_LIMIT;
use terrace_core::Engine;
use terrace_host::Finding;
use terrace_proto::provision::{NotOrdered, Origin};
use terrace_proto::{Command, PAGE_SIZE, ProviderId, Tick, VmId};
use terrace_sim::{HostPolicy, Options, Scenario, Simulation, Vm};
use terrace_sys::MonotonicClock;

use crate::api;
use crate::events::{Events, seconds};
use crate::messages::{Inbox, Input};
use crate::record::Recorder;
use crate::registry::{Entry, Managed, Registry, VmKey};
use crate::served::{FindHost, Over, ResizeAnswer, Served};

/// Simulated time between two reads of the clock, ns.
const STEP_NS: u64 = 1_000_000;
/// Longest time that a question waits while the simulation runs.
const SLICE: Duration = Duration::from_millis(20);
/// Sleep while the simulation is ahead of its pace, or over.
const REST: Duration = Duration::from_millis(10);

/// The pace of simulated time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Speed {
    /// Seconds of the full-size machine in a second; fewer pass if this computer is too slow.
    Times(f64),
    /// The fastest that this computer can do.
    Max,
}

impl FromStr for Speed {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "max" {
            return Ok(Self::Max);
        }
        match text.parse::<f64>() {
            Ok(times) if (0.001..=1e6).contains(&times) => Ok(Self::Times(times)),
            _ => Err("from 0.001 to 1000000, or max".into()),
        }
    }
}

impl Speed {
    /// The simulated time to reach this long after the start, ns.
    fn due(self, since: Duration) -> u64 {
        let Self::Times(times) = self else {
            return u64::MAX;
        };
        let due = Duration::try_from_secs_f64(since.as_secs_f64() * times);
        due.map_or(u64::MAX, |due| {
            u64::try_from(due.as_nanos()).unwrap_or(u64::MAX)
        })
    }
}

/// The socket if none is named: the daemon's for root, one in a folder of their own for others.
fn default_socket() -> Result<PathBuf> {
    use std::os::unix::fs::MetadataExt as _;
    if std::fs::metadata("/proc/self").is_ok_and(|of_this_process| of_this_process.uid() == 0) {
        return Ok(terrace_api::DEFAULT_SOCKET.into());
    }
    let folder = std::env::var_os("XDG_RUNTIME_DIR").context(
        "there is no folder for the socket (XDG_RUNTIME_DIR is not set): give one by --socket FILE",
    )?;
    Ok(Path::new(&folder).join("terraced.sock"))
}

/// A simulated host and the events for people about it.
pub struct Simulated {
    simulation: Simulation,
    scenario: Scenario,
    speed: Speed,
    clock: MonotonicClock,
    vms: Registry,
    /// The provider of each VM, by the VM's name, and the number of its last reason that was logged.
    providers: BTreeMap<String, (ProviderId, u64)>,
    events: Events,
    recorder: Recorder,
    paused: bool,
    /// Whether all loads are done; time stands still then.
    over: bool,
}

impl Simulated {
    /// Sets up the scenario of a file; no time passes yet. `record`: the file of a log for `terrace sim replay`.
    ///
    /// # Errors
    /// If the file is no scenario, or the log cannot be started.
    pub fn load(file: &Path, speed: Speed, record: Option<&Path>) -> Result<Self> {
        let scenario = Scenario::load(file)?;
        Self::new(scenario, speed, record)
            .with_context(|| format!("cannot simulate {}", file.display()))
    }

    /// Serves the simulated host until its inbox has a stop. The socket is the daemon's for root if none is named, and
    /// one of their own for others.
    ///
    /// # Errors
    /// If another daemon listens already, or the log's last part cannot be written.
    pub fn serve(self, socket: Option<PathBuf>, inbox: Inbox) -> Result<()> {
        let socket = socket.map_or_else(default_socket, Ok)?;
        let Inbox { sender, inputs } = inbox;
        // A socket that no process serves any more only misleads: it is removed with this.
        let _file = api::start(&socket, sender)?;
        tracing::info!(
            "this is a simulation: use `terrace --socket {}`",
            socket.display()
        );
        self.run(&inputs)
    }

    fn new(scenario: Scenario, speed: Speed, record: Option<&Path>) -> Result<Self> {
        let options = Options::default();
        let (simulation, recorder) = match record {
            None => (Simulation::new(&scenario, options)?, Recorder::off()),
            Some(path) => {
                let simulation = Simulation::recorded(&scenario, options)?;
                let config = serde_json::to_string(simulation.engine().config())?;
                (simulation, Recorder::start(path, LOG_LIMIT, config)?)
            }
        };
        let scale = scenario.machine.scale;
        let mut vms = Registry::default();
        let mut providers = BTreeMap::new();
        for (number, vm) in (1_u32..).zip(&scenario.vms) {
            let id = VmId(number);
            providers.insert(vm.name.clone(), (Simulation::provider(id), 0));
            vms.put(entry(id, vm, scale));
        }
        Ok(Self {
            vms,
            providers,
            simulation,
            scenario,
            speed,
            clock: MonotonicClock::start(),
            events: Events::default(),
            recorder,
            paused: false,
            over: false,
        })
    }

    /// Lets time pass and answers until a stop is requested.
    fn run(mut self, inbox: &Receiver<Input>) -> Result<()> {
        let message = self.text();
        self.tell(format!("started: {message}"));
        loop {
            let sleep = self.step();
            match inbox.recv_timeout(sleep) {
                Ok(Input::Ask(question)) => question(&mut self),
                Ok(Input::Stop) | Err(RecvTimeoutError::Disconnected) => break,
                // Nothing happens on this host.
                Ok(_) | Err(RecvTimeoutError::Timeout) => {}
            }
        }
        self.recorder.finish().context("cannot finish the log")
    }

    /// Goes on for a moment; returns for how long there is nothing to do then.
    fn step(&mut self) -> Duration {
        if self.over {
            return REST;
        }
        let began = self.clock.now();
        let due = self.speed.due(Duration::from_nanos(began.0));
        let mut goes_on = true;
        while goes_on && self.simulation.now().0 < due && self.clock.now().since(began) < SLICE {
            let next = self.simulation.now().0.saturating_add(STEP_NS).min(due);
            goes_on = self.simulation.advance(next);
        }
        self.tell_news();
        if !goes_on {
            self.end();
        }
        if self.over || self.simulation.now().0 >= due {
            REST
        } else {
            Duration::ZERO
        }
    }

    fn tell_news(&mut self) {
        for (at, record) in self.simulation.take_log() {
            if let Some(end) = self.recorder.record(at, &record) {
                self.events.push(at, None, end);
            }
        }
        self.vms
            .tell_reasons(self.simulation.engine(), &mut self.events);
        let provision = self.simulation.engine().provision();
        for (name, (provider, last_reason)) in &mut self.providers {
            for reason in provision.reasons(*provider, *last_reason) {
                *last_reason = reason.sequence;
                self.events.push(reason.at, Some(name), reason.text.clone());
            }
        }
    }

    fn end(&mut self) {
        self.over = true;
        let result = self.simulation.result();
        for vm in &result.vms {
            let text = format!(
                "its load ended after {:.1} s: {:.1} % of its accesses were served by the first tier",
                vm.runtime_s,
                vm.fast_hit_ratio * 100.0
            );
            self.events
                .push(self.simulation.now(), Some(&vm.name), text);
        }
        self.tell("the scenario is over; its results remain until terraced ends".into());
    }

    fn tell(&mut self, text: String) {
        self.events.push(self.simulation.now(), None, text);
    }

    fn text(&self) -> String {
        let scale = self.scenario.machine.scale;
        let sizes = if scale == 1 {
            String::new()
        } else {
            format!(
                " at scale {scale} (sizes are shown as simulated: one {scale}th of the scenario's)"
            )
        };
        format!(
            "a simulation of {}{sizes}, seed {}",
            self.scenario.name, self.scenario.seed
        )
    }
}

fn entry(id: VmId, vm: &Vm, scale: u64) -> Entry {
    let engine = matches!(vm.policy, HostPolicy::Engine(..));
    let page = if vm.pages.host.bytes() == PAGE_SIZE {
        "4 KiB"
    } else {
        "2 MiB"
    };
    Entry {
        name: vm.name.clone(),
        process: None,
        socket: PathBuf::new(),
        hypervisor: "simulated".into(),
        memory_bytes: vm.sizes.iter().sum::<u64>() / scale,
        reason: if engine {
            String::new()
        } else {
            format!("policy {} is none of the engine's", vm.policy.name())
        },
        unscannable: false,
        findings: Vec::new(),
        agent: None,
        managed: engine.then(|| Managed::new(id, format!("the scenario has host pages of {page}"))),
    }
}

impl Served for Simulated {
    fn engine(&self) -> &Engine {
        self.simulation.engine()
    }

    fn now(&self) -> Tick {
        self.simulation.now()
    }

    fn vms(&self) -> &Registry {
        &self.vms
    }

    fn tiers(&self) -> Vec<types::Tier> {
        let scale = self.scenario.machine.scale;
        let result = self.simulation.result();
        let tiers = self.scenario.machine.tiers.iter().enumerate();
        let tier = |(index, tier): (usize, &terrace_sim::Tier)| {
            let held = result
                .vms
                .iter()
                .filter_map(|vm| vm.tier_bytes_end.get(index));
            types::Tier {
                name: tier.name.clone(),
                nodes: Vec::new(),
                total_bytes: tier.bytes / scale,
                // All-fast and all-slow VMs hold more than there is.
                free_bytes: tier.bytes.saturating_sub(held.sum()) / scale,
            }
        };
        tiers.map(tier).collect()
    }

    fn events(&self) -> &Events {
        &self.events
    }

    fn policy(&self) -> String {
        self.simulation.result().policy
    }

    fn paused(&self) -> bool {
        self.paused
    }

    fn log_ended(&self) -> Option<String> {
        self.recorder.ended().map(str::to_owned)
    }

    fn find_host(&self) -> FindHost {
        let done = self.simulation.progress() * 100.0;
        let now = seconds(self.simulation.now());
        let message = self.text();
        let found = format!(
            "{message}; {now:.1} s of it passed, {done:.0} % are done; nothing here is real"
        );
        Box::new(move || vec![Finding::ok("simulation", found)])
    }

    fn command(&mut self, command: Command) -> Result<(), Over> {
        if self.over {
            return Err(Over::Scenario);
        }
        match command {
            Command::Pause(None) => self.paused = true,
            Command::Resume(None) => self.paused = false,
            _ => {}
        }
        self.simulation.command(command);
        self.tell_news();
        Ok(())
    }

    fn provisioning(&self, vm: VmKey) -> Option<ProvisioningStatus> {
        let entry = self.vms.get(vm)?;
        let (provider, _) = self.providers.get(&entry.name)?;
        let provision = self.simulation.engine().provision();
        provision.view(*provider, self.simulation.now())
    }

    fn resize(
        &mut self,
        vm: VmKey,
        _origin: Origin,
        _sizes: &Resize,
    ) -> Result<ResizeAnswer, NotOrdered> {
        let name = self.vms.get(vm).map(|entry| entry.name.as_str());
        let name = name.unwrap_or_default();
        Err(NotOrdered::NotNow(format!(
            "{name} is simulated: its scenario resizes it (`provision`, `resize`), this command cannot"
        )))
    }
}

#[cfg(test)]
mod tests;
