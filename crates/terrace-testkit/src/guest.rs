//! A guest made of numbers, whose ranges a controller keeps: processes with pages on two nodes, free memory, pages that
//! cannot be moved.

use std::collections::{BTreeMap, BTreeSet};

use terrace_core::ranges::{Config, Params, Range, Ranges, piece};
use terrace_core::session::{Log, Session};
use terrace_proto::Tick;
use terrace_proto::log::{RangesRecord, Record, Start};
use terrace_proto::ranges::{
    EpochSummary, KernelRefusal, Mappings, Migration, MigrationOutcome, NodeFree, PieceRun,
    PieceState, RangeSample, RangesAction, RangesBudget, RangesEvent, Side, Survey, Surveyed, Swap,
};

/// Length of an epoch, ns.
const EPOCH_NS: u64 = 500_000_000;

/// The state of the guest's kernel, and the calls to it.
#[derive(Clone, Debug, Default)]
pub struct Guest {
    /// The node of each 4 KiB page, by process and page.
    pub pages: BTreeMap<(u32, u64), u32>,
    /// Free pages of nodes 0 and 1.
    pub free: [u64; 2],
    /// Pages in use.
    pub busy: BTreeSet<(u32, u64)>,
    /// Processes whose pages may not be moved.
    pub refuses: BTreeSet<u32>,
    /// CPU time that a look takes, ns.
    pub survey_ns: u64,
    /// Surveys (where are these pages?) of the last epoch.
    pub surveys: Vec<Survey>,
    /// Moves of the last epoch.
    pub migrations: Vec<Migration>,
    /// Pairs that were exchanged in place.
    pub swapped: u64,
    /// Time.
    pub now: Tick,
}

/// The configuration for a guest with these pages of headroom: two nodes, a tier each.
#[must_use]
pub fn config(headroom_pages: u64) -> Config {
    let budget = RangesBudget {
        bytes_per_s: 512 << 20,
        cpu_percent: 5,
    };
    Config {
        headroom_pages,
        ..Config::new(Params::paper(1), vec![vec![0], vec![1]], budget)
    }
}

/// The first record of a log.
///
/// # Panics
/// Never: a configuration has a JSON form.
#[must_use]
pub fn start(config: &Config) -> Record {
    Record::Ranges(RangesRecord::Start(Start {
        version: "0.1.0".into(),
        config: serde_json::to_string(config).expect("plain data"),
    }))
}

/// The event of a process's mapping, which is all that is managed of it.
#[must_use]
pub fn mapped(process: u32, range: Range) -> RangesEvent {
    RangesEvent::Mapped(Mappings {
        process,
        seeds: vec![range],
        mapped: vec![range],
        ..Mappings::default()
    })
}

impl Guest {
    /// Puts a process's pages on a node.
    pub fn put(&mut self, process: u32, range: Range, node: u32) {
        for page in range.start..range.end {
            self.pages.insert((process, page), node);
        }
    }

    /// Pages of a range that are on the first node.
    #[must_use]
    pub fn on_fast(&self, process: u32, range: Range) -> u64 {
        let pages = self
            .pages
            .range((process, range.start)..(process, range.end));
        pages.filter(|(_, node)| **node == 0).count() as u64
    }

    /// Gives the controller an event, and does what it asks for. Returns the epoch that is over, if one is.
    pub fn tell<L: Log>(
        &mut self,
        session: &mut Session<L, Ranges>,
        event: RangesEvent,
    ) -> Option<EpochSummary> {
        let mut over = None;
        let mut event = Some(event);
        while let Some(heard) = event.take() {
            for action in session.hear(self.now, heard) {
                event = match action {
                    RangesAction::ReadFree => Some(RangesEvent::Free(self.node_free())),
                    RangesAction::Survey(survey) => {
                        Some(RangesEvent::Surveyed(self.survey(survey)))
                    }
                    RangesAction::Migrate(migration) => {
                        Some(RangesEvent::Migrated(self.migrate(migration)))
                    }
                    RangesAction::Swap(swap) => Some(RangesEvent::Migrated(self.swap(&swap))),
                    RangesAction::EpochOver(summary) => {
                        over = Some(summary);
                        None
                    }
                };
            }
        }
        over
    }

