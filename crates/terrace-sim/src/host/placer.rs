//! The interface to the mechanism that places a VM's pages beside the engine, and the answers to the VM's faults.
//!
//! A mechanism of another system is a [`Placer`]; the host does not know which ones there are.

use super::migration::Memory;
use super::vm::Vm;
use crate::guest::reclaim::Reclaim;
use crate::machine::TIERS;
use crate::machine::faults::Faults;
use crate::machine::space::Space;
use crate::machine::vcpu::Environment;

/// The mechanism that places a VM's pages, in the guest or at the host.
pub trait Placer: Faults + Send {
    /// Runs its threads for a quantum, after the vCPUs ran for as long.
    fn run_quantum(&mut self, vm: &mut Vm, memory: &mut Memory, env: &Environment, quantum: u64);

    /// Reports that an allocation of another program in the guest went below a node's low watermark.
    fn below_low_watermark(
        &mut self,
        vm: &mut Vm,
        memory: &mut Memory,
        env: &Environment,
        tier: usize,
    );

    /// Reports units of the second stage, each with the tier to which the guest's kernel moved it for another program.
    fn displaced(
        &mut self,
        vm: &mut Vm,
        memory: &mut Memory,
        env: &Environment,
        units: &[(u32, u8)],
    );

    /// Sets how many units per tier the VM is to have from now on.
    fn resized(&mut self, capacity: [u64; TIERS]);

    /// Whether a unit of the second stage is being migrated.
    fn is_migrating(&self, second: u32) -> bool;

    /// Number of rounds so far.
    fn rounds(&self) -> u64;

    /// Bytes on the heap.
    fn heap_bytes(&self) -> usize;
}

/// A thread of the guest's own beside whatever places the VM's pages: it changes frames, not tiers.
pub trait GuestThread: Send {
    /// Runs for a quantum, after the vCPUs ran for as long.
    fn run_quantum(&mut self, vm: &mut Vm, memory: &mut Memory, env: &Environment);

    /// 4 KiB pages that it gathered so far, as simulated.
    fn gathered(&self) -> u64;

    /// Blocks of 2 MiB with a hot page, as its first and its last round found them; `None` before the first.
    fn hot_blocks(&self) -> Option<(u64, u64)>;

    /// Bytes on the heap.
    fn heap_bytes(&self) -> usize;
}

/// The sources of answers to a VM's faults.
#[derive(Default)]
pub struct Answers {
    /// The guest's own memory management, if it lacks memory.
    pub reclaim: Option<Reclaim>,
    /// The mechanism that places the VM's pages, if one does.
    pub placer: Option<Box<dyn Placer>>,
    /// The guest's own thread that gathers pages, if there is one.
    pub gatherer: Option<Box<dyn GuestThread>>,
}

impl Answers {
    /// Whether a unit of the second stage is being migrated.
    #[must_use]
    pub fn is_migrating(&self, second: u32) -> bool {
        let placer = self.placer.as_ref();
        placer.is_some_and(|placer| placer.is_migrating(second))
    }

    /// Number of rounds of the mechanism so far.
    #[must_use]
    pub fn rounds(&self) -> u64 {
        self.placer.as_ref().map_or(0, |placer| placer.rounds())
    }

    /// Bytes on the heap.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        let reclaim = self.reclaim.as_ref().map_or(0, Reclaim::heap_bytes);
        let placer = self.placer.as_ref().map_or(0, |placer| placer.heap_bytes());
        let gatherer = self.gatherer.as_ref().map_or(0, |own| own.heap_bytes());
        reclaim + placer + gatherer
    }
}

/// Costs one virtual call per fault, none if no mechanism places pages.
impl Faults for Answers {
    fn guest_fault(&mut self, space: &mut Space, env: &Environment, page: u32, write: bool) -> u64 {
        if let Some(reclaim) = &mut self.reclaim {
            return reclaim.guest_fault(space, env, page, write);
        }
        let placer = self.placer.as_mut();
        placer.map_or(0, |placer| placer.guest_fault(space, env, page, write))
    }

    fn host_fault(&mut self, space: &mut Space, env: &Environment, unit: u32, write: bool) -> u64 {
        let placer = self.placer.as_mut();
        placer.map_or(0, |placer| placer.host_fault(space, env, unit, write))
    }

    #[inline]
    fn written(&mut self, space: &mut Space, env: &Environment, unit: u32) -> u64 {
        let placer = self.placer.as_mut();
        placer.map_or(0, |placer| placer.written(space, env, unit))
    }

    fn moves_in_guest(&self) -> bool {
        let placer = self.placer.as_ref();
        placer.is_some_and(|placer| placer.moves_in_guest())
    }
}

/// Runs a VM's mechanism for a quantum, if one places its pages.
pub fn run_quantum(vm: &mut Vm, memory: &mut Memory, env: &Environment, quantum: u64) {
    with(vm, |placer, vm| {
        placer.run_quantum(vm, memory, env, quantum)
    });
}

/// Lets a VM's guest gather pages for a quantum, if it does.
pub fn gather(vm: &mut Vm, memory: &mut Memory, env: &Environment) {
    if vm.ended().is_some() || !vm.has_begun(env) {
        return;
    }
    let Some(mut gatherer) = vm.answers.gatherer.take() else {
        return;
    };
    let env = vm.own_time(env);
    gatherer.run_quantum(vm, memory, &env);
    vm.answers.gatherer = Some(gatherer);
}

/// Reports to a VM's mechanism that an allocation went below a node's low watermark.
pub fn below_low_watermark(vm: &mut Vm, memory: &mut Memory, env: &Environment, tier: usize) {
    with(vm, |placer, vm| {
        placer.below_low_watermark(vm, memory, env, tier)
    });
}

/// Reports to a VM's mechanism that the guest's kernel moved units for another program.
pub fn displaced(vm: &mut Vm, memory: &mut Memory, env: &Environment, units: &[(u32, u8)]) {
    with(vm, |placer, vm| placer.displaced(vm, memory, env, units));
}

fn with(vm: &mut Vm, what: impl FnOnce(&mut dyn Placer, &mut Vm)) {
    let Some(mut placer) = vm.answers.placer.take() else {
        return;
    };
    what(placer.as_mut(), vm);
    vm.answers.placer = Some(placer);
}
