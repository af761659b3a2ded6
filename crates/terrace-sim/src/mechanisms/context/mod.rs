//! The context of a mechanism: the view that it has of its VM, and the operations that it may do to it.

mod migrations;
mod moves;
mod time;
mod traps;

use terrace_proto::PAGE_SIZE;

use super::{Moved, Setup, Unit};
use crate::base::number::{low, to_usize};
use crate::base::side::Side;
use crate::host::migration::{Memory, MigrationMode, Wanted};
use crate::host::vm::Vm;
use crate::machine::second_stage::bits;
use crate::machine::space::Space;
use crate::machine::vcpu::Environment;
use crate::machine::{PS, TIERS};
use migrations::Migrations;
use moves::Moves;
use time::ThreadTime;
use traps::Traps;

/// The purpose for which time is spent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Finding out which pages were touched.
    Track,
    /// Ranking and choosing.
    Classify,
    /// Moving pages.
    Migrate,
}

/// The state that is stored for a mechanism.
#[derive(Debug)]
pub struct State {
    setup: Setup,
    /// First unit of the load in the second stage.
    first: u32,
    /// Units per tier that the VM is to have.
    capacity: [u64; TIERS],
    /// Units of the VM's nodes when it booted.
    nodes: [u64; TIERS],
    traps: Traps,
    migrations: Migrations,
    time: ThreadTime,
    moves: Moves,
    /// Whether a TLB shootdown is due when the call is over.
    flush: bool,
}

impl State {
    /// The state of a VM whose load begins with the unit `first` and that is to have `capacity` units per tier: all
    /// units of its nodes.
    #[must_use]
    pub fn new(setup: Setup, first: u32, capacity: [u64; TIERS]) -> Self {
        Self {
            first,
            capacity,
            nodes: capacity,
            traps: Traps::new(setup.units),
            migrations: Migrations::new(setup.units),
            time: ThreadTime::default(),
            moves: Moves::default(),
            flush: false,
            setup,
        }
    }

    /// Sets how many units the VM's nodes had when it booted.
    pub(super) fn set_nodes(&mut self, nodes: [u64; TIERS]) {
        self.nodes = nodes;
    }

    /// Sets how many units per tier the VM is to have from now on.
    pub(super) fn resize(&mut self, capacity: [u64; TIERS]) {
        self.capacity = capacity;
    }

    pub(super) fn side(&self) -> Side {
        self.setup.side
    }

    /// The load's unit behind a unit of the second stage.
    pub(super) fn unit(&self, of_second: u32) -> Unit {
        of_second - self.first
    }

    fn second(&self, unit: Unit) -> u32 {
        unit + self.first
    }

    /// Takes a hint away; returns whether there was one.
    pub(super) fn take_hint(&mut self, unit: Unit) -> bool {
        self.traps.take_hint(unit)
    }

    /// Takes a guard away; returns whether there was one.
    pub(super) fn take_guard(&mut self, unit: Unit) -> bool {
        self.traps.take_guard(unit)
    }

    /// Whether a page is being migrated.
    pub(super) fn is_migrating(&self, unit: Unit) -> bool {
        self.migrations.has(unit)
    }

    /// Gives the mechanism's thread so much more time to spend.
    pub(super) fn refill(&mut self, quantum: u64) {
        self.time.refill(quantum);
    }

    /// Calls the mechanism on its context; returns the time that it spent, ps.
    pub(super) fn call(
        &mut self,
        space: &mut Space,
        env: &Environment,
        what: impl FnOnce(&mut Context),
    ) -> u64 {
        self.time.begin_call();
        what(&mut Context {
            space,
            state: self,
            env,
        });
        self.time.in_call()
    }

    /// Calls the mechanism in a vCPU's fault, whose time is not the thread's.
    pub(super) fn call_in_fault(
        &mut self,
        space: &mut Space,
        env: &Environment,
        what: impl FnOnce(&mut Context),
    ) -> u64 {
        let left = self.time.left();
        let ps = self.call(space, env, what);
        self.time.give_back(left);
        ps
    }

