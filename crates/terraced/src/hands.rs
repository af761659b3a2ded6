//! The threads that do for one VM what the engine decided: one scans, one looks where pages are, one moves pages. The
//! first hears the VM's monitor and worker and may look at no other process; so it has the second ask the kernel.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Weak};

use terrace_host::memory_map::MapWatch;
use terrace_host::mover::{Mover, Target};
use terrace_host::topology::Topology;
use terrace_host::tracker::{SoftDirty, Tracker};
use terrace_host::vm::Vm;
use terrace_host::worker::WorkerStop;
use terrace_host::{Finding, HostRoot, placement};
use terrace_proto::action::PlacementQuery;
use terrace_proto::{
    Event, MovePlan, MoveReport, MoveStatus, PageCode, PageResult, RequestId, ScanFailure,
    ScanRequest, ScanSpent, VmId,
};

use crate::confine::{Role, spawn};
use crate::daemon::Input;
use crate::map_guard::MapGuard;

/// What the first thread is asked to do.
enum Look {
    Scan(ScanRequest),
    Placement(PlacementQuery),
}

/// Where a VM's pages are, and who wants to know.
type Asked = (PlacementQuery, Sender<Vec<Event>>);

/// The threads of one VM; dropping this ends them after what they are at, and a scan at once: its worker may be
/// in the VM's cgroup, frozen or about to go.
pub struct Hands {
    looks: Sender<Look>,
    plans: Sender<MovePlan>,
    stop: Arc<AtomicBool>,
    worker: Option<WorkerStop>,
    alive: Weak<()>,
}

/// What the threads share.
#[derive(Clone)]
pub struct Context {
    /// Its id in the engine.
    pub vm: VmId,
    /// Its RAM and process.
    pub target: Target,
    /// Whether its RAM is still there.
    pub watch: Arc<MapWatch>,
    /// The host.
    pub root: HostRoot,
    /// Its tiers.
    pub topology: Arc<Topology>,
    /// Where events go.
    pub inbox: Sender<Input>,
}

impl Hands {
    /// Starts the threads.
    pub fn start(
        context: &Context,
        vm: Vm,
        tracker: Tracker,
        soft_dirty: Option<SoftDirty>,
        mover: Arc<Mover>,
    ) -> std::io::Result<Self> {
        let (looks, look_queue) = channel();
        let (plans, plan_queue) = channel();
        let stop = Arc::new(AtomicBool::new(false));
        let looks_alive = Arc::new(());
        let moves_alive = Arc::clone(&looks_alive);
        let guard = MapGuard::start(
            context.vm,
            Arc::clone(&context.watch),
            Arc::clone(&stop),
            context.inbox.clone(),
        )?;
        let (places, place_queue) = channel::<Asked>();
        let placer = context.clone();
        spawn(Role::Place, move || {
            for (query, answer) in place_queue {
                // Nobody waits for it while the daemon ends.
                let _ = answer.send(placement(&placer, query));
            }
        })?;
        let looker = Looker {
            context: context.clone(),
            guard: guard.clone(),
            places,
            vm,
            tracker,
            soft_dirty,
        };
        let threads = Arc::downgrade(&looks_alive);
        let worker = looker.tracker.worker_stop();
        spawn(Role::Look, move || {
            looker.run(&look_queue);
            drop(looks_alive);
        })?;
        let hand = MovingHand {
            context: context.clone(),
            guard,
            mover,
            stop: Arc::clone(&stop),
        };
        spawn(Role::Move, move || {
            hand.run(&plan_queue);
            drop(moves_alive);
        })?;
        Ok(Self {
            looks,
            plans,
            stop,
            worker,
            alive: threads,
        })
    }

    /// Has a holder until the threads, the tracker and its worker have ended.
    pub fn threads(&self) -> Weak<()> {
        Weak::clone(&self.alive)
    }

    /// Asks for a scan.
    pub fn scan(&self, request: ScanRequest) {
        // A thread that ended has said so by its last event.
        let _ = self.looks.send(Look::Scan(request));
    }

    /// Asks where all pages are.
    pub fn placement(&self, query: PlacementQuery) {
        let _ = self.looks.send(Look::Placement(query));
    }

    /// Asks for moves.
    pub fn execute(&self, plan: MovePlan) {
        let _ = self.plans.send(plan);
    }

    /// Ends moves at their next batch, or lets them go on.
    pub fn halt(&self, halt: bool) {
        self.stop.store(halt, Ordering::Relaxed);
    }
}

impl Drop for Hands {
    fn drop(&mut self) {
        self.halt(true);
        if let Some(worker) = &self.worker {
            worker.stop();
        }
    }
}

struct Looker {
    context: Context,
    guard: MapGuard,
    places: Sender<Asked>,
    vm: Vm,
    tracker: Tracker,
    soft_dirty: Option<SoftDirty>,
}

impl Looker {
    fn run(mut self, queue: &Receiver<Look>) {
        for look in queue {
            let events = match look {
                Look::Scan(request) => self.scan(request),
                Look::Placement(query) => self.placement(query),
            };
            for event in events {
                if self.context.inbox.send(Input::Event(event)).is_err() {
                    return;
                }
            }
        }
    }

