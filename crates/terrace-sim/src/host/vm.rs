//! A VM on the simulated host.

use terrace_pagetable::Scanner;
use terrace_proto::{PAGE_SIZE, TierId, VmId};

use super::oracle::Oracle;
use super::placer::Answers;
use super::provision::Provisioned;
use crate::guest::reclaim::BalloonStep;
use crate::machine::TIERS;
use crate::machine::costs::Costs;
use crate::machine::space::Space;
use crate::machine::vcpu::{Environment, Vcpu};
use crate::words::number::{float, low};
use crate::words::side::Side;

/// CPU time that management spent for a VM, ps as simulated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    /// Finding out what was touched, and where pages are.
    pub track: u64,
    /// Ranking.
    pub classify: u64,
    /// Moving.
    pub migrate: u64,
}

/// When a VM's load begins: after a resize that is made before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Begins {
    /// ps as simulated.
    pub ps: u64,
    /// The same in ns of the full-size machine.
    pub ns: u64,
}

/// A VM.
pub struct Vm {
    /// Its number for the engine: its place in the scenario, from 1.
    pub id: VmId,
    /// Its vCPUs.
    pub vcpus: Vec<Vcpu>,
    /// Its memory.
    pub space: Space,
    /// Who answers its faults.
    pub answers: Answers,
    /// The live scanner, and what it knew after its last pass.
    pub scanner: Scanner,
    /// How the engine's policy observes and moves; none: the engine does not have this VM.
    pub stages: Option<terrace_core::policy::Policy>,
    /// The bound that knows the future.
    pub oracle: Option<Oracle>,
    /// When its load begins.
    pub begins: Begins,
    /// The device that sizes its nodes, if one does.
    pub provision: Option<Box<Provisioned>>,
    /// When its load ends by the clock, ps.
    pub stop: Option<u64>,
    /// Management's time.
    pub spent: Spent,
    /// 4 KiB pages moved to a faster tier, as simulated.
    pub promoted: u64,
    /// The same to a slower one.
    pub demoted: u64,
    /// Rounds that the oracle placed.
    pub windows: u64,
    /// Balloon steps to come, in order of time; bytes as simulated.
    pub balloon: Vec<BalloonStep>,
    /// Sum over quanta of 4 KiB pages held per tier, and the number of quanta.
    pub held_sum: [u128; TIERS],
    /// Quanta in the sum.
    pub quanta: u64,
    /// The tier that holds all its pages as if it had no end, under such a policy: its memory does not
    /// count against the tiers' sizes.
    pub endless: Option<u8>,
}

impl Vm {
    /// Runs its vCPUs, in order, until the quantum's end.
    fn run(&mut self, env: &Environment) {
        if self.ended().is_some() || !self.has_begun(env) {
            return;
        }
        let end = self.stop.map_or(env.end_ps, |stop| stop.min(env.end_ps));
        let mut own = self.own_time(env);
        own.end_ps = end;
        for vcpu in &mut self.vcpus {
            vcpu.run(&mut self.space, &own, &mut self.answers);
        }
        if self.stop == Some(end) {
            for vcpu in &mut self.vcpus {
                vcpu.ended.get_or_insert(end);
            }
        }
        let (held, kept) = (self.space.second.held(), &self.space.kept);
        for (tier, sum) in self.held_sum.iter_mut().enumerate() {
            *sum += u128::from(held[tier] + kept[tier]);
        }
        self.quanta += 1;
    }

    /// Whether its load begins in this quantum, or did so before.
    #[must_use]
    pub fn has_begun(&self, env: &Environment) -> bool {
        self.begins.ps < env.end_ps
    }

    /// The machine as the VM's load and mechanism see it: their time begins with the load.
    #[must_use]
    pub fn own_time(&self, env: &Environment) -> Environment {
        Environment {
            now_ns: env.now_ns.saturating_sub(self.begins.ns),
            ..env.clone()
        }
    }

    /// When its load ended: with its last vCPU's.
    #[must_use]
    pub fn ended(&self) -> Option<u64> {
        let ends = self.vcpus.iter().map(|vcpu| vcpu.ended);
        ends.reduce(|a, b| Some(a?.max(b?))).flatten()
    }

    /// Takes what host memory its second-stage faults may take from what is free, runs, and gives the rest
    /// back.
    pub fn run_within(&mut self, free: &mut [u64; TIERS], env: &Environment) {
        if let Some(tier) = self.endless {
            self.space.grant = [0; TIERS];
            self.space.grant[usize::from(tier)] = u64::MAX;
            return self.run(env);
        }
        let granted = self.grant(free);
        self.run(env);
        self.settle(granted, free);
    }

    /// Lets the VM take units of what is free, as far as its own limits go; says how many.
    pub fn grant(&mut self, free: &[u64; TIERS]) -> [u64; TIERS] {
        let per_unit = self.space.second.pages_per_unit();
        for (tier, pages) in free.iter().enumerate() {
            self.space.grant[tier] = (pages / per_unit).min(self.space.below_limit(tier));
        }
        self.space.grant
    }

