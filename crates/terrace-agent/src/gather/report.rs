//! The output of `skew` and `gather`.

use std::fmt::Write as _;

use serde::Serialize;
use terrace_core::gather::{BLOCK_PAGES, Plan, Skew};

use super::location::Staying;
use super::round::{Round, Spread};

/// MiB of a block.
const BLOCK_MIB: u64 = 2;
/// Width of a bar, characters.
const BAR: u64 = 40;

/// How hot pages are spread over a guest's memory.
#[derive(Debug, Serialize)]
pub struct SkewReport {
    #[serde(flatten)]
    pub spread: Spread,
    /// Number of blocks by their hot pages, 0 to 512.
    pub histogram: Vec<u64>,
    /// Blocks with fewer hot pages would be emptied; 0 if none is worth it.
    pub cl: u16,
    /// Blocks that would be emptied, and the pages to copy for that.
    pub empty_blocks: u64,
    pub copy_pages: u64,
    /// Blocks that the pages would fill: the node of the `node` way needs so many and four more.
    pub fill_blocks: u64,
    /// Memory that a host would find hot no more, bytes.
    pub saved_bytes: u64,
    /// Hot pages of 2 MiB, of which it is not known what is hot.
    pub huge_pages: u64,
    /// Hot pages that would stay.
    pub staying: Staying,
}

impl SkewReport {
    /// Of a guest and the plan for it.
    #[must_use]
    pub fn new(skew: &Skew, plan: &Plan, staying: Staying, huge_pages: u64) -> Self {
        Self {
            spread: Spread::of(skew),
            histogram: skew.histogram(),
            cl: plan.cl,
            empty_blocks: plan.blocks.len() as u64,
            copy_pages: plan.pages,
            fill_blocks: plan.pages.div_ceil(BLOCK_PAGES.into()),
            saved_bytes: (plan.freed() * BLOCK_MIB) << 20,
            huge_pages,
            staying,
        }
    }

    /// For people.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = self.write(&mut text);
        text
    }

    fn write(&self, text: &mut String) -> std::fmt::Result {
        let spread = self.spread;
        writeln!(
            text,
            "hot        {} base pages in {} blocks of 2 MiB: {} MiB are hot for a host, {} MiB would hold them",
            spread.hot_pages,
            spread.hot_blocks,
            spread.hot_blocks * BLOCK_MIB,
            spread.fewest_blocks * BLOCK_MIB
        )?;
        if self.huge_pages > 0 {
            writeln!(
                text,
                "huge       {} hot pages of 2 MiB, of which it is not known what is hot: left alone (gather.split splits some)",
                self.huge_pages
            )?;
        }
        staying(text, &self.staying)?;
        if spread.hot_pages == 0 {
            writeln!(text, "gathering  has nothing to do: no hot page was found")?;
        } else if self.empty_blocks == 0 && self.staying.in_memory() > 0 {
            writeln!(
                text,
                "gathering  empties none: blocks have hot pages that stay (above), or it would fill as many as it empties"
            )?;
        } else if self.empty_blocks == 0 {
            writeln!(
                text,
                "gathering  is not worth it: it would fill as many blocks as it empties"
            )?;
        } else {
            writeln!(
                text,
                "gathering  empties {} blocks (those with fewer than {} hot pages) by copying {} pages into {} (a node for them takes four more): {} MiB \
                 are hot no more",
                self.empty_blocks,
                self.cl,
                self.copy_pages,
                self.fill_blocks,
                self.saved_bytes >> 20
            )?;
        }
        self.bars(text)
    }

    /// Blocks by classes of their hot pages, each twice as wide as the one before.
    #[must_use]
    pub fn classes(&self) -> Vec<Class> {
        let mut classes = Vec::new();
        let mut from = 1;
        while from < self.histogram.len() {
            let end = (2 * from).min(self.histogram.len());
            classes.push(Class {
                from,
                to: end - 1,
                blocks: self.histogram[from..end].iter().sum(),
            });
            from = end;
        }
        classes
    }

    /// Blocks of a class that have fewer hot pages than the limit.
    #[must_use]
    pub fn emptied(&self, class: &Class) -> u64 {
        let end = usize::from(self.cl).clamp(class.from, class.to + 1);
        self.histogram[class.from..end].iter().sum()
    }

    fn bars(&self, text: &mut String) -> std::fmt::Result {
        let classes = self.classes();
        let most = classes.iter().map(|class| class.blocks).max().unwrap_or(0);
        if most == 0 {
            return Ok(());
        }
        writeln!(text, "\nhot pages of a block   blocks")?;
        for class in classes {
            let bar = (class.blocks * BAR).div_ceil(most);
            let bar = "#".repeat(usize::try_from(bar).unwrap_or(0));
            writeln!(text, "{:>20}   {:<8} {bar}", class.name(), class.blocks)?;
        }
        Ok(())
    }
}

