//! What `terrace bench` measures of this crate. Clock and allocator come from the caller.
//!
//! Responsible for: inputs, the runs, and the baselines that run beside them. It leaves to others:
//! telling time, counting allocations, and printing.

use terrace_proto::{
    Action, Event, Gfn, MoveReport, MoveStatus, PAGE_SIZE, PageBitmap, PageCode, PageResult,
    PageSize, PlacementReport, RamRange, ScanAnswer, ScanRequest, ScanStats, Tick, TierId,
    TierLimit, TierMemory, VmId, VmSpec,
};

use crate::config::EngineConfig;
use crate::engine::Engine;
use crate::estimate::Estimator;
use crate::pages::{Pages, place};
use crate::place::{ExchangeRule, Place, Proposal, RankedPlace, Room};
use crate::ram::Ram;

/// 4 KiB pages of a 64 GiB VM: what both benches take.
pub const PAGES_OF_64_GIB: u64 = 16 << 20;

fn spec(pages: u64, fast: u64) -> VmSpec {
    let limit = |ceiling_bytes| TierLimit {
        floor_bytes: 0,
        ceiling_bytes,
    };
    VmSpec {
        vm: VmId(1),
        name: "bench".into(),
        ram: vec![RamRange {
            start: Gfn(0),
            pages,
        }],
        unit: PageSize::Base,
        limits: vec![limit(fast * PAGE_SIZE), limit(u64::MAX)],
        weight: 1000,
        moves: true,
    }
}

/// A repeatable draw of 0 to 2^32 − 1 for a page.
fn draw(page: u64, purpose: u64) -> u64 {
    let mut z = page
        .wrapping_add(purpose << 40)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    z >> 32
}

/// Whether a page is among so many percent, drawn at random.
fn among(page: u64, purpose: u64, percent: u64) -> bool {
    (draw(page, purpose) * 100) >> 32 < percent
}

/// Nanoseconds per page of one pass and of what it is compared with, medians of five runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PerPage {
    /// From counts to hot set and exchange plan.
    pub classify_ns: f64,
    /// Copying eight bytes a page.
    pub copy_ns: f64,
}

/// Classification of one VM: a tenth of the pages is hot and the first tier holds as many; 5 % of all
/// pages are misplaced, half of them hot in the slow tier, half cold in the fast one.
#[derive(Debug)]
pub struct Classify {
    pages: Pages,
    stage: RankedPlace,
    room: Room,
    from: Vec<u64>,
    to: Vec<u64>,
}

impl Classify {
    /// Counts of a VM with so many 4 KiB pages after a round of eight windows.
    ///
    /// # Panics
    /// Where the number of pages is 0 or over 2^32.
    #[must_use]
    pub fn new(pages: u64) -> Self {
        let ram = Ram::new(&spec(pages, 0)).expect("the number of pages is in range");
        let mut p = Pages::new(ram, 2);
        let codes: Vec<_> = (0..pages)
            .map(|page| {
                let hot = among(page, 1, 10);
                let misplaced = if hot {
                    among(page, 2, 25)
                } else {
                    draw(page, 2).is_multiple_of(36)
                };
                PageCode(u8::from(hot == misplaced))
            })
            .collect();
        p.place_run(Gfn(0), &codes);
        for (page, (reads, writes)) in (0_u64..).zip(p.reads.iter_mut().zip(&mut p.writes)) {
            let visits = if among(page, 1, 10) {
                5 + draw(page, 3) % 4
            } else {
                (draw(page, 3) % 8) / 6
            };
            let wrote = (draw(page, 4) % 9).min(visits);
            *reads = u8::try_from(visits - wrote).unwrap_or(0);
            *writes = u8::try_from(wrote).unwrap_or(0);
        }
        p.place.iter_mut().for_each(|slot| *slot |= place::KNOWN);
        let held = [p.bytes(TierId::FAST), p.bytes(TierId::SLOW), 0, 0].map(|b| b / PAGE_SIZE);
        let words = usize::try_from(pages).unwrap_or(0);
        Self {
            pages: p,
            stage: RankedPlace {
                estimator: Estimator::PageDegree { read: 1, write: 3 },
                rule: ExchangeRule {
                    min_hot_degree: 1,
                    hysteresis: 0,
                },
                slowest: false,
            },
            room: Room {
                held,
                fit: [held[0], u64::MAX, 0, 0],
                floor: [0; 4],
                most: pages / 2,
            },
            from: vec![1; words],
            to: vec![0; words],
        }
    }

