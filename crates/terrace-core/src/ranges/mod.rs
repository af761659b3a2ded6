//! HyperPlace: a guest finds the hot ranges of its programs and keeps them in fast memory (HyperTier
//! §4.2; published later as Demeter, SOSP '25).
//!
//! Responsible for: the tree of virtual ranges of each process ([`tree`]), ranking them together and
//! which pages should travel ([`plan`]), where pages are as far as is known ([`extents`]), how they change places
//! ([`exchange`]), and what may be spent: a pure value without clock, file or thread, as the engine is. It leaves to
//! others: samples, finding processes, walking page tables, moving.
//!
//! Events go into [`Ranges::handle`], actions come out of [`Ranges::poll_action`], one at a time; the same events give
//! the same actions, byte for byte ([`replay`](crate::session::replay)). The guest's agent drives it, and the
//! simulator.
//!
//! An epoch: the trees take the samples in; what is free is asked for; ranges are ranked and a plan is made; the
//! extents that its pages are in are asked about, and pages change places in batches; what is left of the CPU's share
//! surveys other extents; the trees forget.
//!
//! Pages that the host names (coordinated mode) change places by the same exchange and the same limits, without a ranking:
//! that is an epoch of its own, without surveys.

mod allowance;
mod config;
pub mod exchange;
pub mod extents;
pub mod free;
mod named;
mod order;
mod pick;
pub mod piece;
pub mod plan;
mod program;
mod refresh;
pub mod tree;

use std::collections::{BTreeMap, VecDeque};

use terrace_proto::ranges::{
    EpochSummary, Exchanged, Mappings, Migration, MigrationOutcome, Named, NodeFree, RangesAction,
    RangesBudget, RangesEvent, Side, Survey, Surveyed, Swap,
};
use terrace_proto::{Tick, TierId};

use allowance::Allowance;
use exchange::{Call, Exchange, Settled};
use free::Free;
use pick::{Pick, Picked, Programs, RangeQuery};
use piece::{Piece, pieces};
use refresh::Refresh;

pub use config::Config;
pub use plan::{Held, Plan, Ranked, Share, rank};
pub use program::Program;
pub use tree::{Leaf, Params, Range, RangeTree};

/// Epochs for which a process is left alone whose pages the kernel refuses to move.
const REFUSED: u32 = 120;

/// The controller of a guest's ranges.
#[derive(Clone, Debug)]
pub struct Ranges {
    config: Config,
    params: Params,
    budget: RangesBudget,
    programs: Programs,
    epoch: u32,
    phase: Phase,
    /// Number of the last question, and what it asks.
    asked: (u64, Option<RangeQuery>),
    allowance: Allowance,
    /// The last ranking, and how many ranges of it fit into the first tier.
    ranked: Vec<Ranked>,
    fits: usize,
    exchanged: Option<Exchanged>,
    actions: VecDeque<RangesAction>,
}

/// The step of the current epoch.
#[derive(Clone, Debug, Default)]
enum Phase {
    /// Nothing: samples come in.
    #[default]
    Sampling,
    /// Free memory was asked for.
    Reading,
    /// Free memory was asked for, to move pages that were named.
    Naming(Named),
    /// Pages are chosen.
    Picking(Box<Pick>),
    /// Pages change places.
    Exchanging(Box<Exchanging>),
    /// Other pages are surveyed.
    Refreshing(Refresh),
}

/// An exchange under way.
#[derive(Clone, Debug)]
struct Exchanging {
    exchange: Exchange,
    /// Of each extent, by its process and first page: pieces that should move, and those that did not.
    tried: BTreeMap<(u32, u64), (usize, usize)>,
    /// Text, data or stacks are among them.
    pinned: bool,
    /// The pages were named.
    named: bool,
}

