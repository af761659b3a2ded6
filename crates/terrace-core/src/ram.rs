//! Which guest page numbers are RAM, and how they group into units of ranking.
//!
//! Responsible for: the shape of one VM's guest physical space, checked once at arrival. It leaves to
//! others: where the pages are ([`crate::pages`]).

use terrace_proto::{Gfn, PageSize, RamRange, VmSpec};

/// Guest RAM whose ranges are in order, do not overlap and are not empty.
#[derive(Clone, Debug)]
pub struct Ram {
    ranges: Vec<RamRange>,
    unit: PageSize,
    /// Units that are RAM only in part, with their pages of RAM; ascending.
    partial: Vec<(u32, u32)>,
    span_pages: u64,
}

impl Ram {
    /// Takes the ranges of a VM.
    ///
    /// # Errors
    /// If they are wrong; the error has the reason.
    pub fn new(spec: &VmSpec) -> Result<Self, String> {
        Self::of(&spec.ram, spec.unit)
    }

    /// Takes ranges.
    ///
    /// # Errors
    /// As [`Ram::new`].
    pub fn of(ranges: &[RamRange], unit: PageSize) -> Result<Self, String> {
        let mut end = 0;
        for range in ranges {
            if range.pages == 0 || range.start.0 < end {
                return Err(format!(
                    "its RAM range at page {} is empty or out of order",
                    range.start
                ));
            }
            end = range
                .start
                .0
                .checked_add(range.pages)
                .ok_or("its RAM ends beyond all addresses")?;
        }
        // Unit numbers are stored as u32, and the last one marks "none".
        if end == 0 || end >= u64::from(u32::MAX) {
            return Err(format!("its RAM spans {end} pages, allowed are 1 to 2^32"));
        }
        let mut ram = Self {
            ranges: ranges.to_vec(),
            unit,
            partial: Vec::new(),
            span_pages: end,
        };
        ram.find_partial();
        Ok(ram)
    }

    fn find_partial(&mut self) {
        let size = self.unit.base_pages();
        let mut edges: Vec<u64> = self
            .ranges
            .iter()
            .flat_map(|r| [r.start.0 / size, (r.start.0 + r.pages - 1) / size])
            .collect();
        edges.dedup();
        for unit in edges {
            let pages = self.overlap(unit * size, size);
            if pages < size
                && let (Ok(unit), Ok(pages)) = (u32::try_from(unit), u32::try_from(pages))
            {
                self.partial.push((unit, pages));
            }
        }
    }

    /// Pages of RAM among `len` from `start`.
    fn overlap(&self, start: u64, len: u64) -> u64 {
        self.runs(start, len).map(|(a, b)| b - a).sum()
    }

    /// The runs of RAM (first page, end) among `len` pages from `start`.
    pub fn runs(&self, start: u64, len: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
        let end = start.saturating_add(len);
        self.ranges
            .iter()
            .map(move |r| (r.start.0.max(start), (r.start.0 + r.pages).min(end)))
            .filter(|(a, b)| a < b)
    }

    /// Number of pages of RAM.
    #[must_use]
    pub fn pages(&self) -> u64 {
        self.ranges.iter().map(|r| r.pages).sum()
    }

    /// One more than the highest page of RAM.
    #[must_use]
    pub fn span_pages(&self) -> u64 {
        self.span_pages
    }

    /// Number of units, those in holes included.
    #[must_use]
    pub fn units(&self) -> usize {
        usize::try_from(self.span_pages.div_ceil(self.unit.base_pages())).unwrap_or(usize::MAX)
    }

    /// The unit of ranking and moving.
    #[must_use]
    pub fn unit(&self) -> PageSize {
        self.unit
    }

    /// Whether all `len` pages from `start` are RAM.
    #[must_use]
    pub fn contains(&self, start: Gfn, len: u64) -> bool {
        self.overlap(start.0, len) == len
    }

    /// Pages of RAM in a unit: fewer than its size at the edge of a hole, none inside one.
    #[must_use]
    pub fn pages_in_unit(&self, unit: u32) -> u64 {
        match self.partial.binary_search_by_key(&unit, |(u, _)| *u) {
            Ok(at) => u64::from(self.partial[at].1),
            Err(_) if self.contains(self.first_page(unit), 1) => self.unit.base_pages(),
            Err(_) => 0,
        }
    }

    /// Whether every page of a unit is RAM.
    #[must_use]
    pub fn is_whole(&self, unit: u32) -> bool {
        self.pages_in_unit(unit) == self.unit.base_pages()
    }

    /// First page of a unit.
    #[must_use]
    pub fn first_page(&self, unit: u32) -> Gfn {
        Gfn(u64::from(unit) * self.unit.base_pages())
    }

    /// The unit that a page is part of; none beyond the end.
    #[must_use]
    pub fn unit_of(&self, gfn: Gfn) -> Option<u32> {
        (gfn.0 < self.span_pages)
            .then(|| u32::try_from(gfn.0 / self.unit.base_pages()).ok())
            .flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ram(unit: PageSize, ranges: &[(u64, u64)]) -> Result<Ram, String> {
        Ram::new(&VmSpec {
            vm: terrace_proto::VmId(1),
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
        })
    }

    #[test]
    fn units_at_the_edge_of_a_hole_are_not_whole() {
        let ram = ram(PageSize::Huge, &[(0, 160), (192, 1344), (2048, 512)]).unwrap();
        assert_eq!(ram.units(), 5);
        let pages: Vec<_> = (0..5).map(|u| ram.pages_in_unit(u)).collect();
        assert_eq!(pages, [480, 512, 512, 0, 512]);
        let whole: Vec<_> = (0..5).map(|u| ram.is_whole(u)).collect();
        assert_eq!(whole, [false, true, true, false, true]);
    }

    #[test]
    fn a_hole_is_no_ram() {
        let ram = ram(PageSize::Base, &[(0, 10), (20, 10)]).unwrap();
        assert!(ram.contains(Gfn(0), 10) && !ram.contains(Gfn(5), 10));
        assert!(!ram.contains(Gfn(10), 1) && ram.contains(Gfn(29), 1));
        assert_eq!(ram.unit_of(Gfn(30)), None);
    }

    #[test]
    fn overlapping_empty_and_endless_ranges_are_refused() {
        assert!(ram(PageSize::Base, &[(0, 10), (9, 10)]).is_err());
        assert!(ram(PageSize::Base, &[(0, 0)]).is_err());
        assert!(ram(PageSize::Base, &[]).is_err());
        assert!(ram(PageSize::Base, &[(1, u64::MAX)]).is_err());
        assert!(ram(PageSize::Huge, &[(0, 1 << 32)]).is_err());
    }
}
