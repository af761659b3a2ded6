//! The range tree and its plan beside plain models that walk over all leaves.

use std::cmp::Reverse;

use proptest::prelude::*;
use terrace_core::ranges::{Held, Leaf, Params, Plan, Range, RangeTree, Ranked, Share};

/// A leaf, and how many splits there had been when its count became 0.
#[derive(Clone, Copy, Debug)]
struct Node {
    leaf: Leaf,
    idle_since: u32,
}

/// The tree as its rules are written, leaf by leaf.
struct Naive {
    params: Params,
    nodes: Vec<Node>,
    epoch: u32,
    splits: u32,
    merges: u32,
}

impl Naive {
    /// Over what a new tree covers.
    fn new(params: Params, tree: &RangeTree) -> Self {
        let nodes = tree.leaves().map(|leaf| Node {
            leaf,
            idle_since: 0,
        });
        Self {
            params,
            nodes: nodes.collect(),
            epoch: 0,
            splits: 0,
            merges: 0,
        }
    }

    fn count(&mut self, page: u64, accesses: u32) {
        let holds = |node: &&mut Node| (node.leaf.range.start..node.leaf.range.end).contains(&page);
        if let Some(node) = self.nodes.iter_mut().find(holds)
            && accesses > 0
        {
            node.leaf.count = node.leaf.count.saturating_add(accesses);
            node.leaf.accessed = self.epoch;
        }
    }

    fn adjacent(&self, at: usize) -> bool {
        at > 0
            && at < self.nodes.len()
            && self.nodes[at - 1].leaf.range.end == self.nodes[at].leaf.range.start
    }

    /// Whether a leaf exceeds the one before it, or after it.
    fn exceeds(&self, at: usize, after: bool) -> bool {
        let Params {
            alpha,
            tau_split,
            vcpus,
            literal,
            ..
        } = self.params;
        let leaf = self.nodes[at].leaf;
        let (border, other) = if after {
            (at + 1, at + 1)
        } else {
            (at, at.wrapping_sub(1))
        };
        let held_back = match self.adjacent(border) {
            true => {
                let other = self.nodes[other].leaf;
                let is_finer = other.range.pages() < leaf.range.pages();
                if is_finer && !literal { 0 } else { other.count }
            }
            false => 0,
        };
        leaf.count >= held_back.saturating_add((alpha * tau_split * vcpus).max(1))
    }

    fn is_pair(&self, at: usize) -> bool {
        let pages = |at: usize| self.nodes[at].leaf.range.pages();
        !self.params.literal
            && self.adjacent(at + 1)
            && pages(at) == pages(at + 1)
            && self.exceeds(at, false)
            && self.exceeds(at + 1, true)
    }

    fn middle(&self, at: usize) -> Option<u64> {
        let Range { start, end } = self.nodes[at].leaf.range;
        let unit = self.params.granularity.max(1);
        let middle = start.midpoint(end) / unit * unit;
        (middle >= start + unit && middle + unit <= end).then_some(middle)
    }

    fn end_epoch(&mut self) -> u32 {
        self.epoch += 1;
        let wanted = |at: &usize| {
            self.exceeds(*at, false) && self.exceeds(*at, true)
                || self.is_pair(*at)
                || (*at > 0 && self.is_pair(at - 1))
        };
        let mut places: Vec<(usize, u64)> = (0..self.nodes.len())
            .filter(wanted)
            .filter_map(|at| Some((at, self.middle(at)?)))
            .collect();
        let room = self.params.most_leaves.saturating_sub(self.nodes.len());
        let refused = places.len().saturating_sub(room);
        places.sort_by_key(|(at, _)| (Reverse(self.nodes[*at].leaf.count), *at));
        places.truncate(room);
        places.sort_unstable();
        for (at, middle) in places.iter().rev() {
            let left = &mut self.nodes[*at];
            left.leaf.created = self.epoch;
            let mut right = *left;
            right.leaf.count = left.leaf.count / 2;
            right.leaf.range.start = *middle;
            left.leaf.count -= right.leaf.count;
            left.leaf.range.end = *middle;
            self.nodes.insert(at + 1, right);
        }
        if refused > 0 {
            let freed = refused.min(self.params.most_leaves / 64);
            self.join_coldest(self.params.most_leaves - freed);
        }
        let split = u32::try_from(places.len()).unwrap_or(u32::MAX);
        self.splits += split;
        self.merge();
        split
    }

