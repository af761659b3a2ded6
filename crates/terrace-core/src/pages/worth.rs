//! The worth of the first tier to a VM, by the accesses of its last windows.

use terrace_proto::snapshot::Worth;

use super::{Pages, flags};

/// Units that are summed up at once: so many bytes add up to less than 2^16.
const CHUNK: usize = 128;

impl Pages {
    /// The first tier's part of the known pages, and of the accesses to them.
    #[must_use]
    pub fn worth(&self) -> Worth {
        let mut worth = Worth::default();
        let unit = self.ram.unit().base_pages();
        let (reads, last_reads) = self.reads.as_chunks();
        let (writes, last_writes) = self.writes.as_chunks();
        let (places, last_places) = self.flags.as_chunks();
        for ((reads, writes), places) in reads.iter().zip(writes).zip(places) {
            add(&mut worth, unit, reads, writes, places);
        }
        if !last_places.is_empty() {
            // Units that are absent make the last chunk whole.
            let whole = |part: &[u8], rest: u8| {
                let mut chunk = [rest; CHUNK];
                chunk[..part.len()].copy_from_slice(part);
                chunk
            };
            let (reads, writes) = (whole(last_reads, 0), whole(last_writes, 0));
            add(
                &mut worth,
                unit,
                &reads,
                &writes,
                &whole(last_places, flags::ABSENT),
            );
        }
        worth
    }
}

/// Adds pages, accesses and writes of a chunk: all, and those of the first tier. Byte by byte and without branches, so that
/// it streams.
fn add(
    worth: &mut Worth,
    unit: u64,
    reads: &[u8; CHUNK],
    writes: &[u8; CHUNK],
    places: &[u8; CHUNK],
) {
    let (mut known, mut fast) = ([0; CHUNK], [0; CHUNK]);
    for ((known, fast), place) in known.iter_mut().zip(&mut fast).zip(places) {
        let mask = |is_there: bool| if is_there { u8::MAX } else { 0 };
        let is_present = mask(place & flags::TIER != flags::ABSENT);
        *known = mask(place & flags::KNOWN != 0) & is_present;
        *fast = mask(place & (flags::KNOWN | flags::TIER) == flags::KNOWN);
    }
    let ones = [1; CHUNK];
    worth.pages += sum(&ones, &known) * unit;
    worth.accesses += sum(reads, &known) * unit;
    worth.writes += sum(writes, &known) * unit;
    worth.fast_pages += sum(&ones, &fast) * unit;
    worth.fast_accesses += sum(reads, &fast) * unit;
    worth.fast_writes += sum(writes, &fast) * unit;
}

/// The sum of the bytes whose masks are all ones; those of the others are 0.
#[inline]
fn sum(bytes: &[u8; CHUNK], masks: &[u8; CHUNK]) -> u64 {
    let masked = bytes.iter().zip(masks).map(|(byte, mask)| byte & mask);
    masked.map(u16::from).sum::<u16>().into()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
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

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(500))]
        #[test]
        fn any_state_is_summed_up_as_unit_by_unit(
            units in prop::collection::vec((any::<u8>(), any::<u8>(), prop_oneof![any::<u8>(), Just(flags::KNOWN)]), 1..700),
            huge in any::<bool>(),
        ) {
            let unit = if huge { PageSize::Huge } else { PageSize::Base };
            let ram = RamRange { start: Gfn(0), pages: units.len() as u64 * unit.base_pages() };
            let mut pages = Pages::new(Ram::of(&[ram], unit).unwrap(), 4);
            let mut plain = Worth::default();
            for (at, (reads, writes, place)) in units.into_iter().enumerate() {
                (pages.reads[at], pages.writes[at], pages.flags[at]) = (reads, writes, place);
                if place & flags::KNOWN == 0 || place & flags::TIER == flags::ABSENT {
                    continue;
                }
                let size = unit.base_pages();
                plain.pages += size;
                plain.accesses += u64::from(reads) * size;
                plain.writes += u64::from(writes) * size;
                if place & flags::TIER == 0 {
                    plain.fast_pages += size;
                    plain.fast_accesses += u64::from(reads) * size;
                    plain.fast_writes += u64::from(writes) * size;
                }
            }
            prop_assert_eq!(pages.worth(), plain);
        }
    }
}
