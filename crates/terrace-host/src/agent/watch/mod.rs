//! Whether an agent may continue to manage its VM: a state machine over its messages and their times.

mod session;
mod traffic;

use std::fmt;
use std::time::Duration;

use terrace_proto::Tick;
use terrace_proto::agent::{
    AgentMessage, Broken, Counts, Heartbeat, Hello, HostMessage, Text, Versions,
};

use super::lie::{self, Lie, Possible};
use session::Session;
use traffic::Traffic;

/// The configuration of a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WatchConfig {
    /// Time without a heartbeat after which the agent is silent.
    pub silence: Duration,
    /// The VM's RAM, bytes; `None` if the hypervisor did not report it.
    pub ram_bytes: Option<u64>,
    /// Most that an agent can have moved in a second, bytes.
    pub possible_bytes_per_s: u64,
}

impl Default for WatchConfig {
    fn default() -> Self {
        Self {
            silence: Duration::from_secs(5),
            ram_bytes: None,
            // Above what one socket's memory channels carry.
            possible_bytes_per_s: 64 << 30,
        }
    }
}

/// The state of an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AgentState {
    /// There is no connection, for this reason.
    Absent(String),
    /// There is a connection, and no heartbeat came over it yet.
    Connected,
    /// The agent sends heartbeats.
    Speaking,
    /// The agent has sent no heartbeat since this time.
    Silent(Tick),
    /// The agent speaks no version that this program speaks, in words.
    Refused(String),
    /// The agent sent something impossible, and is not believed until an operator allows it.
    Lying(Lie),
}

impl fmt::Display for AgentState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent(why) => write!(f, "absent: {why}"),
            Self::Connected => f.write_str("connected, not heard yet"),
            Self::Speaking => f.write_str("speaking"),
            Self::Silent(_) => f.write_str("silent"),
            Self::Refused(why) => write!(f, "refused: {why}"),
            Self::Lying(lie) => write!(f, "lying: {lie}"),
        }
    }
}

/// Whether the agent may manage its VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The agent was not heard yet, and still has some time.
    Waiting,
    /// The agent may manage its VM.
    Trusted,
    /// The agent may not manage its VM, for this reason.
    Fallback(String),
}

/// The view of an agent for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentView {
    /// The agent's state.
    pub state: AgentState,
    /// Whether the agent may manage its VM.
    pub verdict: Verdict,
    /// The agent's program version; `None` before its hello.
    pub program: Option<String>,
    /// The agent's last heartbeat that was believed.
    pub heartbeat: Option<Heartbeat>,
    /// Heartbeats that were believed.
    pub heartbeats: u64,
    /// Messages of kinds that this program does not know.
    pub unknown: u64,
    /// Bytes that were no message.
    pub garbage_bytes: u64,
}

/// Follows one agent.
#[derive(Debug)]
pub struct AgentWatch {
    config: WatchConfig,
    state: AgentState,
    verdict: Verdict,
    hello: Option<Hello>,
    session: Session,
    heartbeats: u64,
    /// The time of the agent's last heartbeat, or of the watch's beginning, or of an operator's pardon if that is
    /// later.
    heard_at: Tick,
    /// The time since which the agent speaks without a pause.
    speaks_since: Tick,
    traffic: Traffic,
}

impl AgentWatch {
    /// A watch over an agent that is not connected yet.
    #[must_use]
    pub fn new(config: WatchConfig, now: Tick) -> Self {
        Self {
            config,
            state: AgentState::Absent("not connected yet".to_owned()),
            verdict: Verdict::Waiting,
            hello: None,
            session: Session::default(),
            heartbeats: 0,
            heard_at: now,
            speaks_since: now,
            traffic: Traffic::new(now),
        }
    }

    /// Takes in that the connection is there; the peer has to send its hello.
    pub fn connected(&mut self) {
        self.session = Session::default();
        self.traffic.connected();
        if !self.is_lying() {
            self.state = AgentState::Connected;
        }
    }

    /// Takes in that the connection is gone, or could not be made.
    pub fn disconnected(&mut self, why: &str) {
        self.session = Session::default();
        if !self.is_lying() {
            self.state = AgentState::Absent(why.to_owned());
        }
    }

    fn is_lying(&self) -> bool {
        matches!(self.state, AgentState::Lying(_))
    }

    /// Takes in a message, and returns the answer, if one is due.
    pub fn hear(&mut self, now: Tick, message: AgentMessage) -> Option<HostMessage> {
        match message {
            AgentMessage::Hello(hello) => self.hear_hello(now, hello),
            // Spoken to an earlier run of this program.
            AgentMessage::Heartbeat(_) if !self.is_welcome() => Some(HostMessage::WhoIsThere),
            AgentMessage::Heartbeat(_) if self.is_lying() => None,
            AgentMessage::Heartbeat(beat) => {
                match self.judge(now, &beat) {
                    Ok(()) => self.believe(now, *beat),
                    Err(lie) => self.catch(lie),
                }
                None
            }
        }
    }