impl Ranges {
    /// A controller that knows of no process yet.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self {
            params: config.params,
            budget: config.budget,
            config,
            programs: Programs::new(),
            epoch: 0,
            phase: Phase::Sampling,
            asked: (0, None),
            allowance: Allowance::default(),
            ranked: Vec::new(),
            fits: 0,
            exchanged: None,
            actions: VecDeque::new(),
        }
    }

    /// The configuration.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Hears an event. Answers to what was not asked are ignored.
    pub fn handle(&mut self, now: Tick, event: RangesEvent) {
        match event {
            RangesEvent::Mapped(mappings) => self.mapped(mappings),
            RangesEvent::Gone(process) => {
                self.programs.remove(&process);
            }
            RangesEvent::Restarted(params) => {
                self.params = params;
                for program in self.programs.values_mut() {
                    program.restart(params);
                }
            }
            RangesEvent::Budget(budget) => self.budget = budget,
            RangesEvent::Sampled(samples) => {
                for sample in samples {
                    if let Some(program) = self.programs.get_mut(&sample.process) {
                        let range = Range {
                            start: sample.page,
                            end: sample.page.saturating_add(sample.pages),
                        };
                        program.tree.count_range(range, sample.accesses);
                    }
                }
            }
            RangesEvent::EpochEnded => self.epoch_ended(),
            RangesEvent::Free(nodes) => match std::mem::take(&mut self.phase) {
                Phase::Naming(named) => self.exchange_named(&named, &nodes),
                phase => {
                    self.phase = phase;
                    self.place(&nodes);
                }
            },
            RangesEvent::Surveyed(answer) => self.surveyed(&answer),
            RangesEvent::Migrated(answer) => self.migrated(&answer),
            RangesEvent::Named(named) => self.named(now, named),
        }
    }

    /// The next thing to do.
    pub fn poll_action(&mut self) -> Option<RangesAction> {
        self.actions.pop_front()
    }

    fn mapped(&mut self, mappings: Mappings) {
        match self.programs.get_mut(&mappings.process) {
            Some(program) => program.follow(mappings),
            None => {
                let process = mappings.process;
                let program = Program::new(self.params, mappings, self.config.extent_pages);
                self.programs.insert(process, program);
            }
        }
    }

    fn epoch_ended(&mut self) {
        if !matches!(self.phase, Phase::Sampling) {
            return;
        }
        self.epoch = self.epoch.saturating_add(1);
        self.exchanged = None;
        for program in self.programs.values_mut() {
            program.tree.end_epoch();
        }
        self.phase = Phase::Reading;
        self.actions.push_back(RangesAction::ReadFree);
    }

    /// Ranks and plans.
    fn place(&mut self, nodes: &[NodeFree]) {
        if !matches!(self.phase, Phase::Reading) {
            return;
        }
        let free = Free::new(&self.config.tiers, nodes, self.config.headroom_pages);
        let trees = self.programs.iter();
        let trees = trees.map(|(process, program)| (*process, &program.tree));
        self.ranked = rank(trees, |process, range| {
            let program = self.programs.get(&process);
            program.map_or(Held::default(), |program| program.held(range, self.epoch))
        });
        let in_fast: u64 = self.ranked.iter().map(|ranked| ranked.held.fast).sum();
        let room = free.pages(TierId::FAST);
        let (room, excess) = match self.config.capacity_pages {
            Some(most) => (
                room.min(most.saturating_sub(in_fast)),
                in_fast.saturating_sub(most),
            ),
            None => (room, 0),
        };
        let capacity = (in_fast - excess).saturating_add(room);
        let plan = Plan::new(&self.ranked, capacity, room);
        self.fits = plan.fits;
        if !self.config.moves {
            return self.refresh();
        }
        self.allowance.save_up(&self.config, self.budget);
        let extent = u64::from(self.config.extent_pages);
        let each_way = self.allowance.pages / 2;
        let pick = Pick::new(plan, free, each_way, excess, &self.programs, extent);
        self.pick(Box::new(pick));
    }

    fn pick(&mut self, mut pick: Box<Pick>) {
        if let Some(asked) = pick.next(&self.programs, &self.ranked, self.epoch) {
            self.ask(asked);
            self.phase = Phase::Picking(pick);
            return;
        }
        self.exchange(pick.picked());
    }

    fn ask(&mut self, asked: RangeQuery) {
        self.asked = (self.asked.0 + 1, Some(asked));
        self.actions.push_back(RangesAction::Survey(Survey {
            id: self.asked.0,
            process: asked.process,
            range: asked.range,
        }));
    }

    fn surveyed(&mut self, answer: &Surveyed) {
        let asked = self.asked.1.take_if(|_| answer.id == self.asked.0);
        let Some(asked) = asked else {
            return;
        };
        let present = answer.present.as_deref();
        let program = self.programs.get(&asked.process);
        let shared = program.map_or(&[][..], Program::shared);
        let tiers = &self.config.tiers;
        let runs = present.unwrap_or_default();
        let found: Vec<Piece> = pieces(runs, asked.process, asked.range, tiers, shared).collect();
        let of = |fast: bool| -> u16 {
            let there = found.iter().filter(|p| (p.tier == TierId::FAST) == fast);
            there.fold(0, |sum, piece| sum.saturating_add(piece.pages))
        };
        let (fast, slow) = (of(true), of(false));
        match std::mem::take(&mut self.phase) {
            Phase::Picking(mut pick) => {
                pick.surveyed(&found);
                self.keep(asked, present.is_some(), fast, slow);
                self.pick(pick);
            }
            Phase::Refreshing(mut refresh) => {
                refresh.surveyed(present.is_some(), answer.cpu_ns);
                self.keep(asked, present.is_some(), fast, slow);
                self.go_on_refreshing(refresh);
            }
            other => self.phase = other,
        }
    }

    /// Remembers where an extent's pages are.
    fn keep(&mut self, asked: RangeQuery, answered: bool, fast: u16, slow: u16) {
        let program = self.programs.get_mut(&asked.process);
        if let Some(program) = program.filter(|_| asked.is_extent && answered)
            && let Some(at) = program.extents.place_of(asked.range.start)
        {
            program.extents.saw(at, fast, slow, self.epoch);
        }
    }

    fn exchange(&mut self, picked: Picked) {
        if picked.up.is_empty() && picked.down.is_empty() {
            self.forget_pinned(self.allowance.pages / 2 > 0);
            return self.refresh();
        }
        let mut tried = BTreeMap::new();
        for piece in picked.up.iter().chain(&picked.down) {
            if let Some(extent) = self.extent_of(piece.process, piece.page) {
                tried.entry(extent).or_insert((0, 0)).0 += 1;
            }
        }
        let Config {
            tiers, batch_pages, ..
        } = &self.config;
        let exchange = Exchange::new(tiers, *batch_pages, picked.free, picked.up, picked.down);
        let exchange = exchange.with_swaps(self.config.swaps);
        self.go_on_exchanging(Box::new(Exchanging {
            exchange: exchange.unbalanced(picked.into_free, picked.more_down),
            tried,
            pinned: picked.pinned > 0,
            named: false,
        }));
    }

    /// The process and first page of the extent that a page is in.
    fn extent_of(&self, process: u32, page: u64) -> Option<(u32, u64)> {
        let extents = &self.programs.get(&process)?.extents;
        let extent = extents.get(extents.place_of(page)?)?;
        Some((process, extent.start))
    }

    fn go_on_exchanging(&mut self, mut exchanging: Box<Exchanging>) {
        let call = exchanging.exchange.next_call();
        if let Some(call) = call {
            self.asked = (self.asked.0 + 1, None);
            self.actions.push_back(order(self.asked.0, &call));
            self.phase = Phase::Exchanging(exchanging);
            return;
        }
        if !exchanging.named {
            self.forget_pinned(!exchanging.pinned);
        }
        for ((process, page), (tried, failed)) in exchanging.tried {
            let program = self.programs.get_mut(&process).filter(|_| failed > 0);
            if let Some(program) = program
                && let Some(at) = program.extents.place_of(page)
            {
                program.extents.tried(at, tried, failed, self.epoch);
            }
        }
        let exchanged = exchanging.exchange.outcome();
        for process in &exchanged.refused {
            if let Some(program) = self.programs.get_mut(process) {
                program.rests_until = self.epoch.saturating_add(REFUSED);
            }
        }
        let moved = exchanged.promoted + exchanged.demoted;
        self.allowance.spend(moved);
        self.exchanged = Some(exchanged);
        if exchanging.named {
            return self.over(0);
        }
        self.refresh();
    }

    fn migrated(&mut self, answer: &MigrationOutcome) {
        if answer.id != self.asked.0 {
            return;
        }
        match std::mem::take(&mut self.phase) {
            Phase::Exchanging(mut exchanging) => {
                let settled = exchanging.exchange.migrated(&answer.states, answer.refusal);
                for settled in settled {
                    self.settle(&mut exchanging, settled);
                }
                self.go_on_exchanging(exchanging);
            }
            other => self.phase = other,
        }
    }

    /// Takes in the result of a move, which is an answer about its extent as well: that is not asked about again.
    fn settle(&mut self, exchanging: &mut Exchanging, settled: Settled) {
        let Settled {
            piece,
            now,
            arrived,
        } = settled;
        let extent = self.extent_of(piece.process, piece.page);
        let tried = extent.and_then(|extent| exchanging.tried.get_mut(&extent));
        if let (Some(tried), false) = (tried, arrived) {
            tried.1 += 1;
        }
        if let Some(program) = self.programs.get_mut(&piece.process) {
            let was_fast = piece.tier == TierId::FAST;
            let is_fast = now.map(|tier| tier == TierId::FAST);
            program
                .extents
                .moved(piece.page, piece.pages, was_fast, is_fast);
        }
    }

    fn forget_pinned(&mut self, all: bool) {
        for program in self.programs.values_mut() {
            program.forget_pinned(all);
        }
    }

    /// Surveys other extents, within the share of the CPU.
    fn refresh(&mut self) {
        let epoch_ns = u64::from(self.config.epoch_ms) * 1_000_000;
        let share_ns = epoch_ns.saturating_mul(self.budget.cpu_percent.into()) / 100;
        self.go_on_refreshing(Refresh::new(&self.programs, self.epoch, share_ns));
    }

    fn go_on_refreshing(&mut self, mut refresh: Refresh) {
        if let Some(asked) = refresh.next(&mut self.programs, self.epoch) {
            self.ask(asked);
            self.phase = Phase::Refreshing(refresh);
            return;
        }
        for program in self.programs.values_mut() {
            program.tree.decay();
        }
        self.over(refresh.surveys);
    }

    /// Ends the epoch.
    fn over(&mut self, surveys: u64) {
        self.phase = Phase::Sampling;
        self.actions
            .push_back(RangesAction::EpochOver(EpochSummary {
                epoch: self.epoch,
                ranges: self.ranked.len() as u64,
                fitting: self.fits as u64,
                surveys,
                exchanged: self.exchanged.take(),
            }));
    }
}

/// A call of an exchange as an action.
fn order(id: u64, call: &Call) -> RangesAction {
    match call {
        Call::Move(call) => RangesAction::Migrate(Migration {
            id,
            process: call.process,
            node: call.node,
            shared: call.shared,
            pieces: piece::runs(&call.pieces),
        }),
        Call::Swap(swap) => {
            let side = |pieces: &[Piece]| Side {
                process: pieces.first().map_or(0, |piece| piece.process),
                pieces: piece::runs(pieces),
            };
            RangesAction::Swap(Swap {
                id,
                up: side(&swap.up),
                down: side(&swap.down),
            })
        }
    }
}

/// Views for people.
impl Ranges {
    /// Epochs that began to end.
    #[must_use]
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Processes under management, by their numbers.
    #[must_use]
    pub fn programs(&self) -> &BTreeMap<u32, Program> {
        &self.programs
    }

    /// The last ranking, hottest first, and how many ranges of it fit into the first tier.
    #[must_use]
    pub fn ranked(&self) -> (&[Ranked], usize) {
        (&self.ranked, self.fits)
    }

    /// Bytes on the heap, of trees and of what is known about pages.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        self.programs.values().map(Program::heap_bytes).sum()
    }
}
