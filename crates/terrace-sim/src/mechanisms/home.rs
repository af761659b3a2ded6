//! Where a mechanism lives: on one VM, whose faults it answers.

use super::ground::{Ground, State};
use super::{Fault, Mechanism, Moved, Setup, Stage};
use crate::host::placer::Placer;
use crate::host::travel::Memory;
use crate::host::vm::Vm;
use crate::machine::TIERS;
use crate::machine::faults::Faults;
use crate::machine::space::Space;
use crate::machine::vcpu::Environment;
use crate::words::number::low;
use crate::words::side::Side;

/// A mechanism on a VM.
pub struct Home {
    mechanism: Box<dyn Mechanism>,
    state: State,
}

impl Home {
    /// A mechanism that begins on a VM whose load starts at that unit of the second stage; so many units
    /// per tier the VM could ever have.
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

    /// The same in a guest whose nodes had so many units when it booted.
    #[must_use]
    pub fn with_nodes(mut self, nodes: [u64; TIERS]) -> Self {
        self.state.nodes = nodes;
        self
    }

    /// Who runs it.
    fn side(&self) -> Side {
        self.state.setup.side
    }

    fn call(
        &mut self,
        space: &mut Space,
        env: &Environment,
        what: impl FnOnce(&mut dyn Mechanism, &mut Ground),
    ) -> u64 {
        self.state.spent_now = 0;
        let mut ground = Ground {
            space,
            state: &mut self.state,
            env,
        };
        what(self.mechanism.as_mut(), &mut ground);
        self.state.spent_now
    }

    /// The same for somebody else in the guest, whose vCPUs wait.
    fn call_out_of_turn(
        &mut self,
        vm: &mut Vm,
        memory: &mut Memory,
        env: &Environment,
        what: impl FnOnce(&mut dyn Mechanism, &mut Ground),
    ) {
        let env = vm.own_time(env);
        let granted = vm.grant(memory.free);
        let spent = self.call(&mut vm.space, &env, what);
        vm.settle(granted, memory.free);
        vm.steal(spent);
    }

    /// The same in a vCPU's fault, whose time is not the thread's.
    fn call_in_fault(
        &mut self,
        space: &mut Space,
        env: &Environment,
        what: impl FnOnce(&mut dyn Mechanism, &mut Ground),
    ) -> u64 {
        let left = self.state.left;
        let ps = self.call(space, env, what);
        self.state.left = left;
        ps
    }

    /// An access may have met a hint: if so, what the vCPU waits beyond what the fault itself takes, ps.
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
        let ps = self.call_in_fault(space, env, |mechanism, ground| {
            ground.spend(Stage::Track, ground.costs().hint_fault);
            mechanism.hint_fault(ground, fault);
        });
        Some(ps)
    }

    /// The same of a write and a guard.
    fn guarded(&mut self, space: &mut Space, env: &Environment, second: u32) -> Option<u64> {
        let unit = self.state.unit(second);
        if !self.state.take_guard(unit) {
            return None;
        }
        let ps = self.call_in_fault(space, env, |mechanism, ground| {
            ground.spend(Stage::Track, ground.costs().hint_fault);
            mechanism.guard_fault(ground, unit);
        });
        Some(ps)
    }
}

/// What buffers of samples gave is taken in, and the thread goes on; says what it spent, ps.
fn threads(home: &mut Home, vm: &mut Vm, env: &Environment, quantum: u64) -> u64 {
    let quantum = i64::try_from(quantum).unwrap_or(i64::MAX);
    home.state.left = (home.state.left + quantum).min(quantum);
    let mut samples = std::mem::take(&mut vm.space.samples);
    let spent = home.call(&mut vm.space, env, |mechanism, ground| {
        if !samples.is_empty() {
            mechanism.samples(ground, &samples);
        }
        mechanism.pass(ground);
    });
    samples.clear();
    vm.space.samples = samples;
    spent + flush(home, vm, env)
}

