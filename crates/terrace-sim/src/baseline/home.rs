//! Where a mechanism lives: on one VM, called by the machine.

use super::ground::{Ground, State};
use super::{Fault, Mechanism, Moved, Name, Setup, Stage};
use crate::host::travel::{Memory, Side};
use crate::host::vm::Vm;
use crate::machine::TIERS;
use crate::machine::space::Space;
use crate::machine::vcpu::Environment;
use crate::number::low;

/// A mechanism on a VM.
pub struct Home {
    mechanism: Box<dyn Mechanism>,
    state: State,
}

impl std::fmt::Debug for Home {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Home").finish_non_exhaustive()
    }
}

impl Home {
    /// A mechanism that begins on a VM whose load starts at that unit of the second stage; so many units
    /// per tier the VM could ever have.
    #[must_use]
    pub fn new(name: Name, setup: Setup, first: u32, capacity: [u64; TIERS]) -> Self {
        Self {
            mechanism: name.begin(&setup),
            state: State::new(setup, first, capacity),
        }
    }

    /// The same in a guest whose nodes had so many units when it booted.
    #[must_use]
    pub fn with_nodes(mut self, nodes: [u64; TIERS]) -> Self {
        self.state.nodes = nodes;
        self
    }

    /// The VM is to have so many units per tier from now on.
    pub fn resized(&mut self, capacity: [u64; TIERS]) {
        self.state.capacity = capacity;
    }

    /// Whether a unit of the second stage is on a journey.
    #[must_use]
    pub fn travels(&self, second: u32) -> bool {
        self.state.travels(self.state.unit(second))
    }

    /// Who runs it.
    #[must_use]
    pub fn side(&self) -> Side {
        self.state.setup.side
    }

    /// Rounds so far.
    #[must_use]
    pub fn rounds(&self) -> u64 {
        self.mechanism.rounds()
    }

