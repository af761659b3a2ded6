//! A VM on the simulated host.

use terrace_core::policy::Move;
use terrace_pagetable::Scanner;
use terrace_proto::{PAGE_SIZE, TierId, VmId};

use super::account::Account;
use super::bounds::clairvoyant::Clairvoyant;
use super::placer::Answers;
use super::provision::Provisioned;
use super::schedule::Schedule;
use crate::base::number::low;
use crate::base::side::Side;
use crate::guest::reclaim::BalloonStep;
use crate::machine::TIERS;
use crate::machine::costs::Costs;
use crate::machine::space::Space;
use crate::machine::vcpu::{Environment, Vcpu};

/// A VM.
pub struct Vm {
    /// The VM's number for the engine: its place in the scenario, from 1.
    pub id: VmId,
    /// The VM's vCPUs.
    pub vcpus: Vec<Vcpu>,
    /// The VM's memory.
    pub space: Space,
    /// The sources of answers to the VM's faults.
    pub answers: Answers,
    /// The live scanner, with the knowledge of its last pass.
    pub scanner: Scanner,
    /// The policy by which the engine observes and moves; `None` if the engine does not manage this VM.
    pub stages: Option<terrace_core::policy::Policy>,
    /// The bound that knows each coming window, if it places the VM's pages.
    pub clairvoyant: Option<Clairvoyant>,
    /// The time in which the load runs.
    pub schedule: Schedule,
    /// The device that sizes the VM's nodes, if one does.
    pub provision: Option<Box<Provisioned>>,
    /// The account of the VM's placement.
    pub account: Account,
    /// Balloon steps to come, in order of time; bytes as simulated.
    pub balloon: Vec<BalloonStep>,
    /// The tier that holds all of the VM's pages as if it had no end, under such a policy: the VM's memory does not
    /// count against the tiers' sizes.
    pub endless: Option<u8>,
}

impl Vm {
    /// Runs the vCPUs, in order, until the quantum's end.
    fn run(&mut self, env: &Environment) {
        if self.ended().is_some() || !self.has_begun(env) {
            return;
        }
        let (end, ends) = self.schedule.until(env);
        let mut own = self.own_time(env);
        own.end_ps = end;
        for vcpu in &mut self.vcpus {
            vcpu.run(&mut self.space, &own, &mut self.answers);
        }
        if ends {
            for vcpu in &mut self.vcpus {
                vcpu.progress_mut().stop(end);
            }
        }
        self.end_program(&env.costs);
        self.account.hold(self.in_use());
    }

    /// Lets the load's next program begin if no vCPU is in the one before, whose memory the guest frees first.
    fn end_program(&mut self, costs: &Costs) {
        let programs = self.vcpus.iter().filter_map(Vcpu::program);
        let ended = self.space.guest.ended_programs();
        let Some(next) = programs.min().filter(|next| *next > ended) else {
            return;
        };
        self.space.guest.begin_program(next);
        if let Some(reclaim) = &mut self.answers.reclaim {
            let ps = reclaim.end_program(&mut self.space, costs);
            for vcpu in &mut self.vcpus {
                vcpu.interrupt(ps);
            }
        }
    }

    /// Whether the load begins in this quantum or began before.
    #[must_use]
    pub fn has_begun(&self, env: &Environment) -> bool {
        self.schedule.has_begun(env)
    }

    /// The machine as the VM's load and mechanism see it: their time begins with the load.
    #[must_use]
    pub fn own_time(&self, env: &Environment) -> Environment {
        self.schedule.own_time(env)
    }

    /// The end of the load, which is that of its last vCPU.
    #[must_use]
    pub fn ended(&self) -> Option<u64> {
        let ends = self.vcpus.iter().map(|vcpu| vcpu.progress().ended());
        ends.reduce(|a, b| Some(a?.max(b?))).flatten()
    }

    /// Runs the VM: takes host memory for its second-stage faults from the free memory, and gives the rest back.
    pub fn run_within(&mut self, free: &mut [u64; TIERS], env: &Environment) {
        if let Some(tier) = self.endless {
            let mut all = [0; TIERS];
            all[usize::from(tier)] = u64::MAX;
            self.space.quota.grant(all);
            return self.run(env);
        }
        let granted = self.grant(free);
        self.run(env);
        self.settle(granted, free);
    }

    /// Lets the VM take units of the free memory, up to its own limits; returns how many.
    pub fn grant(&mut self, free: &[u64; TIERS]) -> [u64; TIERS] {
        let per_unit = self.space.second.pages_per_unit();
        let space = &mut self.space;
        let units: [u64; TIERS] =
            std::array::from_fn(|tier| (free[tier] / per_unit).min(space.below_limit(tier)));
        space.quota.grant(units);
        units
    }

    /// Settles a grant: memory that the VM took is no longer free, and memory that it gave back is.
    pub fn settle(&mut self, granted: [u64; TIERS], free: &mut [u64; TIERS]) {
        let per_unit = self.space.second.pages_per_unit();
        let left = self.space.quota.granted();
        for (tier, granted) in granted.into_iter().enumerate() {
            free[tier] = (free[tier] + left[tier] * per_unit) - granted * per_unit;
        }
    }

