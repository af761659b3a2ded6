//! Whether an agent may go on managing its VM: a state machine over what it says and when.

use std::fmt;
use std::time::Duration;

use terrace_proto::Tick;
use terrace_proto::agent::{
    AgentMessage, Allowance, Broken, Counts, Heartbeat, Hello, HostMessage, Text, Versions,
};

use super::lie::{self, Lie, Possible};

/// Messages in a second. An agent sends one or two; what waited while this program stood still may come at
/// once.
const MESSAGES_PER_S: u64 = 16;
const MESSAGES_AT_ONCE: u64 = 1024;
/// Hellos in a second, and at once.
const HELLOS_PER_S: u64 = 2;
const HELLOS_AT_ONCE: u64 = 32;
/// Bytes that are no message: an agent that was killed leaves half a frame.
const GARBAGE_PER_S: u64 = 64;
const GARBAGE_AT_ONCE: u64 = 16 << 10;

/// What a watch goes by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WatchConfig {
    /// After how long without a heartbeat the agent is silent.
    pub silence: Duration,
    /// The VM's RAM, where the hypervisor told it, bytes.
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

/// What an agent does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AgentState {
    /// There is no connection, for this reason.
    Absent(String),
    /// There is one, and no heartbeat came over it yet.
    Connected,
    /// It sends heartbeats.
    Speaking,
    /// It sent no more heartbeats since then.
    Silent(Tick),
    /// It speaks no version that this program does.
    Refused(String),
    /// It said what cannot be, and is not believed until an operator says so.
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
    /// It was not heard yet, and has some time left to be.
    Waiting,
    /// It may.
    Trusted,
    /// It may not, for this reason.
    Fallback(String),
}

