//! Purchases of slow memory that do not help.
//!
//! Responsible for: telling when a VM has bought a good deal and its guest faults as it did before. Its demand is constant
//! then, and not of the kind that memory ends: it reads files, or it faults on purpose. Faults that fall show that the
//! memory helps; faults that rise by more than noise show that demand grows, and both begin a new series of purchases.

use terrace_proto::Tick;

use super::percent;
use crate::config::ArbiterConfig;

/// Percent of a VM's memory that a series of purchases buys before it is judged.
const JUDGED_PERCENT: u8 = 10;
/// Faults are fewer if less than so many eighths are left.
const FEWER_EIGHTHS: u64 = 7;
/// Faults are more if they are above so many eighths.
const MORE_EIGHTHS: u64 = 10;
/// Doublings of the pause after series that did not help, one after the other.
const MOST_DOUBLINGS: u32 = 4;

/// A VM's purchases since its demand changed last.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Purchases {
    series: Option<Series>,
    /// Series in a row that did not help.
    in_vain: u32,
}

#[derive(Clone, Copy, Debug)]
struct Series {
    /// Major faults of a cycle when it began.
    faults: u64,
    /// Used swap then, bytes.
    swap: u64,
    /// Bytes bought since.
    bought: u64,
    /// When it bought last, or began.
    at: Tick,
}

impl Purchases {
    /// Takes in the major faults of a cycle that would buy slow memory for a VM of this size, with so much in swap. Returns
    /// until when none is bought, if what was bought did not help.
    pub fn judge(
        &mut self,
        now: Tick,
        faults: u64,
        (size, swap): (u64, u64),
        config: &ArbiterConfig,
    ) -> Option<Tick> {
        let pause = config.pause_ns();
        let fresh = Series {
            faults,
            swap,
            bought: 0,
            at: now,
        };
        let most = pause.saturating_mul(1 << self.in_vain.min(MOST_DOUBLINGS));
        let forgets =
            |series: &Series| now.0.saturating_sub(series.at.0) > pause.saturating_add(most);
        let Some(series) = self.series.filter(|series| !forgets(series)) else {
            *self = Self {
                series: Some(fresh),
                in_vain: 0,
            };
            return None;
        };
        if series.has_fewer(faults, (size, swap))
            || scaled_above(faults, series.faults, MORE_EIGHTHS)
        {
            *self = Self {
                series: Some(fresh),
                in_vain: 0,
            };
            return None;
        }
        // A loop over more than fits faults as often until all of it fits; what is bought is paid for with up to half as much.
        let fits = series.swap.saturating_mul(2);
        if series.bought < percent(size, JUDGED_PERCENT).max(fits) {
            return None;
        }
        self.series = Some(fresh);
        self.in_vain = self.in_vain.saturating_add(1);
        Some(Tick(now.0.saturating_add(most)))
    }

    /// Takes in that so many bytes of slow memory are bought.
    pub fn buys(&mut self, now: Tick, bytes: u64) {
        if let Some(series) = &mut self.series {
            series.bought = series.bought.saturating_add(bytes);
            series.at = now;
        }
    }
}

impl Series {
    /// Whether a guest faults less by what was bought: by an eighth, or by half of what it should if that is little beside
    /// what it lacks. That is what it has in swap, or twice its size if it has no more there than it bought.
    fn has_fewer(&self, faults: u64, (size, swap): (u64, u64)) -> bool {
        let fell = u128::from(self.faults.saturating_sub(faults));
        let lacks = match swap > self.bought {
            true => u128::from(swap),
            false => u128::from(size) * 2,
        };
        let should = u128::from(self.faults) * u128::from(self.bought);
        // A guest may say any number.
        let part = fell.saturating_mul(2).saturating_mul(lacks);
        let is_half = fell > 0 && self.bought > 0 && part >= should;
        let is_eighth = !scaled_above(faults, self.faults, FEWER_EIGHTHS);
        is_eighth || is_half
    }
}

fn scaled_above(faults: u64, than: u64, eighths: u64) -> bool {
    u128::from(faults) * 8 > u128::from(than) * u128::from(eighths)
}
