//! The answers to faults that a walk meets.

use super::space::Space;
use super::vcpu::Environment;

/// The answers to the faults of a VM's vCPUs, given by its guest's kernel or by a mechanism that asked for them.
/// Called by walks alone, never by an access that a TLB serves. A fault that is not answered costs nothing.
pub trait Faults {
    /// Answers a walk that met an absent entry of the guest's tables; returns the time that the vCPU waits, ps.
    fn guest_fault(&mut self, space: &mut Space, env: &Environment, page: u32, write: bool) -> u64 {
        let _ = (space, env, page, write);
        0
    }

    /// Answers a walk that met an unfilled entry of the second stage, which the host filled; returns the time that
    /// the vCPU waits beyond that, ps.
    fn host_fault(&mut self, space: &mut Space, env: &Environment, unit: u32, write: bool) -> u64 {
        let _ = (space, env, unit, write);
        0
    }

    /// Answers a write by a walk, if a mechanism asked for a report of it; returns the time that the vCPU waits, ps.
    fn written(&mut self, space: &mut Space, env: &Environment, unit: u32) -> u64 {
        let _ = (space, env, unit);
        0
    }

    /// Whether the guest's own kernel moves its pages: an access that waits for one of them then makes no exit.
    fn moves_in_guest(&self) -> bool {
        false
    }
}
