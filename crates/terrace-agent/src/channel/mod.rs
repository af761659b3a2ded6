//! The channel to the host: a heartbeat with the guest's state goes there, instructions come back.
//!
//! Responsible for: the virtio-serial port (`port`), what is said when and what of the host is believed
//! (`conversation`, `frames`, `gathered`), and never holding up the loop that calls it: every read and write is non-blocking
//! and bounded. It leaves to others: following the instructions, and what is in a [`Report`].
//!
//! The host is distrusted too: its budgets count only as far as they are below the agent's own, its frames only if
//! this guest has memory there, and only so many at a time. While the host is silent the agent continues by its own
//! configuration.

mod conversation;
mod frames;
mod gathered;
mod port;

use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::{BuildHasher as _, Hasher as _};
use std::io;
use std::time::Duration;

use terrace_proto::agent::{Budgets, Mode, Report};
use terrace_proto::{Gfn, Tick};
use terrace_sys::HostRoot;

pub use conversation::{Conversation, Counts, Instructions};
pub use frames::{FrameRequests, MAX_FRAMES};
pub use gathered::HotFrames;
pub use port::guest_memory_end;

use conversation::Talk;
use port::Port;

/// The port's name unless the configuration has another.
pub const DEFAULT_PORT: &str = "org.terrace.agent.0";

/// Bytes of one read, and most reads in one beat.
const CHUNK: usize = 16 << 10;
const READS: usize = 8;
/// Time after which half a frame is taken for one that will never be whole.
const FRAME_PATIENCE: Duration = Duration::from_secs(2);
/// First and longest pause before the port is opened again: shorter than the host's patience, so that a
/// daemon that is restarted finds its agents before it takes them for silent.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const MAX_PAUSE: Duration = Duration::from_secs(2);

/// Configuration of the link.
#[derive(Clone, Debug)]
pub struct LinkConfig {
    /// Name of the virtio-serial port.
    pub port: String,
    /// The agent's version, for people.
    pub program: String,
    /// The agent's mode while the host is silent.
    pub mode: Mode,
    /// The agent's own limits; the host can only lower them.
    pub budgets: Budgets,
    /// Time without a word after which the host counts as silent.
    pub silence: Duration,
    /// Least time between two heartbeats.
    pub beat_every: Duration,
    /// End of this guest's memory: [`guest_memory_end`].
    pub memory_end: Gfn,
    /// Whether hot pages that the host names are wanted, for gathering.
    pub gathers: bool,
}

impl Default for LinkConfig {
    fn default() -> Self {
        Self {
            port: DEFAULT_PORT.to_owned(),
            program: env!("CARGO_PKG_VERSION").to_owned(),
            mode: Mode::Guest,
            budgets: Budgets::default(),
            silence: Duration::from_secs(5),
            beat_every: Duration::from_secs(1),
            memory_end: Gfn(0),
            gathers: false,
        }
    }
}

/// An error in the link's configuration. A port that is not there yet is no such error.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// Not a name of a port.
    #[error("port {0:?}: a port's name has letters, digits, '.', '-' and '_' only")]
    Name(String),
}

/// State of the link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkState {
    /// The port could not be opened, or broke; the agent tries again.
    Down(String),
    /// The port is open; the host has not answered yet.
    Greeting,
    /// The host speaks this version.
    Welcomed(u16),
    /// The host does not want this agent.
    Refused(String),
    /// The host has said nothing for too long.
    Silent,
}

impl fmt::Display for LinkState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Down(why) => write!(f, "no host: {why}"),
            Self::Greeting => f.write_str("the host has not answered yet"),
            Self::Welcomed(version) => write!(f, "the host speaks version {version}"),
            Self::Refused(why) => write!(f, "the host refuses this agent: {why}"),
            Self::Silent => f.write_str("the host is silent; the agent's own configuration holds"),
        }
    }
}

/// The link to the host.
#[derive(Debug)]
pub struct HostLink {
    root: HostRoot,
    config: LinkConfig,
    port: Option<Port>,
    talk: Conversation,
    /// The message on its way, and how many of its bytes are sent.
    out: Vec<u8>,
    sent: usize,
    waits_since: Option<Tick>,
    /// The reason why there is no port.
    trouble: String,
    again_at: Tick,
    pause: Duration,
    now: Tick,
}

