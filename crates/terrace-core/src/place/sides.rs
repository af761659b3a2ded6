//! Single-sided and double-sided moves (HMvisor §3.2.2).
//!
//! Responsible for: how many units of the top lists go up and down. It leaves to others: which units those are
//! ([`super::collect`]), and the lists ([`crate::estimate`]).
//!
//! In this order:
//! 1. a tier that holds more than fits sends its coldest units to the next one, as under any policy;
//! 2. single-sided: the top cold list's units go to the next tiers, as far as these have room;
//! 3. the top hot list's units fill the first tier's room;
//! 4. double-sided: what is left of it changes places with as many units of the top cold list.

use super::Room;
use super::exchange::{Quotas, Settle};
use crate::estimate::{DEGREES, Histogram, TOP_COLD, TOP_HOT};
use crate::policy::Sides;

/// Decides from units by their place on the lists.
pub(super) fn decide(histogram: &Histogram, tiers: usize, room: &Room, sides: Sides) -> Quotas {
    let (mut settle, fit) = Settle::begin(histogram, tiers, room);
    for (tier, &fit) in fit.iter().enumerate().take(tiers - 1) {
        settle.shrink(tier, fit);
    }
    let most = settle.left.min(room.paced);
    if sides == Sides::Single {
        settle.left = most;
        settle.release(&fit);
    }
    settle.left = most;
    settle.fill(0, fit[0], |degree| degree >= TOP_HOT);
    if sides == Sides::Double {
        settle.swap();
    }
    settle.quotas
}

impl Settle {
    /// Sends the top cold list down, the coldest first, to the fastest tier that has room.
    fn release(&mut self, fit: &[u64]) {
        for (to, fit) in fit.iter().enumerate().take(self.tiers).skip(1) {
            let mut room = fit.saturating_sub(self.total(to)).min(self.left);
            for cold in 0..=usize::from(TOP_COLD) {
                let n = self.count(0, cold).min(room);
                self.send(cold, 0, to, n);
                // They go for their own sake, not to make room.
                self.quotas.forced[0] += n;
                self.left -= n;
                room -= n;
            }
        }
    }

    /// Changes the places of the hottest and the coldest units of the top lists, pair by pair.
    fn swap(&mut self) {
        let mut cold = 0;
        for hot in (usize::from(TOP_HOT)..DEGREES).rev() {
            for from in 1..self.tiers {
                let mut hot_left = self.count(from, hot);
                while hot_left > 0 && self.left > 0 && cold <= usize::from(TOP_COLD) {
                    let n = self.count(0, cold).min(hot_left).min(self.left);
                    if n == 0 {
                        cold += 1;
                        continue;
                    }
                    self.send(cold, 0, from, n);
                    self.send(hot, from, 0, n);
                    self.left -= n;
                    hot_left -= n;
                }
            }
        }
    }
}
