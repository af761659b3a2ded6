//! The memory that the engine holds per page. The allocator's figures come from the caller.

use terrace_core::{Engine, EngineConfig, PolicyName};
use terrace_proto::{
    Action, Event, Gfn, MoveReport, MoveStatus, PAGE_SIZE, PageBitmap, PageCode, PageResult,
    PlacementReport, ScanAnswer, ScanRequest, ScanStats, Tick, TierId, TierMemory, VmId,
};

use crate::vm::{among, spec};

/// `state_bytes_per_page`: the most that the engine ever held, per 4 KiB page, while a policy ran three
/// rounds on a VM of `pages` pages in which a quarter is hot, another one in each round, so that plans
/// are as large as they get. Under `hmvisor`, where a page climbs for some rounds, it is the same quarter in six rounds.
/// `allocated` gives the bytes allocated by the program now. What the engine was just given or just
/// handed out (answers, plans, bitmaps) counts as held.
///
/// # Panics
/// If the number of pages is 0 or over 2^32.
pub fn state_bytes_per_page(policy: PolicyName, pages: u64, allocated: impl Fn() -> usize) -> f64 {
    let before = allocated();
    let mut run = StateRun::new(policy, pages);
    let rounds = if run.lists { 6 } else { 3 };
    let mut most = 0;
    while run.rounds() < rounds {
        run.step(|| most = most.max(allocated().saturating_sub(before)));
    }
    most as f64 / pages as f64
}

/// An engine with one VM, whose questions are answered at once.
struct StateRun {
    engine: Engine,
    now: Tick,
    pages: u64,
    fast: u64,
    /// The policy has lists.
    lists: bool,
}

/// Pages in one report of placement.
const REPORT: u64 = 1 << 16;

impl StateRun {
    fn new(policy: PolicyName, pages: u64) -> Self {
        let config = EngineConfig {
            policy: policy.into(),
            move_budget_bytes_per_s: 0,
            list_bytes_per_s: pages * PAGE_SIZE,
            ..EngineConfig::default()
        };
        let mut engine = Engine::new(config).expect("the defaults are valid");
        let fast = pages / 4;
        let memory = |tier, total_bytes| TierMemory {
            tier,
            total_bytes,
            free_bytes: total_bytes,
        };
        let memory = vec![
            memory(TierId::FAST, pages * PAGE_SIZE),
            memory(TierId::SLOW, pages * PAGE_SIZE),
        ];
        engine.handle(Tick(0), Event::Memory(memory));
        engine.handle(Tick(0), Event::VmArrived(spec(pages, fast)));
        Self {
            engine,
            now: Tick(0),
            pages,
            fast,
            lists: policy == PolicyName::Hmvisor,
        }
    }

    fn rounds(&self) -> u64 {
        self.engine
            .vm(VmId(1))
            .map_or(u64::MAX, |vm| vm.counters.rounds)
    }

    /// Does the next action, or lets time pass to the next timeout; `sample` runs whenever memory may
    /// be at its highest.
    fn step(&mut self, mut sample: impl FnMut()) {
        let Some(action) = self.engine.poll_action() else {
            self.now = self.engine.poll_timeout().unwrap_or(self.now);
            self.give(Event::Timer, &mut sample);
            return;
        };
        match action {
            // There is no provider.
            Action::QueryProvider(_)
            | Action::Resize(_)
            | Action::Withdraw(..)
            | Action::Answer(_)
            | Action::LetGo(_)
            | Action::Collapse(_)
            | Action::ScanPart(_)
            | Action::NameTables(_)
            // Of a simulated VM alone.
            | Action::Protect(_)
            | Action::Unprotect(_) => {}
            Action::QueryPlacement(query) => {
                for report in 0..self.pages.div_ceil(REPORT) {
                    let start = report * REPORT;
                    let len = REPORT.min(self.pages - start);
                    let code = |page| PageCode(u8::from(page >= self.fast));
                    let report = PlacementReport {
                        id: query.id,
                        vm: query.vm,
                        start: Gfn(start),
                        codes: (start..start + len).map(code).collect(),
                        last: start + len == self.pages,
                    };
                    self.give(Event::Placement(report), &mut sample);
                }
            }
            Action::Scan(request) => {
                let answer = Box::new(self.answer(&request));
                self.give(Event::Scanned(answer), &mut sample);
            }
            Action::Move(plan) => {
                let results = plan.moves.iter().map(|m| PageResult {
                    gfn: m.gfn,
                    status: MoveStatus::Moved,
                    now: PageCode(m.to.0),
                });
                let report = MoveReport {
                    id: plan.id,
                    vm: plan.vm,
                    results: results.collect(),
                    elapsed_ns: 1,
                };
                self.give(Event::Moved(report), &mut sample);
            }
        }
    }

    fn give(&mut self, event: Event, sample: &mut impl FnMut()) {
        sample();
        self.engine.handle(self.now, event);
        sample();
    }

    /// The answer to a scan: a quarter of the pages is accessed, another one in each round.
    fn answer(&self, request: &ScanRequest) -> ScanAnswer {
        let round = if self.lists { 0 } else { self.rounds() };
        let mut accessed = PageBitmap::new(self.pages);
        for page in (0..self.pages).filter(|p| among(*p, 1 + round, 25)) {
            accessed.set(page);
        }
        ScanAnswer {
            id: request.id,
            space: request.space,
            known: PageBitmap::full(self.pages),
            written: Some(accessed.clone()),
            accessed,
            huge_leaf: PageBitmap::new(self.pages.div_ceil(512)),
            stats: ScanStats::default(),
        }
    }
}
