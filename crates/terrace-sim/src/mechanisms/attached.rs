//! A mechanism that is attached to a VM and answers its faults.

use super::context::{Context, State};
use super::{Fault, Mechanism, Moved, Setup, Stage};
use crate::base::number::low;
use crate::base::side::Side;
use crate::host::migration::Memory;
use crate::host::placer::Placer;
use crate::host::vm::Vm;
use crate::machine::TIERS;
use crate::machine::faults::Faults;
use crate::machine::space::Space;
use crate::machine::vcpu::Environment;

/// A mechanism on a VM.
pub struct Attached {
    mechanism: Box<dyn Mechanism>,
    state: State,
}

impl Attached {
    /// A mechanism that begins on a VM whose load starts at the unit `first` of the second stage; `capacity` is the
    /// most units per tier that the VM could ever have.
    #[must_use]
    pub fn new(
        mechanism: Box<dyn Mechanism>,
        setup: Setup,
        first: u32,
        capacity: [u64; TIERS],
    ) -> Self {
        Self {
            mechanism,
            state: State::new(setup, first, capacity),
        }
    }

    /// Sets how many units the nodes of the guest had when it booted.
    #[must_use]
    pub fn with_nodes(mut self, nodes: [u64; TIERS]) -> Self {
        self.state.set_nodes(nodes);
        self
    }

    /// The side that runs the mechanism.
    fn side(&self) -> Side {
        self.state.side()
    }

    fn call(
        &mut self,
        space: &mut Space,
        env: &Environment,
        what: impl FnOnce(&mut dyn Mechanism, &mut Context),
    ) -> u64 {
        let mechanism = self.mechanism.as_mut();
        self.state
            .call(space, env, |context| what(mechanism, context))
    }

    /// Calls the mechanism for another program in the guest, whose vCPUs wait.
    fn call_out_of_turn(
        &mut self,
        vm: &mut Vm,
        memory: &mut Memory,
        env: &Environment,
        what: impl FnOnce(&mut dyn Mechanism, &mut Context),
    ) {
        let env = vm.own_time(env);
        let granted = vm.grant(memory.free);
        let spent = self.call(&mut vm.space, &env, what);
        vm.settle(granted, memory.free);
        vm.steal(spent);
    }

    /// Calls the mechanism in a vCPU's fault, whose time is not the thread's.
    fn call_in_fault(
        &mut self,
        space: &mut Space,
        env: &Environment,
        what: impl FnOnce(&mut dyn Mechanism, &mut Context),
    ) -> u64 {
        let mechanism = self.mechanism.as_mut();
        self.state
            .call_in_fault(space, env, |context| what(mechanism, context))
    }

    /// Reports an access that may have met a hint; if it did, returns the time that the vCPU waits beyond the fault
    /// itself, ps.
    fn hinted(
        &mut self,
        space: &mut Space,
        env: &Environment,
        second: u32,
        write: bool,
    ) -> Option<u64> {
        let unit = self.state.unit(second);
        if !self.state.take_hint(unit) {
            return None;
        }
        let fault = Fault { unit, write };
        let ps = self.call_in_fault(space, env, |mechanism, context| {
            context.spend(Stage::Track, context.costs().hint_fault);
            mechanism.hint_fault(context, fault);
        });
        Some(ps)
    }

    /// Reports a write that may have met a guard; if it did, returns the time that the vCPU waits beyond the fault
    /// itself, ps.
    fn guarded(&mut self, space: &mut Space, env: &Environment, second: u32) -> Option<u64> {
        let unit = self.state.unit(second);
        if !self.state.take_guard(unit) {
            return None;
        }
        let ps = self.call_in_fault(space, env, |mechanism, context| {
            context.spend(Stage::Track, context.costs().hint_fault);
            mechanism.guard_fault(context, unit);
        });
        Some(ps)
    }
}