    /// What it cost, and what came of it.
    fn scan(&mut self, request: ScanRequest) -> Vec<Event> {
        let vm = request.space.vm();
        let before = self.tracker.cpu_time();
        let answer = self.answer(request);
        let after = self.tracker.cpu_time();
        let spent = before.zip(after).map(|(before, after)| {
            let cpu = after.saturating_sub(before).as_nanos();
            Event::ScanSpent(ScanSpent {
                vm,
                cpu_ns: u64::try_from(cpu).unwrap_or(u64::MAX),
            })
        });
        spent.into_iter().chain([answer]).collect()
    }

    fn answer(&mut self, request: ScanRequest) -> Event {
        let (id, vm, clearing) = (request.id, request.space.vm(), request.discover);
        let guard = self.guard.clone();
        let scanned = caught(|| {
            // The round began with a look at the whole map, where its pages were asked for.
            let scanned = guard.around(false, || self.tracker.scan(&mut self.vm, request));
            let scanned = scanned.unwrap_or_else(|reason| Err(given_up(id, vm, reason)));
            if clearing {
                let words = self.tracker.shortfall().map(str::to_owned);
                // Nobody listens while the daemon ends.
                let _ = self.context.inbox.send(Input::Shortfall(vm, words));
            }
            let mut answer = scanned?;
            if let Some(source) = &mut self.soft_dirty {
                let followed = guard.around(false, || source.follow(clearing, &mut answer));
                followed.map_err(|reason| given_up(id, vm, reason))?;
                let words = Input::WriteWords(vm, source.words().to_owned());
                // Nobody listens while the daemon ends.
                let _ = self.context.inbox.send(words);
            }
            Ok(answer)
        });
        match scanned {
            Some(Ok(answer)) => Event::Scanned(Box::new(answer)),
            Some(Err(failure)) => Event::ScanFailed(failure),
            None => failed(id, vm, "a defect of terraced: the scan panicked".into()),
        }
    }

    fn placement(&self, query: PlacementQuery) -> Vec<Event> {
        let ask = || {
            let (answer, answered) = channel();
            let asked = self.places.send((query, answer));
            asked.ok().and_then(|()| answered.recv().ok())
        };
        match self.guard.around(true, ask) {
            Ok(Some(events)) => events,
            Ok(None) => not_placed(query, "the thread for it is gone"),
            Err(reason) => not_placed(query, &reason),
        }
    }
}

fn placement(context: &Context, query: PlacementQuery) -> Vec<Event> {
    let Context {
        root,
        topology,
        target,
        ..
    } = context;
    match caught(|| placement::query(root, topology, target, query)) {
        Some(Ok(reports)) => reports.into_iter().map(Event::Placement).collect(),
        Some(Err(error)) => not_placed(query, &error.to_string()),
        None => not_placed(query, "a defect of terraced: the query panicked"),
    }
}

fn not_placed(query: PlacementQuery, what: &str) -> Vec<Event> {
    let reason = format!("where its pages are could not be asked: {what}");
    vec![failed(query.id, query.vm, reason)]
}

/// The round is given up; what is known of the VM stays.
fn failed(id: RequestId, vm: VmId, reason: String) -> Event {
    Event::ScanFailed(given_up(id, vm, reason))
}

fn given_up(id: RequestId, vm: VmId, reason: String) -> ScanFailure {
    ScanFailure {
        id,
        vm,
        reason,
        fatal: false,
    }
}

/// Runs a job of a thread that must outlive it: the engine waits for its answer. None where it
/// panicked, which the panic hook has printed.
fn caught<T>(job: impl FnOnce() -> T) -> Option<T> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(job)).ok()
}

/// The thread that moves pages.
struct MovingHand {
    context: Context,
    guard: MapGuard,
    mover: Arc<Mover>,
    stop: Arc<AtomicBool>,
}

impl MovingHand {
    fn run(self, queue: &Receiver<MovePlan>) {
        let inbox = &self.context.inbox;
        for plan in queue {
            let (report, findings) = self.execute(&plan);
            let found = Input::MoveFindings(plan.vm, findings);
            let sent = inbox.send(Input::Event(Event::Moved(report)));
            if sent.and_then(|()| inbox.send(found)).is_err() {
                return;
            }
        }
    }

    /// Where the map does not hold before and after, no page counts as tried: what was moved, and where it is said to be
    /// now, may be something else of QEMU's.
    fn execute(&self, plan: &MovePlan) -> (MoveReport, Vec<Finding>) {
        let target = &self.context.target;
        if !target.process.is_alive() {
            return (not_tried(plan), Vec::new());
        }
        let moved = caught(|| {
            let execute = || self.mover.execute(target, plan, &self.stop);
            self.guard.around(false, execute)
        });
        match moved {
            Some(Ok(outcome)) => (outcome.report, outcome.findings),
            Some(Err(_)) | None => (not_tried(plan), Vec::new()),
        }
    }
}

fn not_tried(plan: &MovePlan) -> MoveReport {
    let results = plan.moves.iter().map(|m| PageResult {
        gfn: m.gfn,
        status: MoveStatus::NotTried,
        now: PageCode::ABSENT,
    });
    MoveReport {
        id: plan.id,
        vm: plan.vm,
        results: results.collect(),
        elapsed_ns: 0,
    }
}

#[cfg(test)]
mod tests;