fn flush(home: &mut Home, vm: &mut Vm, env: &Environment) -> u64 {
    if !std::mem::take(&mut home.state.flush) {
        return 0;
    }
    let ps = vm.shoot_down_from(home.state.setup.side, &env.costs);
    home.state.spent.track += ps;
    ps
}

/// Journeys go on; says what their threads spent, ps, and what arrived.
fn journeys(home: &mut Home, vm: &mut Vm, memory: &mut Memory, ps: u64) -> (u64, Vec<Moved>) {
    let mut spent = 0;
    let mut moved = Vec::new();
    let movers = home.state.movers;
    let mut at = 0;
    for _ in 0..movers {
        if at == home.state.journeys.len() {
            break;
        }
        let travel = &mut home.state.journeys[at].travel;
        let before = travel.spent();
        let done = travel.work(vm, memory, ps);
        spent += travel.spent() - before;
        // A page is told of before a vCPU can reach it in its new place.
        while let Some((wanted, outcome)) = home.state.journeys[at].travel.next_known() {
            let (unit, to) = (home.state.unit(wanted.unit), wanted.to.0);
            home.state.arrived(unit);
            moved.push(Moved { unit, to, outcome });
        }
        if done {
            home.state.journeys.remove(at);
        } else {
            at += 1;
        }
    }
    (spent, moved)
}

fn tell(home: &mut Home, vm: &mut Vm, env: &Environment, moved: &[Moved]) -> u64 {
    if moved.is_empty() {
        return 0;
    }
    let spent = home.call(&mut vm.space, env, |mechanism, ground| {
        mechanism.moved(ground, moved);
    });
    spent + flush(home, vm, env)
}

impl Faults for Home {
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

impl Placer for Home {
    fn pass(&mut self, vm: &mut Vm, memory: &mut Memory, env: &Environment, quantum: u64) {
        if vm.ended().is_none() && vm.has_begun(env) {
            let env = &vm.own_time(env);
            let granted = vm.grant(memory.free);
            let spent = threads(self, vm, env, quantum);
            vm.settle(granted, memory.free);
            let (travelled, moved) = journeys(self, vm, memory, quantum);
            let granted = vm.grant(memory.free);
            let told = tell(self, vm, env, &moved);
            vm.settle(granted, memory.free);
            if self.side() == Side::Guest {
                vm.steal(spent + travelled + told);
            }
        }
        let spent = std::mem::take(&mut self.state.spent);
        vm.spent.track += spent.track;
        vm.spent.classify += spent.classify;
        vm.spent.migrate += spent.migrate;
        vm.promoted += std::mem::take(&mut self.state.promoted);
        vm.demoted += std::mem::take(&mut self.state.demoted);
    }

    fn pressed(&mut self, vm: &mut Vm, memory: &mut Memory, env: &Environment, tier: usize) {
        let Ok(tier) = u8::try_from(tier) else {
            return;
        };
        self.call_out_of_turn(vm, memory, env, |mechanism, ground| {
            mechanism.pressed(ground, tier);
        });
    }

    fn pushed(&mut self, vm: &mut Vm, memory: &mut Memory, env: &Environment, units: &[(u32, u8)]) {
        self.call_out_of_turn(vm, memory, env, |mechanism, ground| {
            for (second, to) in units {
                let unit = ground.state.unit(*second);
                mechanism.pushed(ground, unit, *to);
            }
        });
    }

    fn resized(&mut self, capacity: [u64; TIERS]) {
        self.state.capacity = capacity;
    }

    fn travels(&self, second: u32) -> bool {
        self.state.travels(self.state.unit(second))
    }

    fn rounds(&self) -> u64 {
        self.mechanism.rounds()
    }

    fn heap_bytes(&self) -> usize {
        self.mechanism.heap_bytes() + self.state.heap_bytes()
    }
}
