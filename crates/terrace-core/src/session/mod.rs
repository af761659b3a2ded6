//! The session: the one way into a controller and out of it, and what of that is recorded.
//!
//! Responsible for: giving a controller (the engine; a guest's [`Ranges`]) an event, taking out all that it decided,
//! and the log of both.
//! Beside it stand what reads such a log again: [`replay`] with the policy that recorded it, [`other`]
//! with another one. It leaves to others: deciding ([`crate::engine`]), doing what was decided, clocks,
//! and where a log is stored ([`Log`]).
//!
//! **Invariant:** an event's record is followed by those of its actions in their order and by nothing
//! else. An action's outcome is an event of its own: it comes in after the last of them was taken.

pub mod other;
pub mod replay;

use terrace_proto::log::{RangesRecord, Record};
use terrace_proto::ranges::{RangesAction, RangesEvent};
use terrace_proto::{Action, Event, Tick};

use crate::engine::Engine;
use crate::ranges::Ranges;

/// A value without clock, file or thread that hears events and decides.
pub trait Controller {
    /// An input of the controller.
    type Event: Clone;
    /// A decision of the controller.
    type Action: Clone + PartialEq + std::fmt::Debug;

    /// Hears an event.
    fn handle(&mut self, now: Tick, event: Self::Event);

    /// The next thing that it decided.
    fn poll_action(&mut self) -> Option<Self::Action>;

    /// An event or an action as it stands in a log.
    fn record(part: Part<Self::Event, Self::Action>) -> Record;

    /// Whether both are the same decision. The wording of an answer is none, but its figures are: an older version
    /// may have said the same in other words.
    fn is_same(one: &Self::Action, other: &Self::Action) -> bool {
        one == other
    }

    /// The event or the action that a record is; none if it is neither of this controller.
    fn part(record: Record) -> Option<Part<Self::Event, Self::Action>>;
}

/// An entry of a session's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part<E, A> {
    /// An input.
    Event(E),
    /// A decision.
    Action(A),
}

impl Controller for Engine {
    type Event = Event;
    type Action = Action;

    fn handle(&mut self, now: Tick, event: Event) {
        Self::handle(self, now, event);
    }

    fn poll_action(&mut self) -> Option<Action> {
        Self::poll_action(self)
    }

    fn record(part: Part<Event, Action>) -> Record {
        match part {
            Part::Event(event) => Record::Event(event),
            Part::Action(action) => Record::Action(action),
        }
    }

    fn is_same(one: &Action, other: &Action) -> bool {
        match (one, other) {
            (Action::Answer(one), Action::Answer(other)) => one.is_same(other),
            _ => one == other,
        }
    }

    fn part(record: Record) -> Option<Part<Event, Action>> {
        match record {
            Record::Event(event) => Some(Part::Event(event)),
            Record::Action(action) => Some(Part::Action(action)),
            Record::Start(_) | Record::Ranges(_) => None,
        }
    }
}

impl Controller for Ranges {
    type Event = RangesEvent;
    type Action = RangesAction;

    fn handle(&mut self, now: Tick, event: RangesEvent) {
        Self::handle(self, now, event);
    }

    fn poll_action(&mut self) -> Option<RangesAction> {
        Self::poll_action(self)
    }

    fn record(part: Part<RangesEvent, RangesAction>) -> Record {
        Record::Ranges(match part {
            Part::Event(event) => RangesRecord::Event(event),
            Part::Action(action) => RangesRecord::Action(action),
        })
    }

    fn part(record: Record) -> Option<Part<RangesEvent, RangesAction>> {
        match record {
            Record::Ranges(RangesRecord::Event(event)) => Some(Part::Event(event)),
            Record::Ranges(RangesRecord::Action(action)) => Some(Part::Action(action)),
            _ => None,
        }
    }
}

/// The sink of a session's records.
pub trait Log {
    /// Records are wanted now. If not, none is made.
    fn is_on(&self) -> bool;

    /// Takes the next record. A log that cannot store it is off from then on, and reports that by its own means:
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

/// A controller whose events and actions all go by one log.
#[derive(Debug)]
pub struct Session<L = (), C = Engine> {
    controller: C,
    log: L,
}

impl<L> Session<L> {
    /// The engine, to read.
    #[must_use]
    pub fn engine(&self) -> &Engine {
        &self.controller
    }
}

impl<L: Log, C: Controller> Session<L, C> {
    /// A session with a controller that has heard nothing yet; the log has its start record already.
    pub fn new(controller: C, log: L) -> Self {
        Self { controller, log }
    }

    /// The controller, to read.
    #[must_use]
    pub fn controller(&self) -> &C {
        &self.controller
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

    /// Gives the controller an event; gives all that it decides, oldest first.
    #[must_use = "what was decided is recorded, and must be done"]
    pub fn hear(&mut self, now: Tick, event: C::Event) -> Vec<C::Action> {
        if self.log.is_on() {
            let record = C::record(Part::Event(event.clone()));
            self.log.append(now, record);
        }
        self.controller.handle(now, event);
        // Takes no memory if nothing is decided, as most often.
        let mut decided = Vec::new();
        while let Some(action) = self.controller.poll_action() {
            if self.log.is_on() {
                let record = C::record(Part::Action(action.clone()));
                self.log.append(now, record);
            }
            decided.push(action);
        }
        decided
    }
}
