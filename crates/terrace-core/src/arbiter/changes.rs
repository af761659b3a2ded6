//! The changes of a VM's memory, for people: those that were ordered, and those that would be ordered now.

use terrace_proto::provision::SizeChange;
use terrace_proto::{ProviderId, Tick};

use super::member::Member;
use super::steps::{Step, Takes};
use super::{Arbiter, Known, sum, text};
use crate::config::{ArbiterConfig, Rule};

/// The changes of a VM that are stored.
const MOST_CHANGES: usize = 16;

/// A change that was ordered, or said instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Change {
    at: Tick,
    from: u64,
    to: u64,
    why: String,
    is_ordered: bool,
}

impl Change {
    /// The change for people at this time.
    fn view(&self, now: Tick) -> SizeChange {
        SizeChange {
            ago_s: Some(now.since(self.at).as_secs_f64()),
            from_bytes: self.from,
            to_bytes: self.to,
            why: self.why.clone(),
            is_ordered: self.is_ordered,
        }
    }
}

impl Member {
    /// Notes a change that is ordered, or said instead.
    pub fn note(&mut self, at: Tick, step: &Step, why: &str, is_ordered: bool) {
        let changes = &mut self.past.changes;
        if changes.len() == MOST_CHANGES {
            changes.remove(0);
        }
        changes.push(Change {
            at,
            from: sum(&step.from),
            to: sum(&step.to),
            why: why.into(),
            is_ordered,
        });
    }

    /// Memory that was taken of it lately, bytes.
    fn gave(&self, now: Tick, config: &ArbiterConfig) -> u64 {
        let review = ArbiterConfig::ns(config.review_ms);
        let is_new = |change: &&Change| now.0.saturating_sub(change.at.0) <= review;
        let changes = self.past.changes.iter().filter(is_new);
        let changes = changes.filter(|change| change.is_ordered);
        let taken = changes.map(|change| change.from.saturating_sub(change.to));
        taken.fold(0, u64::saturating_add)
    }
}

impl Arbiter {
    /// The last changes of a VM, oldest first.
    #[must_use]
    pub fn changes(&self, id: ProviderId, now: Tick) -> Vec<SizeChange> {
        let member = self.members.get(&id);
        let changes = member.map_or(&[][..], |member| &member.past.changes);
        changes.iter().map(|change| change.view(now)).collect()
    }

    /// The changes that would be ordered if all were decided now; nothing is ordered, or remembered. The wait until the next
    /// decision does not count.
    #[must_use]
    pub fn plan(&self, now: Tick, known: &dyn Known) -> Vec<(ProviderId, SizeChange)> {
        if self.halted {
            return Vec::new();
        }
        let mut copy = self.clone();
        copy.look(now, known);
        let steps = if copy.shortage.lacks(now) > 0 {
            copy.for_host(now)
        } else if copy.config.rule == Rule::Trade {
            let host = copy.host(now);
            let (trades, members) = (&mut copy.trades, &copy.members);
            trades.advance(now, members, &host, &copy.config)
        } else {
            copy.learn(known);
            let steps = copy.decide(now, Takes::All, known, &mut Vec::new());
            steps.unwrap_or_default()
        };
        let planned = steps.into_iter().map(|(step, why)| {
            let change = SizeChange {
                ago_s: None,
                from_bytes: sum(&step.from),
                to_bytes: sum(&step.to),
                why,
                is_ordered: false,
            };
            (step.provider, change)
        });
        planned.collect()
    }

    /// Whose memory a VM that grows gets, and what it is expected to gain.
    pub(super) fn source(&self, now: Tick, step: &Step, known: &dyn Known) -> String {
        let Some(member) = self.members.get(&step.provider).filter(|_| step.grows()) else {
            return String::new();
        };
        let others = self.members.iter().filter(|(id, _)| **id != step.provider);
        let gave = others.filter_map(|(id, member)| {
            let bytes = member.gave(now, &self.config);
            (bytes > 0).then(|| (known.name(*id), bytes))
        });
        let gave: Vec<(String, u64)> = gave.collect();
        text::source(&gave, self.gain(member, step))
    }

    /// Lost time that memory is expected to save a VM that swaps, ns a second: the part of what it loses as what it gets is of
    /// what it lacks.
    fn gain(&self, member: &Member, step: &Step) -> u64 {
        if !member.is_swapping() {
            return 0;
        }
        let more = sum(&step.to).saturating_sub(sum(&step.from));
        let lacks = member.lacks(&self.config).max(1);
        let part = u128::from(member.rate().lost_ns) * u128::from(more.min(lacks));
        u64::try_from(part / u128::from(lacks)).unwrap_or(u64::MAX)
    }
}
