//! From pages of a plan to the addresses that the kernel is given.

use std::collections::BTreeMap;

use terrace_proto::{Gfn, Hva, PAGE_SIZE, PAGES_PER_HUGE, PageSize};
use terrace_sys::{MoveScope, PageRun, SysError};

use super::Kernel;
use crate::memory_map::GuestMemory;

/// Bytes of a huge page.
pub(crate) const HUGE: u64 = PAGE_SIZE * PAGES_PER_HUGE;

/// The backing of the pages around some addresses.
#[derive(Debug, Default)]
pub(crate) struct Backing {
    runs: Vec<PageRun>,
}

impl Backing {
    /// Asks for the 2 MiB blocks that hold these addresses (ascending).
    pub(super) fn around(kernel: &impl Kernel, addresses: &[u64]) -> Result<Self, SysError> {
        let mut runs = Vec::new();
        let mut spans: Vec<(u64, u64)> = Vec::new();
        for address in addresses {
            let start = address / HUGE * HUGE;
            match spans.last_mut() {
                Some(last) if start < last.1 => {}
                Some(last) if start == last.1 => last.1 = start + HUGE,
                _ => spans.push((start, start + HUGE)),
            }
        }
        for (start, end) in spans {
            runs.extend(kernel.present(start, end)?);
        }
        Ok(Self { runs })
    }

    /// First address of the huge page that holds `address`, if one does.
    pub(super) fn huge_page(&self, address: u64) -> Option<u64> {
        let above = self.runs.partition_point(|run| run.start <= address);
        let run = self.runs[..above].last()?;
        (run.huge && address < run.end).then_some(address / HUGE * HUGE)
    }
}

/// One address to move: a base page or a whole huge page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Item {
    pub address: u64,
    pub bytes: u64,
    /// The scope: whether the item is moved even if others map it.
    pub scope: MoveScope,
}

/// The pages of one part of a plan as addresses.
#[derive(Debug, Default)]
pub(super) struct Items {
    /// Every address once, in the order of first mention.
    pub list: Vec<Item>,
    /// The items of each unit; empty if there is no RAM.
    pub of_unit: Vec<Vec<usize>>,
}

impl Items {
    pub(super) fn new(
        units: &[Vec<u64>],
        backing: &Backing,
        scope: impl Fn(u64, u64) -> MoveScope,
    ) -> Self {
        let mut items = Self::default();
        let mut index: BTreeMap<u64, usize> = BTreeMap::new();
        for addresses in units {
            let mut of_unit = Vec::new();
            for address in addresses {
                let (address, bytes) = match backing.huge_page(*address) {
                    Some(address) => (address, HUGE),
                    None => (*address, PAGE_SIZE),
                };
                let item = Item {
                    address,
                    bytes,
                    scope: scope(address, bytes),
                };
                let at = *index.entry(item.address).or_insert_with(|| {
                    items.list.push(item);
                    items.list.len() - 1
                });
                if of_unit.last() != Some(&at) {
                    of_unit.push(at);
                }
            }
            items.of_unit.push(of_unit);
        }
        items
    }
}

/// The host addresses of a unit's base pages; those outside of RAM are left out.
pub(super) fn addresses(memory: &GuestMemory, first: Gfn, unit: PageSize) -> Vec<u64> {
    (first.0..first.0.saturating_add(unit.base_pages()))
        .filter_map(|gfn| memory.hva(Gfn(gfn)))
        .map(|Hva(address)| address)
        .collect()
}