    /// Shoots translations down, if a call asked for that; returns the time that this took, ps.
    pub(super) fn shoot_down(&mut self, vm: &mut Vm, env: &Environment) -> u64 {
        if !std::mem::take(&mut self.flush) {
            return 0;
        }
        let ps = vm.shoot_down_from(self.setup.side, &env.costs);
        self.time.add(Stage::Track, ps);
        ps
    }

    /// Continues the migrations; returns the time that their threads spent, ps, and the pages that arrived.
    pub(super) fn migrate(
        &mut self,
        vm: &mut Vm,
        memory: &mut Memory,
        ps: u64,
    ) -> (u64, Vec<Moved>) {
        let first = self.first;
        self.migrations
            .go_on(vm, memory, ps, |of_second| of_second - first)
    }

    /// Adds the time spent and the pages moved to the VM's account.
    pub(super) fn settle(&mut self, vm: &mut Vm) {
        let (promoted, demoted) = self.moves.take();
        vm.account.add(self.time.take_spent(), promoted, demoted);
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.traps.heap_bytes() + self.migrations.heap_bytes()
    }
}

/// The view that a mechanism has of its VM, and the operations that it may do to it.
pub struct Context<'a> {
    space: &'a mut Space,
    state: &'a mut State,
    env: &'a Environment,
}

