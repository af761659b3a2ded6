//! The rules of the conversation with the host: when to say what, and which of the host's words are believed. No
//! clock, no file: time is an argument.

use std::time::Duration;

use terrace_proto::agent::{
    AgentMessage, Allowance, Budgets, Decoder, Frames, Gather, Heartbeat, Hello, HostMessage,
    Message as _, Mode, Report, Text, Versions,
};
use terrace_proto::{Gfn, Tick};

use super::LinkConfig;
use super::frames::{FrameRequests, Waiting};
use super::gathered::{HotFrames, HotSet};

/// Pause between two hellos that are not answered, and after one that was refused.
const HELLO_EVERY: Duration = Duration::from_secs(1);
const REFUSED_FOR: Duration = Duration::from_secs(30);
/// Limits of the host's messages per second, and at once. A host sends some five a second, and frames.
const MESSAGES_PER_S: u64 = 64;
const MESSAGES_AT_ONCE: u64 = 512;

/// The orders that the agent follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instructions {
    /// Whether the host gave them; otherwise they are the agent's own configuration.
    pub by_host: bool,
    /// The division of work between agent and host.
    pub mode: Mode,
    /// Whether the agent neither samples nor moves for now.
    pub paused: bool,
    /// The limits of its spending.
    pub budgets: Budgets,
    /// Pages to move, in coordinated mode.
    pub frames: FrameRequests,
}

/// Counters of the host's messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Counts {
    /// Messages that were understood.
    pub messages: u64,
    /// Bytes, frames and messages that were not understood.
    pub faults: u64,
    /// Times that the link was given up because of such faults, or because of a flood.
    pub broken: u64,
    /// Frames that were taken.
    pub frames_taken: u64,
    /// Frames outside of memory, named twice, too many, of an old decision, or not in coordinated mode.
    pub frames_refused: u64,
    /// Frames of hot pages that were taken, for gathering.
    pub hot_taken: u64,
    /// Frames of hot pages outside of memory, named twice, too many, of an old set, or for an agent that gathers by none.
    pub hot_refused: u64,
}

/// State of the conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Talk {
    Greeting,
    Welcomed(u16),
    Refused(String),
    Silent,
}

/// The host's latest words on mode, pause and budgets.
#[derive(Clone, Copy, Debug, Default)]
struct Said {
    mode: Option<Mode>,
    paused: bool,
    budgets: Budgets,
}

/// The agent's side of the conversation: its version, its own configuration and its limits.
#[derive(Debug)]
struct Own {
    program: Text<64>,
    mode: Mode,
    budgets: Budgets,
    silence: Duration,
    beat_every: Duration,
    memory_end: Gfn,
    gathers: bool,
}

/// Frames that the host named.
#[derive(Debug, Default)]
struct Named {
    /// To be moved.
    moves: Waiting,
    /// To be gathered.
    hot: HotSet,
}

/// The conversation without a port: bytes of the host go in, instructions and frames to send come out.
#[derive(Debug)]
pub struct Conversation {
    own: Own,
    decoder: Decoder<HostMessage>,
    allowance: Allowance,
    session: u64,
    sequence: u64,
    welcome: Option<u16>,
    refused: Option<String>,
    heard_at: Option<Tick>,
    spoke_at: Option<Tick>,
    said: Said,
    named: Named,
    counts: Counts,
}

impl Conversation {
    /// A conversation in which nothing has been said.
    #[must_use]
    pub fn new(config: &LinkConfig) -> Self {
        Self {
            own: Own {
                program: Text::lossy(&config.program),
                mode: config.mode,
                budgets: config.budgets,
                silence: config.silence,
                beat_every: config.beat_every,
                memory_end: config.memory_end,
                gathers: config.gathers,
            },
            decoder: Decoder::default(),
            allowance: Allowance::new(MESSAGES_PER_S, MESSAGES_AT_ONCE, Tick(0)),
            session: 0,
            sequence: 0,
            welcome: None,
            refused: None,
            heard_at: None,
            spoke_at: None,
            said: Said::default(),
            named: Named::default(),
            counts: Counts::default(),
        }
    }

    /// Begins anew, because the port was opened: what was said before no longer counts.
    pub fn begin(&mut self, now: Tick, session: u64) {
        self.renew_decoder();
        self.allowance = Allowance::new(MESSAGES_PER_S, MESSAGES_AT_ONCE, now);
        self.spoke_at = None;
        self.greet_again(session);
    }

    fn renew_decoder(&mut self) {
        self.counts = self.counts();
        self.decoder = Decoder::default();
    }

    /// Starts a new greeting. The host's instructions stay in force until it has been silent for too long.
    fn greet_again(&mut self, session: u64) {
        self.session = session;
        (self.welcome, self.refused) = (None, None);
        self.named = Named::default();
    }

    /// Takes in bytes of the host.
    ///
    /// # Errors
    /// If the link is to be given up; the error is the reason.
    pub fn take(&mut self, now: Tick, bytes: &[u8]) -> Result<(), String> {
        let messages = self.decoder.push(bytes);
        self.took(now, messages)
    }

    /// Takes in that the pending half of a frame will never become whole.
    pub(super) fn cut(&mut self, now: Tick) -> Result<(), String> {
        let messages = self.decoder.cut();
        self.took(now, messages)
    }

