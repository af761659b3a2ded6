//! The session: the one way into the engine and out of it, and what of that is recorded.
//!
//! Responsible for: giving the engine an event, taking out all that it decided, and the log of both.
//! Beside it stand what reads such a log again: [`replay`] with the policy that recorded it, [`other`]
//! with another one. It leaves to others: deciding ([`crate::engine`]), doing what was decided, clocks,
//! and where a log is kept ([`Log`]).
//!
//! **Invariant:** an event's record is followed by those of its actions in their order and by nothing
//! else. What an action leads to is an event of its own: it comes in after the last of them was taken.

pub mod other;
pub mod replay;

use terrace_proto::log::Record;
use terrace_proto::{Action, Event, Tick};

use crate::engine::Engine;

/// Where a session's records go.
pub trait Log {
    /// Records are wanted now. If not, none is made.
    fn is_on(&self) -> bool;

    /// Takes the next record. A log that cannot keep it is off from then on, and says so by its own means:
    /// no decision depends on it.
    fn append(&mut self, at: Tick, record: Record);
}

/// No log.
impl Log for () {
    fn is_on(&self) -> bool {
        false
    }

    fn append(&mut self, _: Tick, _: Record) {}
}

/// A log in memory.
impl Log for Vec<(Tick, Record)> {
    fn is_on(&self) -> bool {
        true
    }

    fn append(&mut self, at: Tick, record: Record) {
        self.push((at, record));
    }
}

/// A log that there may be.
impl<L: Log> Log for Option<L> {
    fn is_on(&self) -> bool {
        self.as_ref().is_some_and(Log::is_on)
    }

    fn append(&mut self, at: Tick, record: Record) {
        if let Some(log) = self {
            log.append(at, record);
        }
    }
}

/// An engine whose events and actions all go by one log.
pub struct Session<L = ()> {
    engine: Engine,
    log: L,
}

impl<L: Log> Session<L> {
    /// A session with an engine that has heard nothing yet; the log has its start record already.
    pub fn new(engine: Engine, log: L) -> Self {
        Self { engine, log }
    }

    /// The engine, to look at.
    #[must_use]
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The log.
    #[must_use]
    pub fn log(&self) -> &L {
        &self.log
    }

    /// The log, to take from it or to end it.
    pub fn log_mut(&mut self) -> &mut L {
        &mut self.log
    }

    /// Gives the engine an event; gives all that it decides, oldest first.
    #[must_use = "what was decided is recorded, and must be done"]
    pub fn hear(&mut self, now: Tick, event: Event) -> Vec<Action> {
        if self.log.is_on() {
            self.log.append(now, Record::Event(event.clone()));
        }
        self.engine.handle(now, event);
        // Takes no memory if nothing is decided, as most often.
        let mut decided = Vec::new();
        while let Some(action) = self.engine.poll_action() {
            if self.log.is_on() {
                self.log.append(now, Record::Action(action.clone()));
            }
            decided.push(action);
        }
        decided
    }
}
