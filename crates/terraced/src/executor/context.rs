//! The state that the threads of one VM share, and the events of their failures.

use std::sync::Arc;
use std::sync::mpsc::Sender;

use terrace_host::HostRoot;
use terrace_host::memory_map::MapWatch;
use terrace_host::mover::Target;
use terrace_host::topology::Topology;
use terrace_proto::{Event, RequestId, ScanFailure, VmId};

use crate::messages::Input;

/// The state that the threads of one VM share.
#[derive(Clone)]
pub struct Context {
    /// The VM's id in the engine.
    pub vm: VmId,
    /// The VM's RAM and process.
    pub target: Target,
    /// The watch that shows whether the VM's RAM is still mapped.
    pub watch: Arc<MapWatch>,
    /// The host.
    pub root: HostRoot,
    /// The host's tiers.
    pub topology: Arc<Topology>,
    /// The daemon's inbox, which takes the events.
    pub inbox: Sender<Input>,
}

/// The event of a failure that ends the round; the knowledge of the VM stays.
pub fn failed(id: RequestId, vm: VmId, reason: String) -> Event {
    Event::ScanFailed(given_up(id, vm, reason))
}

/// The failure itself, as a pass returns it.
pub fn given_up(id: RequestId, vm: VmId, reason: String) -> ScanFailure {
    ScanFailure {
        id,
        vm,
        reason,
        fatal: false,
    }
}

/// Runs a job of a thread that must outlive it: the engine waits for its answer. `None` if it panicked, which the
/// panic hook has printed.
pub fn caught<T>(job: impl FnOnce() -> T) -> Option<T> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(job)).ok()
}
