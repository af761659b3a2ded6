//! The processors of the host's management: each piece of work waits for a free one, and takes its time.

use std::collections::VecDeque;

use terrace_core::policy::Move;
use terrace_proto::action::PlacementQuery;
use terrace_proto::{
    Action, Event, Gfn, PageCode, PartCell, Pass, PlacementReport, ScanStats, TablesAnswer, Tick,
    TierId, VmId,
};

use super::guest_moves::NamedPlans;
use super::migration::Memory;
use super::moves::{Moving, position};
use super::scan;
use super::vm::Vm;
use crate::base::number::low;
use crate::machine::PS;
use crate::machine::second_stage::bits;

/// 4 KiB pages in one placement report.
const REPORT_PAGES: u64 = 1 << 18;

/// A piece of work that waits.
enum Work {
    /// A pass, and whether it names page tables.
    Scan(Pass, bool),
    Query(PlacementQuery),
    /// Ranking: the engine did it already, it takes its time here.
    Rank(VmId, u64),
    Move(Moving),
}

/// A piece of work under way.
enum Running {
    /// Work that ends at a time, ps, and the events that it gives then.
    Timed(u64, Vec<Event>),
    Move(Moving),
}

/// The processors of the host's management.
pub struct Management {
    cpus: usize,
    queue: VecDeque<Work>,
    running: Vec<Running>,
    /// Plans that guests carry out, on their own time.
    named: NamedPlans,
    /// The VM whose next pass names page tables.
    tables: Option<VmId>,
    scale: u64,
}

impl Management {
    /// So many idle processors.
    #[must_use]
    pub fn new(cpus: usize, scale: u64) -> Self {
        Self {
            cpus,
            queue: VecDeque::new(),
            running: Vec::new(),
            named: NamedPlans::new(scale),
            tables: None,
            scale,
        }
    }

    /// Takes in an action that the engine decided now.
    pub fn take(&mut self, action: Action, now: Tick, vms: &[Vm], batch: usize) {
        let work = match action {
            // Devices' own, not the host's processors'.
            Action::QueryProvider(_)
            | Action::Resize(_)
            | Action::Withdraw(..)
            | Action::Answer(_)
            | Action::LetGo(_)
            | Action::Collapse(_) => return,
            // Done by the vCPU that faulted.
            Action::Protect(_) | Action::Unprotect(_) => return,
            Action::NameTables(space) => {
                self.tables = Some(space.vm());
                return;
            }
            Action::Scan(request) => self.pass(Pass::All(request)),
            Action::ScanPart(request) => self.pass(Pass::Part(request)),
            Action::QueryPlacement(query) => Work::Query(query),
            Action::Move(plan) => {
                let vm = &vms[position(plan.vm)];
                let way = vm.stages.map_or(Move::Linux, |stages| stages.moves);
                if way == Move::Guest {
                    self.named.push(plan, now);
                    return;
                }
                Work::Move(Moving::new(plan, vm, way, batch))
            }
        };
        self.queue.push_back(work);
    }

    fn pass(&mut self, pass: Pass) -> Work {
        let vm = pass.space().vm();
        let names = self.tables.take_if(|asked| *asked == vm).is_some();
        Work::Scan(pass, names)
    }

    /// Puts a VM's ranking, which takes so many ps, before all other work.
    pub fn rank(&mut self, vm: VmId, ps: u64) {
        self.queue.push_front(Work::Rank(vm, ps));
    }

    /// Works through the quantum that ends at `end`; returns the events of work that is done by then.
    pub fn run_quantum(
        &mut self,
        end: u64,
        quantum: u64,
        vms: &mut [Vm],
        memory: &mut Memory,
    ) -> Vec<Event> {
        let now = Tick(end / PS * self.scale);
        let mut events = self.named.run_quantum(now, quantum, vms, memory);
        if self.running.is_empty() && self.queue.is_empty() {
            return events;
        }
        for running in std::mem::take(&mut self.running) {
            match running {
                Running::Timed(done, results) if done <= end => events.extend(results),
                Running::Move(mut moving) => {
                    let vm = &mut vms[position(moving.vm())];
                    if moving.work(vm, memory, quantum) {
                        events.push(Event::Moved(moving.report(self.scale)));
                    } else {
                        self.running.push(Running::Move(moving));
                    }
                }
                later => self.running.push(later),
            }
        }
        while self.running.len() < self.cpus {
            let Some(work) = self.queue.pop_front() else {
                break;
            };
            self.start(work, end, vms, memory);
        }
        events
    }

