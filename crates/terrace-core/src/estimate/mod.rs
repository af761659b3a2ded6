//! Estimate: how hot a unit is, as a small number, and how many units there are of each.
//!
//! Responsible for: degrees (vTMM §3.3.1) and the buckets of the bucket sort (§3.3.2). It leaves to
//! others: which units move ([`crate::place`]).

mod counter;
mod degree;
mod fixed_threshold;
mod histogram;
mod lists;
mod lull;
mod random;
mod rates;
mod samples;
mod scale;
mod spans;
mod step;
mod threshold;

pub use histogram::Histogram;
pub(crate) use histogram::{BlockRanks, MAY_MOVE, Notes, Rank, Ranked, Units, movable_place};
pub use lists::ListRule;
pub(crate) use lists::{TOP_COLD, TOP_HOT, TopLists, list_of};
pub use rates::Seen;
pub(crate) use rates::{Averages, Behind};
pub(crate) use samples::end_round;
pub use samples::{SamplePeriod, Sampled};
pub(crate) use scale::{PER_SECOND, Rate, fine_of, rate_of, rate_of_fine};
pub(crate) use spans::Spans;
pub(crate) use threshold::lowest as lowest_threshold;

use crate::config::EngineConfig;
use crate::policy::{Estimate, write_weight};

/// One more than the highest degree.
pub const DEGREES: usize = 256;

/// How a VM's units are ranked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Estimator {
    /// Weighted reads and writes.
    PageDegree {
        /// Weight of a read.
        read: u8,
        /// Weight of a write.
        write: u8,
    },
    /// 1 from so many visits on, else 0.
    FixedThreshold {
        /// Visits, reads and writes alike.
        visits: u8,
    },
    /// Saturated counts of an epoch, in which a read counts 1.
    Counter {
        /// Weight of a write.
        write: u8,
    },
    /// Shuffled anew in each round.
    Random {
        /// Seed.
        seed: u64,
    },
    /// Touches per second by the long average, which outlives rounds.
    Rates,
    /// All 1.
    Uniform,
}

impl Estimator {
    /// The estimator that a policy names.
    #[must_use]
    pub fn new(estimate: Estimate, config: &EngineConfig) -> Self {
        let (read, write) = config.weights();
        match estimate {
            Estimate::PageDegree => Self::PageDegree { read, write },
            Estimate::FixedThreshold => Self::FixedThreshold {
                visits: config.fixed_threshold,
            },
            Estimate::HotLists => Self::Counter {
                write: write_weight(read, write),
            },
            Estimate::Random => Self::Random {
                seed: config.random_seed,
            },
            Estimate::Rates => Self::Rates,
            Estimate::Uniform => Self::Uniform,
        }
    }

    /// Degrees of the units from number `first` on, whose counts are given; all slices are of one
    /// length. Hotter is higher.
    #[inline]
    pub fn degrees(self, round: u64, first: u64, reads: &[u8], writes: &[u8], out: &mut [u8]) {
        match self {
            Self::PageDegree { read, write } => degree::degrees(read, write, reads, writes, out),
            Self::FixedThreshold { visits } => {
                fixed_threshold::degrees(visits, reads, writes, out);
            }
            Self::Counter { write } => counter::degrees(write, reads, writes, out),
            Self::Random { seed } => random::degrees(seed, round, first, out),
            // The counts of one round alone say nothing.
            Self::Rates => out.fill(0),
            Self::Uniform => out.fill(1),
        }
    }
}
