//! The threads that do for one VM what the engine decided: one scans, one looks where pages are, one moves pages. The
//! first hears the VM's monitor and worker and may look at no other process; so it has the second ask the kernel.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Weak};

use terrace_host::mover::{Mover, Target};
use terrace_host::qemu::Vm;
use terrace_host::topology::Topology;
use terrace_host::tracker::{SoftDirty, Tracker};
use terrace_host::worker::WorkerStop;
use terrace_host::{HostRoot, placement};
use terrace_proto::action::PlacementQuery;
use terrace_proto::{
    Event, MovePlan, MoveReport, MoveStatus, PageCode, PageResult, RequestId, ScanFailure,
    ScanRequest, VmId,
};

use crate::confine::{Role, spawn};
use crate::daemon::Input;

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
    /// Its RAM and process.
    pub target: Target,
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
        let (context, stopped) = (context.clone(), Arc::clone(&stop));
        spawn(Role::Move, move || {
            move_pages(&context, &mover, &stopped, &plan_queue);
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
    places: Sender<Asked>,
    vm: Vm,
    tracker: Tracker,
    soft_dirty: Option<SoftDirty>,
}

impl Looker {
    fn run(mut self, queue: &Receiver<Look>) {
        for look in queue {
            let events = match look {
                Look::Scan(request) => vec![self.scan(request)],
                Look::Placement(query) => self.placement(query),
            };
            for event in events {
                if self.context.inbox.send(Input::Event(event)).is_err() {
                    return;
                }
            }
        }
    }

    fn scan(&mut self, request: ScanRequest) -> Event {
        let (id, vm, clearing) = (request.id, request.space.vm(), request.discover);
        let scanned = caught(|| {
            let scanned = self.tracker.scan(&mut self.vm, request);
            if clearing {
                let words = self.tracker.shortfall().map(str::to_owned);
                // Nobody listens while the daemon ends.
                let _ = self.context.inbox.send(Input::Shortfall(vm, words));
            }
            let mut answer = scanned?;
            if let Some(source) = &mut self.soft_dirty {
                source.follow(clearing, &mut answer);
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
        let (answer, answered) = channel();
        let asked = self.places.send((query, answer));
        let events = asked.ok().and_then(|()| answered.recv().ok());
        events.unwrap_or_else(|| not_placed(query, "the thread for it is gone"))
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
    Event::ScanFailed(ScanFailure {
        id,
        vm,
        reason,
        fatal: false,
    })
}

/// Runs a job of a thread that must outlive it: the engine waits for its answer. None where it
/// panicked, which the panic hook has printed.
fn caught<T>(job: impl FnOnce() -> T) -> Option<T> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(job)).ok()
}

fn move_pages(context: &Context, mover: &Mover, stop: &AtomicBool, queue: &Receiver<MovePlan>) {
    for plan in queue {
        let (report, findings) = if context.target.process.is_alive() {
            match caught(|| mover.execute(&context.target, &plan, stop)) {
                Some(outcome) => (outcome.report, outcome.findings),
                None => (not_tried(&plan), Vec::new()),
            }
        } else {
            (not_tried(&plan), Vec::new())
        };
        let found = Input::MoveFindings(plan.vm, findings);
        let sent = context.inbox.send(Input::Event(Event::Moved(report)));
        if sent.and_then(|()| context.inbox.send(found)).is_err() {
            return;
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
#[path = "hands_tests.rs"]
mod tests;
