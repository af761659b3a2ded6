//! One round: hot pages are located, blocks chosen, their pages moved, and looked for again.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::{Duration, Instant};

use anyhow::Result;
use serde::Serialize;
use terrace_core::gather::{BLOCK_PAGES, Limits, Plan, Skew, Worth};
use terrace_proto::PAGE_SIZE;
use terrace_sys::{HostRoot, Pagemap};

use super::hot::HotPages;
use super::location::{Located, Staying, locate};
use super::way::{Refusal, Way};
use crate::gathering::Gathering;
use crate::processes::{self, Wanted};

/// Hot pages and the blocks that have them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Spread {
    /// Hot base pages.
    pub hot_pages: u64,
    /// Blocks of 2 MiB with a hot page: so many are hot for a host.
    pub hot_blocks: u64,
    /// Fewest blocks that the pages fit in.
    pub fewest_blocks: u64,
}

impl Spread {
    /// Of a guest.
    #[must_use]
    pub fn of(skew: &Skew) -> Self {
        let histogram = skew.histogram();
        let blocks: u64 = histogram.iter().skip(1).sum();
        let pages: u64 = (0..)
            .zip(&histogram)
            .map(|(hot, blocks)| hot * blocks)
            .sum();
        Self {
            hot_pages: pages,
            hot_blocks: blocks,
            fewest_blocks: pages.div_ceil(BLOCK_PAGES.into()),
        }
    }
}

/// Result of a round.
#[derive(Clone, Debug, Serialize)]
pub struct Round {
    pub way: &'static str,
    pub before: Spread,
    /// Blocks to be emptied, and the pages in them.
    pub planned_blocks: u64,
    pub planned_pages: u64,
    /// Pages in other frames than before.
    pub moved_pages: u64,
    /// Pages that are not hot any more and were sent home.
    pub returned_pages: u64,
    pub after: Spread,
    pub staying: Staying,
    /// Refusals, in the words of the kernel.
    pub refused: Vec<String>,
    pub milliseconds: u64,
}

/// All that rounds need.
pub struct Rounds<'a> {
    pub root: &'a HostRoot,
    pub gathering: &'a Gathering,
    pub bytes_per_s: u64,
    pub way: Box<dyn Way>,
    pub worth: Worth,
}