impl Context<'_> {
    /// Time of the full-size machine since the start, ns.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        self.env.now_ns
    }

    /// The facts known at the start.
    #[must_use]
    pub fn setup(&self) -> &Setup {
        &self.state.setup
    }

    /// Number of units of the load.
    #[must_use]
    pub fn units(&self) -> u32 {
        self.state.setup.units
    }

    /// The machine's constants.
    #[must_use]
    pub fn costs(&self) -> &crate::machine::costs::Costs {
        &self.env.costs
    }

    /// Units in so many bytes of the full-size machine, at least one.
    #[must_use]
    pub fn units_in(&self, bytes: u64) -> u64 {
        let setup = &self.state.setup;
        (bytes / setup.scale / (setup.pages_per_unit * PAGE_SIZE)).max(1)
    }

    /// The unit of one of the load's 4 KiB pages.
    #[must_use]
    pub fn unit_of_page(&self, page: u32) -> Unit {
        let guest = &self.space.guest;
        let frame = guest.frame(page).unwrap_or(guest.first_data() + page);
        self.state.unit(self.space.second.unit_of(frame))
    }

    /// The load's unit behind a unit of the second stage.
    pub(super) fn unit_of_second(&self, second: u32) -> Unit {
        self.state.unit(second)
    }

    /// Whether 2 MiB pages can be split: units are of 4 KiB then, and the first of a page that is whole
    /// stands for all of it.
    #[must_use]
    pub fn can_split(&self) -> bool {
        self.space.second.can_split()
    }

    /// Number of units that a unit stands for: 512 for a 2 MiB page that could be split, else 1.
    #[must_use]
    pub fn units_of(&self, unit: Unit) -> u64 {
        self.space.second.units_of(self.state.second(unit))
    }

    /// Splits the 2 MiB page that a unit stands for, unless it is migrated; returns whether it did. All translations
    /// are flushed when this call is over.
    pub fn split(&mut self, unit: Unit) -> bool {
        if self.is_migrating(unit) || self.units_of(unit) == 1 {
            return false;
        }
        if self.state.setup.side == Side::Guest && !self.space.guest.split(unit) {
            return false;
        }
        self.space.second.split(self.state.second(unit));
        self.flush();
        true
    }

    /// The latency of a read from a tier now, ps.
    #[must_use]
    pub fn read_ps(&self, tier: u8) -> u64 {
        self.env.read_ps[usize::from(tier)]
    }

    /// Number of the VM's data accesses that a tier has served so far, as a memory controller counts them.
    #[must_use]
    pub fn accesses(&self, tier: u8) -> u64 {
        let (counts, tier) = (&self.space.counts, usize::from(tier));
        counts.reads[tier] + counts.writes[tier]
    }

    /// The tier of a unit; `None` if it has no memory.
    #[must_use]
    pub fn tier(&self, unit: Unit) -> Option<u8> {
        self.space.second.tier(self.state.second(unit))
    }

    /// Number of units that the VM could still have in a tier: in the guest, of its own nodes; at the host, of the
    /// machine's.
    #[must_use]
    pub fn free(&self, tier: u8) -> u64 {
        self.space.quota.granted()[usize::from(tier)]
    }

    /// Number of units of a tier's node when the guest booted, from which its kernel's watermarks follow.
    #[must_use]
    pub fn node(&self, tier: u8) -> u64 {
        self.state.nodes[usize::from(tier)]
    }

    /// Number of units that the VM is to have in a tier.
    #[must_use]
    pub fn capacity(&self, tier: u8) -> u64 {
        self.state.capacity[usize::from(tier)]
    }

    /// Number of units that the VM holds in a tier.
    #[must_use]
    pub fn held(&self, tier: u8) -> u64 {
        self.space.second.held()[usize::from(tier)]
    }

    /// Whether a unit was accessed since the last call for it: tests A and clears it, in the guest's leaf or in the
    /// second stage. As in Linux, nothing is flushed. The caller spends the cost.
    pub fn young(&mut self, unit: Unit) -> bool {
        let second = self.state.second(unit);
        match self.state.setup.side {
            Side::Guest => self.space.guest.age(self.page(unit)),
            Side::Host => {
                let was = self.space.second.get(second) & bits::ACCESSED != 0;
                self.space.second.lower(second, bits::ACCESSED);
                was
            }
        }
    }

    /// Whether a unit was accessed since the last [`Context::young`]; A stays as it is.
    #[must_use]
    pub fn accessed(&self, unit: Unit) -> bool {
        match self.state.setup.side {
            Side::Guest => self.space.guest.accessed(self.page(unit)),
            Side::Host => {
                let state = self.space.second.get(self.state.second(unit));
                state & bits::ACCESSED != 0
            }
        }
    }

    /// Whether a unit was written since the last call for it: tests the second stage's D and clears it. Until all
    /// translations are flushed ([`Context::flush`]), writes through old ones are not seen.
    pub fn written(&mut self, unit: Unit) -> bool {
        let second = self.state.second(unit);
        let was = self.space.second.get(second) & bits::DIRTY != 0;
        self.space.second.lower(second, bits::DIRTY);
        was
    }

    /// First 4 KiB page of a unit.
    fn page(&self, unit: Unit) -> u32 {
        low(u64::from(unit) * self.state.setup.pages_per_unit)
    }

    /// Lets the next access to a unit fault ([`super::Mechanism::hint_fault`]). Flush, or old translations still
    /// serve.
    pub fn hint(&mut self, unit: Unit) {
        self.state.traps.hint(unit);
        match self.state.setup.side {
            Side::Guest => self.space.guest.protect(self.page(unit)),
            Side::Host => {
                let second = self.state.second(unit);
                self.space.second.raise(second, bits::UNFILLED);
            }
        }
    }

    /// Whether a unit has a hint.
    #[must_use]
    pub fn is_hinted(&self, unit: Unit) -> bool {
        self.state.traps.is_hinted(unit)
    }

    /// Lets the next write to a unit fault ([`super::Mechanism::guard_fault`]). Flush, or old translations still
    /// serve.
    pub fn guard(&mut self, unit: Unit) {
        self.state.traps.guard(unit);
    }

    /// Takes a guard away.
    pub fn unguard(&mut self, unit: Unit) {
        self.state.take_guard(unit);
    }

    /// Flushes all translations when this call is over: a TLB shootdown.
    pub fn flush(&mut self) {
        self.state.flush = true;
    }

    /// Spends processor time, ps: the thread's, or in a fault the vCPU's.
    pub fn spend(&mut self, stage: Stage, ps: u64) {
        self.state.time.spend(stage, ps);
    }

    /// Spends time that goes by the clock, or by samples whose period is divided by the scale: there are as many of
    /// these at any scale.
    pub fn spend_by_clock(&mut self, stage: Stage, ps: u64) {
        let scale = self.state.setup.scale;
        self.spend(stage, ps / scale);
    }

    /// Whether the mechanism's thread has time left in this quantum.
    #[must_use]
    pub fn has_time(&self) -> bool {
        self.state.time.has_left()
    }

    /// Whether a unit is being migrated.
    #[must_use]
    pub fn is_migrating(&self, unit: Unit) -> bool {
        self.state.is_migrating(unit)
    }

    /// Number of units under migration.
    #[must_use]
    pub fn migrating(&self) -> u64 {
        self.state.migrations.under_way()
    }

    /// Moves one unit at once, by the thread or vCPU that runs now: unmapped, copied, mapped. Returns whether it was
    /// moved. A fault's own page needs no shootdown: no vCPU has a translation of a page with a hint.
    pub fn migrate_now(&mut self, unit: Unit, to: u8) -> bool {
        let Some(from) = self.tier(unit) else {
            return false;
        };
        let units = self.units_of(unit);
        if from == to || self.free(to) < units || self.is_migrating(unit) {
            return false;
        }
        let pages = units * self.state.setup.pages_per_unit;
        let copy = self.env.copy_ps[usize::from(from)][usize::from(to)] * pages;
        self.spend(Stage::Migrate, self.env.costs.move_page + copy);
        let bytes = pages * PAGE_SIZE;
        self.space.traffic[usize::from(from)].read += bytes;
        self.space.traffic[usize::from(to)].written += bytes;
        let second = self.state.second(unit);
        self.space.second.put(second, Some(to));
        self.space.quota.shift(units, from, to);
        self.state.moves.count(from, to, pages);
        true
    }

    /// Migrates units, each to a tier, by the mechanism's movers; the outcomes are reported
    /// ([`super::Mechanism::moved`]). In an exchange, units change places in pairs, the first with the second. Units that
    /// already migrate are left out (of an exchange, with their partner). Transactions are made page by page,
    /// everything else in batches. Whole 2 MiB pages and parts of split ones should not be in one migration: its
    /// batches would be small for both.
    pub fn submit(&mut self, wanted: &[(Unit, u8)], kind: MigrationMode) {
        let by = if kind == MigrationMode::Exchange {
            2
        } else {
            1
        };
        let mut units = Vec::with_capacity(wanted.len());
        for together in wanted.chunks_exact(by) {
            if together.iter().any(|(unit, _)| self.is_migrating(*unit)) {
                continue;
            }
            for (unit, to) in together {
                self.state.migrations.board(*unit);
                units.push(Wanted {
                    unit: self.state.second(*unit),
                    to: terrace_proto::TierId(*to),
                });
            }
        }
        if units.is_empty() {
            return;
        }
        // The kernel counts 4 KiB pages, of which a 2 MiB page fills a batch alone.
        let second = &self.space.second;
        let largest = units
            .iter()
            .map(|wanted| second.pages_of(wanted.unit))
            .max();
        let batch = self.env.costs.move_batch / to_usize(largest.unwrap_or(1));
        let side = self.state.setup.side;
        self.state.migrations.begin(units, kind, side, batch);
    }

    /// Sets how many threads move pages; the default is 1.
    pub fn set_movers(&mut self, threads: usize) {
        self.state.migrations.set_movers(threads);
    }

    /// Sets how many pages are unmapped together, an even number for exchanges; the default is that of the machine's
    /// kernel.
    pub fn set_batch(&mut self, pages: usize) {
        self.state.migrations.set_batch(pages);
    }

    /// Counts memory of a tier as taken, beside the VM's pages (shadow copies), in units; negative: as free again.
    pub fn keep(&mut self, tier: u8, units: i64) {
        self.space.quota.keep(usize::from(tier), units);
    }

    /// Gives a unit to a tier without a copy: its data are there already (a shadow).
    pub fn remap(&mut self, unit: Unit, to: u8) {
        let Some(from) = self.tier(unit) else {
            return;
        };
        let units = self.units_of(unit);
        let pages = units * self.state.setup.pages_per_unit;
        let second = self.state.second(unit);
        self.space.second.put(second, Some(to));
        self.space.quota.shift(units, from, to);
        self.state.moves.count(from, to, pages);
    }

    /// Sets the configuration of the processor's counters; `None`: nothing is sampled from now on.
    pub fn sample(&mut self, pmu: Option<super::Pmu>) {
        self.space.sampling.follow(pmu);
    }

    /// Processor time of so many ns, in ps.
    #[must_use]
    pub fn ps(ns: u64) -> u64 {
        ns * PS
    }
}
