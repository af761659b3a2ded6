//! The executors of the engine's decisions about pages, one for each VM.
//!
//! Responsible for: a VM's threads (one observes, one queries the nodes of pages, one moves pages, one checks whether
//! the map that all go by still holds), and which VM has which. The source of a VM's writes, soft-dirty bits too, is
//! known here and nowhere above ([`observer`]). Which VM has an executor is left to `daemon`, the work itself to
//! `terrace_host`.

mod all;
mod context;
mod map_guard;
mod moves;
mod observer;
mod observer_thread;
mod placement;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Weak};

use terrace_host::mover::Mover;
use terrace_host::worker::WorkerStop;
use terrace_proto::{Action, MovePlan, Pass};
use terrace_sys::Process;

pub use all::Executors;

use crate::confine::{Role, spawn};
use context::Context;
use map_guard::MapGuard;
use moves::Moves;
use observer::Observer;
use observer_thread::{ObserveRequest, ObserverThread};

/// The threads of one VM. Dropping this ends them after their present job, and a scan at once: its worker may be in
/// the VM's cgroup, frozen or about to go.
pub struct Executor {
    requests: Sender<ObserveRequest>,
    plans: Sender<MovePlan>,
    stop: Arc<AtomicBool>,
    worker: Option<WorkerStop>,
    process: Arc<Process>,
    alive: Weak<()>,
}

impl Executor {
    /// Starts the threads.
    pub fn start(
        context: &Context,
        observer: Observer,
        mover: Arc<Mover>,
    ) -> std::io::Result<Self> {
        let (requests, request_queue) = channel();
        let (plans, plan_queue) = channel();
        let stop = Arc::new(AtomicBool::new(false));
        let observer_alive = Arc::new(());
        let moves_alive = Arc::clone(&observer_alive);
        let guard = MapGuard::start(
            context.vm,
            Arc::clone(&context.watch),
            Arc::clone(&stop),
            context.inbox.clone(),
        )?;
        let (places, place_queue) = channel();
        let placer = context.clone();
        spawn(Role::Place, move || placement::run(&placer, &place_queue))?;
        let worker = observer.worker_stop();
        let observer_thread = ObserverThread {
            context: context.clone(),
            guard: guard.clone(),
            places,
            observer,
        };
        let threads = Arc::downgrade(&observer_alive);
        spawn(Role::Observe, move || {
            observer_thread.run(&request_queue);
            drop(observer_alive);
        })?;
        let moves = Moves {
            context: context.clone(),
            guard,
            mover,
            stop: Arc::clone(&stop),
        };
        spawn(Role::Move, move || {
            moves.run(&plan_queue);
            drop(moves_alive);
        })?;
        Ok(Self {
            requests,
            plans,
            stop,
            worker,
            process: Arc::clone(&context.target.process),
            alive: threads,
        })
    }

    /// A reference that has a holder until the threads, the tracker and its worker have ended.
    pub fn threads(&self) -> Weak<()> {
        Weak::clone(&self.alive)
    }

    /// Whether the VM's process is alive.
    pub fn is_alive(&self) -> bool {
        self.process.is_alive()
    }

    /// Hands a decision about the VM's pages to the thread that carries it out.
    pub fn act(&self, action: Action) {
        // A thread that ended has reported that by its last event.
        let _ = match action {
            Action::Scan(request) => self.observe(Pass::All(request)),
            Action::ScanPart(request) => self.observe(Pass::Part(request)),
            Action::NameTables(_) => self.requests.send(ObserveRequest::NameTables).is_ok(),
            Action::QueryPlacement(query) => {
                self.requests.send(ObserveRequest::Placement(query)).is_ok()
            }
            Action::Move(plan) => self.plans.send(plan).is_ok(),
            // The others are about sizes.
            _ => false,
        };
    }

    fn observe(&self, pass: Pass) -> bool {
        self.requests.send(ObserveRequest::Scan(pass)).is_ok()
    }

    /// Ends moves at their next batch, or lets them continue.
    pub fn halt(&self, halt: bool) {
        self.stop.store(halt, Ordering::Relaxed);
    }
}

impl Drop for Executor {
    fn drop(&mut self) {
        self.halt(true);
        if let Some(worker) = &self.worker {
            worker.stop();
        }
    }
}
