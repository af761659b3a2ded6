//! The last things that the daemon decided and did, for `terrace events`.

use std::collections::VecDeque;

use terrace_api::types::EventLine;
use terrace_proto::Tick;
use terrace_proto::printable::{MAX_TEXT_CHARS, excerpt};

/// The most events that the buffer has.
const MAX_EVENTS: usize = 4096;

/// A bounded list of events, numbered from 1.
#[derive(Debug, Default)]
pub struct Events {
    lines: VecDeque<EventLine>,
    last: u64,
}

impl Events {
    /// Appends an event; the oldest one goes if the list is full.
    pub fn push(&mut self, now: Tick, vm: Option<&str>, text: String) {
        self.last += 1;
        let text = excerpt(&text, MAX_TEXT_CHARS);
        tracing::info!(vm, "{text}");
        if self.lines.len() == MAX_EVENTS {
            self.lines.pop_front();
        }
        self.lines.push_back(EventLine {
            sequence: self.last,
            at_s: seconds(now),
            vm: vm.map(str::to_owned),
            text,
        });
    }

    /// Events whose number is above `after`; for 0 all in the buffer.
    ///
    /// # Errors
    /// If events after `after` are lost already: a follower must not conclude that nothing happened.
    pub fn after(&self, after: u64) -> Result<Vec<EventLine>, Missed> {
        let oldest = self.lines.front().map_or(1, |line| line.sequence);
        if after > self.last {
            return Err(Missed::StartedAnew(after));
        }
        if after > 0 && after + 1 < oldest {
            return Err(Missed::Behind(after + 1, oldest - 1));
        }
        let new = self.lines.iter().filter(|e| e.sequence > after);
        Ok(new.cloned().collect())
    }
}

/// The reason why a follower of the events cannot continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Missed {
    /// More happened since than the buffer has.
    #[error(
        "events {0} to {1} are lost: the daemon keeps the last {MAX_EVENTS}, and the reader fell behind. \
         Start again with after=0"
    )]
    Behind(u64, u64),
    /// The number is another daemon's, from before a restart.
    #[error(
        "there is no event {0}: terraced was restarted, and its events are numbered anew. Start again with after=0"
    )]
    StartedAnew(u64),
}

/// A tick as seconds, for people.
pub fn seconds(tick: Tick) -> f64 {
    std::time::Duration::from_nanos(tick.0).as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_events_go_and_numbers_stay() {
        let mut events = Events::default();
        for i in 0..MAX_EVENTS + 3 {
            events.push(Tick(0), None, i.to_string());
        }
        let all = events.after(0).unwrap();
        assert_eq!((all.len(), all[0].sequence), (MAX_EVENTS, 4));
        let last = events.after(all[MAX_EVENTS - 2].sequence).unwrap();
        assert_eq!(last.len(), 1);
    }

    #[test]
    fn a_follower_that_falls_behind_is_told_which_events_it_missed() {
        let mut events = Events::default();
        assert_eq!(events.after(0).unwrap().len(), 0);
        for i in 0..MAX_EVENTS as u64 + 3 {
            events.push(Tick(0), None, i.to_string());
        }
        assert_eq!(events.after(2), Err(Missed::Behind(3, 3)));
        assert_eq!(events.after(3).unwrap().len(), MAX_EVENTS);
        let last = MAX_EVENTS as u64 + 3;
        assert_eq!(events.after(last).unwrap().len(), 0);
        let anew = events.after(last + 1).unwrap_err();
        assert!(anew.to_string().contains("was restarted"), "{anew}");
    }
}
