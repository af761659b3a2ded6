//! One round: where hot pages are, which are worth gathering, moving them, and looking where they landed.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::{Duration, Instant};

use anyhow::Result;
use serde::{Deserialize, Serialize};
use terrace_core::gather::{BLOCK_PAGES, Limits, Pace, Plan, Rounds, Skew, Splits, keep_cold};
use terrace_proto::PAGE_SIZE;
use terrace_sys::HostRoot;

use super::by_host::NamedByHost;
use super::hot::HotPages;
use super::location::{HotFrame, Located, Staying, locate};
use super::residents::{Which, pages_in};
use super::split::{KernelAdvice, Splitter};
use super::way::{Refusal, Way};
use crate::config::Config;

/// How hot pages are spread over blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Spread {
    /// Hot base pages.
    pub hot_pages: u64,
    /// Blocks with a hot page: so many are hot for a host.
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

/// The guest's own pages of 2 MiB in a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LargePages {
    /// Hot ones, of which it is not known what is hot.
    pub hot: u64,
    /// Those of them that were split: the next round sees which of their parts are hot.
    pub split: u64,
    /// Split ones that turned out dense, and were made whole again.
    pub joined: u64,
}

/// Result of a round.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Round {
    /// The way, `node` or `module`.
    pub way: String,
    /// The frames that the host named, if the round goes by its word.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by_host: Option<NamedByHost>,
    /// The spread at its beginning.
    pub before: Spread,
    /// Blocks to be emptied.
    pub planned_blocks: u64,
    /// The hot pages in them.
    pub planned_pages: u64,
    /// Blocks that rest, as they were hot again after they had been emptied.
    pub resting_blocks: u64,
    /// Planned pages that came together. The others are pinned, in use or refused; or gone.
    pub moved_pages: u64,
    /// Pages that are not hot any more and were sent home.
    pub returned_pages: u64,
    /// The spread at its end.
    pub after: Spread,
    /// Hot pages that stay, by the reason.
    pub staying: Staying,
    /// The guest's own larger pages.
    pub large_pages: LargePages,
    /// Refusals, in the words of the kernel.
    pub refused: Vec<String>,
    /// The time that it took, without its windows.
    pub milliseconds: u64,
}

/// Carries rounds out.
pub struct Gatherer {
    pub(super) root: HostRoot,
    pub rounds: Rounds,
    splits: Splits,
}

impl Gatherer {
    /// Before the first round of this program; larger pages may have been split by another.
    #[must_use]
    pub fn new(root: &HostRoot) -> Self {
        let before = Splitter {
            root,
            advice: &KernelAdvice,
        };
        let mut splits = Splits::default();
        before
            .known()
            .into_iter()
            .for_each(|page| splits.split(page));
        Self {
            root: root.clone(),
            rounds: Rounds::default(),
            splits,
        }
    }

    /// Gathers hot pages.
    ///
    /// # Errors
    /// If frames cannot be read or the way cannot be made ready. Nothing is lost by that.
    pub fn gather(
        &mut self,
        config: &Config,
        pace: Pace,
        way: &mut dyn Way,
        hot: &HotPages,
    ) -> Result<Round> {
        let start = Instant::now();
        let mut large_pages = self.join_dense(config, hot)?;
        let located = locate(&self.root, hot)?;
        let target = way.target()?;
        let mut skew = located.skew(&self.root)?;
        skew.target(target.clone().unwrap_or(0..0));
        let before = Spread::of(&skew);
        self.rounds.begin(&skew);
        // What a host with more hot pages than it names left out may be hot.
        let is_cut = hot.by_host.is_some_and(NamedByHost::is_cut);
        let returned_pages = match &target {
            Some(frames) if !is_cut => self.return_cold(way, hot, frames)?,
            _ => 0,
        };
        let mut limits = Limits {
            cl: config.gather.cl,
            pages: pace.pages(),
            room: u64::MAX,
        };
        let mut plan = self.rounds.plan(&skew, limits);
        if plan.pages > 0 {
            limits.room = way.prepare()?;
            plan = self.rounds.plan(&skew, limits);
        }
        let chosen = chosen(&plan, &located);
        let mut refused = carry_out(way, &chosen, pace.bytes_per_s);
        let ended = match plan.pages > 0 || returned_pages > 0 {
            true => way.finish(),
            false => Ok(()),
        };
        let now = locate(&self.root, hot)?;
        self.rounds.end(&plan, before.hot_blocks);
        ended?;
        large_pages.split = self.split(config, hot, &mut refused);
        Ok(Round {
            way: way.name().into(),
            by_host: hot.by_host,
            before,
            planned_blocks: plan.blocks.len() as u64,
            planned_pages: plan.pages,
            resting_blocks: self.rounds.resting(),
            moved_pages: moved(&chosen, &located, &now),
            returned_pages,
            after: Spread::of(&now.skew(&self.root)?),
            staying: located.staying,
            large_pages,
            refused,
            milliseconds: u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX),
        })
    }

    fn splitter(&self) -> Splitter<'_> {
        Splitter {
            root: &self.root,
            advice: &KernelAdvice,
        }
    }

    /// Makes whole again what was split and turned out dense.
    fn join_dense(&mut self, config: &Config, hot: &HotPages) -> Result<LargePages> {
        let dense = self.splits.join(&hot.pages, config.gather.cl);
        let joined = match dense.is_empty() {
            true => 0,
            false => self.splitter().join(&dense)?,
        };
        Ok(LargePages {
            hot: hot.large.len() as u64,
            split: 0,
            joined,
        })
    }

    /// Splits some hot larger pages, so that the next round sees their parts.
    fn split(&mut self, config: &Config, hot: &HotPages, refused: &mut Vec<String>) -> u64 {
        let chosen = self.splits.choose(&hot.large, config.gather.split);
        let (split, why) = self.splitter().split(&chosen);
        refused.extend(why);
        split.iter().for_each(|page| self.splits.split(*page));
        split.len() as u64
    }

    /// Sends pages home that lie in the target and are not hot.
    fn return_cold(&self, way: &mut dyn Way, hot: &HotPages, target: &Range<u64>) -> Result<u64> {
        let mut sent = 0;
        for (pid, mut pages) in pages_in(&self.root, target, Which::Own)?.pages {
            keep_cold(&mut pages, hot.pages.get(&pid).map_or(&[], Vec::as_slice));
            sent += way.return_pages(pid, &pages);
        }
        Ok(sent)
    }
}

/// Moves the chosen pages; returns what was refused.
fn carry_out(way: &mut dyn Way, chosen: &BTreeMap<u32, Vec<u64>>, bytes_per_s: u64) -> Vec<String> {
    let mut refused = Vec::new();
    for (pid, pages) in chosen {
        let addresses: Vec<u64> = pages.iter().map(|page| page * PAGE_SIZE).collect();
        for batch in addresses.chunks(way.batch()) {
            let begun = Instant::now();
            match way.take(*pid, batch) {
                Ok(()) => pause(batch.len(), bytes_per_s, begun.elapsed()),
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
fn pause(pages: usize, bytes_per_s: u64, took: Duration) {
    let bytes = pages as u64 * PAGE_SIZE;
    let whole = Duration::from_secs_f64(bytes as f64 / bytes_per_s.max(1) as f64);
    std::thread::sleep(whole.saturating_sub(took));
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
