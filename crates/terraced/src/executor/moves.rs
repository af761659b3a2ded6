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

/// The thread.
pub struct Moves {
    /// What it shares with the VM's others.
    pub context: Context,
    /// Whether the map that it goes by holds.
    pub guard: MapGuard,
    /// Moves pages of all VMs.
    pub mover: Arc<Mover>,
    /// Ends a plan at its next batch.
    pub stop: Arc<AtomicBool>,
}

impl Moves {
    /// Carries plans out until nobody has one any more.
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
