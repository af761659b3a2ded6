//! Moves of what the top lists hold (HMvisor §3.2.1).
//!
//! Responsible for: the end of an epoch (threshold, lists) and proposals from the lists as they stand. It leaves to
//! others: the lists ([`crate::estimate`]), the numbers ([`super::sides`]), and when pages move ([`crate::engine`]).

use super::collect::collect;
use super::ranked::rank;
use super::sides::decide;
use super::{ExchangeRule, Flow, PlaceStage, Proposal, Room};
use crate::estimate::{Estimator, Histogram, ListRule, Sampled, TopLists, lowest_threshold};
use crate::pages::Pages;
use crate::policy::{HotLists, HotnessThreshold, Sides};

/// Moves units by hot and cold lists.
#[derive(Clone, Copy, Debug)]
pub struct TopListsPlace {
    lists: HotLists,
    counter: Estimator,
    /// The threshold of the last epoch; none if no unit repaid its copy.
    threshold: Option<u8>,
}

impl TopListsPlace {
    /// A stage before its first epoch.
    #[must_use]
    pub fn new(lists: HotLists, counter: Estimator) -> Self {
        Self {
            lists,
            counter,
            threshold: None,
        }
    }

    fn flows(&self, round: u64, pages: &Pages, room: &Room) -> Vec<Flow> {
        let by = TopLists {
            lists: self.lists.lists,
            counter: self.counter,
        };
        let (histogram, spans) = Histogram::with_spans(pages, by, round);
        let sides = match room.double_sided {
            true => Sides::Double,
            false => self.lists.sides,
        };
        let quotas = decide(&histogram, pages.tiers().into(), room, sides);
        collect(pages, by, round, &quotas, &spans)
    }

    /// The rule of a ranking by counts: hot is what is above the threshold.
    fn rule(&self) -> ExchangeRule {
        ExchangeRule {
            min_hot_degree: self.threshold.map_or(u8::MAX, |t| t.saturating_add(1)),
            hysteresis: 0,
        }
    }
}

impl PlaceStage for TopListsPlace {
    fn end_round(&mut self, pages: &mut Pages, room: &Room, _: &mut Option<Box<Sampled>>) {
        let tiers = usize::from(pages.tiers());
        self.threshold = match self.lists.threshold {
            HotnessThreshold::Above(count) => Some(count),
            HotnessThreshold::Auto => {
                let counts = Histogram::tally(pages, self.counter, 0);
                lowest_threshold(&counts, tiers, room.fit[0], self.lists.lists)
            }
        };
        let rule = ListRule {
            lists: self.lists.lists,
            decay: self.lists.decay_epochs,
        };
        rule.end_epoch(pages, self.counter, self.threshold);
    }

    fn propose(&mut self, round: u64, pages: &Pages, room: &Room) -> Proposal {
        let counts = Histogram::tally(pages, self.counter, round);
        Proposal {
            ranking: rank(&counts, room, self.rule()),
            saves_ns: 0,
            flows: self.flows(round, pages, room),
        }
    }

    fn propose_between(&mut self, round: u64, pages: &Pages, room: &Room) -> Vec<Flow> {
        self.flows(round, pages, room)
    }

    fn degree(&self, round: u64, pages: &Pages, unit: u32) -> Option<u8> {
        let at = unit as usize;
        let (reads, writes) = (pages.reads.get(at..=at)?, pages.writes.get(at..=at)?);
        let mut out = [0];
        self.counter
            .degrees(round, at as u64, reads, writes, &mut out);
        Some(out[0])
    }
}