/// Blocks whose number of hot pages lies between two bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Class {
    /// The fewest.
    pub from: usize,
    /// The most.
    pub to: usize,
    /// The blocks.
    pub blocks: u64,
}

impl Class {
    /// The bounds.
    #[must_use]
    pub fn name(&self) -> String {
        match self.from == self.to {
            true => self.from.to_string(),
            false => format!("{}-{}", self.from, self.to),
        }
    }
}

fn staying(text: &mut String, staying: &Staying) -> std::fmt::Result {
    for (count, why) in [
        (
            staying.shared,
            "of a file, of shared memory, or of several processes",
        ),
        (staying.huge, "part of a larger page"),
        (
            staying.khugepaged,
            "where khugepaged makes larger pages: it would take them home (MADV_NOHUGEPAGE helps)",
        ),
        (
            staying.gone,
            "not in memory: never touched, swapped out, or the process has ended",
        ),
        (
            staying.unreadable,
            "of a process that could not be looked at within half a second, or that hides them",
        ),
    ] {
        if count > 0 {
            writeln!(text, "stay       {count} pages: {why}")?;
        }
    }
    Ok(())
}

/// A round, for people.
#[must_use]
pub fn round(round: &Round) -> String {
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = write_round(&mut text, round);
    text
}

fn write_round(text: &mut String, round: &Round) -> std::fmt::Result {
    let blocks = |name: &str, spread: &Spread| {
        format!(
            "{name:<10} {} hot pages in {} blocks of 2 MiB ({} MiB)\n",
            spread.hot_pages,
            spread.hot_blocks,
            spread.hot_blocks * BLOCK_MIB
        )
    };
    text.push_str(&blocks("before", &round.before));
    text.push_str(&blocks("after", &round.after));
    writeln!(
        text,
        "moved      {} of {} pages of {} blocks ({}), {} cold pages home, in {} ms",
        round.moved_pages,
        round.planned_pages,
        round.planned_blocks,
        round.way,
        round.returned_pages,
        round.milliseconds
    )?;
    if let Some(named) = round.by_host {
        writeln!(
            text,
            "host       named {} hot pages, of which no selected process has {}",
            named.pages, named.unknown
        )?;
    }
    let left = round.planned_pages.saturating_sub(round.moved_pages);
    if left > 0 {
        writeln!(
            text,
            "left       {left} pages: pinned, in use, refused (below), or gone"
        )?;
    }
    if round.resting_blocks > 0 {
        writeln!(
            text,
            "rest       {} blocks: emptied before, and hot again",
            round.resting_blocks
        )?;
    }
    staying(text, &round.staying)?;
    let large = round.large_pages;
    if large.hot + large.joined > 0 {
        writeln!(
            text,
            "huge       {} hot pages of 2 MiB: {} of them split now; {} of before are dense and whole again",
            large.hot, large.split, large.joined
        )?;
    }
    for why in &round.refused {
        writeln!(text, "refused    {why}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use terrace_core::gather::{Cl, Limits};

    use super::*;

    #[test]
    fn pages_that_must_stay_are_named_as_what_keeps_blocks_hot() {
        let mut skew = Skew::new(8 * 512);
        (0..4).for_each(|block| skew.count(block * 512, false));
        let limits = Limits {
            cl: Cl::Auto { gain: 1 },
            pages: u64::MAX,
            room: u64::MAX,
        };
        let plan = Plan::new(&skew, &BTreeSet::new(), limits);
        let staying = Staying {
            huge: 4,
            ..Staying::default()
        };
        let text = SkewReport::new(&skew, &plan, staying, 0).text();
        assert!(text.contains("hot pages that stay (above)"), "{text}");
    }
}
