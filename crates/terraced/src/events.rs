//! The last things that the daemon decided and did, for `terrace events`.

use std::collections::VecDeque;

use terrace_api::types::EventLine;
use terrace_proto::Tick;
use terrace_proto::printable::{MOST_WORDS, excerpt};

/// Events kept.
const KEPT: usize = 4096;

/// A bounded list of events, numbered from 1.
#[derive(Debug, Default)]
pub struct Events {
    lines: VecDeque<EventLine>,
    last: u64,
}

impl Events {
    /// Appends an event; the oldest one goes where the list is full.
    pub fn push(&mut self, now: Tick, vm: Option<&str>, text: String) {
        self.last += 1;
        let text = excerpt(&text, MOST_WORDS);
        tracing::info!(vm, "{text}");
        if self.lines.len() == KEPT {
            self.lines.pop_front();
        }
        self.lines.push_back(EventLine {
            sequence: self.last,
            at_s: seconds(now),
            vm: vm.map(str::to_owned),
            text,
        });
    }

    /// Events whose number is above `after`.
    pub fn after(&self, after: u64) -> Vec<EventLine> {
        self.lines
            .iter()
            .filter(|e| e.sequence > after)
            .cloned()
            .collect()
    }
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
        for i in 0..KEPT + 3 {
            events.push(Tick(0), None, i.to_string());
        }
        let all = events.after(0);
        assert_eq!((all.len(), all[0].sequence), (KEPT, 4));
        assert_eq!(events.after(all[KEPT - 2].sequence).len(), 1);
    }
}