    /// What it took of that is no longer free, and what it gave is.
    pub fn settle(&mut self, granted: [u64; TIERS], free: &mut [u64; TIERS]) {
        let per_unit = self.space.second.pages_per_unit();
        for (tier, granted) in granted.into_iter().enumerate() {
            free[tier] = (free[tier] + self.space.grant[tier] * per_unit) - granted * per_unit;
        }
    }

    /// Whether a unit fits into a tier.
    #[must_use]
    pub fn room_for(&self, unit: u32, tier: TierId, free: &[u64; TIERS]) -> bool {
        let (tier, second) = (tier.index(), &self.space.second);
        free[tier] >= second.pages_of(unit) && self.space.below_limit(tier) >= second.units_of(unit)
    }

    /// The guest's own threads take time from its vCPUs: ps, shared among those that still run.
    pub fn steal(&mut self, ps: u64) {
        let running = self.vcpus.iter().filter(|v| v.ended.is_none()).count() as u64;
        let share = ps / running.max(1);
        for vcpu in self.vcpus.iter_mut().filter(|v| v.ended.is_none()) {
            vcpu.clock += share;
        }
    }

    /// All vCPUs forget their translations and are interrupted for it by the host; what the sender
    /// spends, ps.
    pub fn shoot_down(&mut self, costs: &Costs) -> u64 {
        self.shoot_down_from(Side::Host, costs)
    }

    /// The same by the host or by the guest's kernel. The host makes each vCPU exit; the guest's
    /// interrupt is posted to them, and only its sender exits.
    pub fn shoot_down_from(&mut self, side: Side, costs: &Costs) -> u64 {
        for vcpu in &mut self.vcpus {
            vcpu.flush();
        }
        self.interrupt(side, costs)
    }

    /// The same for one unit of the load. A guest's kernel flushes its page alone
    /// (`tlb_single_page_flush_ceiling`); the host has all translations flushed.
    pub fn shoot_down_unit(&mut self, unit: u32, side: Side, costs: &Costs) -> u64 {
        if side == Side::Host {
            return self.shoot_down_from(side, costs);
        }
        let second = &self.space.second;
        let page = u64::from(unit - second.first_data()) * second.pages_per_unit();
        for vcpu in &mut self.vcpus {
            vcpu.forget(low(page));
        }
        self.interrupt(side, costs)
    }

    /// All vCPUs are interrupted for a flush; what the sender spends, ps.
    fn interrupt(&mut self, side: Side, costs: &Costs) -> u64 {
        let interrupt = match side {
            Side::Host => costs.exit,
            Side::Guest => costs.guest_interrupt,
        };
        for vcpu in &mut self.vcpus {
            vcpu.interrupt(interrupt);
        }
        let running = self.vcpus.iter().filter(|v| v.ended.is_none()).count() as u64;
        self.space.counts.exits += match side {
            Side::Host => running,
            Side::Guest => 1,
        };
        self.space.counts.flush_exits += match side {
            Side::Host => running,
            Side::Guest => 0,
        };
        running * costs.shootdown_send
    }

    /// 4 KiB pages held per tier.
    #[must_use]
    pub fn held_pages(&self) -> [u64; TIERS] {
        let per_unit = self.space.second.pages_per_unit();
        let (held, kept) = (self.space.second.held(), &self.space.kept);
        std::array::from_fn(|tier| (held[tier] + kept[tier]) * per_unit)
    }

    /// Bytes held per tier as simulated, mean over the quanta of its run.
    #[must_use]
    pub fn mean_bytes(&self, tier: usize) -> f64 {
        let per_unit = self.space.second.pages_per_unit();
        let high = u64::try_from(self.held_sum[tier] >> 32).unwrap_or(u64::MAX);
        let low = u64::try_from(self.held_sum[tier] & 0xffff_ffff).unwrap_or(0);
        let sum = float(high) * 4_294_967_296.0 + float(low);
        sum * float(per_unit * PAGE_SIZE) / float(self.quanta.max(1))
    }

    /// Counts a unit's move.
    pub fn count_move(&mut self, unit: u32, from: u8, to: TierId) {
        let pages = self.space.second.pages_of(unit);
        if to.0 < from {
            self.promoted += pages;
        } else {
            self.demoted += pages;
        }
    }

    /// Bytes on the heap, the scanner's bits (three for each page, and two for each 2 MiB) included.
    #[must_use]
    pub fn heap_bytes(&self) -> u64 {
        let vcpus: usize = self.vcpus.iter().map(Vcpu::heap_bytes).sum();
        let oracle = self.oracle.as_ref().map_or(0, Oracle::heap_bytes);
        let bits = self.space.guest.frames() * 3 / 8;
        let answers = self.answers.heap_bytes();
        self.space.heap_bytes() + bits + (vcpus + oracle + answers) as u64
    }
}
