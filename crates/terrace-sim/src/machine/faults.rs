//! Who answers what a walk cannot go on without.

use super::space::Space;
use super::vcpu::Environment;

/// Who answers the faults of a VM's vCPUs: its guest's kernel, or a mechanism that asked for them. Called by walks
/// alone, never by an access that a TLB serves. What is not answered costs nothing.
pub trait Faults {
    /// A walk met an entry of the guest's tables that is not there. What the vCPU waits, ps.
    fn guest_fault(&mut self, space: &mut Space, env: &Environment, page: u32, write: bool) -> u64 {
        let _ = (space, env, page, write);
        0
    }

    /// A walk met an entry of the second stage that was not filled; the host filled it. What the vCPU waits beyond
    /// that, ps.
    fn host_fault(&mut self, space: &mut Space, env: &Environment, unit: u32, write: bool) -> u64 {
        let _ = (space, env, unit, write);
        0
    }

    /// A walk writes: somebody may have asked to be told. What the vCPU waits, ps.
    fn written(&mut self, space: &mut Space, env: &Environment, unit: u32) -> u64 {
        let _ = (space, env, unit);
        0
    }

    /// Whether the guest's own kernel moves its pages: an access that waits for one makes no exit.
    fn moves_in_guest(&self) -> bool {
        false
    }
}
