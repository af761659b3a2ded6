//! Sizes below which a VM is not brought for some time: less did harm, or it swapped because it had lent memory.

use terrace_proto::Tick;

use super::member::Member;
use super::percent;
use crate::config::ArbiterConfig;

/// A size below which a VM is not brought for some time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hold {
    /// The size, bytes.
    pub bytes: u64,
    /// The time until which it holds.
    pub until: Tick,
    /// The part that it is to get back of those who took it, as that did harm: up to this size, bytes.
    pub owed: u64,
}

impl Member {
    /// Lets a VM that swaps with less than it brought keep for some time what it is to get back now.
    pub fn keeps_what_it_calls_back(&mut self, now: Tick, config: &ArbiterConfig) {
        let swaps = self.is_swapping() && self.calls_back(config);
        let (Some(brought), true) = (self.all_brought(), swaps) else {
            return;
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
            owed: self.owed(now),
        });
    }

    /// Holds it at this size until then, or at a larger one at which it is held. Returns whether that is news.
    pub fn hold_at(&mut self, now: Tick, bytes: u64, until: Tick) -> bool {
        let held = self.hold.filter(|hold| hold.until > now);
        let is_news = held.is_none_or(|hold| hold.bytes < bytes);
        self.hold = Some(Hold {
            bytes: bytes.max(held.map_or(0, |hold| hold.bytes)),
            // An older reason may hold for longer.
            until: Tick(until.0.max(held.map_or(0, |hold| hold.until.0))),
            owed: held.map_or(0, |hold| hold.owed),
        });
        is_news
    }

    /// Holds it at its size before it gave what did harm: those who took that give it back. Returns whether that is news.
    pub fn owe(&mut self, now: Tick, bytes: u64, until: Tick) -> bool {
        let is_news = self.hold_at(now, bytes, until);
        if let Some(hold) = &mut self.hold {
            hold.owed = hold.owed.max(bytes);
        }
        is_news
    }

    /// The size up to which it gets back what did harm, bytes.
    fn owed(&self, now: Tick) -> u64 {
        let held = self.hold.filter(|hold| hold.until > now);
        held.map_or(0, |hold| hold.owed)
    }

    /// Whether it lacks what it is to get back, by more than the dead band. No more than it brought is taken of others for it.
    #[must_use]
    pub fn is_owed(&self, now: Tick, config: &ArbiterConfig) -> bool {
        let bound = self.asked.bound.map_or(u64::MAX, |(_, bytes)| bytes);
        let owed = self.owed(now).min(self.all_brought().unwrap_or(0));
        let owed = owed.min(self.ceiling()).min(bound);
        let near = owed - percent(owed, config.dead_band_percent);
        // One that cannot grow back stops no lending.
        self.facts.standing.alone.is_none() && self.need.is_some() && self.most() < near
    }

    /// The size at which it is held now, bytes.
    pub(super) fn held(&self, now: Tick) -> u64 {
        let held = self.hold.filter(|hold| hold.until > now);
        // What others lent is called back all the same: who complains of a loss keeps only its own.
        held.map_or(0, |hold| hold.bytes.min(self.may_have()))
    }

    /// Whether it is to get back page cache that it misses.
    pub(super) fn misses_cache(&self, brought: u64) -> bool {
        // One that cannot grow back stops no lending.
        let held = self.hold.map_or(0, |hold| hold.bytes);
        let may = held.min(brought).min(self.ceiling());
        self.facts.standing.alone.is_none()
            && self.need.is_some()
            && self
                .facts
                .cache
                .missed()
                .is_some_and(|from| self.most() < from.min(may))
    }
}