    fn start(&mut self, work: Work, now: u64, vms: &mut [Vm], memory: &Memory) {
        self.running.push(match work {
            Work::Scan(pass, names) => {
                let vm = &mut vms[position(pass.space().vm())];
                vm.scanner.name_tables(names);
                let (event, ps) = self.scan(&pass, vm, memory);
                vm.account.spent.track += ps;
                let tables = Event::Tables(Box::new(TablesAnswer {
                    id: pass.id(),
                    space: pass.space(),
                    frames: vm.scanner.take_tables(),
                }));
                let events = names.then_some(tables).into_iter().chain([event]);
                Running::Timed(now + ps, events.collect())
            }
            Work::Query(query) => {
                let vm = &mut vms[position(query.vm)];
                let ps = vm.space.guest.frames() * memory.costs.query_page;
                vm.account.spent.track += ps;
                Running::Timed(now + ps, reports(vm, query))
            }
            Work::Rank(vm, ps) => {
                vms[position(vm)].account.spent.classify += ps;
                Running::Timed(now + ps, Vec::new())
            }
            Work::Move(moving) => Running::Move(moving),
        });
    }

    fn scan(&self, pass: &Pass, vm: &mut Vm, memory: &Memory) -> (Event, u64) {
        let timed = |stats: &mut ScanStats, ps: u64| {
            stats.elapsed_ns = ps / PS * self.scale;
            stats.cpu_ns = stats.elapsed_ns;
        };
        match pass {
            Pass::All(request) => {
                let (mut answer, ps) = scan::scan(vm, request, memory.costs);
                timed(&mut answer.stats, ps);
                (Event::Scanned(Box::new(answer)), ps)
            }
            Pass::Part(request) => {
                let (mut answer, ps) = scan::scan_part(vm, request, memory.costs);
                timed(&mut answer.stats, ps);
                (Event::ScannedPart(Box::new(answer)), ps)
            }
        }
    }

    /// Bytes on the heap of the work that waits or is under way, without small values.
    #[must_use]
    pub fn heap_bytes(&self) -> u64 {
        self.running
            .iter()
            .map(|running| match running {
                Running::Timed(_, events) => events.iter().map(event_bytes).sum(),
                Running::Move(_) => 0,
            })
            .sum()
    }
}

fn event_bytes(event: &Event) -> u64 {
    match event {
        Event::Scanned(answer) => {
            let written = answer.written.as_ref().map_or(0, |w| w.heap_bytes());
            let others = [&answer.known, &answer.accessed, &answer.huge_leaf];
            (others.iter().map(|b| b.heap_bytes()).sum::<usize>() + written) as u64
        }
        Event::ScannedPart(answer) => {
            let written = answer.written.as_ref().map_or(0, |w| w.capacity() * 8);
            (answer.cells.capacity() * size_of::<PartCell>() + written) as u64
        }
        Event::Placement(report) => report.codes.capacity() as u64,
        _ => 0,
    }
}

fn reports(vm: &Vm, query: PlacementQuery) -> Vec<Event> {
    let frames = vm.space.guest.frames();
    let second = &vm.space.second;
    let code = |frame: u64| {
        let state = second.get(second.unit_of(low(frame)));
        if state & bits::ABSENT != 0 {
            PageCode::ABSENT
        } else {
            PageCode::new(TierId(state & bits::TIER), second.huge())
        }
    };
    let starts = (0..frames).step_by(crate::base::number::to_usize(REPORT_PAGES));
    starts
        .map(|start| {
            let end = frames.min(start + REPORT_PAGES);
            Event::Placement(PlacementReport {
                id: query.id,
                vm: query.vm,
                start: Gfn(start),
                codes: (start..end).map(code).collect(),
                last: end == frames,
            })
        })
        .collect()
}
