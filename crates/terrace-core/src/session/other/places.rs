//! The locations of one VM's pages, by a log or under another policy.

use std::ops::Range;

use terrace_proto::{PAGE_SIZE, PAGES_PER_HUGE, PageCode, PageSize, PlacementReport, TierId};

/// A code for each page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Places {
    unit: PageSize,
    codes: Vec<PageCode>,
}

impl Places {
    /// Nothing is known of any page.
    pub fn new(unit: PageSize, span_pages: u64) -> Self {
        let pages = usize::try_from(span_pages).unwrap_or(0);
        Self {
            unit,
            codes: vec![PageCode::ABSENT; pages],
        }
    }

    pub fn codes(&self) -> &[PageCode] {
        &self.codes
    }

    /// Takes over a report; what lies beyond the VM's end is left out.
    pub fn report(&mut self, report: &PlacementReport) {
        let start = usize::try_from(report.start.0).unwrap_or(usize::MAX);
        let slots = self.codes.iter_mut().skip(start);
        slots
            .zip(&report.codes)
            .for_each(|(slot, code)| *slot = *code);
    }

    /// Takes over which pages there are and which are huge; what was here before stays in its tier.
    pub fn follow(&mut self, found: &Self) {
        for (slot, found) in self.codes.iter_mut().zip(&found.codes) {
            *slot = match (slot.tier(), found.tier()) {
                (Some(tier), Some(_)) => PageCode::new(tier, found.huge()),
                _ => *found,
            };
        }
    }

    pub fn tier(&self, page: usize) -> Option<TierId> {
        self.codes.get(page)?.tier()
    }

    /// The tier of a unit, by its first page that is there.
    pub fn unit_tier(&self, unit: usize) -> Option<TierId> {
        match self.unit {
            PageSize::Base => self.tier(unit),
            PageSize::Huge => self.block(unit).find_map(|page| self.tier(page)),
        }
    }

    fn block(&self, number: usize) -> Range<usize> {
        let size = usize::try_from(PAGES_PER_HUGE).unwrap_or(1);
        let start = number.saturating_mul(size).min(self.codes.len());
        start..start.saturating_add(size).min(self.codes.len())
    }

    /// The pages that move together with one: its unit, or the huge page of the host that it is part of.
    fn extent(&self, page: usize, huge: bool) -> Range<usize> {
        match self.unit {
            PageSize::Base if !huge => {
                let start = page.min(self.codes.len());
                start..self.codes.len().min(start + 1)
            }
            _ => self.block(page / usize::try_from(PAGES_PER_HUGE).unwrap_or(1)),
        }
    }

    /// Moves the unit that begins with a page to a tier, and what moves with it; pages that are nowhere
    /// stay so. Gives the code that the page has then.
    pub fn send(&mut self, page: usize, to: TierId) -> PageCode {
        let huge = self.codes.get(page).is_some_and(|code| code.huge());
        let extent = self.extent(page, huge);
        for slot in &mut self.codes[extent] {
            if slot.tier().is_some() {
                *slot = PageCode::new(to, slot.huge());
            }
        }
        self.codes.get(page).copied().unwrap_or(PageCode::ABSENT)
    }

    /// Takes over where a page that was tried to move is now; gives how many pages went to a faster tier
    /// and how many to a slower one.
    pub fn land(&mut self, page: usize, now: PageCode) -> (u64, u64) {
        let extent = self.extent(page, now.huge());
        let (mut up, mut down) = (0, 0);
        for slot in &mut self.codes[extent] {
            if let (Some(from), Some(to)) = (slot.tier(), now.tier()) {
                up += u64::from(to < from);
                down += u64::from(to > from);
                *slot = now;
            }
        }
        (up, down)
    }

    /// The host split a huge page, or made one.
    pub fn set_huge(&mut self, block: u64, huge: bool) {
        let block = self.block(usize::try_from(block).unwrap_or(usize::MAX));
        for slot in &mut self.codes[block] {
            if let Some(tier) = slot.tier() {
                *slot = PageCode::new(tier, huge);
            }
        }
    }

    /// Bytes in each tier.
    pub fn bytes(&self) -> [u64; TierId::MAX] {
        let mut bytes = [0; TierId::MAX];
        for tier in self.codes.iter().filter_map(|code| code.tier()) {
            if let Some(bytes) = bytes.get_mut(tier.index()) {
                *bytes += PAGE_SIZE;
            }
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use terrace_proto::{Gfn, RequestId, VmId};

    use super::*;

    fn places(unit: PageSize, codes: &[PageCode]) -> Places {
        let mut places = Places::new(unit, codes.len() as u64);
        places.report(&PlacementReport {
            id: RequestId(1),
            vm: VmId(1),
            start: Gfn(0),
            codes: codes.to_vec(),
            last: true,
        });
        places
    }

    const SLOW: PageCode = PageCode(1);

    #[test]
    fn a_huge_page_of_the_host_moves_as_a_whole() {
        let mut places = places(PageSize::Base, &[PageCode::new(TierId::SLOW, true); 1024]);
        assert_eq!(places.send(512, TierId::FAST).tier(), Some(TierId::FAST));
        assert_eq!(places.bytes(), [2 << 20, 2 << 20, 0, 0]);
        places.set_huge(1, false);
        places.send(512, TierId::SLOW);
        assert_eq!(places.bytes()[0], (2 << 20) - PAGE_SIZE);
    }

    #[test]
    fn new_pages_are_where_the_log_says_and_others_stay() {
        let mut other = places(
            PageSize::Base,
            &[PageCode(0), PageCode(0), PageCode::ABSENT],
        );
        other.follow(&places(PageSize::Base, &[SLOW, PageCode::ABSENT, SLOW]));
        let tiers: Vec<_> = (0..3).map(|page| other.tier(page)).collect();
        assert_eq!(tiers, [Some(TierId::FAST), None, Some(TierId::SLOW)]);
    }

    #[test]
    fn pages_beyond_the_end_are_nowhere() {
        let mut places = places(PageSize::Base, &[SLOW; 4]);
        assert_eq!(places.send(usize::MAX, TierId::FAST), PageCode::ABSENT);
        assert_eq!(places.land(9, PageCode(0)), (0, 0));
        places.set_huge(u64::MAX, true);
        assert_eq!(places.bytes(), [0, 4 * PAGE_SIZE, 0, 0]);
    }
}
