//! Hot base pages by accessed bits: accessed in two of three windows.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use terrace_core::gather::{BLOCK_PAGES, Heat, LargePage, WINDOWS};
use terrace_core::ranges::Range;
use terrace_proto::PAGE_SIZE;
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

/// A source of what was accessed, base page by base page.
pub trait AccessedBits {
    /// The source's name, for people.
    fn name(&self) -> &'static str;
    /// Waits for the end of a window.
    ///
    /// # Errors
    /// If the source fails meanwhile.
    fn wait(&mut self, window: Duration) -> Result<()> {
        std::thread::sleep(window);
        Ok(())
    }
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
    /// Of larger pages, by their address in units of 2 MiB.
    large: BTreeMap<u64, Heat>,
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
    say: &mut dyn FnMut(u32) -> Result<()>,
) -> Result<HotPages> {
    let mut parts = parts(root, pids)?;
    let mut seen = Vec::new();
    for part in &parts {
        bits.clear(part.pid, part.range)?;
    }
    for number in 1..=WINDOWS {
        say(number)?;
        bits.wait(window)?;
        for part in &mut parts {
            seen.clear();
            bits.take(part.pid, part.range, &mut seen)?;
            take_in(part, &seen);
        }
    }
    Ok(HotPages {
        pages: hot(&parts),
        large: large(&parts),
        by_host: None,
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
                    large: BTreeMap::new(),
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

/// Takes in a window.
fn take_in(part: &mut Part, seen: &[Seen]) {
    let mut large = BTreeSet::new();
    for (page, heat) in (part.range.start..).zip(&mut part.heat) {
        // An ended process has none.
        let at = usize::try_from(page - part.range.start).unwrap_or(usize::MAX);
        let seen = seen.get(at).copied().unwrap_or(Seen::Not);
        heat.push(seen == Seen::Accessed);
        if seen == Seen::Large {
            large.insert(page / u64::from(BLOCK_PAGES));
        }
    }
    for block in &large {
        part.large.entry(*block).or_default();
    }
    for (block, heat) in &mut part.large {
        heat.push(large.contains(block));
    }
}

/// Larger pages that are hot.
fn large(parts: &[Part]) -> Vec<LargePage> {
    let each = parts.iter().flat_map(|part| {
        let hot = part.large.iter().filter(|(_, heat)| heat.is_hot());
        hot.map(|(block, _)| (part.pid, *block))
    });
    // One may lie in two parts.
    each.collect::<BTreeSet<_>>().into_iter().collect()
}

fn hot(parts: &[Part]) -> BTreeMap<u32, Vec<u64>> {
    let mut pages: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
    for part in parts {
        let numbered = (part.range.start..).zip(&part.heat);
        let hot = numbered.filter(|(_, heat)| heat.is_hot());
        let of_process = pages.entry(part.pid).or_default();
        of_process.extend(hot.map(|(page, _)| page));
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
    fn larger_pages_are_hot_as_a_whole_and_their_parts_never() {
        let mut part = Part {
            pid: 7,
            range: Range {
                start: 510,
                end: 513,
            },
            heat: vec![Heat::default(); 3],
            large: BTreeMap::new(),
        };
        take_in(&mut part, &[Seen::Accessed, Seen::Not, Seen::Large]);
        assert_eq!(large(std::slice::from_ref(&part)), []);
        take_in(&mut part, &[Seen::Accessed, Seen::Not, Seen::Large]);
        take_in(&mut part, &[]);
        assert_eq!(large(std::slice::from_ref(&part)), [(7, 1)]);
        assert_eq!(hot(std::slice::from_ref(&part)), [(7, vec![510])].into());
        take_in(&mut part, &[]);
        assert_eq!(large(&[part]), [], "the process has ended");
    }
}