    fn join_coldest(&mut self, most: usize) {
        let excess = self.nodes.len().saturating_sub(most);
        let count = |at: usize| u64::from(self.nodes[at].leaf.count);
        let mut borders: Vec<usize> = (1..self.nodes.len())
            .filter(|at| self.adjacent(*at))
            .collect();
        borders.sort_by_key(|at| (count(at - 1) + count(*at), *at));
        borders.truncate(excess);
        borders.sort_by_key(|at| Reverse(*at));
        for at in borders {
            self.join(at);
        }
    }

    /// The leaf at a place becomes part of the one before it.
    fn join(&mut self, at: usize) {
        let gone = self.nodes.remove(at);
        let node = &mut self.nodes[at - 1];
        node.idle_since = node.idle_since.max(gone.idle_since);
        node.leaf = Leaf {
            range: Range {
                start: node.leaf.range.start,
                end: gone.leaf.range.end,
            },
            count: node.leaf.count.saturating_add(gone.leaf.count),
            created: node.leaf.created.min(gone.leaf.created),
            accessed: node.leaf.accessed.max(gone.leaf.accessed),
        };
    }

    fn merge(&mut self) {
        let tau = self.params.tau_merge.max(1);
        let mut at = 1;
        while at < self.nodes.len() {
            let idle = |node: &Node| node.leaf.count == 0 && self.splits - node.idle_since >= tau;
            if self.adjacent(at) && idle(&self.nodes[at - 1]) && idle(&self.nodes[at]) {
                self.join(at);
                self.merges += 1;
            } else {
                at += 1;
            }
        }
    }

    fn decay(&mut self) {
        for node in &mut self.nodes {
            if node.leaf.count == 1 {
                node.idle_since = self.splits;
            }
            node.leaf.count /= 2;
        }
    }
}

/// Mappings one after another; some touch each other.
fn seeds() -> impl Strategy<Value = Vec<Range>> {
    let gap = prop_oneof![3 => Just(0), 1 => 1_u64..9];
    let pages = prop_oneof![1_u64..40, Just(16), Just(64), Just(1 << 40)];
    prop::collection::vec((gap, pages), 0..12).prop_map(|mappings| {
        let mut end = 0;
        let mapping = |(gap, pages)| {
            let start = end + gap;
            end = start + pages;
            Range { start, end }
        };
        mappings.into_iter().map(mapping).collect()
    })
}

fn params() -> impl Strategy<Value = Params> {
    let most = prop_oneof![2_usize..30, 64_usize..200];
    (most, 1_u64..5, 1_u32..5, any::<bool>()).prop_map(
        |(most_leaves, granularity, tau, literal)| Params {
            granularity,
            most_leaves,
            tau_merge: tau,
            literal,
            ..Params::paper(1)
        },
    )
}

/// A sample: which leaf, where in it, and how often.
type Sample = (u16, u8, u32);