impl Rounds<'_> {
    /// Gathers hot pages.
    ///
    /// # Errors
    /// If frames cannot be read or the way cannot be made ready. Nothing is lost by that.
    pub fn gather(&mut self, hot: &HotPages) -> Result<Round> {
        let start = Instant::now();
        let located = locate(self.root, hot)?;
        let target = self.way.target()?;
        let mut skew = located.skew(self.root)?;
        skew.target(target.clone().unwrap_or(0..0));
        let returned_pages = match &target {
            Some(frames) => self.return_cold(hot, frames)?,
            None => 0,
        };
        let room = self.way.prepare()?;
        let plan = self.plan(&skew, room);
        let refused = self.carry_out(&plan, &located);
        let ended = self.way.finish();
        let now = locate(self.root, hot)?;
        let after = Spread::of(&now.skew(self.root)?);
        let before = Spread::of(&skew);
        self.worth.judge(
            plan.freed(),
            before.hot_blocks.saturating_sub(after.hot_blocks),
        );
        ended?;
        Ok(Round {
            way: self.way.name(),
            before,
            planned_blocks: plan.blocks.len() as u64,
            planned_pages: plan.pages,
            moved_pages: moved(&located, &now),
            returned_pages,
            after,
            staying: located.staying,
            refused,
            milliseconds: u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX),
        })
    }

    /// The plan for hot pages of this spread.
    pub fn plan(&self, skew: &Skew, room: u64) -> Plan {
        let limits = Limits {
            cl: self.gathering.cl,
            pages: u64::MAX,
            room,
        };
        Plan::new(skew, &BTreeSet::new(), limits)
    }

    /// Moves the pages of the planned blocks; returns what was refused.
    fn carry_out(&mut self, plan: &Plan, located: &Located) -> Vec<String> {
        let blocks: BTreeSet<u64> = plan.blocks.iter().copied().collect();
        let mut pages: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
        for hot in located.frames.iter().filter(|hot| hot.movable) {
            if blocks.contains(&(hot.frame / u64::from(BLOCK_PAGES))) {
                pages.entry(hot.pid).or_default().push(hot.page * PAGE_SIZE);
            }
        }
        let mut refused = Vec::new();
        for (pid, addresses) in pages {
            for batch in addresses.chunks(self.way.batch()) {
                let begun = Instant::now();
                match self.way.take(pid, batch) {
                    Ok(()) => self.pace(batch.len(), begun.elapsed()),
                    Err(Refusal::Process(why)) => {
                        refused.push(why);
                        break;
                    }
                    Err(Refusal::Full(why)) => {
                        refused.push(why);
                        return refused;
                    }
                }
            }
        }
        refused
    }

    /// Rests so that no more bytes are copied in a second than allowed.
    fn pace(&self, pages: usize, took: Duration) {
        let bytes = pages as u64 * PAGE_SIZE;
        let whole = Duration::from_secs_f64(bytes as f64 / self.bytes_per_s.max(1) as f64);
        std::thread::sleep(whole.saturating_sub(took));
    }

    /// Sends pages home that lie in the target and are not hot.
    fn return_cold(&mut self, hot: &HotPages, target: &Range<u64>) -> Result<u64> {
        let mut sent = 0;
        for (pid, mut pages) in pages_in(self.root, target)? {
            if let Some(hot) = hot.pages.get(&pid) {
                pages.retain(|page| hot.binary_search(page).is_err());
            }
            let addresses: Vec<u64> = pages.iter().map(|page| page * PAGE_SIZE).collect();
            sent += self.way.return_pages(pid, &addresses)?;
        }
        Ok(sent)
    }

    /// Sends all pages home.
    ///
    /// # Errors
    /// If no other node has room.
    pub fn undo(&mut self) -> Result<u64> {
        match self.way.target()? {
            Some(frames) => self.return_cold(&HotPages::default(), &frames),
            None => Ok(0),
        }
    }
}

/// Hot pages that have another frame than before.
fn moved(before: &Located, now: &Located) -> u64 {
    let frames: BTreeMap<(u32, u64), u64> = before
        .frames
        .iter()
        .map(|hot| ((hot.pid, hot.page), hot.frame))
        .collect();
    let changed = now.frames.iter().filter(|hot| {
        let before = frames.get(&(hot.pid, hot.page));
        before.is_some_and(|frame| *frame != hot.frame)
    });
    changed.count() as u64
}

/// Pages of all processes in these frames.
fn pages_in(root: &HostRoot, frames: &Range<u64>) -> Result<BTreeMap<u32, Vec<u64>>> {
    let all = Wanted {
        names: Vec::new(),
        exclude: Vec::new(),
        min_bytes: 1,
        most: usize::MAX,
    };
    let mut found = BTreeMap::new();
    for process in processes::find(root, &all, &BTreeSet::new())? {
        // One that ends meanwhile has none.
        if let Ok(pages) = process_pages_in(root, process.pid, frames)
            && !pages.is_empty()
        {
            found.insert(process.pid, pages);
        }
    }
    Ok(found)
}

fn process_pages_in(root: &HostRoot, pid: u32, frames: &Range<u64>) -> Result<Vec<u64>> {
    let maps = crate::mappings::Layout::read_all(root, &[pid]);
    let pagemap = Pagemap::open(&root.process(pid, "pagemap"))?;
    let mut pages = Vec::new();
    for range in maps.get(&pid).into_iter().flat_map(|layout| &layout.mapped) {
        for run in pagemap.present(range.start * PAGE_SIZE, range.end * PAGE_SIZE)? {
            let numbers: Vec<u64> = (run.start / PAGE_SIZE..run.end / PAGE_SIZE).collect();
            let entries = pagemap.entries(&numbers)?;
            let inside = numbers.into_iter().zip(entries).filter(|(_, entry)| {
                entry.is_own() && entry.frame().is_some_and(|frame| frames.contains(&frame))
            });
            pages.extend(inside.map(|(page, _)| page));
        }
    }
    Ok(pages)
}