    fn hear_hello(&mut self, now: Tick, hello: Hello) -> Option<HostMessage> {
        if let Err(lie) = self.traffic.hello(now) {
            self.catch(lie);
            return None;
        }
        self.session = Session::of(&hello);
        let (session, theirs) = (hello.session, hello.versions);
        self.hello = Some(hello);
        let Some(version) = self.session.version() else {
            let reason = format!(
                "the agent speaks versions {theirs} of the channel and this host {}: update the older one",
                Versions::OURS
            );
            let answer = Text::lossy(&reason);
            if !self.is_lying() {
                self.state = AgentState::Refused(reason);
            }
            return Some(HostMessage::Refused {
                session,
                reason: answer,
            });
        };
        if matches!(self.state, AgentState::Refused(_) | AgentState::Absent(_)) {
            self.state = AgentState::Connected;
        }
        Some(HostMessage::Welcome { version, session })
    }

    fn judge(&self, now: Tick, beat: &Heartbeat) -> Result<(), Lie> {
        let possible = Possible {
            ram_bytes: self.config.ram_bytes,
            bytes_per_s: self.config.possible_bytes_per_s,
        };
        self.session.judge(now, beat, possible)
    }

    fn believe(&mut self, now: Tick, beat: Heartbeat) {
        if self.state != AgentState::Speaking {
            self.state = AgentState::Speaking;
            self.speaks_since = now;
        }
        self.heard_at = now;
        self.heartbeats += 1;
        self.session.believe(now, beat);
    }

    fn catch(&mut self, lie: Lie) {
        if !self.is_lying() {
            self.state = AgentState::Lying(lie);
        }
    }

    /// Takes in the counters of this connection's decoder so far, and whether the decoder gave up.
    pub fn met(&mut self, now: Tick, counts: Counts, broken: Option<Broken>) {
        if let Err(lie) = self.traffic.met(now, counts, broken) {
            self.catch(lie);
        }
    }

    /// Takes in that time has passed: notices silence, and decides.
    pub fn tick(&mut self, now: Tick) {
        let quiet = now.since(self.heard_at) >= self.config.silence;
        if quiet && self.state == AgentState::Speaking {
            self.state = AgentState::Silent(self.heard_at);
        }
        self.verdict = match (&self.state, &self.verdict) {
            (AgentState::Lying(lie), _) => Verdict::Fallback(format!("its agent lies: {lie}")),
            (AgentState::Refused(why), _) => Verdict::Fallback(why.clone()),
            // Who was silent has to speak for as long before it counts: no going to and fro.
            (AgentState::Speaking, Verdict::Fallback(why))
                if now.since(self.speaks_since) < self.config.silence =>
            {
                Verdict::Fallback(why.clone())
            }
            (AgentState::Speaking, _) => Verdict::Trusted,
            (_, Verdict::Fallback(_)) | (AgentState::Silent(_), _) => self.silent(),
            (_, verdict) if !quiet => verdict.clone(),
            _ => self.silent(),
        };
    }

    fn silent(&self) -> Verdict {
        let why = match &self.state {
            AgentState::Absent(why) => format!(" ({why})"),
            AgentState::Connected => " (the port is connected)".to_owned(),
            _ => String::new(),
        };
        let silence = self.config.silence.as_secs_f64();
        Verdict::Fallback(format!("its agent is silent for {silence} s or more{why}"))
    }

    /// Takes in that an operator wants an agent that lied to be believed again. It has to be heard first.
    pub fn forgive(&mut self, now: Tick) {
        if self.is_lying() {
            self.state = AgentState::Absent("to be connected again".to_owned());
        }
        self.session = Session::default();
        self.heard_at = now;
        self.traffic.allow_again(now);
    }

    /// The VM's RAM, as the hypervisor reports it now.
    pub fn know_ram(&mut self, bytes: Option<u64>) {
        self.config.ram_bytes = bytes;
    }

    /// Whether the agent sent its hello over this connection, in a version that is spoken here.
    #[must_use]
    pub fn is_welcome(&self) -> bool {
        self.session.version().is_some()
    }

    /// Whether the agent may manage its VM, as of the last tick.
    #[must_use]
    pub fn verdict(&self) -> &Verdict {
        &self.verdict
    }

    /// The agent's state.
    #[must_use]
    pub fn state(&self) -> &AgentState {
        &self.state
    }

    /// The view of the agent.
    #[must_use]
    pub fn view(&self) -> AgentView {
        let total = self.traffic.total();
        AgentView {
            state: self.state.clone(),
            verdict: self.verdict.clone(),
            program: self.hello.as_ref().map(|h| h.program.to_string()),
            heartbeat: self.session.heartbeat().cloned(),
            heartbeats: self.heartbeats,
            unknown: total.unknown,
            garbage_bytes: total.garbage_bytes,
        }
    }
}

#[cfg(test)]
mod tests;
