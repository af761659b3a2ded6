//! The engine's state of each unit (4 KiB or 2 MiB) of one VM: four bytes.
//!
//! Responsible for: reads, writes, multi-level-queue state and place of each unit, one array each so
//! that passes stream, and the count of bytes per tier, always equal to the sum over the units. It leaves
//! to others: what the numbers mean for a decision.
//!
//! In a VM whose unit is 4 KiB the host may still back a 2 MiB block with one huge page. The kernel
//! moves such a block as a whole; here its 512 units carry the mark and change together.

pub(crate) mod flags;
mod worth;

use terrace_proto::{Gfn, PAGE_SIZE, PAGES_PER_HUGE, PageBitmap, PageCode, PageSize, TierId};

use crate::ram::Ram;

/// Units of a 2 MiB block if the unit is 4 KiB.
pub(crate) const BLOCK: usize = 512;

/// Everything about the units of one VM.
#[derive(Debug)]
pub struct Pages {
    ram: Ram,
    tiers: u8,
    pub(crate) reads: Vec<u8>,
    pub(crate) writes: Vec<u8>,
    /// State of the multi-level queue, list, or recent rate.
    pub(crate) queue: Vec<u8>,
    /// Long averages of rates, under policies that have them; else empty.
    pub(crate) long: Vec<u16>,
    pub(crate) flags: Vec<u8>,
    /// Base pages per tier code; code 7 is "absent".
    held: [u64; 8],
    /// Units of 2 MiB that were found in more than one tier since this was last set to 0.
    pub(crate) split_units: u64,
}

impl Pages {
    /// All units absent, unknown and never visited.
    #[must_use]
    pub fn new(ram: Ram, tiers: u8) -> Self {
        let n = ram.units();
        Self {
            ram,
            tiers,
            reads: vec![0; n],
            writes: vec![0; n],
            queue: vec![0; n],
            long: Vec::new(),
            flags: vec![flags::ABSENT; n],
            held: [0; 8],
            split_units: 0,
        }
    }

    /// The units of other RAM in place of these, with the same state of each.
    #[must_use]
    pub(crate) fn anew(&self, ram: Ram) -> Self {
        let mut pages = Self::new(ram, self.tiers);
        if !self.long.is_empty() {
            pages.have_rates();
        }
        pages
    }

    /// Makes room for rates that outlive rounds.
    pub fn have_rates(&mut self) {
        self.long = vec![0; self.flags.len()];
    }

