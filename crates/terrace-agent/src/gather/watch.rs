//! Hot base pages by accessed bits: accessed in two of three windows.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use terrace_core::gather::{Heat, WINDOWS};
use terrace_core::ranges::Range;
use terrace_proto::{PAGE_SIZE, PAGES_PER_HUGE};
use terrace_sys::{HostRoot, PageRun, Pagemap};

use super::hot::HotPages;
use crate::mappings::Layout;

/// Pages of a part: 1 GiB.
const PART_PAGES: u64 = 1 << 18;
/// Gaps between present pages that are watched along, pages.
const GAP_PAGES: u64 = 1 << 6;
/// Most pages that are watched: 256 GiB, a byte for each.
const MAX_PAGES: u64 = 1 << 26;

/// The state of a page since its bit was cleared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// Not there, or not accessed.
    Not,
    /// Accessed.
    Accessed,
    /// Part of a larger page, some part of which was accessed.
    Large,
}

/// A source of accessed bits of base pages.
pub trait AccessedBits {
    /// Clears the bits of a range of a process's pages. A process that has ended is no failure.
    fn clear(&mut self, pid: u32, range: Range) -> Result<()>;
    /// Reads the bits, one for each page, and clears them. Nothing is read of a process that has ended.
    fn take(&mut self, pid: u32, range: Range, seen: &mut Vec<Seen>) -> Result<()>;
}

/// A part of a process's memory, and its pages' heat.
struct Part {
    pid: u32,
    range: Range,
    heat: Vec<Heat>,
}

/// Watches processes for three windows; `say` is told of each before it begins.
///
/// # Errors
/// If the bits cannot be read.
pub fn watch(
    root: &HostRoot,
    bits: &mut dyn AccessedBits,
    pids: &[u32],
    window: Duration,
    say: &dyn Fn(u32),
) -> Result<HotPages> {
    let mut parts = parts(root, pids)?;
    let mut seen = Vec::new();
    let mut huge = 0;
    for part in &parts {
        bits.clear(part.pid, part.range)?;
    }
    for number in 1..=WINDOWS {
        say(number);
        std::thread::sleep(window);
        huge = 0;
        for part in &mut parts {
            seen.clear();
            bits.take(part.pid, part.range, &mut seen)?;
            huge += take_in(part, &seen);
        }
    }
    Ok(HotPages {
        pages: hot(&parts),
        huge: huge / PAGES_PER_HUGE,
    })
}

/// Present parts of the mappings that the agent manages.
fn parts(root: &HostRoot, pids: &[u32]) -> Result<Vec<Part>> {
    let mut parts = Vec::new();
    let mut watched = 0;
    for (pid, layout) in Layout::read_all(root, pids) {
        // One that has ended is left out.
        let Ok(pagemap) = Pagemap::open(&root.process(pid, "pagemap")) else {
            continue;
        };
        for mapped in layout.mapped {
            let runs = pagemap.present(mapped.start * PAGE_SIZE, mapped.end * PAGE_SIZE);
            for range in joined(&runs.context("looking for present pages")?) {
                watched += range.end - range.start;
                ensure!(
                    watched <= MAX_PAGES,
                    "more than {} GiB to watch: name fewer processes (processes.names)",
                    MAX_PAGES >> 18
                );
                parts.push(Part {
                    pid,
                    range,
                    heat: vec![Heat::default(); usize::try_from(range.end - range.start)?],
                });
            }
        }
    }
    Ok(parts)
}

/// Ranges of at most a GiB that have all of these pages, and gaps that are not worth another call.
fn joined(runs: &[PageRun]) -> Vec<Range> {
    let mut ranges: Vec<Range> = Vec::new();
    for run in runs {
        let (mut start, end) = (run.start / PAGE_SIZE, run.end / PAGE_SIZE);
        if let Some(last) = ranges.last_mut()
            && start - last.end <= GAP_PAGES
            && end - last.start <= PART_PAGES
        {
            last.end = end;
            continue;
        }
        while start < end {
            let part = (start + PART_PAGES).min(end);
            ranges.push(Range { start, end: part });
            start = part;
        }
    }
    ranges
}

/// Takes in a window; returns the accessed parts of larger pages.
fn take_in(part: &mut Part, seen: &[Seen]) -> u64 {
    let mut huge = 0;
    for (at, heat) in part.heat.iter_mut().enumerate() {
        // An ended process has none.
        let seen = seen.get(at).copied().unwrap_or(Seen::Not);
        huge += u64::from(seen == Seen::Large);
        heat.push(seen == Seen::Accessed);
    }
    huge
}

fn hot(parts: &[Part]) -> BTreeMap<u32, Vec<u64>> {
    let mut pages: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
    for part in parts {
        let numbered = (part.range.start..).zip(&part.heat);
        let hot = numbered.filter(|(_, heat)| heat.is_hot());
        pages
            .entry(part.pid)
            .or_default()
            .extend(hot.map(|(page, _)| page));
    }
    pages
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(start: u64, end: u64) -> PageRun {
        PageRun {
            start: start * PAGE_SIZE,
            end: end * PAGE_SIZE,
            huge: false,
        }
    }

    #[test]
    fn near_pages_are_scanned_together_up_to_a_gib() {
        let far = GAP_PAGES + 1;
        let ranges = joined(&[
            run(0, 1),
            run(2, 3),
            run(3 + far, 4 + far),
            run(1 << 20, (1 << 20) + PART_PAGES + 5),
        ]);
        let bounds: Vec<(u64, u64)> = ranges
            .iter()
            .map(|range| (range.start, range.end))
            .collect();
        let large = 1 << 20;
        assert_eq!(
            bounds,
            [
                (0, 3),
                (3 + far, 4 + far),
                (large, large + PART_PAGES),
                (large + PART_PAGES, large + PART_PAGES + 5)
            ]
        );
    }

    #[test]
    fn parts_of_larger_pages_are_counted_and_never_hot() {
        let mut part = Part {
            pid: 7,
            range: Range {
                start: 100,
                end: 103,
            },
            heat: vec![Heat::default(); 3],
        };
        for _ in 0..2 {
            let seen = [Seen::Accessed, Seen::Large, Seen::Not];
            assert_eq!(take_in(&mut part, &seen), 1);
        }
        assert_eq!(take_in(&mut part, &[]), 0, "the process has ended");
        assert_eq!(hot(&[part]), [(7, vec![100])].into());
    }
}
