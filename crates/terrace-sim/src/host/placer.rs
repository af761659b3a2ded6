//! Who places a VM's pages beside the engine, and who answers its faults.
//!
//! A mechanism of another system is a [`Placer`]; which there are, the host does not know.

use super::travel::Memory;
use super::vm::Vm;
use crate::guest::reclaim::Reclaim;
use crate::machine::TIERS;
use crate::machine::faults::Faults;
use crate::machine::space::Space;
use crate::machine::vcpu::Environment;

/// Who places a VM's pages: a mechanism, in the guest or at the host.
pub trait Placer: Faults + Send {
    /// A quantum of its threads, after the vCPUs ran for as long.
    fn pass(&mut self, vm: &mut Vm, memory: &mut Memory, env: &Environment, quantum: u64);

    /// An allocation of somebody else in the guest went below a node's low watermark.
    fn pressed(&mut self, vm: &mut Vm, memory: &mut Memory, env: &Environment, tier: usize);

    /// Units of the second stage, each with the tier to which the guest's kernel moved it for somebody else.
    fn pushed(&mut self, vm: &mut Vm, memory: &mut Memory, env: &Environment, units: &[(u32, u8)]);

    /// The VM is to have so many units per tier from now on.
    fn resized(&mut self, capacity: [u64; TIERS]);

    /// Whether a unit of the second stage is on a journey.
    fn travels(&self, second: u32) -> bool;

    /// Rounds so far.
    fn rounds(&self) -> u64;

    /// Bytes on the heap.
    fn heap_bytes(&self) -> usize;
}

/// Who answers a VM's faults.
#[derive(Default)]
pub struct Answers {
    /// The guest's own memory management, if it lacks memory.
    pub reclaim: Option<Reclaim>,
    /// The mechanism that places its pages, if one does.
    pub placer: Option<Box<dyn Placer>>,
}

impl Answers {
    /// Whether a unit of the second stage is on a journey.
    #[must_use]
    pub fn travels(&self, second: u32) -> bool {
        let placer = self.placer.as_ref();
        placer.is_some_and(|placer| placer.travels(second))
    }

    /// Rounds of the mechanism so far.
    #[must_use]
    pub fn rounds(&self) -> u64 {
        self.placer.as_ref().map_or(0, |placer| placer.rounds())
    }

    /// Bytes on the heap.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        let reclaim = self.reclaim.as_ref().map_or(0, Reclaim::heap_bytes);
        let placer = self.placer.as_ref().map_or(0, |placer| placer.heap_bytes());
        reclaim + placer
    }
}

/// One virtual call per fault, none if no mechanism places pages.
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

/// A quantum of a VM's mechanism, if one places its pages.
pub fn pass(vm: &mut Vm, memory: &mut Memory, env: &Environment, quantum: u64) {
    with(vm, |placer, vm| placer.pass(vm, memory, env, quantum));
}

/// An allocation went below a node's low watermark.
pub fn pressed(vm: &mut Vm, memory: &mut Memory, env: &Environment, tier: usize) {
    with(vm, |placer, vm| placer.pressed(vm, memory, env, tier));
}

/// The guest's kernel moved units for somebody else.
pub fn pushed(vm: &mut Vm, memory: &mut Memory, env: &Environment, units: &[(u32, u8)]) {
    with(vm, |placer, vm| placer.pushed(vm, memory, env, units));
}

fn with(vm: &mut Vm, what: impl FnOnce(&mut dyn Placer, &mut Vm)) {
    let Some(mut placer) = vm.answers.placer.take() else {
        return;
    };
    what(placer.as_mut(), vm);
    vm.answers.placer = Some(placer);
}
