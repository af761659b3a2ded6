//! The tree of one process's virtual ranges: only its leaves are stored, in order of address.
//!
//! A leaf that is accessed much more than both of its neighbours is split in the middle; neighbours that
//! are not accessed are merged after a while (HyperTier §4.2.2). What the leaves cover follows the process's
//! mappings (`cover.rs`).

mod cover;
mod lookup;

use std::cmp::Reverse;

use lookup::Lookup;

pub use terrace_proto::ranges::{Params, Range};

/// One in how many leaves of a full tree is given up in an epoch for others that want to be split.
const FREED_DIVISOR: usize = 64;

/// Accesses by which a leaf must exceed both neighbours.
fn significant(params: &Params) -> u32 {
    let factor = params.alpha.saturating_mul(params.tau_split);
    factor.saturating_mul(params.vcpus).max(1)
}

/// A range that is tracked as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leaf {
    /// The leaf's pages.
    pub range: Range,
    /// Accesses, halved each epoch.
    pub count: u32,
    /// Epoch in which a split made it; 0: it was there from the start.
    pub created: u32,
    /// Epoch in which it was last accessed.
    pub accessed: u32,
}

/// The part of a leaf that an epoch changes.
#[derive(Clone, Copy, Debug)]
struct State {
    count: u32,
    created: u32,
    accessed: u32,
    /// Splits of the tree until its count became 0.
    idle_since: u32,
}

impl State {
    /// Of two neighbours that become one.
    fn joined(self, other: Self) -> Self {
        Self {
            count: self.count.saturating_add(other.count),
            created: self.created.min(other.created),
            accessed: self.accessed.max(other.accessed),
            idle_since: self.idle_since.max(other.idle_since),
        }
    }
}

/// The leaves.
///
/// The paper splits a leaf that exceeds both of its neighbours. A hot spot that lies across a border then
/// stays in two halves that hold each other back, or as the end of a large leaf beside small ones. So, unless
/// [`Params::literal`] is set, a neighbour that is smaller than a leaf does not hold it back (it was split
/// further, and the large one's accesses may all be at its end), and two leaves of one size that are
/// accessed much more than what is around them are both split (docs/decisions/0009).
#[derive(Clone, Debug)]
pub struct RangeTree {
    params: Params,
    /// First pages, ascending.
    starts: Vec<u64>,
    ends: Vec<u64>,
    /// The index in which a sample's page is found.
    lookup: Lookup,
    /// Accesses that no epoch has taken in yet. Apart from the rest, so that all that samples touch stays in
    /// the nearest cache.
    fresh: Vec<u32>,
    states: Vec<State>,
    epoch: u32,
    splits: u32,
    merges: u32,
}

impl RangeTree {
    /// A tree over some ranges: one root, or the process's mappings as seeds. What two of them cover counts
    /// once, and of more than [`Params::most_leaves`] the largest are taken.
    #[must_use]
    pub fn new(params: Params, seeds: &[Range]) -> Self {
        let mut tree = Self {
            params,
            starts: Vec::new(),
            ends: Vec::new(),
            lookup: Lookup::default(),
            fresh: Vec::new(),
            states: Vec::new(),
            epoch: 0,
            splits: 0,
            merges: 0,
        };
        tree.reseed(seeds);
        tree
    }

    /// Counts a sampled access; returns whether its page is in the tree.
    #[inline]
    pub fn count(&mut self, page: u64) -> bool {
        self.count_many(page, 1)
    }

    /// Counts so many accesses of one page.
    #[inline]
    pub fn count_many(&mut self, page: u64, accesses: u32) -> bool {
        let at = self.lookup.upto(page).wrapping_sub(1);
        if self.ends.get(at).is_none_or(|end| page >= *end) {
            return false;
        }
        self.add(at, accesses);
        true
    }

    #[inline]
    fn add(&mut self, at: usize, accesses: u32) {
        if let Some(fresh) = self.fresh.get_mut(at) {
            *fresh = fresh.saturating_add(accesses);
        }
    }

    /// Takes in what was counted since the last time.
    fn take_in(&mut self) {
        for (state, fresh) in self.states.iter_mut().zip(&mut self.fresh) {
            if *fresh > 0 {
                state.count = state.count.saturating_add(*fresh);
                state.accessed = self.epoch;
                *fresh = 0;
            }
        }
    }

    /// Takes the epoch's accesses in: splits and merges. Says how many leaves were split.
    pub fn end_epoch(&mut self) -> u32 {
        self.take_in();
        self.epoch = self.epoch.saturating_add(1);
        let before = self.starts.clone();
        let split = self.split();
        self.splits = self.splits.saturating_add(split);
        let merged = self.merge();
        self.merges = self.merges.saturating_add(merged);
        if self.starts != before {
            self.lookup = Lookup::new(&self.starts);
        }
        split
    }

    /// All counts are halved: older accesses decay.
    pub fn decay(&mut self) {
        self.take_in();
        for state in &mut self.states {
            if state.count == 1 {
                state.idle_since = self.splits;
            }
            state.count /= 2;
        }
    }