    /// Bytes on the heap.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        self.mechanism.heap_bytes() + self.state.heap_bytes()
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
    pub fn hinted(
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
    pub fn guarded(&mut self, space: &mut Space, env: &Environment, second: u32) -> Option<u64> {
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

/// A quantum of the mechanism's threads, after the vCPUs ran for as long.
pub fn pass(vm: &mut Vm, memory: &mut Memory, env: &Environment, quantum: u64) {
    let Some(mut home) = vm.space.home.take() else {
        return;
    };
    if vm.ended().is_none() && vm.has_begun(env) {
        let env = &vm.own_time(env);
        let granted = vm.grant(memory.free);
        let spent = threads(&mut home, vm, env, quantum);
        vm.settle(granted, memory.free);
        let (travelled, moved) = journeys(&mut home, vm, memory, quantum);
        let granted = vm.grant(memory.free);
        let told = tell(&mut home, vm, env, &moved);
        vm.settle(granted, memory.free);
        if home.state.setup.side == Side::Guest {
            vm.steal(spent + travelled + told);
        }
    }
    let spent = std::mem::take(&mut home.state.spent);
    vm.spent.track += spent.track;
    vm.spent.classify += spent.classify;
    vm.spent.migrate += spent.migrate;
    vm.promoted += std::mem::take(&mut home.state.promoted);
    vm.demoted += std::mem::take(&mut home.state.demoted);
    vm.space.home = Some(home);
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

/// An allocation went below a node's low watermark.
pub(crate) fn pressed(vm: &mut Vm, memory: &mut Memory, env: &Environment, tier: usize) {
    let Ok(tier) = u8::try_from(tier) else {
        return;
    };
    called(vm, memory, env, |mechanism, ground| {
        mechanism.pressed(ground, tier);
    });
}

/// Units of the second stage, each with the tier to which the guest's kernel moved it for somebody else.
pub(crate) fn pushed(vm: &mut Vm, memory: &mut Memory, env: &Environment, units: &[(u32, u8)]) {
    called(vm, memory, env, |mechanism, ground| {
        for (second, to) in units {
            let unit = ground.state.unit(*second);
            mechanism.pushed(ground, unit, *to);
        }
    });
}

/// Calls a VM's mechanism, if it has one, out of turn.
fn called(
    vm: &mut Vm,
    memory: &mut Memory,
    env: &Environment,
    what: impl FnOnce(&mut dyn Mechanism, &mut Ground),
) {
    let Some(mut home) = vm.space.home.take() else {
        return;
    };
    let env = vm.own_time(env);
    let granted = vm.grant(memory.free);
    let spent = home.call(&mut vm.space, &env, what);
    vm.settle(granted, memory.free);
    vm.steal(spent);
    vm.space.home = Some(home);
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

/// A walk met an entry of the guest that is not there: a hint, if the guest's kernel runs a mechanism.
/// What the vCPU waits, ps.
pub(crate) fn guest_hint(space: &mut Space, env: &Environment, page: u32, write: bool) -> u64 {
    let Some(mut home) = space.home.take() else {
        return 0;
    };
    let frame = low(u64::from(space.guest.first_data()) + u64::from(page));
    let unit = space.second.unit_of(frame);
    space.guest.unprotect(page);
    let ps = home.hinted(space, env, unit, write).unwrap_or(0);
    space.home = Some(home);
    ps
}

/// A walk met an entry of the second stage that is not filled. What the vCPU waits beyond the fault, ps.
pub(crate) fn host_hint(space: &mut Space, env: &Environment, unit: u32, write: bool) -> u64 {
    if unit < space.second.first_data() {
        return 0;
    }
    let Some(mut home) = space.home.take() else {
        return 0;
    };
    let ps = home.hinted(space, env, unit, write).unwrap_or(0);
    space.home = Some(home);
    ps
}

/// A walk writes: there may be a guard. What the vCPU waits, ps.
pub(crate) fn guard(space: &mut Space, env: &Environment, unit: u32) -> u64 {
    if unit < space.second.first_data() {
        return 0;
    }
    let Some(mut home) = space.home.take() else {
        return 0;
    };
    let ps = home.guarded(space, env, unit);
    if ps.is_some() && home.side() == Side::Host {
        space.counts.exits += 1;
    }
    let fault = match home.side() {
        Side::Host => env.costs.second_stage_fault,
        Side::Guest => 0,
    };
    space.home = Some(home);
    ps.map_or(0, |ps| ps + fault)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::{Ground, Travelling, Unit};
    use super::*;
    use crate::run::{Options, Simulation};
    use crate::scenario::Scenario;

    const PAGES: Unit = 8;

    /// Sends pages down, and looks after each quantum whether one is there that it was not told of.
    struct Watcher {
        told: u64,
        sent: bool,
    }

    impl Mechanism for Watcher {
        fn pass(&mut self, ground: &mut Ground) {
            if !std::mem::replace(&mut self.sent, true) {
                let down: Vec<(Unit, u8)> = (0..PAGES).map(|unit| (unit, 1)).collect();
                return ground.submit(&down, Travelling::Transaction);
            }
            let down = (0..PAGES).filter(|unit| ground.tier(*unit) == Some(1));
            assert_eq!(down.count() as u64, self.told);
            assert_eq!(ground.travelling(), u64::from(PAGES) - self.told);
        }

        fn moved(&mut self, _: &mut Ground, moved: &[Moved]) {
            self.told += moved.len() as u64;
        }

        fn rounds(&self) -> u64 {
            self.told
        }

        fn heap_bytes(&self) -> usize {
            0
        }
    }

    #[test]
    fn a_page_is_told_of_in_the_quantum_in_which_it_arrives() {
        let text = "[machine]\ntiers = [\"dram\", \"pmem\"]\nscale = 1\nvcpus_per_vm = 2\n\
                    [[vm]]\nname = \"a\"\nfast = \"8MiB\"\nslow = \"8MiB\"\npolicy = \"autonuma\"\n\
                    workload = { kind = \"sequential\", size = \"8MiB\", hot = 1.0, write = 0.0, \
                    period = \"1h\", duration = \"1ms\" }\n";
        let scenario = Scenario::parse(text, "test", Path::new("/s")).expect("valid");
        let mut simulation = Simulation::new(&scenario, Options::default()).expect("it can be run");
        let home = simulation.vms[0].space.home.as_mut();
        home.expect("a baseline").mechanism = Box::new(Watcher {
            told: 0,
            sent: false,
        });
        while simulation.advance(u64::MAX) {}
        let home = simulation.vms[0].space.home.as_ref();
        assert_eq!(home.map(|home| home.rounds()), Some(u64::from(PAGES)));
    }
}