    /// Bytes on the heap.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        let arrays = [&self.reads, &self.writes, &self.queue, &self.flags];
        let bytes: usize = arrays.iter().map(|array| array.capacity()).sum();
        bytes + self.long.capacity() * size_of::<u16>()
    }

    /// The guest's RAM.
    #[must_use]
    pub fn ram(&self) -> &Ram {
        &self.ram
    }

    /// Number of units, those in holes included.
    #[must_use]
    pub fn units(&self) -> usize {
        self.flags.len()
    }

    /// Number of tiers.
    #[must_use]
    pub fn tiers(&self) -> u8 {
        self.tiers
    }

    /// Bytes of a unit.
    #[must_use]
    pub fn unit_bytes(&self) -> u64 {
        self.ram.unit().bytes()
    }

    /// Bytes of the VM in a tier.
    #[must_use]
    pub fn bytes(&self, tier: TierId) -> u64 {
        self.held.get(tier.index()).map_or(0, |p| p * PAGE_SIZE)
    }

    /// A unit's tier; none if it is absent or no such unit exists.
    #[must_use]
    pub fn tier(&self, unit: u32) -> Option<TierId> {
        flags::tier(*self.flags.get(unit as usize)?, self.tiers)
    }

    /// Whether some user table of the guest maps a part of the unit.
    #[must_use]
    pub fn known(&self, unit: u32) -> bool {
        self.has(unit, flags::KNOWN)
    }

    /// Whether a plan that was not reported yet has the unit.
    #[must_use]
    pub fn in_flight(&self, unit: u32) -> bool {
        self.has(unit, flags::IN_FLIGHT)
    }

    /// Rounds for which the unit is left alone, the one under way or just over included.
    #[must_use]
    pub fn cool_down(&self, unit: u32) -> u8 {
        self.flags.get(unit as usize).map_or(0, |p| p >> 6)
    }

    fn has(&self, unit: u32, mark: u8) -> bool {
        self.flags.get(unit as usize).is_some_and(|p| p & mark != 0)
    }

    /// Whether a unit of 4 KiB is part of a huge page of the host, and moves only with it.
    #[must_use]
    pub fn in_huge_block(&self, unit: u32) -> bool {
        self.ram.unit() == PageSize::Base && self.has(unit, flags::HUGE)
    }

    /// The units that move with this one: itself, or its block if it starts a huge one.
    pub(crate) fn extent(&self, unit: u32) -> std::ops::Range<usize> {
        let start = unit as usize;
        if self.in_huge_block(unit) && start.is_multiple_of(BLOCK) {
            start..(start + BLOCK).min(self.flags.len())
        } else {
            start..(start + 1).min(self.flags.len())
        }
    }

    /// Records where a unit is. Tiers that the engine does not have count as absent, and so does all
    /// that is no RAM. A unit in flight stays where it was: its plan's report shows where it is, and the
    /// bytes that it moved must be counted once.
    fn put(&mut self, unit: usize, pages: u64, code: PageCode) {
        let tier = code
            .tier()
            .filter(|t| t.0 < self.tiers && pages > 0)
            .map_or(flags::ABSENT, |t| t.0);
        let slot = &mut self.flags[unit];
        if *slot & flags::IN_FLIGHT != 0 {
            return;
        }
        self.held[usize::from(*slot & flags::TIER)] -= if *slot & flags::TIER == flags::ABSENT {
            0
        } else {
            pages
        };
        if tier != flags::ABSENT {
            self.held[usize::from(tier)] += pages;
        }
        let huge = if code.huge() { flags::HUGE } else { 0 };
        *slot = (*slot & !(flags::TIER | flags::HUGE)) | tier | huge;
    }

    /// Records where a run of pages is.
    pub fn place_run(&mut self, start: Gfn, codes: &[PageCode]) {
        let size = self.ram.unit().base_pages();
        let runs: Vec<_> = self.ram.runs(start.0, codes.len() as u64).collect();
        let at = |page: u64| usize::try_from(page).unwrap_or(usize::MAX);
        for (first, end) in runs {
            let codes = &codes[at(first - start.0)..at(end - start.0)];
            if size == 1 {
                for (unit, code) in (at(first)..).zip(codes) {
                    self.put(unit, 1, *code);
                }
                continue;
            }
            // A unit is counted once, in the run that has its first page of RAM.
            for unit in first / size..end.div_ceil(size) {
                let speaker = self.ram.runs(unit * size, size).next().map(|(a, _)| a);
                if let (Some(page), Ok(number)) = (speaker, u32::try_from(unit))
                    && page >= first
                {
                    let pages = self.ram.pages_in_unit(number);
                    let until = end.min((unit + 1) * size);
                    let (code, split) = whole(&codes[at(page - first)..at(until - first)]);
                    self.split_units += u64::from(split);
                    self.put(at(unit), pages, code);
                }
            }
        }
    }

    /// Records that `len` pages from `start` were not reported: nothing is known to be there.
    pub(crate) fn place_absent(&mut self, start: Gfn, len: u64) {
        const CHUNK: u64 = 4096;
        let end = start.0.saturating_add(len).min(self.ram.span_pages());
        let mut page = start.0;
        while page < end {
            let n = CHUNK.min(end - page);
            self.place_run(
                Gfn(page),
                &[PageCode::ABSENT; 4096][..usize::try_from(n).unwrap_or(0)],
            );
            page += n;
        }
    }

    /// Records the place of a unit by the kernel's answer, and with it the block that it moves with.
    /// Gives the tier it left, if it changed tier.
    pub(crate) fn place_moved(&mut self, unit: u32, now: PageCode) -> Option<TierId> {
        let from = self.tier(unit);
        let at = unit as usize;
        let first = at / BLOCK * BLOCK;
        let block_of_4k = self.ram.unit() == PageSize::Base
            && self.ram.contains(Gfn(first as u64), PAGES_PER_HUGE);
        if block_of_4k && now.huge() {
            for part in first..first + BLOCK {
                self.put(part, 1, now);
            }
        } else if at < self.flags.len() {
            if block_of_4k && self.in_huge_block(unit) {
                self.set_huge_block(unit - unit % 512, false);
            }
            self.put(at, self.ram.pages_in_unit(unit), now);
        }
        from.filter(|_| self.tier(unit) != from)
    }

    /// Marks the 2 MiB block that starts with a unit of 4 KiB, or a unit of 2 MiB, as huge or split.
    pub(crate) fn set_huge_block(&mut self, first: u32, huge: bool) {
        let len = match self.ram.unit() {
            PageSize::Base => BLOCK,
            PageSize::Huge => 1,
        };
        let start = (first as usize).min(self.flags.len());
        let end = (start + len).min(self.flags.len());
        for slot in &mut self.flags[start..end] {
            *slot = (*slot & !flags::HUGE) | if huge { flags::HUGE } else { 0 };
        }
    }

    /// Marks or unmarks units as in flight.
    pub(crate) fn mark_in_flight(&mut self, units: std::ops::Range<usize>, on: bool) {
        for slot in &mut self.flags[units] {
            *slot = (*slot & !flags::IN_FLIGHT) | if on { flags::IN_FLIGHT } else { 0 };
        }
    }

    /// Has units left alone for some rounds.
    pub(crate) fn set_cool_down(&mut self, units: std::ops::Range<usize>, rounds: u8) {
        for slot in &mut self.flags[units] {
            *slot = (*slot & !flags::COOL) | (rounds << 6);
        }
    }

    /// A round starts: one round of every cool-down is over.
    pub(crate) fn pass_cool_down(&mut self) {
        for slot in &mut self.flags {
            *slot -= if *slot & flags::COOL == 0 {
                0
            } else {
                flags::COOL_ONE
            };
        }
    }

    /// Sets in how many windows a unit was read, and written, of those that there are.
    pub fn set_heat(&mut self, unit: u32, reads: u8, writes: u8) {
        let unit = unit as usize;
        if let (Some(r), Some(w)) = (self.reads.get_mut(unit), self.writes.get_mut(unit)) {
            (*r, *w) = (reads, writes);
        }
    }

    /// Forgets the heat of the last round, and the units' levels unless they outlive it.
    pub(crate) fn clear_heat(&mut self, levels: bool) {
        self.reads.fill(0);
        self.writes.fill(0);
        if levels {
            self.queue.fill(0);
        }
    }

    /// Forgets all that was seen of units: other data lie there now.
    pub(crate) fn forget(&mut self, units: std::ops::Range<usize>) {
        self.reads[units.clone()].fill(0);
        self.writes[units.clone()].fill(0);
        self.queue[units.clone()].fill(0);
        if let Some(long) = self.long.get_mut(units) {
            long.fill(0);
        }
    }

    /// Takes units off the lists that they are on.
    pub(crate) fn leave_lists(&mut self, units: std::ops::Range<usize>) {
        self.queue[units].fill(0);
    }

    /// Takes over which pages the guest maps. A unit of 2 MiB is known if any of its pages is and all
    /// of it is RAM.
    pub(crate) fn set_known(&mut self, known: &PageBitmap) {
        let words = known.words();
        match self.ram.unit() {
            PageSize::Base => {
                for (slots, &word) in self.flags.chunks_mut(64).zip(words) {
                    for (i, slot) in slots.iter_mut().enumerate() {
                        let bit = u8::from(word >> i & 1 == 1) * flags::KNOWN;
                        *slot = (*slot & !flags::KNOWN) | bit;
                    }
                }
            }
            PageSize::Huge => {
                for (unit, words) in (0_u32..).zip(words.chunks(8)) {
                    let any = words.iter().any(|w| *w != 0) && self.ram.is_whole(unit);
                    let slot = &mut self.flags[unit as usize];
                    *slot = (*slot & !flags::KNOWN) | if any { flags::KNOWN } else { 0 };
                }
            }
        }
    }

    /// Counts every whole unit as known: for policies that observe no page.
    pub fn set_all_known(&mut self) {
        self.set_known(&PageBitmap::full(self.ram.span_pages()));
    }

    /// Base pages per tier, counted anew: what [`Self::bytes`] must agree with.
    #[must_use]
    pub fn recount(&self) -> [u64; TierId::MAX] {
        let mut held = [0; TierId::MAX];
        for unit in (0_u32..).take(self.flags.len()) {
            if let Some(tier) = self.tier(unit) {
                held[tier.index()] += self.ram.pages_in_unit(unit);
            }
        }
        held
    }
}

