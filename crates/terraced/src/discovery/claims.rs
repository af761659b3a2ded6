//! The daemon's instructions for the discoverer about VMs that it found before.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use terrace_sys::ProcessId;

/// Instructions of the daemon's thread for the discoverer: about VMs that their agents manage, and about VMs whose
/// memory map changed.
#[derive(Clone, Default)]
pub struct Claims(Arc<Mutex<Claimed>>);

#[derive(Default)]
struct Claimed {
    by_host: BTreeSet<String>,
    reinspect: BTreeSet<String>,
    reattach: BTreeSet<ProcessId>,
}

impl Claims {
    fn lock(&self) -> MutexGuard<'_, Claimed> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets whether the host is to manage this VM although an agent should.
    pub fn set(&self, vm: &str, by_host: bool) {
        let claimed = &mut self.lock().by_host;
        if by_host {
            claimed.insert(vm.to_owned());
        } else {
            claimed.remove(vm);
        }
    }

    /// Whether the host is to manage this VM although an agent should.
    pub fn is_by_host(&self, vm: &str) -> bool {
        self.lock().by_host.contains(vm)
    }

    /// Requests another inspection of a VM: the discoverer's knowledge of it may be old.
    pub fn reinspect(&self, vm: &str) {
        self.lock().reinspect.insert(vm.to_owned());
    }

    /// Asks for the VM of this process to be made ready anew: its memory map changed.
    pub fn reattach(&self, process: ProcessId) {
        self.lock().reattach.insert(process);
    }

    /// Whether [`Claims::reattach`] was called for this process; true once for each call.
    pub fn take_reattach(&self, process: ProcessId) -> bool {
        self.lock().reattach.remove(&process)
    }

    /// Whether [`Claims::reinspect`] was called for this VM; true once for each call.
    pub fn take_reinspect(&self, vm: &str) -> bool {
        self.lock().reinspect.remove(vm)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claimed_vm_is_the_hosts_and_is_inspected_again_once() {
        let claims = Claims::default();
        claims.set("a", true);
        assert!(claims.is_by_host("a") && !claims.is_by_host("b"));
        claims.set("a", false);
        assert!(!claims.is_by_host("a"));
        claims.reinspect("a");
        assert!(claims.take_reinspect("a") && !claims.take_reinspect("a"));
    }
}
