//! `stencil`: several arrays swept side by side, half of them read and half updated, in turns (as
//! fotonik3d updates electric from magnetic fields and back).

use serde::Deserialize;

use super::draw::access;
use super::sequential::slice;
use super::source::{Operate, Operations};
use super::values;
use super::{Context, Endlessly, WorkloadError};
use crate::base::access::{Access, LINES_PER_PAGE};

/// The keys of `stencil`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Stencil {
    #[serde(deserialize_with = "values::size")]
    size: u64,
    #[serde(default = "six", deserialize_with = "arrays")]
    arrays: u64,
}

fn six() -> u64 {
    6
}

fn arrays<'de, D: serde::Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    let arrays = values::count(from)?;
    if arrays > 64 || !arrays.is_multiple_of(2) {
        return Err(serde::de::Error::custom(format!(
            "{arrays} is out of bounds: allowed is an even number from 2 to 64"
        )));
    }
    Ok(arrays)
}

impl Endlessly for Stencil {
    type Generator = Operations<Sweep>;

    fn pages(&self, scale: u64) -> Result<u64, WorkloadError> {
        values::pages("size", self.size, scale)
    }

    fn generator(&self, context: &Context, vcpu: u32) -> Result<Self::Generator, WorkloadError> {
        let lines = self.pages(context.scale)? * LINES_PER_PAGE / self.arrays;
        let (first, end) = slice(lines, vcpu, context.vcpus);
        if first == end {
            return Err(WorkloadError(format!(
                "workload of kind \"stencil\": size = {} bytes has no line of each array for each of {} \
                 vCPUs at scale {}",
                self.size, context.vcpus, context.scale
            )));
        }
        Ok(Operations::new(Sweep {
            half: self.arrays / 2,
            lines,
            first,
            end,
            next: first,
            second_half_writes: true,
        }))
    }
}

/// The sweep of one vCPU, on its part of each array.
#[derive(Clone)]
pub(super) struct Sweep {
    /// Number of arrays in each half.
    half: u64,
    /// Number of lines of each array.
    lines: u64,
    first: u64,
    end: u64,
    next: u64,
    second_half_writes: bool,
}

impl Operate for Sweep {
    fn operate(&mut self, out: &mut Vec<Access>) {
        let (read, written) = if self.second_half_writes {
            (0, self.half)
        } else {
            (self.half, 0)
        };
        for array in 0..self.half {
            out.push(access((read + array) * self.lines + self.next, false));
        }
        for array in 0..self.half {
            out.push(access((written + array) * self.lines + self.next, true));
        }
        self.next += 1;
        if self.next == self.end {
            self.next = self.first;
            self.second_half_writes = !self.second_half_writes;
        }
    }
}