impl HostLink {
    /// A link; the port itself is opened by [`HostLink::beat`], and again whenever it is lost.
    ///
    /// # Errors
    /// If the configured name cannot be that of a port.
    pub fn open(root: &HostRoot, config: LinkConfig) -> Result<Self, LinkError> {
        let fits = |c: char| c.is_ascii_alphanumeric() || ".-_".contains(c);
        let name = &config.port;
        if name.is_empty() || name.starts_with('.') || !name.chars().all(fits) {
            return Err(LinkError::Name(config.port));
        }
        Ok(Self {
            root: root.clone(),
            talk: Conversation::new(&config),
            config,
            port: None,
            out: Vec::new(),
            sent: 0,
            waits_since: None,
            trouble: "the port was not opened yet".to_owned(),
            again_at: Tick(0),
            pause: FIRST_PAUSE,
            now: Tick(0),
        })
    }

    /// To be called once an epoch or once a second: opens the port, reads the host's instructions, and sends a
    /// heartbeat if one is due. Never blocks and never fails; [`HostLink::state`] shows the outcome.
    pub fn beat(&mut self, now: Tick, report: &Report) {
        self.now = now;
        if self.port.is_none() && now >= self.again_at {
            self.connect(now);
        }
        self.exchange(now, report)
            .unwrap_or_else(|why| self.lose(now, why));
    }

    fn connect(&mut self, now: Tick) {
        match Port::open(&self.root, &self.config.port) {
            Ok(port) => {
                self.port = Some(port);
                self.talk
                    .begin(now, RandomState::new().build_hasher().finish());
            }
            Err(error) => self.lose(now, error.to_string()),
        }
    }

    fn exchange(&mut self, now: Tick, report: &Report) -> Result<(), String> {
        self.read(now)?;
        if self.out.is_empty()
            && self.port.is_some()
            && let Some(frame) = self.talk.speak(now, report)
        {
            self.out = frame;
        }
        self.write()
    }

    fn read(&mut self, now: Tick) -> Result<(), String> {
        let mut buffer = [0; CHUNK];
        for _ in 0..READS {
            let Some(port) = &mut self.port else {
                return Ok(());
            };
            match port.read(&mut buffer) {
                Ok(0) => return Err("the other end of the port is closed".to_owned()),
                Ok(len) => self.talk.take(now, &buffer[..len])?,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(format!("reading the port: {error}")),
            }
        }
        if !self.talk.waits() {
            self.waits_since = None;
        } else if now.since(*self.waits_since.get_or_insert(now)) >= FRAME_PATIENCE {
            self.waits_since = None;
            self.talk.cut(now)?;
        }
        if matches!(self.talk.state(now), Talk::Welcomed(_)) {
            self.pause = FIRST_PAUSE;
        }
        Ok(())
    }

    fn write(&mut self) -> Result<(), String> {
        let Some(port) = &mut self.port else {
            return Ok(());
        };
        while self.sent < self.out.len() {
            match port.write(&self.out[self.sent..]) {
                Ok(0) => return Err("the port takes nothing".to_owned()),
                Ok(len) => self.sent += len,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // A port whose host end is closed, or whose host does not read.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(format!("writing to the port: {error}")),
            }
        }
        self.out.clear();
        self.sent = 0;
        Ok(())
    }

    fn lose(&mut self, now: Tick, why: String) {
        self.port = None;
        self.out.clear();
        self.sent = 0;
        self.waits_since = None;
        self.trouble = why;
        self.again_at = now.after(self.pause);
        self.pause = (self.pause * 2).min(MAX_PAUSE);
    }

    /// The host's instructions as of the last beat, within the agent's own limits; the agent's own configuration if the
    /// host is silent. Frames are handed out once.
    pub fn take_instructions(&mut self) -> Instructions {
        self.talk.take_instructions(self.now)
    }

    /// The newest set of hot pages that the host named, once.
    pub fn take_hot(&mut self) -> Option<HotFrames> {
        self.talk.take_hot()
    }

    /// State of the link as of the last beat.
    #[must_use]
    pub fn state(&self) -> LinkState {
        if self.port.is_none() {
            return LinkState::Down(self.trouble.clone());
        }
        match self.talk.state(self.now) {
            Talk::Greeting => LinkState::Greeting,
            Talk::Welcomed(version) => LinkState::Welcomed(version),
            Talk::Refused(why) => LinkState::Refused(why),
            Talk::Silent => LinkState::Silent,
        }
    }

    /// Counters of the host's messages so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.talk.counts()
    }
}

#[cfg(test)]
mod tests;
