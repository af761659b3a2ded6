//! The thread that moves one VM's pages.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::Receiver;

use terrace_host::Finding;
use terrace_host::mover::Mover;
use terrace_proto::{Event, MovePlan, MoveReport, MoveStatus, PageCode, PageResult};

use super::context::{Context, caught};
use super::map_guard::MapGuard;
use crate::messages::Input;

/// The state of the moving thread.
pub struct Moves {
    /// The state that the VM's threads share.
    pub context: Context,
    /// The guard of the map that the thread goes by.
    pub guard: MapGuard,
    /// The mover of the pages of all VMs.
    pub mover: Arc<Mover>,
    /// The flag that ends a plan at its next batch.
    pub stop: Arc<AtomicBool>,
}

impl Moves {
    /// Carries plans out until no sender is left.
    pub fn run(self, queue: &Receiver<MovePlan>) {
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

    /// Carries out a plan. If the map does not hold before and after, no page counts as tried: the pages that moved,
    /// and their reported places, may belong to something else of QEMU's.
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
