//! A round whose hot pages DAMOS finds: they are on the node before it is known where they came from.
//!
//! The frames of all managed pages are taken down before. Which blocks were worth emptying is decided as ever, once it is seen which
//! pages came; pages of other blocks, and those of processes that are not managed, are sent home again.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Instant;

use anyhow::{Context as _, Result};
use terrace_core::gather::{BLOCK_PAGES, Limits, Pace, Plan, keep_cold};
use terrace_sys::HostRoot;

use super::heat;
use super::hot::HotPages;
use super::location::locate;
use super::residents::{Which, pages_in};
use super::round::{Gatherer, Round, Spread};
use super::way::Way;
use crate::channel::guest_memory_end;
use crate::config::Config;
use crate::frames::Index;
use crate::mappings::Layout;
use crate::sampler::Target;

/// Pages of each process, ascending.
type Pages = BTreeMap<u32, Vec<u64>>;

/// The state before DAMOS moves anything.
pub struct Begun {
    start: Instant,
    node: Range<u64>,
    /// The pages by their frames.
    index: Index,
    /// Pages that are on the node already.
    there: Pages,
}

impl Gatherer {
    /// Takes down where pages are, and makes room on the node.
    ///
    /// # Errors
    /// If frames cannot be read, no process is selected, or the node has no room.
    pub fn begin_by_damos(
        &mut self,
        config: &Config,
        pace: Pace,
        way: &mut dyn Way,
    ) -> Result<Begun> {
        let node = way.target()?.context("DAMOS gathers on a node alone")?;
        let targets = targets(&self.root, config)?;
        let index = Index::build(&self.root, &targets, guest_memory_end(&self.root));
        let room = way.prepare()?.min(pace.pages());
        let there = pages_in(&self.root, &node, Which::Own)?.pages;
        way.open_up(room)?;
        Ok(Begun {
            start: Instant::now(),
            node,
            index,
            there,
        })
    }

    /// Looks what came, and sends home what was not worth it.
    ///
    /// # Errors
    /// If frames cannot be read, or the node's memory cannot be taken back.
    pub fn end_by_damos(
        &mut self,
        begun: &Begun,
        config: &Config,
        way: &mut dyn Way,
    ) -> Result<Round> {
        let found = pages_in(&self.root, &begun.node, Which::Own)?;
        let now = found.pages;
        let origins = origins(begun, &now);
        let stayed = common(&begun.there, &now);
        let mut skew = locate(&self.root, &hot(stayed.clone()))?.skew(&self.root)?;
        origins
            .iter()
            .for_each(|(frame, _, _)| skew.count(*frame, true));
        skew.target(begun.node.clone());
        let before = Spread::of(&skew);
        self.rounds.begin(&skew);
        let plan = self.rounds.plan(&skew, limits(config));
        self.rounds.end(&plan, before.hot_blocks);
        let staying = staying(&plan, &origins, stayed);
        let mut returned = size(&begun.there).saturating_sub(size(&common(&begun.there, &now)));
        for (pid, mut pages) in now {
            keep_cold(&mut pages, staying.get(&pid).map_or(&[], Vec::as_slice));
            returned += way.return_pages(pid, &pages);
        }
        way.finish()?;
        let moved = size(&staying).saturating_sub(size(&common(&staying, &begun.there)));
        let located = locate(&self.root, &hot(staying))?;
        Ok(Round {
            way: format!("{}, by DAMOS", way.name()),
            before,
            planned_blocks: plan.blocks.len() as u64,
            planned_pages: plan.pages,
            resting_blocks: self.rounds.resting(),
            moved_pages: moved,
            returned_pages: returned,
            after: Spread::of(&located.skew(&self.root)?),
            staying: located.staying,
            refused: unreadable(found.unreadable),
            milliseconds: u64::try_from(begun.start.elapsed().as_millis()).unwrap_or(u64::MAX),
            ..Round::default()
        })
    }
}

/// A word on processes that could not be looked at.
fn unreadable(processes: u64) -> Vec<String> {
    let text = format!(
        "{processes} processes could not be looked at: their pages on the node stay there for now"
    );
    if processes > 0 {
        vec![text]
    } else {
        Vec::new()
    }
}

fn limits(config: &Config) -> Limits {
    Limits {
        cl: config.gather.cl,
        pages: u64::MAX,
        room: u64::MAX,
    }
}

fn hot(pages: Pages) -> HotPages {
    HotPages {
        pages,
        ..HotPages::default()
    }
}

fn size(pages: &Pages) -> u64 {
    pages.values().map(|pages| pages.len() as u64).sum()
}

/// Pages that both have.
fn common(a: &Pages, b: &Pages) -> Pages {
    let both = a.iter().map(|(pid, pages)| {
        let others = b.get(pid).map_or(&[][..], Vec::as_slice);
        let both = pages
            .iter()
            .filter(|page| others.binary_search(page).is_ok());
        (*pid, both.copied().collect())
    });
    both.collect()
}

/// The frames in which pages lay that came to the node, with their processes and numbers.
fn origins(begun: &Begun, now: &Pages) -> Vec<(u64, u32, u64)> {
    let has = |pages: &Pages, pid: u32, page: u64| {
        pages
            .get(&pid)
            .is_some_and(|pages| pages.binary_search(&page).is_ok())
    };
    let all = begun
        .index
        .iter()
        .map(|(gfn, place)| (gfn.0, place.process, place.page));
    all.filter(|(frame, pid, page)| !begun.node.contains(frame) && has(now, *pid, *page))
        .collect()
}

/// Pages that stay on the node: those of the planned blocks, and those that were there and are hot still.
fn staying(plan: &Plan, origins: &[(u64, u32, u64)], stayed: Pages) -> Pages {
    let blocks: BTreeSet<u64> = plan.blocks.iter().copied().collect();
    let mut staying = stayed;
    for (frame, pid, page) in origins {
        if blocks.contains(&(frame / u64::from(BLOCK_PAGES))) {
            staying.entry(*pid).or_default().push(*page);
        }
    }
    for pages in staying.values_mut() {
        pages.sort_unstable();
        pages.dedup();
    }
    staying
}

/// The processes that the configuration selects, and their managed mappings.
///
/// # Errors
/// If none is selected.
pub fn targets(root: &HostRoot, config: &Config) -> Result<Vec<Target>> {
    let pids = heat::selected(root, config)?;
    let layouts = Layout::read_all(root, &pids).into_iter();
    let targets = layouts.map(|(pid, layout)| Target {
        pid,
        ranges: layout.mapped,
    });
    Ok(targets.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(of: &[(u32, &[u64])]) -> Pages {
        of.iter()
            .map(|(pid, pages)| (*pid, pages.to_vec()))
            .collect()
    }

    #[test]
    fn pages_of_blocks_that_are_not_worth_it_do_not_stay() {
        let plan = Plan {
            blocks: vec![1],
            pages: 2,
            cl: 3,
        };
        let origins = [(512, 7, 30), (600, 8, 5), (1024, 7, 31)];
        let staying = staying(&plan, &origins, pages(&[(7, &[2]), (9, &[4])]));
        assert_eq!(staying, pages(&[(7, &[2, 30]), (8, &[5]), (9, &[4])]));
        assert_eq!(size(&staying), 4);
    }

    #[test]
    fn what_both_have_is_common() {
        let both = common(
            &pages(&[(7, &[1, 2, 3]), (8, &[1])]),
            &pages(&[(7, &[2, 3, 4])]),
        );
        assert_eq!(both, pages(&[(7, &[2, 3]), (8, &[])]));
    }
}