    fn took(&mut self, now: Tick, messages: Vec<HostMessage>) -> Result<(), String> {
        let floods = !self.allowance.take(now, messages.len() as u64);
        for message in messages {
            self.counts.messages += 1;
            self.hear(now, message);
        }
        let reason = match self.decoder.broken() {
            Some(broken) => broken.to_string(),
            None if floods => format!("more than {MESSAGES_PER_S} messages a second"),
            None => return Ok(()),
        };
        self.counts.broken += 1;
        self.renew_decoder();
        Err(format!("the host sends invalid messages: {reason}"))
    }

    fn hear(&mut self, now: Tick, message: HostMessage) {
        match message {
            HostMessage::Welcome { version, session } if session == self.session => {
                self.welcome = Some(version);
                self.refused = None;
            }
            HostMessage::Refused { session, reason } if session == self.session => {
                self.welcome = None;
                self.refused = Some(reason.to_string());
            }
            HostMessage::WhoIsThere if self.welcome.is_some() => {
                // The host began anew. Its next message is an answer to the next hello.
                let session = self.session.wrapping_add(1);
                self.greet_again(session);
                return;
            }
            // To an earlier agent, or said before the welcome.
            _ if self.welcome.is_none() => return,
            HostMessage::Mode(mode) => {
                self.said.mode = Some(mode);
                if mode != Mode::Coordinated {
                    self.named.moves.forget();
                }
            }
            HostMessage::Pause(paused) => self.said.paused = paused,
            HostMessage::Budgets(budgets) => self.said.budgets = budgets,
            HostMessage::Frames(frames) => self.hear_frames(&frames),
            HostMessage::Gather(part) => self.hear_hot(&part),
            HostMessage::Welcome { .. } | HostMessage::Refused { .. } | HostMessage::WhoIsThere => {
                return;
            }
        }
        self.heard_at = Some(now);
    }

    fn hear_frames(&mut self, frames: &Frames) {
        let named = (frames.promote().len() + frames.demote().len()) as u64;
        let taken = match self.said.mode {
            Some(Mode::Coordinated) => self.named.moves.take_in(frames, self.own.memory_end),
            _ => 0,
        };
        self.counts.frames_taken += taken;
        self.counts.frames_refused += named - taken;
    }

    fn hear_hot(&mut self, part: &Gather) {
        let named = part.hot().len() as u64;
        let taken = match self.own.gathers {
            true => self.named.hot.take_in(part, self.own.memory_end),
            false => 0,
        };
        self.counts.hot_taken += taken;
        self.counts.hot_refused += named - taken;
    }

    /// The newest set of hot pages that the host named, once.
    pub fn take_hot(&mut self) -> Option<HotFrames> {
        self.named.hot.hand_out()
    }

    /// Frames of hot pages that are held, [`MAX_HOT`](terrace_proto::agent::MAX_HOT) at most.
    #[must_use]
    pub fn waiting_hot(&self) -> usize {
        self.named.hot.len()
    }

    /// The next message as a frame, if one is due.
    pub fn speak(&mut self, now: Tick, report: &Report) -> Option<Vec<u8>> {
        let every = match (&self.refused, self.welcome) {
            (Some(_), _) => REFUSED_FOR,
            (None, None) => HELLO_EVERY,
            (None, Some(_)) => self.own.beat_every,
        };
        if self.spoke_at.is_some_and(|at| now.since(at) < every) {
            return None;
        }
        let message = if self.welcome.is_some() {
            self.sequence += 1;
            let beat = Heartbeat::new(self.sequence, now, report.clone());
            // Not sent: the host would take it for a lie.
            let beat = beat.inspect_err(|why| tracing::warn!("no heartbeat was sent: {why}"));
            AgentMessage::Heartbeat(Box::new(beat.ok()?))
        } else {
            AgentMessage::Hello(Hello {
                versions: Versions::OURS,
                session: self.session,
                program: self.own.program.clone(),
            })
        };
        self.spoke_at = Some(now);
        message.encode().ok()
    }

    /// Whether half a frame waits for its rest.
    pub(super) fn waits(&self) -> bool {
        self.decoder.pending() > 0
    }

    pub(super) fn state(&self, now: Tick) -> Talk {
        match (&self.refused, self.welcome) {
            (Some(why), _) => Talk::Refused(why.clone()),
            (None, Some(_)) if !self.hears(now) => Talk::Silent,
            (None, Some(version)) => Talk::Welcomed(version),
            (None, None) => Talk::Greeting,
        }
    }

    fn hears(&self, now: Tick) -> bool {
        self.heard_at
            .is_some_and(|at| now.since(at) < self.own.silence)
    }

    /// The host's instructions within the agent's own limits, or the agent's own configuration while the host is
    /// silent. Frames are handed out once.
    pub fn take_instructions(&mut self, now: Tick) -> Instructions {
        match self.said.mode {
            Some(mode) if self.refused.is_none() && self.hears(now) => Instructions {
                by_host: true,
                mode,
                paused: self.said.paused,
                budgets: self.said.budgets.within(self.own.budgets),
                frames: self.named.moves.hand_out(),
            },
            _ => {
                self.named.moves.forget();
                Instructions {
                    by_host: false,
                    mode: self.own.mode,
                    paused: false,
                    budgets: self.own.budgets,
                    frames: FrameRequests::default(),
                }
            }
        }
    }

    pub(super) fn counts(&self) -> Counts {
        let c = self.decoder.counts();
        let faults = c.garbage_bytes + c.malformed + c.bad_checks + c.too_long + c.unknown;
        Counts {
            faults: self.counts.faults + faults,
            ..self.counts
        }
    }

    /// Frames that wait to be taken, [`MAX_FRAMES`](super::MAX_FRAMES) at most.
    #[must_use]
    pub fn waiting_frames(&self) -> usize {
        self.named.moves.len()
    }
}
