//! `swapmix`: a working set that grows, past the memory's size if that is allowed.

use serde::Deserialize;

use super::draw::{Random, Writes, access};
use super::source::Generate;
use super::values::{self, PAGE, half};
use super::{Context, Endlessly, WorkloadError};
use crate::base::access::{Access, LINES_PER_PAGE};
use crate::base::random::Purpose;

/// The keys of `swapmix`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Swapmix {
    #[serde(deserialize_with = "values::size")]
    private: u64,
    #[serde(deserialize_with = "values::size")]
    growth: u64,
    #[serde(deserialize_with = "values::bytes")]
    rate: u64,
    #[serde(default = "half", deserialize_with = "values::fraction")]
    write: f64,
}

impl Endlessly for Swapmix {
    type Generator = Generator;

    fn pages(&self, scale: u64) -> Result<u64, WorkloadError> {
        let private = values::pages("private", self.private, scale)?;
        Ok(private + values::pages("growth", self.growth, scale)?)
    }

    fn generator(&self, context: &Context, vcpu: u32) -> Result<Generator, WorkloadError> {
        Ok(Generator {
            random: Random::new(context, vcpu, Purpose::Accesses),
            writes: Writes::new(context, vcpu, self.write),
            private: values::pages("private", self.private, context.scale)?,
            growth: values::pages("growth", self.growth, context.scale)?,
            rate: self.rate,
            scale: context.scale,
        })
    }
}

/// The accesses of one vCPU: any line of the working set.
#[derive(Clone)]
pub(super) struct Generator {
    random: Random,
    writes: Writes,
    private: u64,
    growth: u64,
    rate: u64,
    scale: u64,
}

impl Generate for Generator {
    fn fill(&mut self, now_ns: u64, batch: &mut [Access]) {
        let grown = u128::from(self.rate) * u128::from(now_ns)
            / (1_000_000_000 * u128::from(PAGE) * u128::from(self.scale));
        let grown = u64::try_from(grown).map_or(self.growth, |grown| grown.min(self.growth));
        let lines = (self.private + grown) * LINES_PER_PAGE;
        for slot in batch {
            *slot = access(self.random.below(lines), self.writes.draw());
        }
    }
}
