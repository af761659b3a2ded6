//! The threads that do for one VM what the engine decided: one scans and looks where pages are, one
//! moves pages.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use terrace_host::mover::{Mover, Target};
use terrace_host::qemu::Vm;
use terrace_host::topology::Topology;
use terrace_host::tracker::GuestTables;
use terrace_host::{HostRoot, placement};
use terrace_proto::action::PlacementQuery;
use terrace_proto::{
    Event, MovePlan, MoveReport, MoveStatus, PageCode, PageResult, PlacementReport, ScanRequest,
};

use crate::daemon::Input;

/// What the first thread is asked to do.
enum Look {
    Scan(ScanRequest),
    Placement(PlacementQuery),
}

/// The threads of one VM; dropping this ends them after what they are at.
pub struct Hands {
    looks: Sender<Look>,
    plans: Sender<MovePlan>,
    stop: Arc<AtomicBool>,
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
        tables: GuestTables,
        mover: Arc<Mover>,
    ) -> std::io::Result<Self> {
        let (looks, look_queue) = channel();
        let (plans, plan_queue) = channel();
        let stop = Arc::new(AtomicBool::new(false));
        let looker = Looker {
            context: context.clone(),
            vm,
            tables,
        };
        spawn("look", move || looker.run(&look_queue))?;
        let (context, stopped) = (context.clone(), Arc::clone(&stop));
        spawn("move", move || {
            move_pages(&context, &mover, &stopped, &plan_queue)
        })?;
        Ok(Self { looks, plans, stop })
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

    /// Ends moves at their next batch until [`Hands::go_on`].
    pub fn halt(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Lets moves go on.
    pub fn go_on(&self) {
        self.stop.store(false, Ordering::Relaxed);
    }
}

impl Drop for Hands {
    fn drop(&mut self) {
        self.halt();
    }
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    std::thread::Builder::new()
        .name(name.into())
        .spawn(body)
        .map(drop)
}

struct Looker {
    context: Context,
    vm: Vm,
    tables: GuestTables,
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
        match self.tables.scan(&mut self.vm, request) {
            Ok(answer) => Event::Scanned(Box::new(answer)),
            Err(failure) => Event::ScanFailed(failure),
        }
    }

    fn placement(&self, query: PlacementQuery) -> Vec<Event> {
        let Context {
            root,
            topology,
            target,
            ..
        } = &self.context;
        match placement::query(root, topology, target, query) {
            Ok(reports) => reports.into_iter().map(Event::Placement).collect(),
            Err(error) => {
                tracing::warn!(vm = %query.vm, "where pages are could not be asked: {error}");
                vec![nothing_known(query)]
            }
        }
    }
}

/// An answer without pages, so that the engine need not wait for its time-out.
fn nothing_known(query: PlacementQuery) -> Event {
    Event::Placement(PlacementReport {
        id: query.id,
        vm: query.vm,
        start: terrace_proto::Gfn(0),
        codes: Vec::new(),
        last: true,
    })
}

fn move_pages(context: &Context, mover: &Mover, stop: &AtomicBool, queue: &Receiver<MovePlan>) {
    for plan in queue {
        let (report, findings) = if context.target.process.is_alive() {
            let outcome = mover.execute(&context.target, &plan, stop);
            (outcome.report, outcome.findings)
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
