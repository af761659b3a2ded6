//! `multigrid`: a W-cycle over grids of halving resolution, and the fields that use its solution (as SPLASH-2's Ocean).
//!
//! Memory is the fields, then of each level, finest first, the solution and the right-hand side. A level has a quarter of
//! the points of the one above it. A step sweeps the fields side by side, half of them read and half written, and then
//! solves: a cycle sweeps its level, twice runs the cycle of the next coarser one, and sweeps its level again. So the
//! fields are accessed once in a step, and the finest grid twice; each coarser level is visited twice as often and
//! has a quarter of the lines.

use serde::Deserialize;

use super::draw::access;
use super::sequential::slice;
use super::source::{Operate, Operations};
use super::values;
use super::{Context, Endlessly, WorkloadError};
use crate::base::access::{Access, LINES_PER_PAGE};

/// Most fields and levels.
const MOST: u64 = 64;
/// Lines of an array that are accessed in one operation.
const RUN: u64 = 8;

/// The keys of `multigrid`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Multigrid {
    #[serde(deserialize_with = "values::size")]
    size: u64,
    #[serde(default = "fields", deserialize_with = "up_to_64")]
    fields: u64,
    #[serde(default = "levels", deserialize_with = "up_to_64")]
    levels: u64,
}

fn fields() -> u64 {
    24
}

fn levels() -> u64 {
    6
}

fn up_to_64<'de, D: serde::Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    let count = values::count(from)?;
    if count > MOST {
        return Err(serde::de::Error::custom(format!(
            "{count} is out of bounds: allowed is at most {MOST}"
        )));
    }
    Ok(count)
}

impl Endlessly for Multigrid {
    type Generator = Operations<Sweeps>;

    fn pages(&self, scale: u64) -> Result<u64, WorkloadError> {
        values::pages("size", self.size, scale)
    }

    fn generator(&self, context: &Context, vcpu: u32) -> Result<Self::Generator, WorkloadError> {
        let lines = self.pages(context.scale)? * LINES_PER_PAGE;
        // The two arrays of all levels together have at most 8/3 of the lines of the finest.
        let finest = lines * 3 / (self.fields * 3 + 8);
        let mut arrays = vec![Arrays {
            first: 0,
            lines: finest,
            count: self.fields,
        }];
        let mut first = self.fields * finest;
        for level in 0..self.levels {
            let lines = finest.checked_shr(2 * u32::try_from(level).unwrap_or(u32::MAX));
            let Some(lines) = lines.filter(|lines| lines / u64::from(context.vcpus) > 0) else {
                break;
            };
            arrays.push(Arrays {
                first,
                lines,
                count: 2,
            });
            first += 2 * lines;
        }
        if arrays.len() < 2 {
            return Err(WorkloadError(format!(
                "workload of kind \"multigrid\": size = {} bytes has no line of each array for each of {} vCPUs at scale {}",
                self.size, context.vcpus, context.scale
            )));
        }
        Ok(Operations::new(Sweeps::new(arrays, vcpu, context.vcpus)))
    }
}

/// Arrays of the same length behind each other.
#[derive(Clone, Copy, Debug)]
struct Arrays {
    first: u64,
    lines: u64,
    count: u64,
}

/// The sweeps of one vCPU, on its part of each array.
#[derive(Clone)]
pub(super) struct Sweeps {
    /// The fields, then each level.
    arrays: Vec<Arrays>,
    vcpu: u32,
    vcpus: u32,
    /// The parts of the step that are still to be done, the next at the end.
    ahead: Vec<Ahead>,
    /// The arrays that are swept, the next line and the end.
    sweep: (usize, u64, u64),
}

/// A part of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ahead {
    /// A sweep over the arrays of that number.
    Sweep(usize),
    /// The cycle of the level of that number.
    Cycle(usize),
}

impl Sweeps {
    fn new(arrays: Vec<Arrays>, vcpu: u32, vcpus: u32) -> Self {
        Self {
            arrays,
            vcpu,
            vcpus,
            ahead: Vec::new(),
            sweep: (0, 0, 0),
        }
    }

    /// The arrays that are swept next.
    fn next(&mut self) -> usize {
        loop {
            match self.ahead.pop() {
                None => self.ahead.extend([Ahead::Cycle(1), Ahead::Sweep(0)]),
                Some(Ahead::Sweep(at)) => return at,
                Some(Ahead::Cycle(at)) if at + 1 == self.arrays.len() => return at,
                Some(Ahead::Cycle(at)) => {
                    let coarser = Ahead::Cycle(at + 1);
                    let sweep = Ahead::Sweep(at);
                    self.ahead.extend([sweep, coarser, coarser, sweep]);
                }
            }
        }
    }
}

impl Operate for Sweeps {
    fn operate(&mut self, out: &mut Vec<Access>) {
        if self.sweep.1 == self.sweep.2 {
            let at = self.next();
            let (first, end) = slice(self.arrays[at].lines, self.vcpu, self.vcpus);
            self.sweep = (at, first, end);
        }
        let (at, next, end) = self.sweep;
        let Arrays {
            first,
            lines,
            count,
        } = self.arrays[at];
        let until = (next + RUN).min(end);
        for line in next..until {
            for array in 0..count {
                out.push(access(
                    first + array * lines + line,
                    array >= count.div_ceil(2),
                ));
            }
        }
        self.sweep.1 = until;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cycle_visits_each_coarser_level_twice_as_often() {
        let arrays = vec![
            Arrays {
                first: 0,
                lines: 1,
                count: 1
            };
            5
        ];
        let mut sweeps = Sweeps::new(arrays, 0, 1);
        let mut visits = [0; 5];
        for _ in 0..1 + 2 + 4 + 8 + 8 {
            visits[sweeps.next()] += 1;
        }
        assert_eq!(visits, [1, 2, 4, 8, 8]);
        assert!(sweeps.ahead.is_empty());
    }

    #[test]
    fn half_of_the_arrays_are_written() {
        let arrays = vec![Arrays {
            first: 7,
            lines: 9,
            count: 2,
        }];
        let mut sweeps = Sweeps::new(arrays, 0, 1);
        sweeps.sweep = (0, 8, 9);
        let mut out = Vec::new();
        sweeps.operate(&mut out);
        assert_eq!(out, [access(15, false), access(24, true)]);
    }
}