/// What is known of an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentView {
    /// What it does.
    pub state: AgentState,
    /// Whether it may manage its VM.
    pub verdict: Verdict,
    /// Its program version, once it said hello.
    pub program: Option<String>,
    /// Its last heartbeat that was believed.
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
    version: Option<u16>,
    /// The last one since its hello, and when it came.
    last: Option<(Heartbeat, Tick)>,
    heartbeats: u64,
    /// The last word that counts: a heartbeat, or that it was begun anew.
    heard_at: Tick,
    /// Since when it speaks without a pause.
    speaks_since: Tick,
    counts: Counts,
    /// Counts of connections that are over.
    earlier: Counts,
    messages: Allowance,
    hellos: Allowance,
    garbage: Allowance,
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
            version: None,
            last: None,
            heartbeats: 0,
            heard_at: now,
            speaks_since: now,
            counts: Counts::default(),
            earlier: Counts::default(),
            messages: Allowance::new(MESSAGES_PER_S, MESSAGES_AT_ONCE, now),
            hellos: Allowance::new(HELLOS_PER_S, HELLOS_AT_ONCE, now),
            garbage: Allowance::new(GARBAGE_PER_S, GARBAGE_AT_ONCE, now),
        }
    }

    /// The connection is there; whoever is at its other end has to say hello.
    pub fn connected(&mut self) {
        self.begin_session();
        self.earlier = self.total();
        self.counts = Counts::default();
        if !self.is_lying() {
            self.state = AgentState::Connected;
        }
    }

    /// The connection is gone, or could not be made.
    pub fn disconnected(&mut self, why: &str) {
        self.begin_session();
        if !self.is_lying() {
            self.state = AgentState::Absent(why.to_owned());
        }
    }

    fn begin_session(&mut self) {
        self.version = None;
        self.last = None;
    }

    fn is_lying(&self) -> bool {
        matches!(self.state, AgentState::Lying(_))
    }

    /// A message; what is to be answered.
    pub fn hear(&mut self, now: Tick, message: AgentMessage) -> Option<HostMessage> {
        match message {
            AgentMessage::Hello(hello) => self.hear_hello(now, hello),
            // Spoken to an earlier run of this program.
            AgentMessage::Heartbeat(_) if self.version.is_none() => Some(HostMessage::WhoIsThere),
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
        if !self.hellos.take(now, 1) {
            self.catch(Lie::HelloFlood);
            return None;
        }
        self.begin_session();
        let session = hello.session;
        self.version = hello.versions.common(Versions::OURS);
        let theirs = hello.versions;
        self.hello = Some(hello);
        let Some(version) = self.version else {
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
        lie::judge(beat.report(), possible)?;
        match &self.last {
            Some((before, at)) => lie::judge_after(before, beat, now.since(*at), possible),
            None => Ok(()),
        }
    }

    fn believe(&mut self, now: Tick, beat: Heartbeat) {
        if self.state != AgentState::Speaking {
            self.state = AgentState::Speaking;
            self.speaks_since = now;
        }
        self.heard_at = now;
        self.heartbeats += 1;
        self.last = Some((beat, now));
    }

    fn catch(&mut self, lie: Lie) {
        if !self.is_lying() {
            self.state = AgentState::Lying(lie);
        }
    }

    /// What the decoder of this connection met so far.
    pub fn met(&mut self, now: Tick, counts: Counts, broken: Option<Broken>) {
        let before = std::mem::replace(&mut self.counts, counts);
        let frames = |c: &Counts| c.messages.saturating_add(c.unknown);
        let more = |of: fn(&Counts) -> u64| of(&counts).saturating_sub(of(&before));
        if more(|c| c.malformed) > 0 {
            self.catch(Lie::Malformed);
        }
        if !self
            .messages
            .take(now, frames(&counts).saturating_sub(frames(&before)))
        {
            self.catch(Lie::Flood {
                per_s: MESSAGES_PER_S,
            });
        }
        if let Some(broken) = broken {
            self.catch(Lie::Garbage(broken.to_string()));
        } else if !self.garbage.take(now, more(|c| c.garbage_bytes)) {
            let bytes = self.total().garbage_bytes;
            self.catch(Lie::Garbage(format!("{bytes} bytes that are no message")));
        }
    }

    /// Time has passed: tells silence, and decides.
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

    /// An operator says that an agent that lied is to be believed again. It has to be heard first.
    pub fn forgive(&mut self, now: Tick) {
        if self.is_lying() {
            self.state = AgentState::Absent("to be connected again".to_owned());
        }
        self.begin_session();
        self.heard_at = now;
        self.messages = Allowance::new(MESSAGES_PER_S, MESSAGES_AT_ONCE, now);
        self.hellos = Allowance::new(HELLOS_PER_S, HELLOS_AT_ONCE, now);
        self.garbage = Allowance::new(GARBAGE_PER_S, GARBAGE_AT_ONCE, now);
    }

    /// The VM's RAM, as the hypervisor tells it now.
    pub fn know_ram(&mut self, bytes: Option<u64>) {
        self.config.ram_bytes = bytes;
    }

    /// It said hello over this connection, in a version that is spoken here.
    #[must_use]
    pub fn is_welcome(&self) -> bool {
        self.version.is_some()
    }

    /// Whether it may manage its VM, as of the last tick.
    #[must_use]
    pub fn verdict(&self) -> &Verdict {
        &self.verdict
    }

    /// What it does.
    #[must_use]
    pub fn state(&self) -> &AgentState {
        &self.state
    }

    fn total(&self) -> Counts {
        let (a, b) = (&self.earlier, &self.counts);
        Counts {
            messages: a.messages.saturating_add(b.messages),
            unknown: a.unknown.saturating_add(b.unknown),
            malformed: a.malformed.saturating_add(b.malformed),
            bad_checks: a.bad_checks.saturating_add(b.bad_checks),
            too_long: a.too_long.saturating_add(b.too_long),
            garbage_bytes: a.garbage_bytes.saturating_add(b.garbage_bytes),
        }
    }

    /// All of it.
    #[must_use]
    pub fn view(&self) -> AgentView {
        let total = self.total();
        AgentView {
            state: self.state.clone(),
            verdict: self.verdict.clone(),
            program: self.hello.as_ref().map(|h| h.program.to_string()),
            heartbeat: self.last.as_ref().map(|(beat, _)| beat.clone()),
            heartbeats: self.heartbeats,
            unknown: total.unknown,
            garbage_bytes: total.garbage_bytes,
        }
    }
}

#[cfg(test)]
mod tests;
