//! `hyperplace`: the guest's agent (`terrace_core::ranges`) with samples of the processor's counters. It is not a
//! baseline, but it runs as the baselines do. The decisions are made by the agent's own code: this file is its guest.
//!
//! - Trigger: an epoch, 500 ms (HyperTier §4.2.2); the time of a longer one is not made up for. Samples: each 4093rd
//!   load and store, as far as the guest's kernel finds them at context switches; no interrupt while the buffer lasts
//!   (§4.2.1).
//! - Threshold: ranges by accesses per byte, fitted to the node's size.
//! - Rate limit: the agent's budget, 512 MiB a second for both directions, and the speed of one thread.
//! - Victim: the pages of the coldest ranges. Pages change places in batches through free pages, as with
//!   `move_pages(2)`; the headroom stays free. Pages that could not be moved rest for a while.
//!
//! [`literal`] is the same by the letter of the paper, without the agent.

pub mod literal;

use terrace_core::Session;
use terrace_core::ranges::piece::push;
use terrace_core::ranges::{Config, Params, Range, Ranges, piece};
use terrace_proto::ranges::{
    KernelRefusal, Mappings, Migration, MigrationOutcome as Answer, NodeFree, PieceRun, PieceState,
    RangeSample, RangesAction, RangesBudget, RangesEvent, Survey, Surveyed,
};
use terrace_proto::{MoveStatus, PAGE_SIZE, PAGES_PER_HUGE, Tick};

use super::{Context, Mechanism, MigrationMode, Moved, Pmu, Sample, Setup, Stage, Unit};
use crate::base::number::low;

/// The parameters that a scenario may set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// Loads per sample, and stores per sample.
    pub period: u64,
    /// Length of an epoch, ms.
    pub epoch_ms: u32,
    /// Threshold of a split (τ_split): accesses per vCPU and epoch.
    pub tau_split: u32,
    /// Whether all stages are those of the paper's text, instead of the agent's.
    pub literal: bool,
}

impl Tuning {
    /// The parameters of the paper (HyperTier §4.2.1, §4.2.2).
    pub const PAPER: Self = Self {
        period: 4093,
        epoch_ms: 500,
        tau_split: 15,
        literal: false,
    };

    /// The parameters of a tree of a VM at a scale.
    fn params(self, setup: &Setup) -> Params {
        let paper = Params::paper(setup.vcpus);
        Params {
            epoch_ms: self.epoch_ms,
            tau_split: self.tau_split,
            granularity: (paper.granularity / setup.scale).max(setup.pages_per_unit),
            literal: self.literal,
            ..paper
        }
    }

    /// The counters' configuration.
    fn pmu(self, scale: u64) -> Pmu {
        Pmu {
            load_period: self.period,
            store_period: self.period,
            buffer: BUFFER,
            divisor: scale,
        }
    }
}

/// The range of all addresses that the process could map, in pages, and the part of it that the load maps: its end.
fn address_space(setup: &Setup) -> (Range, Range) {
    let pages = u64::from(setup.units) * setup.pages_per_unit;
    let end = (ROOT / PAGE_SIZE / setup.scale).max(pages);
    let start = end - pages;
    (Range { start: 0, end }, Range { start, end })
}

/// Records that a buffer of 64 KiB holds (`PEBS_BUFFER_SIZE`, arch/x86/events/intel/ds.c; 192 bytes a record):
/// a context switch comes earlier.
const BUFFER: usize = 340;

/// The addresses that a process may use between its heap's start and the base of its mappings (§4.2.2), bytes.
const ROOT: u64 = 40 << 40;

/// Divisor of a node's size that gives the part which stays free for the kernel: between the low and the high
/// watermark.
const WATERMARK_DIVISOR: u64 = 500;

/// The agent's default budget and headroom (`dist/terrace-agent.toml`).
const BYTES_PER_S: u64 = 512 << 20;
const CPU_PERCENT: u32 = 5;
const HEADROOM: u64 = 16 << 20;

/// Least pieces of a batch: as many as are unmapped together at any scale.
const MIN_BATCH: u64 = 32;