    /// Whether a unit fits into a tier.
    #[must_use]
    pub fn room_for(&self, unit: u32, tier: TierId, free: &[u64; TIERS]) -> bool {
        let (tier, second) = (tier.index(), &self.space.second);
        free[tier] >= second.pages_of(unit) && self.space.below_limit(tier) >= second.units_of(unit)
    }

    /// Charges time of the guest's own threads to the vCPUs: ps, shared among those that still run.
    pub fn steal(&mut self, ps: u64) {
        let running = self.vcpus.iter().filter(|v| v.is_running()).count() as u64;
        let share = ps / running.max(1);
        for vcpu in self.vcpus.iter_mut().filter(|v| v.is_running()) {
            vcpu.interrupt(share);
        }
    }

    /// Flushes all vCPUs' translations, which the host interrupts for it; returns the time that the sender spends,
    /// ps.
    pub fn shoot_down(&mut self, costs: &Costs) -> u64 {
        self.shoot_down_from(Side::Host, costs)
    }

    /// Flushes all vCPUs' translations, by the host or by the guest's kernel. The host makes each vCPU exit; the
    /// guest's interrupt is posted to them, and only its sender exits.
    pub fn shoot_down_from(&mut self, side: Side, costs: &Costs) -> u64 {
        for vcpu in &mut self.vcpus {
            vcpu.mmu().flush();
        }
        self.interrupt(side, costs)
    }

    /// Flushes the translations of one unit of the load. A guest's kernel flushes its page alone
    /// (`tlb_single_page_flush_ceiling`); the host flushes all translations.
    pub fn shoot_down_unit(&mut self, unit: u32, side: Side, costs: &Costs) -> u64 {
        if side == Side::Host {
            return self.shoot_down_from(side, costs);
        }
        let second = &self.space.second;
        let page = u64::from(unit - second.first_data()) * second.pages_per_unit();
        for vcpu in &mut self.vcpus {
            vcpu.mmu().forget(low(page));
        }
        self.interrupt(side, costs)
    }

    /// Interrupts all vCPUs for a flush; returns the time that the sender spends, ps.
    fn interrupt(&mut self, side: Side, costs: &Costs) -> u64 {
        let interrupt = match side {
            Side::Host => costs.exit,
            Side::Guest => costs.guest_interrupt,
        };
        for vcpu in &mut self.vcpus {
            vcpu.interrupt(interrupt);
        }
        let running = self.vcpus.iter().filter(|v| v.is_running()).count() as u64;
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

    /// Whether the guest moves what lies in the frames that the engine names.
    #[must_use]
    pub fn moves_by_name(&self) -> bool {
        self.stages
            .is_some_and(|stages| stages.moves == Move::Guest)
    }

    /// Units per tier that the guest uses. If it moves pages itself, frames that they left are free, and in no use; the host's
    /// memory stays behind them.
    fn in_use(&self) -> [u64; TIERS] {
        let (held, idle) = (self.space.held(), self.space.quota.idle());
        match self.moves_by_name() {
            true => std::array::from_fn(|tier| held[tier].saturating_sub(idle[tier])),
            false => held,
        }
    }

    /// 4 KiB pages per tier that the guest uses.
    #[must_use]
    pub fn pages_in_use(&self) -> [u64; TIERS] {
        let per_unit = self.space.second.pages_per_unit();
        self.in_use().map(|units| units * per_unit)
    }

    /// 4 KiB pages held per tier.
    #[must_use]
    pub fn held_pages(&self) -> [u64; TIERS] {
        let per_unit = self.space.second.pages_per_unit();
        self.space.held().map(|units| units * per_unit)
    }

    /// Bytes of a tier that the guest uses as simulated, mean over the quanta of the VM's run.
    #[must_use]
    pub fn mean_bytes(&self, tier: usize) -> f64 {
        let per_unit = self.space.second.pages_per_unit();
        self.account.mean_bytes(tier, per_unit * PAGE_SIZE)
    }

    /// Counts a unit's move.
    pub fn count_move(&mut self, unit: u32, from: u8, to: TierId) {
        let pages = self.space.second.pages_of(unit);
        self.account.move_pages(pages, usize::from(from), to);
    }

    /// Bytes on the heap, the scanner's bits (three for each page, and two for each 2 MiB) included.
    #[must_use]
    pub fn heap_bytes(&self) -> u64 {
        let vcpus: usize = self.vcpus.iter().map(Vcpu::heap_bytes).sum();
        let bound = self.clairvoyant.as_ref();
        let bound = bound.map_or(0, Clairvoyant::heap_bytes);
        let bits = self.space.guest.frames() * 3 / 8;
        let answers = self.answers.heap_bytes();
        self.space.heap_bytes() + bits + (vcpus + bound + answers) as u64
    }
}
