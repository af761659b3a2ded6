//! The coverage of the leaves: accesses of whole ranges, and mappings that come, go and grow.

use super::{Lookup, Range, RangeTree, State};

impl RangeTree {
    /// Counts accesses that were seen somewhere in a range: the leaves get their parts in proportion to what
    /// they share with it. Samples outside of all leaves are dropped. Returns how many were counted.
    pub fn count_range(&mut self, range: Range, accesses: u32) -> u32 {
        let pages = range.pages();
        let after = self.lookup.upto(range.start);
        let (mut covered, mut counted) = (0, 0);
        for at in after.saturating_sub(1)..self.len() {
            if self.starts[at] >= range.end {
                break;
            }
            let leaf = Range {
                start: self.starts[at].max(range.start),
                end: self.ends[at].min(range.end),
            };
            covered += leaf.pages();
            // Rounding the sum so far, and not each part, keeps the total.
            let so_far = part(accesses, covered, pages, pages / 2);
            self.add(at, so_far - counted);
            counted = so_far;
        }
        counted
    }

    /// The process's mappings have changed: from now on the tree covers exactly these ranges. What is left of
    /// a leaf keeps its ages and the count that falls to it; what no leaf covered becomes leaves without
    /// accesses, or if it is smaller than a leaf may be, part of the one before it. If that makes more
    /// leaves than [`super::Params::most_leaves`], those with the fewest accesses are joined.
    pub fn reseed(&mut self, seeds: &[Range]) {
        self.take_in();
        let seeds = disjoint(seeds, self.params.most_leaves);
        let mut new = Leaves::default();
        let mut at = 0;
        // A leaf may reach over mappings that touch each other.
        for touching in seeds.chunk_by(|a, b| a.end == b.start) {
            while at < self.len() && self.ends[at] <= touching[0].start {
                at += 1;
            }
            self.fill(&mut new, touching, at);
        }
        self.starts = new.ranges.iter().map(|range| range.start).collect();
        self.ends = new.ranges.iter().map(|range| range.end).collect();
        self.fresh = vec![0; new.ranges.len()];
        self.states = new.states;
        self.join_coldest(self.params.most_leaves);
        self.lookup = Lookup::new(&self.starts);
    }

    /// Keeps the parts of old leaves that lie in mappings that touch each other, from the first leaf that reaches
    /// into them on, and adds new leaves between.
    fn fill(&self, new: &mut Leaves, touching: &[Range], first: usize) {
        let Some(whole) = touching.first().zip(touching.last()) else {
            return;
        };
        let (mut from, last) = (whole.0.start, whole.1.end);
        let gap = |new: &mut Leaves, from: u64, to: u64| {
            let first = touching.partition_point(|seed| seed.end <= from);
            for seed in touching[first..].iter().take_while(|s| s.start < to) {
                let (start, end) = (seed.start.max(from), seed.end.min(to));
                new.push_unknown(Range { start, end }, self);
            }
        };
        for at in first..self.len() {
            if self.starts[at] >= last {
                break;
            }
            let (start, end) = (self.starts[at].max(from), self.ends[at].min(last));
            if from < start {
                gap(new, from, start);
            }
            let state = self.states[at];
            let count = part(state.count, end - start, self.pages(at), 0);
            new.push(Range { start, end }, State { count, ..state });
            from = end;
        }
        if from < last {
            gap(new, from, last);
        }
    }

    /// Of a leaf that nothing is known of yet.
    fn unknown(&self) -> State {
        State {
            count: 0,
            created: self.epoch,
            accessed: 0,
            idle_since: self.splits,
        }
    }

    /// Joins the neighbours with the fewest accesses until there are no more than so many leaves.
    pub(super) fn join_coldest(&mut self, most: usize) {
        let excess = self.len().saturating_sub(most);
        if excess == 0 {
            return;
        }
        let count = |at: usize| u64::from(self.states[at].count);
        let borders = (1..self.len()).filter(|at| self.ends[at - 1] == self.starts[*at]);
        let mut coldest: Vec<(u64, usize)> =
            borders.map(|at| (count(at - 1) + count(at), at)).collect();
        if excess < coldest.len() {
            coldest.select_nth_unstable(excess);
            coldest.truncate(excess);
        }
        let mut borders: Vec<usize> = coldest.into_iter().map(|(_, at)| at).collect();
        borders.sort_unstable();
        let mut borders = borders.into_iter().peekable();
        self.join(|at, _, _| borders.next_if_eq(&at).is_some());
    }
}

/// Leaves of a tree that is being made.
#[derive(Default)]
struct Leaves {
    ranges: Vec<Range>,
    states: Vec<State>,
}

impl Leaves {
    fn push(&mut self, range: Range, state: State) {
        self.ranges.push(range);
        self.states.push(state);
    }

    /// Adds leaves for a range that no leaf covered.
    fn push_unknown(&mut self, range: Range, tree: &RangeTree) {
        match self.ranges.last_mut() {
            Some(last) if last.end == range.start && range.pages() < tree.params.granularity => {
                last.end = range.end;
            }
            _ => self.push(range, tree.unknown()),
        }
    }
}

/// `count` times `covered` over `of`, where `covered` is at most `of`.
fn part(count: u32, covered: u64, of: u64, rounding: u64) -> u32 {
    let scaled = u128::from(count) * u128::from(covered) + u128::from(rounding);
    let part = scaled.checked_div(u128::from(of)).unwrap_or(0);
    u32::try_from(part).unwrap_or(count).min(count)
}

/// The ranges in order, without what another one covers already; of more than `most` the largest.
fn disjoint(seeds: &[Range], most: usize) -> Vec<Range> {
    let mut seeds = seeds.to_vec();
    seeds.sort_unstable();
    let mut end = 0;
    for seed in &mut seeds {
        seed.start = seed.start.max(end);
        end = end.max(seed.end);
    }
    seeds.retain(|seed| seed.pages() > 0);
    if seeds.len() > most {
        seeds.sort_unstable_by_key(|seed| (std::cmp::Reverse(seed.pages()), *seed));
        seeds.truncate(most);
        seeds.sort_unstable();
    }
    seeds
}