    /// Runs an epoch in which each of these ranges was accessed so often.
    ///
    /// # Panics
    /// If the controller does not end it.
    pub fn epoch<L: Log>(
        &mut self,
        session: &mut Session<L, Ranges>,
        heat: &[(u32, Range, u32)],
    ) -> EpochSummary {
        self.now = Tick(self.now.0 + EPOCH_NS);
        self.surveys.clear();
        self.migrations.clear();
        let seen = heat.iter().flat_map(|(process, range, accesses)| {
            let page = |n: u32| range.start + u64::from(n) * range.pages() / u64::from(*accesses);
            (0..*accesses).map(move |n| RangeSample {
                process: *process,
                page: page(n),
                pages: 1,
                accesses: 1,
            })
        });
        self.tell(session, RangesEvent::Sampled(seen.collect()));
        let over = self.tell(session, RangesEvent::EpochEnded);
        over.expect("an epoch that ends is over when all was answered")
    }

    fn node_free(&self) -> Vec<NodeFree> {
        let nodes = (0..).zip(self.free);
        nodes
            .map(|(node, pages)| NodeFree { node, pages })
            .collect()
    }

    fn survey(&mut self, survey: Survey) -> Surveyed {
        self.surveys.push(survey);
        let Survey { process, range, .. } = survey;
        let mut present: Vec<PieceRun> = Vec::new();
        let pages = self
            .pages
            .range((process, range.start)..(process, range.end));
        for ((_, page), node) in pages {
            piece::push(&mut present, *page, 1, *node);
        }
        Surveyed {
            id: survey.id,
            present: Some(present),
            cpu_ns: self.survey_ns,
        }
    }

    fn migrate(&mut self, migration: Migration) -> MigrationOutcome {
        let refusal = self.refuses.contains(&migration.process);
        let states = piece::pages(&migration.pieces).map(|page| {
            let key = (migration.process, page);
            let Some(node) = self.pages.get_mut(&key) else {
                return (1, PieceState::Absent);
            };
            if self.busy.contains(&key) {
                return (1, PieceState::Busy);
            }
            let place = |node: u32| usize::from(node == 1);
            if !refusal && *node != migration.node && self.free[place(migration.node)] > 0 {
                self.free[place(*node)] += 1;
                self.free[place(migration.node)] -= 1;
                *node = migration.node;
            }
            (1, PieceState::On(*node))
        });
        let migrated = MigrationOutcome {
            id: migration.id,
            states: states.collect(),
            refusal: refusal.then_some(KernelRefusal::Process),
        };
        self.migrations.push(migration);
        migrated
    }

    /// Exchanges pages in place.
    fn swap(&mut self, swap: &Swap) -> MigrationOutcome {
        let keys = |side: &Side| -> Vec<(u32, u64)> {
            let pages = piece::pages(&side.pieces);
            pages.map(|page| (side.process, page)).collect()
        };
        let (up, down) = (keys(&swap.up), keys(&swap.down));
        for (first, second) in up.iter().zip(&down) {
            let busy = self.busy.contains(first) || self.busy.contains(second);
            let nodes = [first, second].map(|key| self.pages.get(key).copied());
            if let ([Some(a), Some(b)], false) = (nodes, busy) {
                self.pages.insert(*first, b);
                self.pages.insert(*second, a);
            }
        }
        let states = up.iter().chain(&down).map(|key| match self.pages.get(key) {
            Some(node) => (1, PieceState::On(*node)),
            None => (1, PieceState::Absent),
        });
        let answer = MigrationOutcome {
            id: swap.id,
            states: states.collect(),
            refusal: None,
        };
        self.swapped += up.len() as u64;
        answer
    }
}
