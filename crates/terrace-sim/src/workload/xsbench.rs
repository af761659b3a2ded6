//! `xsbench`: look-ups of cross-sections on a unionized energy grid, as XSBench does them.
//!
//! Memory is the unionized energies (8 bytes a point), one row of indices per point (4 bytes a nuclide),
//! and the nuclides' own grids (48 bytes a point). All are read only.

use serde::Deserialize;

use super::draw::{Random, access};
use super::keys::at;
use super::source::{Operate, Operations};
use super::values::{self, PAGE};
use super::{Context, Endlessly, WorkloadError};
use crate::base::access::{Access, LINE};
use crate::base::random::Purpose;

const ENERGY: u64 = 8;
const INDEX: u64 = 4;
const POINT: u64 = 48;

/// Materials of XSBench's large reactor: chance in 1,001, number of nuclides of 355.
const MATERIALS: [(u64, u64); 12] = [
    (140, 321),
    (52, 5),
    (275, 4),
    (134, 4),
    (154, 27),
    (64, 21),
    (66, 21),
    (55, 21),
    (8, 21),
    (15, 21),
    (25, 9),
    (13, 9),
];
const CHANCES: u64 = 1001;
const NUCLIDES: u64 = 355;

/// The keys of `xsbench`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Xsbench {
    #[serde(deserialize_with = "values::size")]
    size: u64,
    #[serde(
        default = "nuclides_of_the_large_reactor",
        deserialize_with = "nuclides"
    )]
    nuclides: u64,
}

fn nuclides_of_the_large_reactor() -> u64 {
    NUCLIDES
}

fn nuclides<'de, D: serde::Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    let nuclides = values::count(from)?;
    if nuclides > 10_000 {
        return Err(serde::de::Error::custom(format!(
            "{nuclides} is out of bounds: allowed is 1 to 10000"
        )));
    }
    Ok(nuclides)
}

impl Endlessly for Xsbench {
    type Generator = Operations<Lookups>;

    fn pages(&self, scale: u64) -> Result<u64, WorkloadError> {
        values::pages("size", self.size, scale)
    }

    fn generator(&self, context: &Context, vcpu: u32) -> Result<Self::Generator, WorkloadError> {
        // Each of the three parts may leave a part of a page.
        let room = self.pages(context.scale)?.saturating_sub(3) * PAGE;
        let per_point = ENERGY + INDEX * self.nuclides + POINT;
        let grid = room / per_point / self.nuclides;
        if grid < 2 {
            return Err(WorkloadError(format!(
                "workload of kind \"xsbench\": size = {} bytes has no room for two points of each of {} \
                 nuclides at scale {}",
                self.size, self.nuclides, context.scale
            )));
        }
        let points = grid * self.nuclides;
        let indices = (points * ENERGY).next_multiple_of(PAGE);
        let grids = indices + (points * INDEX * self.nuclides).next_multiple_of(PAGE);
        Ok(Operations::new(Lookups {
            random: Random::new(context, vcpu, Purpose::Accesses),
            nuclides: self.nuclides,
            scale: context.scale,
            points,
            grid,
            indices,
            grids,
        }))
    }
}

/// The lookups of one vCPU.
#[derive(Clone)]
pub(super) struct Lookups {
    random: Random,
    nuclides: u64,
    scale: u64,
    /// Number of points of the unionized grid.
    points: u64,
    /// Number of points of each nuclide's grid.
    grid: u64,
    /// The first byte of the indices.
    indices: u64,
    /// The first byte of the nuclides' grids.
    grids: u64,
}

impl Lookups {
    /// Makes a binary search, with the steps that the full-size grid takes until one line is left.
    fn search(&self, energy: u64, out: &mut Vec<Access>) {
        let (mut low, mut high) = (0, self.points * self.scale);
        let wanted = at(energy, high);
        while high - low > LINE / ENERGY {
            let middle = low + (high - low) / 2;
            out.push(access(middle / self.scale * ENERGY / LINE, false));
            if wanted < middle {
                high = middle;
            } else {
                low = middle;
            }
        }
    }

    fn material(&mut self) -> u64 {
        let mut roll = self.random.below(CHANCES);
        for (chance, nuclides) in MATERIALS {
            if roll < chance {
                return (nuclides * self.nuclides / NUCLIDES).max(1);
            }
            roll -= chance;
        }
        1
    }
}

impl Operate for Lookups {
    fn operate(&mut self, out: &mut Vec<Access>) {
        let energy = self.random.bits();
        let material = self.material();
        self.search(energy, out);
        let row = self.indices + at(energy, self.points) * self.nuclides * INDEX;
        let point = at(energy, self.grid - 1);
        let mut seen = None;
        for nuclide in 0..material {
            let nuclide = nuclide * self.nuclides / material;
            let index = (row + nuclide * INDEX) / LINE;
            if seen != Some(index) {
                out.push(access(index, false));
                seen = Some(index);
            }
            // The point below the energy and the one above.
            let below = self.grids + (nuclide * self.grid + point) * POINT;
            let lines = below / LINE..=(below + 2 * POINT - 1) / LINE;
            out.extend(lines.map(|line| access(line, false)));
        }
    }
}
