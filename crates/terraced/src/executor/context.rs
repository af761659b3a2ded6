//! What the threads of one VM share, and how what they could not do is told.

use std::sync::Arc;
use std::sync::mpsc::Sender;

use terrace_host::HostRoot;
use terrace_host::memory_map::MapWatch;
use terrace_host::mover::Target;
use terrace_host::topology::Topology;
use terrace_proto::{Event, RequestId, ScanFailure, VmId};

use crate::messages::Input;

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

/// The round is given up; what is known of the VM stays.
pub fn failed(id: RequestId, vm: VmId, reason: String) -> Event {
    Event::ScanFailed(given_up(id, vm, reason))
}

/// The same, of a pass.
pub fn given_up(id: RequestId, vm: VmId, reason: String) -> ScanFailure {
    ScanFailure {
        id,
        vm,
        reason,
        fatal: false,
    }
}

/// Runs a job of a thread that must outlive it: the engine waits for its answer. None where it
/// panicked, which the panic hook has printed.
pub fn caught<T>(job: impl FnOnce() -> T) -> Option<T> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(job)).ok()
}