/// The id of the guest's one process.
const PROCESS: u32 = 1;

/// HyperPlace in one guest with one process.
pub struct Hyperplace {
    tuning: Tuning,
    session: Session<(), Ranges>,
    /// First page of the load in the tree: mapped memory lies at the root's end.
    base: u64,
    pages_per_unit: u64,
    /// When the next epoch ends, ns.
    due: u64,
    started: bool,
    /// Whether the controller is still busy with the last epoch.
    is_open: bool,
    under_way: Option<UnderWay>,
}

/// Pages that are being moved.
#[derive(Debug)]
struct UnderWay {
    /// The number that the controller gave the batch.
    id: u64,
    /// The outcome of each page, in the order of the request.
    states: Vec<(Unit, Option<PieceState>)>,
}

impl Hyperplace {
    /// A controller with one root over all addresses that the process could map.
    #[must_use]
    pub fn new(setup: &Setup, tuning: Tuning) -> Self {
        let by_scale = |pages: u64| (pages / setup.scale).max(setup.pages_per_unit);
        let params = tuning.params(setup);
        let (root, load) = address_space(setup);
        let budget = RangesBudget {
            bytes_per_s: BYTES_PER_S / setup.scale,
            cpu_percent: CPU_PERCENT,
        };
        let batch = by_scale(PAGES_PER_HUGE).max(MIN_BATCH * setup.pages_per_unit);
        let config = Config {
            // A batch must fit into it if slow memory is full, at any scale.
            headroom_pages: (HEADROOM / PAGE_SIZE / setup.scale).max(batch),
            extent_pages: u16::try_from(by_scale(PAGES_PER_HUGE)).unwrap_or(u16::MAX),
            batch_pages: batch,
            ..Config::new(
                params,
                (0..).take(setup.tiers).map(|tier| vec![tier]).collect(),
                budget,
            )
        };
        let mut session = Session::new(Ranges::new(config), ());
        let mappings = Mappings {
            process: PROCESS,
            seeds: vec![root],
            mapped: vec![load],
            ..Mappings::default()
        };
        // Nothing is decided before an epoch ends.
        let _ = session.hear(Tick(0), RangesEvent::Mapped(mappings));
        Self {
            tuning,
            session,
            base: load.start,
            pages_per_unit: setup.pages_per_unit,
            due: u64::from(tuning.epoch_ms) * 1_000_000,
            started: false,
            is_open: false,
            under_way: None,
        }
    }

    fn epoch(&mut self, context: &mut Context) {
        let length = u64::from(self.session.controller().config().epoch_ms) * 1_000_000;
        self.due = (self.due + length).max(context.now_ns());
        self.is_open = true;
        let programs = self.session.controller().programs().values();
        let leaves: usize = programs.map(|program| program.tree().len()).sum();
        context.spend_by_clock(Stage::Classify, leaves as u64 * context.costs().lru_page);
        self.tell(context, RangesEvent::EpochEnded);
    }

    /// Passes an event to the controller, and does what it asks for; moves are answered later.
    fn tell(&mut self, context: &mut Context, event: RangesEvent) {
        let mut event = Some(event);
        while let Some(heard) = event.take() {
            for action in self.session.hear(Tick(context.now_ns()), heard) {
                event = match action {
                    RangesAction::ReadFree => Some(RangesEvent::Free(self.free(context))),
                    RangesAction::Survey(survey) => {
                        Some(RangesEvent::Surveyed(self.survey(context, &survey)))
                    }
                    RangesAction::Migrate(migration) => {
                        self.migrate(context, &migration);
                        None
                    }
                    // Not asked for: the simulated guest has no module that exchanges pages in place.
                    RangesAction::Swap(swap) => Some(RangesEvent::Migrated(Answer {
                        id: swap.id,
                        states: Vec::new(),
                        refusal: Some(KernelRefusal::NotSupported),
                    })),
                    RangesAction::EpochOver(_) => {
                        self.is_open = false;
                        None
                    }
                };
            }
        }
    }

