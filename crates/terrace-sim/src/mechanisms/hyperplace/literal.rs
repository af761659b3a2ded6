//! `{ base = "hyperplace", literal = true }`: HyperPlace by the letter of its paper (HyperTier §4.2). Only the tree of
//! ranges is the agent's code.
//!
//! - Trigger: a timer of 500 ms (§4.2.2). It goes off whether or not the last exchange is over.
//! - Threshold: a range that is accessed significantly more than both of its neighbours is split (§4.2.2). Ranges by
//!   accesses per byte, the newer first; as many as the fast node holds are promoted, and the first pages of the next
//!   one (§4.2.3). A range without accesses may be among them.
//! - Rate limit: none. The migration thread works requests off in the order in which the timer made them.
//! - Victim: the pages of the coldest ranges, as many as are promoted. They change places in pairs, without free memory
//!   (§4.2.4). What is promoted beyond the victims stays where it is.

use std::collections::VecDeque;

use terrace_core::ranges::plan::{Held, Ranked, rank};
use terrace_core::ranges::tree::RangeTree;
use terrace_proto::TierId;
use terrace_proto::ranges::Range;

use super::{PROCESS, Tuning, address_space};
use crate::base::number::{low, to_usize};
use crate::mechanisms::{Context, Mechanism, MigrationMode, Sample, Setup, Stage, Unit};

/// Two units that are to change places: one that goes to the first tier, and one that makes room for it.
type Pair = (Unit, Unit);

/// HyperPlace by the letter, in one guest with one process.
pub struct Literal {
    tuning: Tuning,
    tree: RangeTree,
    /// First page of the load in the tree: mapped memory lies at the root's end.
    base: u64,
    pages_per_unit: u64,
    /// When the timer goes off next, ns.
    due: u64,
    started: bool,
    /// Exchanges that the migration thread was asked for and has not begun, the oldest first.
    requests: VecDeque<Vec<Pair>>,
}

impl Literal {
    /// A tree with one root over all addresses that the process could map.
    #[must_use]
    pub fn new(setup: &Setup, tuning: Tuning) -> Self {
        let (root, load) = address_space(setup);
        Self {
            tuning,
            tree: RangeTree::new(tuning.params(setup), &[root]),
            base: load.start,
            pages_per_unit: setup.pages_per_unit,
            due: u64::from(tuning.epoch_ms) * 1_000_000,
            started: false,
            requests: VecDeque::new(),
        }
    }

    fn end_epoch(&mut self, context: &mut Context) {
        self.due += u64::from(self.tuning.epoch_ms) * 1_000_000;
        self.tree.end_epoch();
        let leaves = self.tree.len() as u64;
        context.spend_by_clock(Stage::Classify, leaves * context.costs().lru_page);
        let request = self.plan(context);
        if !request.is_empty() {
            self.requests.push_back(request);
        }
        self.tree.decay();
    }

    /// The pages that should change places by the ranking of now.
    fn plan(&self, context: &mut Context) -> Vec<Pair> {
        // Where pages are is read from the tables, below.
        let ranked = rank([(PROCESS, &self.tree)], |_, _| Held::default());
        let capacity = context.held(TierId::FAST.0) + context.free(TierId::FAST.0);
        let mut left = capacity;
        let (mut promoted, mut boundary) = (Vec::new(), None);
        for (at, range) in ranked.iter().enumerate() {
            let present = self.present(context, range);
            let fitting = to_usize(left).min(present.len());
            let (inside, beyond) = present.split_at(fitting);
            left -= fitting as u64;
            promoted.extend(inside.iter().filter(|unit| !is_fast(context, **unit)));
            if !beyond.is_empty() {
                boundary = Some((at, beyond.to_vec()));
                break;
            }
        }
        let Some((boundary, beyond)) = boundary else {
            // All memory fits: there is nothing to make room for.
            return Vec::new();
        };
        let mut victims = Vec::new();
        for range in ranked.iter().skip(boundary + 1).rev() {
            if victims.len() >= promoted.len() {
                break;
            }
            let present = self.present(context, range);
            victims.extend(present.into_iter().filter(|unit| is_fast(context, *unit)));
        }
        victims.extend(beyond.into_iter().filter(|unit| is_fast(context, *unit)));
        promoted.into_iter().zip(victims).collect()
    }

    /// The pages of a range that exist, in order of address: a walk of the process's tables.
    fn present(&self, context: &mut Context, ranked: &Ranked) -> Vec<Unit> {
        let Range { start, end } = ranked.leaf.range;
        let units = self.unit(start)..self.unit(end).min(context.units());
        context.spend(
            Stage::Classify,
            units.len() as u64 * context.costs().scan_leaf,
        );
        units.filter(|unit| context.tier(*unit).is_some()).collect()
    }

    /// The load's unit that a page of the tree is in.
    fn unit(&self, page: u64) -> Unit {
        low(page.saturating_sub(self.base).div_ceil(self.pages_per_unit))
    }

    /// Begins the oldest request that still has pages to exchange.
    fn exchange(&mut self, context: &mut Context) {
        while context.migrating() == 0 {
            let Some(pairs) = self.requests.pop_front() else {
                return;
            };
            let wanted: Vec<(Unit, u8)> = pairs
                .into_iter()
                .filter(|(hot, cold)| !is_fast(context, *hot) && is_fast(context, *cold))
                .filter_map(|(hot, cold)| {
                    let slow = context.tier(hot)?;
                    Some([(hot, TierId::FAST.0), (cold, slow)])
                })
                .flatten()
                .collect();
            context.submit(&wanted, MigrationMode::Exchange);
        }
    }
}

fn is_fast(context: &Context, unit: Unit) -> bool {
    context.tier(unit) == Some(TierId::FAST.0)
}

impl Mechanism for Literal {
    fn run_quantum(&mut self, context: &mut Context) {
        if !self.started {
            self.started = true;
            let scale = context.setup().scale;
            context.sample(Some(self.tuning.pmu(scale)));
        }
        if context.now_ns() >= self.due {
            self.end_epoch(context);
        }
        self.exchange(context);
    }

    fn samples(&mut self, context: &mut Context, samples: &[Sample]) {
        let work = samples.len() as u64 * context.costs().sample_work;
        context.spend_by_clock(Stage::Track, work);
        for sample in samples {
            self.tree.count(self.base + u64::from(sample.page));
        }
    }

    fn rounds(&self) -> u64 {
        self.tree.epoch().into()
    }

    fn heap_bytes(&self) -> usize {
        let requests = self.requests.iter().map(Vec::capacity).sum::<usize>();
        self.tree.heap_bytes() + requests * size_of::<Pair>()
    }
}
