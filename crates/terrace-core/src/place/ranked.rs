//! Classification: counts in, hot set and exchange out.
//!
//! Responsible for: the two passes over the units and what they say about the VM. It leaves to others:
//! degrees ([`crate::estimate`]), numbers ([`super::exchange`]), lists ([`super::collect`]).

use super::{ExchangeRule, PlaceStage, Proposal, Quotas, Ranking, Room, collect::collect};
use crate::estimate::{DEGREES, Estimator, Histogram};
use crate::pages::Pages;

/// Ranks by an estimator's degrees.
#[derive(Clone, Copy, Debug)]
pub struct RankedPlace {
    /// Gives the degrees.
    pub estimator: Estimator,
    /// The conditions under which a move pays off.
    pub rule: ExchangeRule,
    /// All towards the last tier, down to the floors of the others.
    pub slowest: bool,
}

impl PlaceStage for RankedPlace {
    fn propose(&mut self, round: u64, pages: &Pages, room: &Room) -> Proposal {
        let (histogram, spans) = Histogram::with_spans(pages, self.estimator, round);
        let tiers = usize::from(pages.tiers());
        let ranking = rank(&histogram, room, self.rule);
        let mut room = room.clone();
        if self.slowest {
            for tier in 0..tiers - 1 {
                room.fit[tier] = room.fit[tier].min(room.floor[tier]);
            }
        }
        let quotas = Quotas::decide(&histogram, tiers, &room, self.rule);
        Proposal {
            ranking,
            saves_ns: 0,
            flows: collect(pages, self.estimator, round, &quotas, &spans),
        }
    }

    fn degree(&self, round: u64, pages: &Pages, unit: u32) -> Option<u8> {
        let at = unit as usize;
        let (reads, writes) = (pages.reads.get(at..=at)?, pages.writes.get(at..=at)?);
        let mut out = [0];
        self.estimator
            .degrees(round, at as u64, reads, writes, &mut out);
        Some(out[0])
    }
}

/// The hot set: the hottest known units that fit into the first tier beside its unknown ones.
pub(super) fn rank(histogram: &Histogram, room: &Room, rule: ExchangeRule) -> Ranking {
    let here: u64 =
        histogram.movable(0).iter().sum::<u64>() + histogram.staying(0).iter().sum::<u64>();
    let fit = room.fit[0].saturating_sub(room.held[0].saturating_sub(here));
    let mut ranking = Ranking {
        threshold: rule.min_hot_degree,
        ..Ranking::default()
    };
    let mut full = false;
    for degree in (0..DEGREES).rev() {
        let units = histogram.known_with(degree);
        ranking.known += units;
        if units > 0 && ranking.histogram.is_empty() {
            ranking.histogram = vec![0; degree + 1];
        }
        if let Some(slot) = ranking.histogram.get_mut(degree) {
            *slot = units;
        }
        let value = u8::try_from(degree).unwrap_or(u8::MAX);
        if full || value < rule.min_hot_degree {
            continue;
        }
        let taken = units.min(fit - ranking.hot);
        ranking.hot += taken;
        ranking.hot_here += histogram.known_in(0, degree).min(taken);
        if ranking.hot == fit {
            (ranking.threshold, full) = (value, true);
        }
    }
    ranking
}