    /// The very code that the engine runs at the end of a round.
    pub fn run(&mut self) -> Proposal {
        self.stage.propose(1, &self.pages, &self.room)
    }

    /// Copies eight bytes a page.
    pub fn copy(&mut self) {
        self.to.copy_from_slice(std::hint::black_box(&self.from));
        std::hint::black_box(&self.to);
    }

    /// Measures both, in turn.
    pub fn measure(&mut self, clock: impl Fn() -> u64) -> PerPage {
        let time = |run: &mut dyn FnMut()| {
            let start = clock();
            run();
            clock().saturating_sub(start)
        };
        let (mut classify, mut copy) = ([0; 5], [0; 5]);
        for i in 0..5 {
            classify[i] = time(&mut || {
                std::hint::black_box(self.run());
            });
            copy[i] = time(&mut || self.copy());
        }
        let median = |runs: &mut [u64; 5]| {
            runs.sort_unstable();
            per_page(runs[2], self.pages.units() as u64)
        };
        PerPage {
            classify_ns: median(&mut classify),
            copy_ns: median(&mut copy),
        }
    }
}

/// `classify_ns_per_page`: 16 Mi pages; `clock` gives nanoseconds.
pub fn classify(clock: impl Fn() -> u64) -> PerPage {
    Classify::new(PAGES_OF_64_GIB).measure(clock)
}

fn per_page(sum: u64, pages: u64) -> f64 {
    sum as f64 / pages as f64
}

/// `state_bytes_per_page`: the most that the engine ever held, per 4 KiB page, while `vtmm` ran three
/// rounds on a VM of `pages` pages in which a quarter is hot, another one in each round, so that plans
/// are as large as they get.
/// `allocated` gives the bytes allocated by the program now. What the engine was just given or just
/// handed out (answers, plans, bitmaps) counts as held.
///
/// # Panics
/// Where the number of pages is 0 or over 2^32.
pub fn state_bytes_per_page(pages: u64, allocated: impl Fn() -> usize) -> f64 {
    let before = allocated();
    let mut run = StateRun::new(pages);
    let mut most = 0;
    while run.rounds() < 3 {
        run.step(|| most = most.max(allocated().saturating_sub(before)));
    }
    per_page(most as u64, pages)
}

/// An engine with one VM, whose questions are answered at once.
struct StateRun {
    engine: Engine,
    now: Tick,
    pages: u64,
    fast: u64,
}

/// Pages in one report of placement.
const REPORT: u64 = 1 << 16;

impl StateRun {
    fn new(pages: u64) -> Self {
        let config = EngineConfig {
            move_budget_bytes_per_s: 0,
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
        }
    }

    fn rounds(&self) -> u64 {
        self.engine
            .vm(VmId(1))
            .map_or(u64::MAX, |vm| vm.counters.rounds)
    }

    /// Does the next action, or lets time pass to the next timeout; `look` runs whenever memory may
    /// be at its highest.
    fn step(&mut self, mut look: impl FnMut()) {
        let Some(action) = self.engine.poll_action() else {
            self.now = self.engine.poll_timeout().unwrap_or(self.now);
            self.give(Event::Timer, &mut look);
            return;
        };
        match action {
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
                    self.give(Event::Placement(report), &mut look);
                }
            }
            Action::Scan(request) => {
                let answer = Box::new(self.answer(&request));
                self.give(Event::Scanned(answer), &mut look);
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
                self.give(Event::Moved(report), &mut look);
            }
        }
    }

    fn give(&mut self, event: Event, look: &mut impl FnMut()) {
        look();
        self.engine.handle(self.now, event);
        look();
    }

    /// A quarter of the pages is accessed, another one in each round.
    fn answer(&self, request: &ScanRequest) -> ScanAnswer {
        let round = self.rounds();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_classified_vm_is_as_described() {
        let mut bench = Classify::new(200_000);
        let proposal = bench.run();
        let per_mille = |n: usize| n * 1000 / 200_000;
        let moved: Vec<_> = proposal
            .flows
            .iter()
            .map(|f| per_mille(f.units.len()))
            .collect();
        assert_eq!(moved, [24, 24], "5 % are misplaced, half each way");
        assert!((95..=105).contains(&per_mille(usize::try_from(proposal.ranking.hot).unwrap())));
    }
}
