//! What the first tier is worth to a VM, by the accesses of its last windows.

use terrace_proto::snapshot::Worth;

use super::{Pages, flags};

/// Units that are summed up at once: no sum of so many bytes overflows.
const CHUNK: usize = 1 << 16;

impl Pages {
    /// The first tier's part of the known pages, and of the accesses to them.
    #[must_use]
    pub fn worth(&self) -> Worth {
        let mut worth = Worth::default();
        let unit = self.ram.unit().base_pages();
        let counts = self.reads.chunks(CHUNK).zip(self.writes.chunks(CHUNK));
        for ((reads, writes), places) in counts.zip(self.flags.chunks(CHUNK)) {
            let [all, fast] = sums(reads, writes, places);
            let add = |sum: &mut u64, more: u32| *sum += u64::from(more) * unit;
            add(&mut worth.pages, all[0]);
            add(&mut worth.accesses, all[1]);
            add(&mut worth.writes, all[2]);
            add(&mut worth.fast_pages, fast[0]);
            add(&mut worth.fast_accesses, fast[1]);
            add(&mut worth.fast_writes, fast[2]);
        }
        worth
    }
}

/// Units, accesses and writes: all, and those of the first tier. Without branches, so that it streams.
fn sums(reads: &[u8], writes: &[u8], places: &[u8]) -> [[u32; 3]; 2] {
    let (mut all, mut fast) = ([0_u32; 3], [0_u32; 3]);
    for ((reads, writes), place) in reads.iter().zip(writes).zip(places) {
        let is_known = u32::from(place & flags::KNOWN != 0 && place & flags::TIER != flags::ABSENT);
        let is_fast = is_known * u32::from(place & flags::TIER == 0);
        let counts = [1, u32::from(*reads), u32::from(*writes)];
        for ((all, fast), count) in all.iter_mut().zip(&mut fast).zip(counts) {
            *all += is_known * count;
            *fast += is_fast * count;
        }
    }
    [all, fast]
}

#[cfg(test)]
mod tests {
    use terrace_proto::{Gfn, PageCode, PageSize, RamRange, TierId};

    use super::*;
    use crate::ram::Ram;

    #[test]
    fn a_hot_page_on_fast_is_worth_more_than_interleaving() {
        let ram = [RamRange {
            start: Gfn(0),
            pages: 100,
        }];
        let mut pages = Pages::new(Ram::of(&ram, PageSize::Base).unwrap(), 2);
        let code = |tier| PageCode::new(TierId(tier), false);
        pages.place_run(Gfn(0), &[code(0); 25]);
        pages.place_run(Gfn(25), &[code(1); 74]);
        pages.set_all_known();
        for unit in 0..100 {
            pages.set_heat(unit, 1, 0);
        }
        let even = pages.worth();
        assert_eq!((even.pages, even.fast_pages), (99, 25));
        assert!((even.dram_utility().unwrap() - 1.0).abs() < 1e-9);
        // All writes to the first tier: they count, not the accesses.
        for unit in 0..10 {
            pages.set_heat(unit, 8, 8);
        }
        let hot = pages.worth();
        assert_eq!((hot.fast_accesses, hot.accesses), (95, 169));
        assert_eq!((hot.fast_writes, hot.writes), (80, 80));
        assert!((hot.dram_utility().unwrap() - 99.0 / 25.0).abs() < 1e-9);
        assert_eq!(Worth::default().dram_utility(), None);
    }
}
