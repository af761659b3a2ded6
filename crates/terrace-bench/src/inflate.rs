//! The benchmark of HyperFlex's device.
//!
//! The mock driver inflates all of a tier of 256 MiB through a real ring, in chains of 512 entries whose pages are
//! scattered in runs of eight; the baseline punches the very extents that each chain comes to. The tier is filled
//! and mapped before either, and neither touches a page outside of the call.

use std::os::fd::AsFd as _;
use std::sync::Arc;

use terrace_hyperflex::abi::{Entry, MAX_ENTRIES, PAGE_BYTES};
use terrace_hyperflex::config::Limits;
use terrace_hyperflex::memory::GuestFiles;
use terrace_hyperflex::ring::Memory;
use terrace_hyperflex::ring::Ring;
use terrace_hyperflex::{Device, FlexError, State};
use terrace_sys::{Extent, punch_hole};

use crate::driver::{MIB, MockRing, MockVm, RINGS_BYTES, WRITE};
use crate::measured::{Cost, Measured, RUNS, timed};

const RUN_PAGES: u64 = 8;
const TIER_BYTES: u64 = 256 * MIB;
const TIER_PAGES: u64 = TIER_BYTES / PAGE_BYTES;
/// Chains that are posted before the device is kicked.
const POSTED: usize = 8;
const INFLATE: usize = 2;
const DEFLATE: usize = 3;

/// `hyperflex_inflate_pages_per_s`; the baseline is `fallocate` alone. Medians of pages per second.
///
/// # Errors
/// If there is no memory, or the device takes less than it is given.
pub fn inflate() -> Result<Measured, FlexError> {
    let limits = Limits {
        total_pages: None,
        entries_per_s: None,
        statistics_s: 0,
    };
    let vm = MockVm::new(&[4 * MIB, TIER_BYTES], 1, limits)?;
    let state = Arc::new(State::in_memory(vm.config())?);
    let mut device = Device::new(vm.config().clone(), state, GuestFiles::default());
    device.set_memory(Memory::new(vm.memory().clone()));
    let (rings, drivers) = vm.rings(true);
    let mut driver = Driver {
        device,
        rings,
        drivers,
    };
    let chains = chains(vm.tier(1).start);
    let parts: Vec<(&[Vec<Entry>], Vec<Extent>)> = chains
        .chunks(POSTED)
        .map(|part| (part, part.iter().flat_map(|c| coalesced(c, &vm)).collect()))
        .collect();
    let mut runs = Vec::new();
    for _ in 0..RUNS {
        let (mut inflated, mut punched) = (Cost::NONE, Cost::NONE);
        // Part by part in turns, then the other way round: what else runs on the machine meets both alike.
        for odd in [0, 1] {
            vm.fill();
            for (number, (part, extents)) in parts.iter().enumerate() {
                if number % 2 == odd {
                    let mut done = Ok(());
                    punched += timed(|| done = punch(&vm, extents));
                    done?;
                } else {
                    inflated += timed(|| driver.post_all(INFLATE, part));
                }
            }
            driver.empty(&parts, odd)?;
        }
        runs.push((inflated, punched));
    }
    Ok(Measured::rates(TIER_PAGES as f64, &runs))
}

fn punch(vm: &MockVm, extents: &[Extent]) -> Result<(), FlexError> {
    for extent in extents {
        punch_hole(vm.file(1).as_fd(), extent.start, extent.len)?;
    }
    Ok(())
}

struct Driver {
    device: Device,
    rings: Vec<Ring>,
    drivers: Vec<MockRing>,
}

impl Driver {
    /// Takes back the pages of the parts that are not `odd`, all of which the device must have taken.
    fn empty(
        &mut self,
        parts: &[(&[Vec<Entry>], Vec<Extent>)],
        odd: usize,
    ) -> Result<(), FlexError> {
        let taken = self.device.actual().get(1).copied();
        let given = parts.iter().enumerate().filter(|(i, _)| i % 2 != odd);
        let mut pages = 0;
        for (_, (part, _)) in given {
            pages += part.iter().map(Vec::len).sum::<usize>() as u64;
            self.post_all(DEFLATE, part);
        }
        if taken == Some(pages) && self.device.actual() == [0, 0] {
            return Ok(());
        }
        let why = format!("{taken:?} of {pages} pages went into the balloon and out again");
        Err(FlexError::Refused(why))
    }

    fn post_all(&mut self, queue: usize, chains: &[Vec<Entry>]) {
        // Behind the rings, out of the tier that is measured.
        let buffer = |slot: usize| RINGS_BYTES + slot as u64 * 8192;
        for posted in chains.chunks(POSTED) {
            let Some(driver) = self.drivers.get_mut(queue) else {
                return;
            };
            for (slot, entries) in posted.iter().enumerate() {
                let bytes: Vec<u8> = entries.iter().flat_map(|e| e.0.to_le_bytes()).collect();
                let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
                driver.put(buffer(slot), &bytes);
                driver.post_chain(&[(buffer(slot), len, 0), (buffer(slot) + 4096, 8, WRITE)]);
            }
            self.device.kick(queue);
            while self.device.turn(0, &self.rings).is_some() {}
            if let Some(driver) = self.drivers.get_mut(queue) {
                driver.answered();
            }
        }
    }
}

/// All pages of the tier, in runs whose order has nothing to do with their addresses.
fn chains(base: u64) -> Vec<Vec<Entry>> {
    let runs = TIER_PAGES / RUN_PAGES;
    // An odd factor below a power of two visits each run once.
    let pages = (0..runs).flat_map(|i| {
        let run = i.wrapping_mul(0x9e37_79b9) % runs;
        (0..RUN_PAGES).map(move |page| run * RUN_PAGES + page)
    });
    let entries: Vec<Entry> = pages
        .map(|page| Entry::new(base + page * PAGE_BYTES, 0))
        .collect();
    entries.chunks(MAX_ENTRIES).map(<[Entry]>::to_vec).collect()
}

/// The extents of a chain in the tier's file, ascending, neighbours as one.
fn coalesced(chain: &[Entry], vm: &MockVm) -> Vec<Extent> {
    let mut pages: Vec<u64> = chain.iter().map(|e| e.gpa() - vm.tier(1).start).collect();
    pages.sort_unstable();
    pages
        .chunk_by(|a, b| a + PAGE_BYTES == *b)
        .filter_map(|run| {
            Some(Extent {
                start: *run.first()?,
                len: run.len() as u64 * PAGE_BYTES,
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_page_is_in_one_chain_and_extents_are_maximal() {
        let limits = Limits {
            total_pages: None,
            entries_per_s: None,
            statistics_s: 0,
        };
        let vm = MockVm::new(&[4 * MIB, TIER_BYTES], 1, limits).unwrap();
        let chains = chains(vm.tier(1).start);
        let mut pages: Vec<u64> = chains.iter().flatten().map(|e| e.gpa()).collect();
        pages.sort_unstable();
        pages.dedup();
        assert_eq!(pages.len() as u64, TIER_PAGES);
        assert!(chains.iter().all(|chain| chain.len() == MAX_ENTRIES));
        let extents = coalesced(&chains[0], &vm);
        assert_eq!(extents.iter().map(|e| e.len).sum::<u64>(), 512 * PAGE_BYTES);
        assert!(
            extents
                .windows(2)
                .all(|e| e[0].start + e[0].len < e[1].start)
        );
    }
}