/// Takes in the samples of the buffers and runs the mechanism's thread; returns the time that it spent, ps.
fn threads(attached: &mut Attached, vm: &mut Vm, env: &Environment, quantum: u64) -> u64 {
    attached.state.refill(quantum);
    let samples = vm.space.sampling.take();
    let spent = attached.call(&mut vm.space, env, |mechanism, context| {
        if !samples.is_empty() {
            mechanism.samples(context, &samples);
        }
        mechanism.run_quantum(context);
    });
    vm.space.sampling.reuse(samples);
    spent + attached.state.shoot_down(vm, env)
}

fn tell(attached: &mut Attached, vm: &mut Vm, env: &Environment, moved: &[Moved]) -> u64 {
    if moved.is_empty() {
        return 0;
    }
    let spent = attached.call(&mut vm.space, env, |mechanism, context| {
        mechanism.moved(context, moved);
    });
    spent + attached.state.shoot_down(vm, env)
}

impl Faults for Attached {
    fn guest_fault(&mut self, space: &mut Space, env: &Environment, page: u32, write: bool) -> u64 {
        let frame = low(u64::from(space.guest.first_data()) + u64::from(page));
        let unit = space.second.unit_of(frame);
        space.guest.unprotect(page);
        self.hinted(space, env, unit, write).unwrap_or(0)
    }

    fn host_fault(&mut self, space: &mut Space, env: &Environment, unit: u32, write: bool) -> u64 {
        if unit < space.second.first_data() {
            return 0;
        }
        self.hinted(space, env, unit, write).unwrap_or(0)
    }

    fn written(&mut self, space: &mut Space, env: &Environment, unit: u32) -> u64 {
        if unit < space.second.first_data() {
            return 0;
        }
        let Some(ps) = self.guarded(space, env, unit) else {
            return 0;
        };
        match self.side() {
            Side::Host => {
                space.counts.exits += 1;
                ps + env.costs.second_stage_fault
            }
            Side::Guest => ps,
        }
    }

    fn moves_in_guest(&self) -> bool {
        self.side() == Side::Guest
    }
}

impl Placer for Attached {
    fn run_quantum(&mut self, vm: &mut Vm, memory: &mut Memory, env: &Environment, quantum: u64) {
        if vm.ended().is_none() && vm.has_begun(env) {
            let env = &vm.own_time(env);
            let granted = vm.grant(memory.free);
            let spent = threads(self, vm, env, quantum);
            vm.settle(granted, memory.free);
            let (migrated, moved) = self.state.migrate(vm, memory, quantum);
            let granted = vm.grant(memory.free);
            let reporting = tell(self, vm, env, &moved);
            vm.settle(granted, memory.free);
            if self.side() == Side::Guest {
                vm.steal(spent + migrated + reporting);
            }
        }
        self.state.settle(vm);
    }

    fn below_low_watermark(
        &mut self,
        vm: &mut Vm,
        memory: &mut Memory,
        env: &Environment,
        tier: usize,
    ) {
        let Ok(tier) = u8::try_from(tier) else {
            return;
        };
        self.call_out_of_turn(vm, memory, env, |mechanism, context| {
            mechanism.below_low_watermark(context, tier);
        });
    }

    fn displaced(
        &mut self,
        vm: &mut Vm,
        memory: &mut Memory,
        env: &Environment,
        units: &[(u32, u8)],
    ) {
        self.call_out_of_turn(vm, memory, env, |mechanism, context| {
            for (second, to) in units {
                let unit = context.unit_of_second(*second);
                mechanism.displaced(context, unit, *to);
            }
        });
    }

    fn resized(&mut self, capacity: [u64; TIERS]) {
        self.state.resize(capacity);
    }

    fn is_migrating(&self, second: u32) -> bool {
        self.state.is_migrating(self.state.unit(second))
    }

    fn rounds(&self) -> u64 {
        self.mechanism.rounds()
    }

    fn heap_bytes(&self) -> usize {
        self.mechanism.heap_bytes() + self.state.heap_bytes()
    }
}
