//! Runs of guest pages, and where they were found.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Bytes in a page, as everything here counts them.
pub const PAGE_SIZE: usize = 4096;

/// A run of guest frames: the first one's number and how many there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "(u64, u64)", into = "(u64, u64)")]
pub struct PageRange {
    /// Guest frame number of the first page.
    pub first: u64,
    /// Number of pages.
    pub count: u64,
}

impl From<(u64, u64)> for PageRange {
    fn from((first, count): (u64, u64)) -> Self {
        Self { first, count }
    }
}

impl From<PageRange> for (u64, u64) {
    fn from(range: PageRange) -> Self {
        (range.first, range.count)
    }
}

impl PageRange {
    /// Every frame number in the range.
    pub fn frames(self) -> impl Iterator<Item = u64> {
        self.first..self.first.saturating_add(self.count)
    }
}

/// Joins frame numbers, in any order, into the fewest ranges.
#[must_use]
pub fn coalesce(mut frames: Vec<u64>) -> Vec<PageRange> {
    frames.sort_unstable();
    frames.dedup();
    let mut ranges: Vec<PageRange> = Vec::new();
    for frame in frames {
        match ranges.last_mut() {
            Some(last) if last.first + last.count == frame => last.count += 1,
            _ => ranges.push(PageRange::from((frame, 1))),
        }
    }
    ranges
}

/// Number of pages in all ranges.
#[must_use]
pub fn total(ranges: &[PageRange]) -> u64 {
    ranges.iter().map(|range| range.count).sum()
}

/// The nodes of a set of pages, as the kernel reports.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    /// Pages on each NUMA node.
    pub nodes: BTreeMap<i32, u64>,
    /// Pages that are in no memory at all.
    pub absent: u64,
    /// Pages that the kernel answered with an error, by errno.
    pub errors: BTreeMap<i32, u64>,
}

impl Placement {
    /// Takes one status of `move_pages(2)`: a node, or a negated errno.
    pub fn count(&mut self, status: i32) {
        let slot = if status >= 0 {
            self.nodes.entry(status).or_default()
        } else if status == -libc::ENOENT {
            &mut self.absent
        } else {
            self.errors.entry(-status).or_default()
        };
        *slot += 1;
    }

    /// Pages on one node.
    #[must_use]
    pub fn on(&self, node: i32) -> u64 {
        self.nodes.get(&node).copied().unwrap_or(0)
    }

    /// All pages asked about.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.nodes.values().sum::<u64>() + self.absent + self.errors.values().sum::<u64>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coalesce_joins_neighbours_in_any_order() {
        let ranges = coalesce(vec![9, 3, 1, 2, 10, 3]);
        assert_eq!(ranges, [PageRange::from((1, 3)), PageRange::from((9, 2))]);
        assert_eq!(total(&ranges), 5);
        assert_eq!(ranges[1].frames().collect::<Vec<_>>(), [9, 10]);
    }

    #[test]
    fn placement_tells_nodes_from_absence_and_errors() {
        let mut placement = Placement::default();
        for status in [0, 1, 1, -libc::ENOENT, -libc::EFAULT] {
            placement.count(status);
        }
        assert_eq!(placement.on(1), 2);
        assert_eq!(placement.absent, 1);
        assert_eq!(placement.errors[&libc::EFAULT], 1);
        assert_eq!(placement.total(), 5);
    }
}