/// The tier of a unit of 2 MiB by its pages: the one that has most of those that are present, so that less than half
/// is elsewhere (the host split its huge page, and only a part moved). Also whether it is in more than one.
fn whole(codes: &[PageCode]) -> (PageCode, bool) {
    let first = codes.first().copied().unwrap_or(PageCode::ABSENT);
    if codes.iter().all(|code| *code == first) {
        return (first, false);
    }
    let mut counts = [0_usize; TierId::MAX];
    for tier in codes.iter().filter_map(|code| code.tier()) {
        if let Some(count) = counts.get_mut(tier.index()) {
            *count += 1;
        }
    }
    let tiers = (0_u8..).map(TierId).zip(counts);
    match tiers.max_by_key(|(_, count)| *count) {
        Some((tier, count)) if count > 0 => {
            let several = counts.iter().filter(|count| **count > 0).count() > 1;
            (PageCode::new(tier, false), several)
        }
        _ => (PageCode::ABSENT, false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_proto::{RamRange, VmId, VmSpec};

    fn pages(unit: PageSize, ranges: &[(u64, u64)]) -> Pages {
        let spec = VmSpec {
            vm: VmId(1),
            name: "vm".into(),
            ram: ranges
                .iter()
                .map(|&(start, pages)| RamRange {
                    start: Gfn(start),
                    pages,
                })
                .collect(),
            unit,
            limits: Vec::new(),
            weight: 1000,
            moves: true,
        };
        Pages::new(Ram::new(&spec).unwrap(), 2)
    }

    const FAST: PageCode = PageCode(0);
    const SLOW: PageCode = PageCode(1);

    #[test]
    fn bytes_per_tier_equal_a_recount_and_holes_count_nothing() {
        let mut p = pages(PageSize::Base, &[(0, 10), (20, 10)]);
        p.place_run(Gfn(5), &[SLOW; 30]);
        p.place_run(Gfn(0), &[FAST; 7]);
        p.place_run(Gfn(28), &[PageCode(5); 2]);
        assert_eq!(p.recount(), [7, 3 + 8, 0, 0]);
        assert_eq!(p.bytes(TierId::FAST), 7 * PAGE_SIZE);
        assert_eq!(p.bytes(TierId::SLOW), 11 * PAGE_SIZE);
        assert_eq!(p.tier(28), None, "the engine has no tier 5");
        assert_eq!(p.tier(15), None, "a hole");
    }

    #[test]
    fn what_was_not_reported_is_absent() {
        let mut p = pages(PageSize::Base, &[(0, 9000)]);
        p.place_run(Gfn(0), &[SLOW; 9000]);
        p.place_absent(Gfn(100), u64::MAX);
        assert_eq!(p.recount(), [0, 100, 0, 0]);
        assert_eq!(p.bytes(TierId::SLOW), 100 * PAGE_SIZE);
    }

    #[test]
    fn a_partial_unit_counts_its_ram_and_is_never_known() {
        let mut p = pages(PageSize::Huge, &[(0, 160), (256, 768)]);
        p.place_run(Gfn(0), &[SLOW; 1024]);
        assert_eq!(p.bytes(TierId::SLOW), (160 + 768) * PAGE_SIZE);
        p.set_all_known();
        assert!(!p.known(0) && p.known(1));
    }

    #[test]
    fn a_split_huge_unit_counts_where_most_of_it_is() {
        let mut p = pages(PageSize::Huge, &[(0, 2048)]);
        let mut codes = vec![PageCode::new(TierId::SLOW, true); 2048];
        codes[..200].fill(FAST);
        codes[200..512].fill(SLOW);
        codes[512..712].fill(PageCode::ABSENT);
        codes[712..1024].fill(FAST);
        p.place_run(Gfn(0), &codes);
        assert_eq!([0, 1, 2].map(|u| p.tier(u).unwrap().0), [1, 0, 1]);
        assert_eq!(p.split_units, 1, "only the first is in two tiers");
        assert_eq!(p.bytes(TierId::FAST), 2 << 20);
        codes[1024..].fill(PageCode::ABSENT);
        p.place_run(Gfn(0), &codes);
        assert_eq!(p.tier(3), None);
    }

    #[test]
    fn a_huge_block_moves_as_a_whole() {
        let mut p = pages(PageSize::Base, &[(0, 1024)]);
        p.place_run(Gfn(0), &[PageCode::new(TierId::SLOW, true); 512]);
        assert_eq!(
            p.place_moved(0, PageCode::new(TierId::FAST, true)),
            Some(TierId::SLOW)
        );
        assert_eq!(p.bytes(TierId::FAST), 2 << 20);
        assert_eq!(
            p.place_moved(0, SLOW),
            Some(TierId::FAST),
            "it was split on the way: only the first page is known to have moved"
        );
        assert!(!p.in_huge_block(0) && !p.in_huge_block(511));
        assert_eq!(p.recount(), [511, 1, 0, 0]);
    }

    #[test]
    fn a_unit_in_flight_stays_where_it_was_until_its_report() {
        let mut p = pages(PageSize::Base, &[(0, 4)]);
        p.place_run(Gfn(0), &[SLOW; 4]);
        p.mark_in_flight(1..2, true);
        p.place_run(Gfn(0), &[FAST; 4]);
        assert_eq!(p.recount(), [3, 1, 0, 0]);
        p.mark_in_flight(1..2, false);
        assert_eq!(p.place_moved(1, FAST), Some(TierId::SLOW));
    }

    #[test]
    fn cool_downs_pass_round_by_round() {
        let mut p = pages(PageSize::Base, &[(0, 4)]);
        p.set_cool_down(1..3, 2);
        p.pass_cool_down();
        assert_eq!([0, 1, 2, 3].map(|u| p.cool_down(u)), [0, 1, 1, 0]);
        p.pass_cool_down();
        p.pass_cool_down();
        assert_eq!([0, 1, 2, 3].map(|u| p.cool_down(u)), [0; 4]);
    }
}
