//! A VM's memory at a glance: which tiers hold it and how hot it is, piece by piece.
//!
//! Responsible for: summing pages up into cells. It leaves to others: drawing them.

use serde::Serialize;
use terrace_proto::{PAGES_PER_HUGE, TierId};

use super::vm::Vm;
use crate::config::EngineConfig;
use crate::estimate::Estimator;

/// Units that are ranked at once.
const CHUNK: usize = 512;

/// Guest-physical memory in pieces of one size, in address order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HeatMap {
    /// 4 KiB pages of a cell; the last one may be shorter.
    pub pages_per_cell: u64,
    /// Highest degree that a unit may have.
    pub max_degree: u8,
    /// The cells.
    pub cells: Vec<HeatCell>,
}

/// One piece. Pages are of 4 KiB.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize)]
pub struct HeatCell {
    /// Pages in each tier.
    pub tier_pages: Vec<u64>,
    /// Pages that some user table of the guest maps.
    pub known_pages: u64,
    /// Known pages whose degree is above zero, in each tier.
    pub warm_pages: Vec<u64>,
    /// Sum of the degrees of the known pages.
    pub degree_sum: u64,
}

impl Vm {
    pub(super) fn heat_map(&self, cells: u64, config: &EngineConfig) -> HeatMap {
        let unit_pages = self.pages.ram().unit().base_pages();
        let units = self.pages.units() as u64;
        let per_cell = units.div_ceil(cells.max(1)).max(1);
        let (read, write) = config.weights();
        let empty = HeatCell {
            tier_pages: vec![0; config.tiers.len()],
            warm_pages: vec![0; config.tiers.len()],
            ..HeatCell::default()
        };
        let count = usize::try_from(units.div_ceil(per_cell)).unwrap_or(0);
        let mut map = HeatMap {
            pages_per_cell: per_cell.saturating_mul(unit_pages),
            max_degree: config.windows.saturating_mul(read.max(write)),
            cells: vec![empty; count],
        };
        let mut unit = 0_u32;
        self.each_degree(config, |degree| {
            let cell = usize::try_from(u64::from(unit) / per_cell).ok();
            if let Some(cell) = cell.and_then(|i| map.cells.get_mut(i)) {
                self.add(cell, unit, degree);
            }
            unit += 1;
        });
        map
    }

    fn add(&self, cell: &mut HeatCell, unit: u32, degree: u8) {
        let pages = self.pages.ram().pages_in_unit(unit).min(PAGES_PER_HUGE);
        let Some(TierId(tier)) = self.pages.tier(unit) else {
            return;
        };
        let tier = usize::from(tier);
        cell.tier_pages[tier] += pages;
        if self.pages.known(unit) {
            cell.known_pages += pages;
            cell.warm_pages[tier] += if degree > 0 { pages } else { 0 };
            cell.degree_sum += pages * u64::from(degree);
        }
    }

    /// Hands out each unit's degree, in order.
    fn each_degree(&self, config: &EngineConfig, mut take: impl FnMut(u8)) {
        let estimator = Estimator::new(self.policy.estimate, config);
        let mut degrees = [0; CHUNK];
        let counts = self
            .pages
            .reads
            .chunks(CHUNK)
            .zip(self.pages.writes.chunks(CHUNK));
        for ((reads, writes), first) in counts.zip((0_u64..).step_by(CHUNK)) {
            let degrees = &mut degrees[..reads.len()];
            estimator.degrees(self.round, first, reads, writes, degrees);
            degrees.iter().copied().for_each(&mut take);
        }
    }
}
