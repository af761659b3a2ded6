//! One round: hot pages are located, blocks chosen, their pages moved, and looked for again.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::{Duration, Instant};

use anyhow::Result;
use serde::Serialize;
use terrace_core::gather::{BLOCK_PAGES, Limits, Plan, Skew, Worth};
use terrace_proto::PAGE_SIZE;
use terrace_sys::HostRoot;

use super::hot::HotPages;
use super::location::{HotFrame, Located, Staying, locate};
use super::residents::{Which, pages_in};
use super::way::{Refusal, Way};
use crate::gathering::Gathering;

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
        let pages: u64 = (0..)
            .zip(skew.histogram())
            .map(|(hot, blocks)| hot * blocks)
            .sum();
        Self {
            hot_pages: pages,
            hot_blocks: skew.hot_blocks(),
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
    /// Those of them that came together. The others are pinned, in use or refused; or gone.
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
        let before = Spread::of(&skew);
        self.worth.look(before.hot_blocks);
        let returned_pages = match &target {
            Some(frames) => self.return_cold(hot, frames)?,
            None => 0,
        };
        let mut plan = self.plan(&skew, u64::MAX);
        if plan.pages > 0 {
            let room = self.way.prepare()?;
            plan = self.plan(&skew, room);
        }
        let chosen = chosen(&plan, &located);
        let refused = self.carry_out(&chosen);
        let ended = match plan.pages > 0 || returned_pages > 0 {
            true => self.way.finish(),
            false => Ok(()),
        };
        let now = locate(self.root, hot)?;
        self.worth.expect(&plan, before.hot_blocks);
        ended?;
        Ok(Round {
            way: self.way.name(),
            before,
            planned_blocks: plan.blocks.len() as u64,
            planned_pages: plan.pages,
            moved_pages: moved(&chosen, &located, &now),
            returned_pages,
            after: Spread::of(&now.skew(self.root)?),
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

    /// Moves the chosen pages; returns what was refused.
    fn carry_out(&mut self, chosen: &BTreeMap<u32, Vec<u64>>) -> Vec<String> {
        let mut refused = Vec::new();
        for (pid, pages) in chosen {
            let addresses: Vec<u64> = pages.iter().map(|page| page * PAGE_SIZE).collect();
            for batch in addresses.chunks(self.way.batch()) {
                let begun = Instant::now();
                match self.way.take(*pid, batch) {
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
        for (pid, mut pages) in pages_in(self.root, target, Which::Own)? {
            if let Some(hot) = hot.pages.get(&pid) {
                pages.retain(|page| hot.binary_search(page).is_err());
            }
            sent += self.way.return_pages(pid, &pages);
        }
        Ok(sent)
    }
}

/// The pages of the planned blocks, by process.
fn chosen(plan: &Plan, located: &Located) -> BTreeMap<u32, Vec<u64>> {
    let blocks: BTreeSet<u64> = plan.blocks.iter().copied().collect();
    let mut pages: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
    for hot in located.frames.iter().filter(|hot| hot.movable) {
        if blocks.contains(&(hot.frame / u64::from(BLOCK_PAGES))) {
            pages.entry(hot.pid).or_default().push(hot.page);
        }
    }
    pages
}

/// Chosen pages that have another frame than before.
fn moved(chosen: &BTreeMap<u32, Vec<u64>>, before: &Located, now: &Located) -> u64 {
    let is_chosen = |hot: &&HotFrame| {
        let pages = chosen.get(&hot.pid);
        pages.is_some_and(|pages| pages.binary_search(&hot.page).is_ok())
    };
    let frames: BTreeMap<(u32, u64), u64> = before
        .frames
        .iter()
        .filter(is_chosen)
        .map(|hot| ((hot.pid, hot.page), hot.frame))
        .collect();
    let changed = now.frames.iter().filter(|hot| {
        let before = frames.get(&(hot.pid, hot.page));
        before.is_some_and(|frame| *frame != hot.frame)
    });
    changed.count() as u64
}
