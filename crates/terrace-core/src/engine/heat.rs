//! A VM's memory at a glance: which tiers hold it and how hot it is, piece by piece.
//!
//! Responsible for: summing pages up into cells. It leaves to others: drawing them.

use std::ops::Range;

use terrace_proto::snapshot::{Cell, HeatMap};
use terrace_proto::{PAGES_PER_HUGE, TierId};

use super::vm::Vm;
use crate::config::EngineConfig;
use crate::estimate::Estimator;
use crate::pages::{Pages, flags};
use crate::ram::Ram;

/// Units that are ranked at once.
const CHUNK: usize = 512;
/// Units that are copied at once at most: 768 KiB, whatever the VM's size.
const MAX_COPIED: usize = 1 << 18;

/// A copy of the state of some units of a VM. Making it is all that a map costs the engine.
#[derive(Clone, Debug)]
pub struct HeatPages {
    first: u64,
    heat: Heat,
    flags: Vec<u8>,
}

/// The heat of each unit.
#[derive(Clone, Debug)]
enum Heat {
    /// Reads and writes of a round.
    Counts(Vec<u8>, Vec<u8>),
    /// The degree by its average.
    Degrees(Vec<u8>),
}

/// A heat map that is being made, away from the engine, from copies of the VM's pages.
#[derive(Clone, Debug)]
pub struct HeatMaking {
    map: HeatMap,
    ram: Ram,
    estimator: Estimator,
    round: u64,
    /// The degree from which a unit is warm.
    warm_from: u8,
    tiers: u8,
    units: u64,
    per_cell: u64,
    next: u64,
}

impl HeatMaking {
    /// The first unit that is still wanted; `None` if the map is done.
    #[must_use]
    pub fn next(&self) -> Option<u64> {
        (self.next < self.units).then_some(self.next)
    }

    /// Sums a copy up. The VM runs between two copies, so that a map may join what was at different times.
    pub fn add(&mut self, pages: &HeatPages) {
        let starts = (0..pages.flags.len()).step_by(CHUNK);
        let firsts = (pages.first..).step_by(CHUNK);
        let mut degrees = [0; CHUNK];
        for ((flags, start), first) in pages.flags.chunks(CHUNK).zip(starts).zip(firsts) {
            let degrees = &mut degrees[..flags.len()];
            let units = start..start + flags.len();
            match &pages.heat {
                Heat::Counts(reads, writes) => {
                    let (reads, writes) = (&reads[units.clone()], &writes[units]);
                    self.estimator
                        .degrees(self.round, first, reads, writes, degrees);
                }
                Heat::Degrees(all) => degrees.copy_from_slice(&all[units]),
            }
            for ((degree, flags), unit) in degrees.iter().zip(flags).zip(first..) {
                self.add_unit(unit, *flags, *degree);
            }
        }
        self.next = pages.first.saturating_add(pages.flags.len() as u64);
        if pages.flags.is_empty() {
            self.next = self.units;
        }
    }

    /// The map.
    #[must_use]
    pub fn done(self) -> HeatMap {
        self.map
    }

    fn add_unit(&mut self, unit: u64, flags: u8, degree: u8) {
        let cell = usize::try_from(unit / self.per_cell).ok();
        let cell = cell.and_then(|i| self.map.cells.get_mut(i));
        let (Some(cell), Ok(unit)) = (cell, u32::try_from(unit)) else {
            return;
        };
        let pages = self.ram.pages_in_unit(unit).min(PAGES_PER_HUGE);
        let Some(TierId(tier)) = flags::tier(flags, self.tiers) else {
            return;
        };
        let tier = usize::from(tier);
        cell.tier_pages[tier] += pages;
        if flags & flags::KNOWN != 0 {
            cell.known_pages += pages;
            cell.warm_pages[tier] += if degree >= self.warm_from { pages } else { 0 };
            cell.degree_sum += pages * u64::from(degree);
        }
    }
}

impl Vm {
    pub(super) fn heat_map(&self, cells: u64, config: &EngineConfig) -> HeatMap {
        let mut making = self.heat_making(cells, config);
        while let Some(first) = making.next() {
            making.add(&self.heat_pages(first));
        }
        making.done()
    }