    /// Free memory above the kernel's watermarks.
    fn free(&self, context: &Context) -> Vec<NodeFree> {
        let tiers = (0..).take(context.setup().tiers);
        let free = tiers.map(|tier: u8| {
            let watermark = context.node(tier) / WATERMARK_DIVISOR;
            NodeFree {
                node: tier.into(),
                pages: context.free(tier).saturating_sub(watermark) * self.pages_per_unit,
            }
        });
        free.collect()
    }

    /// Walks the process's tables.
    fn survey(&self, context: &mut Context, survey: &Survey) -> Surveyed {
        let units = self.unit(survey.range.start)..self.unit(survey.range.end).min(context.units());
        let ps = units.len() as u64 * context.costs().scan_leaf;
        context.spend(Stage::Classify, ps);
        let mut present: Vec<PieceRun> = Vec::new();
        for unit in units {
            if let Some(tier) = context.tier(unit) {
                let page = self.base + u64::from(unit) * self.pages_per_unit;
                let pages = u16::try_from(self.pages_per_unit).unwrap_or(u16::MAX);
                push(&mut present, page, pages, tier.into());
            }
        }
        Surveyed {
            id: survey.id,
            present: Some(present),
            // The full-size machine has so many times the pages.
            cpu_ns: ps * context.setup().scale / 1000,
        }
    }

    fn migrate(&mut self, context: &mut Context, migration: &Migration) {
        let to = u8::try_from(migration.node).unwrap_or(u8::MAX);
        let units: Vec<Unit> = piece::pages(&migration.pieces)
            .map(|page| self.unit(page))
            .collect();
        let wanted: Vec<(Unit, u8)> = units.iter().map(|unit| (*unit, to)).collect();
        self.under_way = Some(UnderWay {
            id: migration.id,
            states: units.into_iter().map(|unit| (unit, None)).collect(),
        });
        context.submit(&wanted, MigrationMode::Unmap);
    }

    /// The load's unit that a page of the tree is in.
    fn unit(&self, page: u64) -> Unit {
        low(page.saturating_sub(self.base).div_ceil(self.pages_per_unit))
    }
}

impl Mechanism for Hyperplace {
    fn run_quantum(&mut self, context: &mut Context) {
        if !self.started {
            self.started = true;
            let scale = context.setup().scale;
            context.sample(Some(self.tuning.pmu(scale)));
        }
        if context.now_ns() >= self.due && !self.is_open {
            self.epoch(context);
        }
    }

    fn samples(&mut self, context: &mut Context, samples: &[Sample]) {
        let work = samples.len() as u64 * context.costs().sample_work;
        context.spend_by_clock(Stage::Track, work);
        let seen = samples.iter().map(|sample| RangeSample {
            process: PROCESS,
            page: self.base + u64::from(sample.page),
            pages: 1,
            accesses: 1,
        });
        let seen = RangesEvent::Sampled(seen.collect());
        self.tell(context, seen);
    }

    fn moved(&mut self, context: &mut Context, moved: &[Moved]) {
        let Some(under_way) = &mut self.under_way else {
            return;
        };
        for Moved { unit, outcome, .. } in moved {
            let open =
                |(of, state): &&mut (Unit, Option<PieceState>)| of == unit && state.is_none();
            if let Some((_, state)) = under_way.states.iter_mut().find(open) {
                *state = Some(match (outcome.status, outcome.now) {
                    (MoveStatus::Busy, _) => PieceState::Busy,
                    (_, Some(tier)) => PieceState::On(tier.into()),
                    (_, None) => PieceState::Absent,
                });
            }
        }
        let states: Option<Vec<_>> = under_way.states.iter().map(|(_, s)| *s).collect();
        if let Some(states) = states {
            let answer = Answer {
                id: under_way.id,
                states: states.into_iter().map(|state| (1, state)).collect(),
                refusal: None,
            };
            self.under_way = None;
            self.tell(context, RangesEvent::Migrated(answer));
        }
    }

    fn rounds(&self) -> u64 {
        self.session.controller().epoch().into()
    }

    fn heap_bytes(&self) -> usize {
        self.session.controller().heap_bytes()
    }
}
