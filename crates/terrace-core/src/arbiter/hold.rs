//! Sizes below which a VM is not brought for some time: less did harm, or it swapped because it had lent memory.

use terrace_proto::Tick;

use super::member::Member;
use super::percent;
use crate::config::ArbiterConfig;

/// Seconds without swapping after which a guest has what it uses.
const CALM_S: u8 = 10;

/// A size below which a VM is not brought for some time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hold {
    /// The size, bytes.
    pub bytes: u64,
    /// The time until which it holds.
    pub until: Tick,
    /// Whether it is a guess of what a VM that swaps will need, and not yet what it used then.
    is_guess: bool,
}

impl Member {
    /// Lets a VM that swaps with less than it brought keep for some time what it is to get back now.
    pub fn keeps_what_it_calls_back(&mut self, now: Tick, config: &ArbiterConfig) {
        let swaps = self.is_swapping() && self.calls_back(config);
        let (Some(brought), true) = (self.all_brought(), swaps) else {
            return self.learn_hold(now, config);
        };
        if config.lend_again_ms == 0 {
            return;
        }
        // Half of what it lent at a time: used swap grows only as fast as the device writes.
        let lacks = self
            .lacks(config)
            .max(brought.saturating_sub(self.size()) / 2);
        let wants = self.size().saturating_add(lacks).min(brought);
        let pause = ArbiterConfig::ns(config.lend_again_ms);
        self.hold = Some(Hold {
            bytes: wants.max(self.held(now)),
            until: Tick(now.0.saturating_add(pause)),
            is_guess: true,
        });
    }

    /// Once a guest swaps no more, what it uses is known: others that swap need not wait for the rest.
    fn learn_hold(&mut self, now: Tick, config: &ArbiterConfig) {
        let used = self.past.peaks.most();
        let is_calm = self.past.calm_s >= CALM_S && used > 0;
        let guess = self.hold.as_mut().filter(|hold| hold.is_guess);
        let Some(hold) = guess.filter(|hold| hold.until > now && is_calm) else {
            return;
        };
        let little = percent(used, config.dead_band_percent.max(1));
        hold.bytes = hold.bytes.min(used.saturating_add(little));
        hold.is_guess = false;
    }

    /// Holds it at this size until then, or at a larger one at which it is held. Returns whether that is news.
    pub fn hold_at(&mut self, now: Tick, bytes: u64, until: Tick) -> bool {
        let held = self.hold.filter(|hold| hold.until > now);
        let is_news = held.is_none_or(|hold| hold.bytes < bytes);
        self.hold = Some(Hold {
            bytes: bytes.max(held.map_or(0, |hold| hold.bytes)),
            until,
            is_guess: !is_news && held.is_some_and(|hold| hold.is_guess),
        });
        is_news
    }

    /// The size at which it is held now, bytes.
    pub(super) fn held(&self, now: Tick) -> u64 {
        let held = self.hold.filter(|hold| hold.until > now);
        // What others lent is called back all the same: who complains of a loss keeps only its own.
        held.map_or(0, |hold| hold.bytes.min(self.may_have()))
    }

    /// Whether it is to get back page cache that it misses.
    pub(super) fn misses_cache(&self, brought: u64) -> bool {
        let missed = self.facts.cache.missed();
        missed.is_some_and(|from| self.most() < from.min(brought))
    }
}

#[cfg(test)]
mod tests {
    use terrace_proto::{MemoryNeed, MemoryRights, ProviderId};

    use super::*;
    use crate::provision::{Sizes, TierSize};

    const MIB: u64 = 1 << 20;
    const SECOND: u64 = 1_000_000_000;

    fn lender(size: u64) -> Member {
        let mut member = Member::new(MemoryRights {
            provider: ProviderId(1),
            vm: None,
            floor_bytes: 64 * MIB,
            ceiling_bytes: u64::MAX,
            weight: 1000,
        });
        member.loan.brought = Some(vec![1024 * MIB]);
        has(&mut member, size);
        member
    }

    fn has(member: &mut Member, size: u64) {
        let tier = TierSize {
            size,
            target: size,
            most: size,
            least: 0,
            whole: 1024 * MIB,
            block: MIB,
        };
        member.sizes = Some(Sizes {
            tiers: vec![tier],
            still: None,
        });
    }

    fn says(member: &mut Member, second: u64, free: u64, used_swap: u64) {
        let now = Tick(second * SECOND);
        let need = MemoryNeed {
            provider: ProviderId(1),
            free_bytes: free,
            used_swap_bytes: used_swap,
            major_faults: 0,
            lost_ns: 0,
            huge_percent: 0,
        };
        assert!(member.need(now, need));
        let used = member.size() - free;
        member.past.peaks.add(now, used, 60 * SECOND);
        member.keeps_what_it_calls_back(now, &ArbiterConfig::default());
    }

    /// It was held at all that it brought, while another one swapped at its floor.
    #[test]
    fn a_lender_that_swaps_no_more_is_held_at_what_it_uses() {
        let mut member = lender(300 * MIB);
        for second in 1..20 {
            says(&mut member, second, 0, second * 100 * MIB);
        }
        assert_eq!(member.held(Tick(20 * SECOND)), 1024 * MIB);
        has(&mut member, 1024 * MIB);
        for second in 20..40 {
            says(&mut member, second, 624 * MIB, 0);
        }
        // 400 MiB, and 2 %.
        assert_eq!(member.held(Tick(40 * SECOND)), 408 * MIB);
        // A valley later changes nothing.
        for second in 40..200 {
            says(&mut member, second, 924 * MIB, 0);
        }
        assert_eq!(member.held(Tick(200 * SECOND)), 408 * MIB);
    }

    #[test]
    fn what_did_harm_is_held_whatever_it_uses() {
        let mut member = lender(1024 * MIB);
        assert!(member.hold_at(Tick(0), 1000 * MIB, Tick(600 * SECOND)));
        for second in 1..40 {
            says(&mut member, second, 624 * MIB, 0);
        }
        assert_eq!(member.held(Tick(40 * SECOND)), 1000 * MIB);
    }
}