    pub(super) fn heat_making(&self, cells: u64, config: &EngineConfig) -> HeatMaking {
        let unit_pages = self.pages.ram().unit().base_pages();
        let units = self.pages.units() as u64;
        let per_cell = units.div_ceil(cells.max(1)).max(1);
        let windows = self.rhythm(config).windows;
        let estimator = Estimator::new(self.policy.estimate, config);
        let (read, write) = match estimator {
            Estimator::Counter { write } => (1, write),
            _ => config.weights(),
        };
        let empty = Cell {
            tier_pages: vec![0; config.tiers.len()],
            warm_pages: vec![0; config.tiers.len()],
            ..Cell::default()
        };
        let count = usize::try_from(units.div_ceil(per_cell)).unwrap_or(0);
        HeatMaking {
            map: HeatMap {
                pages_per_cell: per_cell.saturating_mul(unit_pages),
                tiers: config.tiers.iter().map(|tier| tier.name.clone()).collect(),
                max_degree: match self.has_rates() {
                    true => u8::MAX.into(),
                    false => windows.saturating_mul(read.max(write)).into(),
                },
                cells: vec![empty; count],
            },
            ram: self.pages.ram().clone(),
            estimator,
            round: self.rounds.number,
            warm_from: self.warm_from(),
            tiers: self.pages.tiers(),
            units,
            per_cell,
            next: 0,
        }
    }

    /// The degree from which a unit is warm: any above zero, but with averages of minutes what would be in fast memory if it could be.
    fn warm_from(&self) -> u8 {
        let border = self.rounds.ranked().map(|round| round.threshold_degree);
        match self.has_rates() {
            true => border.unwrap_or(1).max(1),
            false => 1,
        }
    }

    /// At most [`MAX_COPIED`] units.
    pub(super) fn heat_pages(&self, first: u64) -> HeatPages {
        let start = usize::try_from(first).unwrap_or(usize::MAX);
        let start = start.min(self.pages.units());
        let end = start.saturating_add(MAX_COPIED).min(self.pages.units());
        HeatPages {
            first,
            heat: match self.has_rates() {
                true => Heat::Degrees(degrees(&self.pages, start..end)),
                false => Heat::Counts(
                    self.pages.reads[start..end].to_vec(),
                    self.pages.writes[start..end].to_vec(),
                ),
            },
            flags: self.pages.flags[start..end].to_vec(),
        }
    }
}

/// The degrees of long averages; none yet before the first round.
fn degrees(pages: &Pages, units: Range<usize>) -> Vec<u8> {
    match pages.long.get(units.clone()) {
        Some(long) => long.iter().map(|rate| rate.to_le_bytes()[1]).collect(),
        None => vec![0; units.len()],
    }
}

#[cfg(test)]
mod tests {
    use terrace_proto::{Event, Gfn, PageSize, RamRange, Tick, TierLimit, VmId, VmSpec};

    use super::super::Engine;
    use super::*;

    #[test]
    fn a_map_of_a_big_vm_is_copied_in_bounded_parts_and_complete() {
        let mut engine = Engine::new(EngineConfig::default()).unwrap();
        let pages = 3 * MAX_COPIED as u64 + 5;
        let ram = vec![RamRange {
            start: Gfn(0),
            pages,
        }];
        let all = TierLimit {
            floor_bytes: 0,
            ceiling_bytes: u64::MAX,
        };
        let spec = VmSpec {
            vm: VmId(1),
            name: "big".into(),
            ram,
            unit: PageSize::Base,
            limits: vec![all; 2],
            weight: 1000,
            moves: false,
        };
        engine.handle(Tick(0), Event::VmArrived(spec));
        let mut making = engine.heat_making(VmId(1), 8).unwrap();
        let mut copies = Vec::new();
        while let Some(first) = making.next() {
            let copy = engine.heat_pages(VmId(1), first).unwrap();
            copies.push(copy.flags.len());
            making.add(&copy);
        }
        assert_eq!(copies, [MAX_COPIED, MAX_COPIED, MAX_COPIED, 5]);
        let map = making.done();
        assert_eq!(Some(map.clone()), engine.heat_map(VmId(1), 8));
        assert_eq!(
            (map.cells.len(), map.pages_per_cell),
            (8, pages.div_ceil(8))
        );
        // A VM of that id that is smaller now ends the map, and nothing panics.
        let mut making = engine.heat_making(VmId(1), 8).unwrap();
        making.add(&engine.heat_pages(VmId(1), u64::MAX).unwrap());
        assert_eq!(making.next(), None);
    }
}