    /// The leaves in order of address.
    pub fn leaves(&self) -> impl Iterator<Item = Leaf> + '_ {
        let ranges = self.starts.iter().zip(&self.ends);
        let states = self.states.iter().zip(&self.fresh);
        ranges
            .zip(states)
            .map(|((start, end), (state, fresh))| Leaf {
                range: Range {
                    start: *start,
                    end: *end,
                },
                count: state.count.saturating_add(*fresh),
                created: state.created,
                accessed: if *fresh > 0 {
                    self.epoch
                } else {
                    state.accessed
                },
            })
    }

    /// How many leaves there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.starts.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.starts.is_empty()
    }

    /// Epochs that ended.
    #[must_use]
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Splits and merges so far.
    #[must_use]
    pub fn changes(&self) -> (u32, u32) {
        (self.splits, self.merges)
    }

    /// Bytes on the heap.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        let pages = self.starts.capacity() + self.ends.capacity();
        pages * size_of::<u64>()
            + self.fresh.capacity() * size_of::<u32>()
            + self.states.capacity() * size_of::<State>()
            + self.lookup.heap_bytes()
    }

    fn pages(&self, at: usize) -> u64 {
        self.ends[at] - self.starts[at]
    }

    /// The leaves that are to be split: those that exceed both of their neighbours, of which a missing one counts as 0,
    /// and pairs.
    fn wanted(&self) -> Vec<bool> {
        let least = significant(&self.params);
        let literal = self.params.literal;
        // Whether each leaf is accessed much more than the one before it, and than the one after it.
        let alone = self.states.iter().map(|state| [state.count >= least; 2]);
        let mut exceeds: Vec<[bool; 2]> = alone.collect();
        let mut pairs = vec![false; self.len()];
        for at in 1..self.len() {
            if self.ends[at - 1] != self.starts[at] {
                continue;
            }
            let (low, high) = (self.pages(at - 1), self.pages(at));
            let [a, b] = [at - 1, at].map(|at| self.states[at].count);
            // A smaller neighbour holds nothing back.
            let held_back = |by: u32, is_finer: bool| if is_finer && !literal { 0 } else { by };
            exceeds[at - 1][1] = a >= held_back(b, high < low).saturating_add(least);
            exceeds[at][0] = b >= held_back(a, low < high).saturating_add(least);
            pairs[at] = low == high && !literal;
        }
        let mut wanted: Vec<bool> = exceeds
            .iter()
            .map(|[before, after]| *before && *after)
            .collect();
        for at in 1..self.len() {
            if pairs[at] && exceeds[at - 1][0] && exceeds[at][1] {
                (wanted[at - 1], wanted[at]) = (true, true);
            }
        }
        wanted
    }

    /// The page at which a leaf is split: the middle, on a multiple of the granularity; `None` if a part would be
    /// smaller than that.
    fn middle(&self, at: usize) -> Option<u64> {
        let (start, end) = (self.starts[at], self.ends[at]);
        let unit = self.params.granularity.max(1);
        let middle = (start + (end - start) / 2) / unit * unit;
        let holds = |from: u64, to: u64| to.checked_sub(from).is_some_and(|pages| pages >= unit);
        (holds(start, middle) && holds(middle, end)).then_some(middle)
    }

    /// Leaves are judged by the counts before any of them is split.
    fn split(&mut self) -> u32 {
        let wanted = self.wanted();
        let mut middles: Vec<(usize, u64)> = (0..self.len())
            .filter(|at| wanted[*at])
            .filter_map(|at| Some((at, self.middle(at)?)))
            .collect();
        let room = self.params.most_leaves.saturating_sub(self.len());
        let refused = middles.len().saturating_sub(room);
        if refused > 0 {
            let most_accessed = |(at, _): &(usize, u64)| (Reverse(self.states[*at].count), *at);
            middles.select_nth_unstable_by_key(room, most_accessed);
            middles.truncate(room);
            middles.sort_unstable();
        }
        for (at, middle) in middles.iter().rev() {
            self.split_at(*at, *middle);
        }
        if refused > 0 {
            // There is room for a few at the next epoch; a full tree would otherwise stay as it is for ever.
            let freed = refused.min(self.params.most_leaves / FREED_DIVISOR);
            self.join_coldest(self.params.most_leaves.saturating_sub(freed));
        }
        u32::try_from(middles.len()).unwrap_or(u32::MAX)
    }

    /// Both halves share the count.
    fn split_at(&mut self, at: usize, middle: u64) {
        let left = &mut self.states[at];
        let right = State {
            count: left.count / 2,
            created: self.epoch,
            ..*left
        };
        left.count -= right.count;
        left.created = self.epoch;
        self.states.insert(at + 1, right);
        self.fresh.insert(at + 1, 0);
        self.ends.insert(at, middle);
        self.starts.insert(at + 1, middle);
    }

    /// Neighbours that have been without accesses for τ_merge splits become one. Says how many leaves fewer
    /// there are.
    fn merge(&mut self) -> u32 {
        let (splits, tau) = (self.splits, self.params.tau_merge);
        let idle = |state: &State| {
            state.count == 0 && splits.saturating_sub(state.idle_since) >= tau.max(1)
        };
        let before = self.len();
        self.join(|_, last, this| idle(last) && idle(this));
        u32::try_from(before - self.len()).unwrap_or(u32::MAX)
    }

    /// Adjacent leaves become one if asked to, by what the ones before have become so far, and the next,
    /// which is passed with its place.
    fn join(&mut self, mut wanted: impl FnMut(usize, &State, &State) -> bool) {
        let mut write = 0;
        for at in 1..self.len() {
            let adjacent = self.ends[write] == self.starts[at];
            if adjacent && wanted(at, &self.states[write], &self.states[at]) {
                self.ends[write] = self.ends[at];
                self.states[write] = self.states[write].joined(self.states[at]);
                continue;
            }
            write += 1;
            // Until the first pair is found every leaf is where it should be.
            if write < at {
                self.starts[write] = self.starts[at];
                self.ends[write] = self.ends[at];
                self.states[write] = self.states[at];
            }
        }
        let len = (write + 1).min(self.len());
        self.starts.truncate(len);
        self.ends.truncate(len);
        self.fresh.truncate(len);
        self.states.truncate(len);
    }
}