/// Samples of each epoch, and decays afterwards.
fn epochs() -> impl Strategy<Value = Vec<(Vec<Sample>, u8)>> {
    let accesses = prop_oneof![8 => 0_u32..40, 4 => 40_u32..400, 1 => any::<u32>()];
    let samples = prop::collection::vec((any::<u16>(), any::<u8>(), accesses), 0..12);
    prop::collection::vec((samples, 0_u8..4), 1..40)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn a_tree_is_split_and_merged_as_its_plain_model(params in params(), seeds in seeds(), epochs in epochs()) {
        let mut tree = RangeTree::new(params, &seeds);
        let mut naive = Naive::new(params, &tree);
        for (samples, decays) in epochs {
            for (leaf, part, accesses) in samples {
                if tree.is_empty() {
                    break;
                }
                let range = tree.leaves().nth(usize::from(leaf) % tree.len()).unwrap().range;
                let page = range.start + range.pages() * u64::from(part) / 256;
                prop_assert!(tree.count_many(page, accesses));
                naive.count(page, accesses);
            }
            prop_assert_eq!(tree.end_epoch(), naive.end_epoch());
            let leaves: Vec<Leaf> = tree.leaves().collect();
            let expected: Vec<Leaf> = naive.nodes.iter().map(|node| node.leaf).collect();
            prop_assert_eq!(leaves, expected);
            prop_assert_eq!(tree.changes(), (naive.splits, naive.merges));
            for _ in 0..decays {
                tree.decay();
                naive.decay();
            }
        }
    }

    #[test]
    fn a_plan_is_that_of_a_plain_model(
        ranked in prop::collection::vec(ranked(), 0..60),
        capacity in prop_oneof![0_u64..2000, Just(u64::MAX >> 8)],
        free in prop_oneof![Just(0), 0_u64..300],
    ) {
        prop_assert_eq!(Plan::new(&ranked, capacity, free), plan(&ranked, capacity, free));
    }
}

/// A range of some size and count, of which some pages exist.
fn ranked() -> impl Strategy<Value = Ranked> {
    let pages = prop_oneof![8 => 1_u64..100, 1 => Just((1 << 31) - 1), 1 => Just(1 << 31), 1 => Just(1 << 33)];
    let count = prop_oneof![4 => 0_u32..8, 4 => 0_u32..900, 1 => any::<u32>()];
    (pages, count, 0_u64..60, 0_u64..60).prop_map(|(pages, count, fast, slow)| Ranked {
        process: 1,
        leaf: Leaf {
            range: Range {
                start: 7,
                end: 7 + pages,
            },
            count,
            created: 0,
            accessed: 0,
        },
        held: Held { fast, slow },
    })
}

/// Page by page: the hottest range that lacks some takes from the coldest that has too many.
fn plan(ranked: &[Ranked], capacity: u64, free: u64) -> Plan {
    let mut left = capacity;
    let mut belongs = vec![0; ranked.len()];
    let mut fits = 0;
    for (at, range) in ranked.iter().enumerate() {
        if range.leaf.count == 0 {
            break;
        }
        let pages = range.held.fast + range.held.slow;
        belongs[at] = pages.min(left);
        if pages > left {
            break;
        }
        left -= pages;
        fits += 1;
    }
    let mut plan = Plan {
        fits,
        ..Plan::default()
    };
    let mut too_many: Vec<u64> = ranked
        .iter()
        .zip(&belongs)
        .map(|(range, belongs)| range.held.fast.saturating_sub(*belongs))
        .collect();
    let mut free = free;
    let add = |shares: &mut Vec<Share>, rank| match shares.last_mut() {
        Some(last) if last.rank == rank => last.pages += 1,
        _ => shares.push(Share { rank, pages: 1 }),
    };
    for (at, range) in ranked.iter().enumerate() {
        let missing = belongs[at]
            .saturating_sub(range.held.fast)
            .min(range.held.slow);
        for _ in 0..missing {
            if free > 0 {
                free -= 1;
                add(&mut plan.promote, at);
                continue;
            }
            let Some(coldest) = too_many.iter().rposition(|pages| *pages > 0) else {
                return plan;
            };
            if !clearly_hotter(&range.leaf, &ranked[coldest].leaf) {
                break;
            }
            too_many[coldest] -= 1;
            add(&mut plan.demote, coldest);
            add(&mut plan.promote, at);
        }
    }
    plan
}

/// More accesses per page, by more than four standard deviations.
fn clearly_hotter(a: &Leaf, b: &Leaf) -> bool {
    let of = |leaf: &Leaf| (u128::from(leaf.count), u128::from(leaf.range.pages()));
    let ((a, a_pages), (b, b_pages)) = (of(a), of(b));
    let (x, y) = (a * b_pages, b * a_pages);
    // A square of more than 128 bits is more than any variance here.
    let square = |difference: u128| difference.saturating_mul(difference);
    x > y && square(x - y) > 16 * (x * b_pages + y * a_pages)
}
