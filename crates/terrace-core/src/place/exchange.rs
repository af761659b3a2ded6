//! The exchange (vTMM §3.3.2): the hottest units of slower tiers against the coldest of faster ones.
//!
//! Responsible for: deciding, from the histogram alone, how many units of each degree go from which
//! tier to which. It leaves to others: which units those are ([`super::collect`]).
//!
//! Tiers are settled from the fastest on; for each one, in this order:
//! 1. it holds more than fits: its coldest units go to the next tier;
//! 2. it has room: the hottest units of slower tiers come, one way;
//! 3. the hottest unit of slower tiers is exchanged for its coldest one as long as the first is hotter
//!    by more than the hysteresis. So units of equal degree are never exchanged, and what is placed
//!    well stays.
//!
//! A unit is promoted only from the least hot degree on. Degrees are bucket numbers, so the cost does
//! not depend on the number of pages.

use terrace_proto::TierId;

use super::Room;
use crate::estimate::{DEGREES, Histogram};

const TIERS: usize = TierId::MAX;

/// The conditions under which a move pays off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExchangeRule {
    /// Least degree of a unit that is promoted.
    pub min_hot_degree: u8,
    /// An exchange needs a difference of more than this.
    pub hysteresis: u8,
}

/// How many units go from tier to tier, by degree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quotas {
    /// By origin, destination and degree: all movable units, also those that stay.
    at: Box<[[[u64; DEGREES]; TIERS]; TIERS]>,
    /// Units that must leave a tier because it holds too much.
    pub(super) forced: [u64; TIERS],
}

impl Quotas {
    /// Decides for one VM of `tiers` tiers.
    #[must_use]
    pub fn decide(histogram: &Histogram, tiers: usize, room: &Room, rule: ExchangeRule) -> Self {
        let fills = |hot: u8| hot >= rule.min_hot_degree;
        let pays = |cold: u8, hot: u8| fills(hot) && cold.saturating_add(rule.hysteresis) < hot;
        Self::by(histogram, tiers, room, fills, pays)
    }

    /// The same by any rule: whether units of a degree go where there is room, and whether a cold one and a hot one change
    /// places. What holds for two degrees must hold for hotter hot ones and colder cold ones.
    pub(super) fn by(
        histogram: &Histogram,
        tiers: usize,
        room: &Room,
        fills: impl Fn(u8) -> bool,
        pays: impl Fn(u8, u8) -> bool,
    ) -> Self {
        let (mut settle, fit) = Settle::begin(histogram, tiers, room);
        for (tier, &fit) in fit.iter().enumerate().take(tiers - 1) {
            settle.shrink(tier, fit);
            settle.fill(tier, fit, &fills);
            settle.exchange(tier, &pays);
        }
        settle.quotas
    }

    /// Units of a degree that go from one tier to another.
    #[must_use]
    pub fn get(&self, from: usize, to: usize, degree: usize) -> u64 {
        self.at[from][to][degree]
    }

    /// Units that a tier is to hold, those that may not move included.
    pub(super) fn held(
        &self,
        tier: usize,
        tiers: usize,
        histogram: &Histogram,
        room: &Room,
    ) -> u64 {
        let movable: u64 = histogram.movable(tier).iter().sum();
        let planned = (0..tiers).flat_map(|from| self.at[from][tier].iter());
        room.held[tier].saturating_sub(movable) + planned.sum::<u64>()
    }

    /// The coldest degree that is to be in the first tier, and the hottest one that is to be outside.
    pub(super) fn ends(&self, tiers: usize) -> (Option<u8>, Option<u8>) {
        let is_in =
            |to: usize, degree: u8| (0..tiers).any(|from| self.get(from, to, degree.into()) > 0);
        let mut degrees = 0..=u8::MAX;
        let coldest = degrees.clone().find(|degree| is_in(0, *degree));
        let hottest = degrees.rfind(|degree| (1..tiers).any(|to| is_in(to, *degree)));
        (coldest, hottest)
    }
}

/// A decision being made.
pub(super) struct Settle {
    pub(super) quotas: Quotas,
    pub(super) tiers: usize,
    /// Moves that may still be proposed.
    pub(super) left: u64,
}

impl Settle {
    /// Every unit where it is; and the movable units that fit into each tier.
    pub(super) fn begin(histogram: &Histogram, tiers: usize, room: &Room) -> (Self, [u64; TIERS]) {
        let mut quotas = Quotas {
            at: Box::new([[[0; DEGREES]; TIERS]; TIERS]),
            forced: [0; TIERS],
        };
        let mut fit = room.fit;
        for (tier, fit) in fit.iter_mut().enumerate().take(tiers) {
            quotas.at[tier][tier] = *histogram.movable(tier);
            let movable: u64 = histogram.movable(tier).iter().sum();
            *fit = fit.saturating_sub(room.held[tier].saturating_sub(movable));
        }
        let left = room.most;
        (
            Self {
                quotas,
                tiers,
                left,
            },
            fit,
        )
    }

    /// Units of a degree that are to be in a tier.
    pub(super) fn count(&self, tier: usize, degree: usize) -> u64 {
        (0..self.tiers)
            .map(|origin| self.quotas.at[origin][tier][degree])
            .sum()
    }

    pub(super) fn total(&self, tier: usize) -> u64 {
        (0..DEGREES).map(|d| self.count(tier, d)).sum()
    }

    /// Sends units of a degree on. Those that come home go first, then those that travel anyway.
    pub(super) fn send(&mut self, degree: usize, from: usize, to: usize, units: u64) {
        let mut left = units;
        let order = [to]
            .into_iter()
            .chain((0..self.tiers).filter(|o| *o != to && *o != from))
            .chain([from]);
        for origin in order {
            let cell = &mut self.quotas.at[origin];
            let n = cell[from][degree].min(left);
            cell[from][degree] -= n;
            cell[to][degree] += n;
            left -= n;
        }
    }

    pub(super) fn shrink(&mut self, tier: usize, fit: u64) {
        let mut over = self.total(tier).saturating_sub(fit).min(self.left);
        for degree in 0..DEGREES {
            let n = self.count(tier, degree).min(over);
            self.send(degree, tier, tier + 1, n);
            self.quotas.forced[tier] += n;
            self.left -= n;
            over -= n;
        }
    }

    pub(super) fn fill(&mut self, tier: usize, fit: u64, fills: impl Fn(u8) -> bool) {
        let mut room = fit.saturating_sub(self.total(tier)).min(self.left);
        for degree in hottest_first().take_while(|degree| fills(*degree)) {
            let degree = usize::from(degree);
            for from in tier + 1..self.tiers {
                let n = self.count(from, degree).min(room);
                self.send(degree, from, tier, n);
                self.left -= n;
                room -= n;
            }
        }
    }

    fn exchange(&mut self, tier: usize, pays: impl Fn(u8, u8) -> bool) {
        let mut cold = 0;
        for hot in hottest_first() {
            for from in tier + 1..self.tiers {
                let mut hot_left = self.count(from, hot.into());
                while hot_left > 0 && pays(cold, hot) {
                    let n = self
                        .count(tier, cold.into())
                        .min(hot_left)
                        .min(self.left / 2);
                    if n == 0 {
                        if self.left < 2 {
                            return;
                        }
                        cold += 1;
                        continue;
                    }
                    self.send(cold.into(), tier, from, n);
                    self.send(hot.into(), from, tier, n);
                    self.left -= 2 * n;
                    hot_left -= n;
                }
            }
        }
    }
}

fn hottest_first() -> impl Iterator<Item = u8> {
    (0..=u8::MAX).rev()
}
