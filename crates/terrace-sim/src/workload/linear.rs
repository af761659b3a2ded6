//! `linear`: a large matrix is read again and again, row by row, and each row touches a small vector of
//! weights (as liblinear trains).

use serde::Deserialize;

use super::draw::{Random, Writes, access, part};
use super::sequential::slice;
use super::source::{Operate, Operations};
use super::values::{self, half};
use super::{Context, Endlessly, WorkloadError};
use crate::base::access::{Access, LINES_PER_PAGE};
use crate::base::random::Purpose;

/// The keys of `linear`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Linear {
    #[serde(deserialize_with = "values::size")]
    size: u64,
    #[serde(default = "hundredth", deserialize_with = "weights")]
    weights: f64,
    #[serde(default = "half", deserialize_with = "values::fraction")]
    write: f64,
}

fn hundredth() -> f64 {
    0.01
}

fn weights<'de, D: serde::Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    let share = values::share(from)?;
    if share > 0.5 {
        return Err(serde::de::Error::custom(format!(
            "{share} is out of bounds: allowed is more than 0 and at most 0.5"
        )));
    }
    Ok(share)
}

impl Endlessly for Linear {
    type Generator = Operations<Training>;

    fn pages(&self, scale: u64) -> Result<u64, WorkloadError> {
        values::pages("size", self.size, scale)
    }

    fn generator(&self, context: &Context, vcpu: u32) -> Result<Self::Generator, WorkloadError> {
        let lines = self.pages(context.scale)? * LINES_PER_PAGE;
        let weights = part(lines, self.weights);
        let (first, end) = slice(lines - weights, vcpu, context.vcpus);
        if first == end {
            return Err(WorkloadError(format!(
                "workload of kind \"linear\": size = {} bytes has no row for each of {} vCPUs at scale {}",
                self.size, context.vcpus, context.scale
            )));
        }
        Ok(Operations::new(Training {
            random: Random::new(context, vcpu, Purpose::Accesses),
            writes: Writes::new(context, vcpu, self.write),
            weights,
            first: weights + first,
            end: weights + end,
            next: weights + first,
        }))
    }
}

/// The training of one vCPU, on its part of the matrix; the weights come first in memory and are everyone's.
#[derive(Clone)]
pub(super) struct Training {
    random: Random,
    writes: Writes,
    weights: u64,
    first: u64,
    end: u64,
    next: u64,
}

impl Operate for Training {
    fn operate(&mut self, out: &mut Vec<Access>) {
        out.push(access(self.next, false));
        out.push(access(self.random.below(self.weights), self.writes.draw()));
        self.next += 1;
        if self.next == self.end {
            self.next = self.first;
        }
    }
}
