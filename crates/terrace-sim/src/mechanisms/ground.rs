//! What a mechanism sees of its VM, and what it may do to it.

use terrace_proto::{PAGE_SIZE, PageBitmap};

use super::{Setup, Unit};
use crate::host::travel::{Kind, Travel, Wanted, Way};
use crate::host::vm::Spent;
use crate::machine::second_stage::bits;
use crate::machine::space::Space;
use crate::machine::vcpu::Environment;
use crate::machine::{PS, TIERS};
use crate::words::number::{low, place};
use crate::words::side::Side;

/// Pages that are unmapped together to change places: few, as an access to one waits for all of them.
const EXCHANGE_BATCH: usize = 32;

/// What time is spent for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Finding out what was touched.
    Track,
    /// Ranking and choosing.
    Classify,
    /// Moving.
    Migrate,
}

/// A journey under way.
#[derive(Debug)]
pub(super) struct Journey {
    pub(super) travel: Travel,
}

/// What is kept for a mechanism.
#[derive(Debug)]
pub struct State {
    pub(super) setup: Setup,
    /// Unit of the second stage that the load begins with.
    first: u32,
    /// Units per tier that the VM is to have.
    pub(super) capacity: [u64; TIERS],
    /// Units of its nodes when it booted.
    pub(super) nodes: [u64; TIERS],
    hinted: PageBitmap,
    guarded: PageBitmap,
    travelling: PageBitmap,
    under_way: u64,
    pub(super) journeys: Vec<Journey>,
    pub(super) spent: Spent,
    /// Spent in the call at hand, ps.
    pub(super) spent_now: u64,
    /// What its thread may still spend in this pass, ps; negative: it overdrew.
    pub(super) left: i64,
    pub(super) flush: bool,
    pub(super) promoted: u64,
    pub(super) demoted: u64,
    /// Threads that move pages; the first journeys are theirs.
    pub(super) movers: usize,
    /// Pages that they unmap together, where it is not the kernel's usual number.
    batch: Option<usize>,
}

impl State {
    /// Of a VM whose load begins with a unit, and that is to have so many units per tier: all there are of its
    /// nodes.
    #[must_use]
    pub fn new(setup: Setup, first: u32, capacity: [u64; TIERS]) -> Self {
        let bits = || PageBitmap::new(u64::from(setup.units));
        Self {
            first,
            capacity,
            nodes: capacity,
            hinted: bits(),
            guarded: bits(),
            travelling: bits(),
            under_way: 0,
            journeys: Vec::new(),
            spent: Spent::default(),
            spent_now: 0,
            left: 0,
            flush: false,
            promoted: 0,
            demoted: 0,
            movers: 1,
            batch: None,
            setup,
        }
    }

    /// The load's unit behind a unit of the second stage.
    pub(super) fn unit(&self, of_second: u32) -> Unit {
        of_second - self.first
    }

    fn second(&self, unit: Unit) -> u32 {
        unit + self.first
    }

    /// Takes a hint away, where there is one.
    pub(super) fn take_hint(&mut self, unit: Unit) -> bool {
        take(&mut self.hinted, unit)
    }

    /// Takes a guard away, where there is one.
    pub(super) fn take_guard(&mut self, unit: Unit) -> bool {
        take(&mut self.guarded, unit)
    }

    /// Whether a page is on a journey.
    pub(super) fn travels(&self, unit: Unit) -> bool {
        self.travelling.get(u64::from(unit))
    }

    /// A page's journey ended.
    pub(super) fn arrived(&mut self, unit: Unit) {
        self.under_way -= u64::from(take(&mut self.travelling, unit));
    }

    pub(super) fn heap_bytes(&self) -> usize {
        let bitmaps = [&self.hinted, &self.guarded, &self.travelling];
        bitmaps.iter().map(|b| b.heap_bytes()).sum()
    }
}

fn take(bits: &mut PageBitmap, unit: Unit) -> bool {
    let unit = u64::from(unit);
    let was = bits.get(unit);
    bits.put(unit, false);
    was
}

/// What a mechanism sees of its VM, and what it may do to it.
pub struct Ground<'a> {
    pub(super) space: &'a mut Space,
    pub(super) state: &'a mut State,
    pub(super) env: &'a Environment,
}

impl Ground<'_> {
    /// Time of the full-size machine since the start, ns.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        self.env.now_ns
    }

    /// What was known at the start.
    #[must_use]
    pub fn setup(&self) -> &Setup {
        &self.state.setup
    }

    /// Units of the load.
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
        let frame = self.space.guest.first_data() + page;
        self.state.unit(self.space.second.unit_of(frame))
    }

    /// Whether 2 MiB pages can be split: units are of 4 KiB then, and the first of a page that is whole
    /// stands for all of it.
    #[must_use]
    pub fn can_split(&self) -> bool {
        self.space.second.can_split()
    }

    /// Units that a unit stands for: 512 for a 2 MiB page that could be split, else 1.
    #[must_use]
    pub fn units_of(&self, unit: Unit) -> u64 {
        self.space.second.units_of(self.state.second(unit))
    }

    /// Splits the 2 MiB page that a unit stands for, unless it travels; says whether it did. All translations
    /// are flushed when this call is over.
    pub fn split(&mut self, unit: Unit) -> bool {
        if self.travels(unit) || self.units_of(unit) == 1 {
            return false;
        }
        if self.state.setup.side == Side::Guest && !self.space.guest.split(unit) {
            return false;
        }
        self.space.second.split(self.state.second(unit));
        self.flush();
        true
    }

    /// Latency of a read from a tier now, ps.
    #[must_use]
    pub fn read_ps(&self, tier: u8) -> u64 {
        self.env.read_ps[usize::from(tier)]
    }

    /// The tier where a unit is, if it has memory.
    #[must_use]
    pub fn tier(&self, unit: Unit) -> Option<u8> {
        self.space.second.tier(self.state.second(unit))
    }

    /// Units that the VM could still have in a tier: in the guest, of its own; at the host, of the
    /// machine's.
    #[must_use]
    pub fn free(&self, tier: u8) -> u64 {
        self.space.grant[usize::from(tier)]
    }

    /// Units of a tier's node when the guest booted: what its kernel's watermarks go by.
    #[must_use]
    pub fn node(&self, tier: u8) -> u64 {
        self.state.nodes[usize::from(tier)]
    }

    /// Units that the VM is to have in a tier.
    #[must_use]
    pub fn capacity(&self, tier: u8) -> u64 {
        self.state.capacity[usize::from(tier)]
    }

    /// Units that the VM holds in a tier.
    #[must_use]
    pub fn held(&self, tier: u8) -> u64 {
        self.space.second.held()[usize::from(tier)]
    }

    /// Whether a unit was accessed since it was asked last: tests A and clears it, in the guest's leaf or
    /// in the second stage. Nothing is flushed, as Linux does not either. What it costs is the caller's
    /// to spend.
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

    /// Whether a unit was accessed since [`Ground::young`] was asked last; A stays as it is.
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

    /// Whether a unit was written since it was asked last: tests the second stage's D and clears it. Until
    /// all translations are flushed ([`Ground::flush`]), writes through old ones are not seen.
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

    /// The next access to a unit faults ([`super::Mechanism::hint_fault`]). Flush, or old translations
    /// still serve.
    pub fn hint(&mut self, unit: Unit) {
        self.state.hinted.set(u64::from(unit));
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
        self.state.hinted.get(u64::from(unit))
    }

    /// The next write to a unit faults ([`super::Mechanism::guard_fault`]). Flush, or old translations
    /// still serve.
    pub fn guard(&mut self, unit: Unit) {
        self.state.guarded.set(u64::from(unit));
    }

    /// Takes a guard away.
    pub fn unguard(&mut self, unit: Unit) {
        self.state.take_guard(unit);
    }

    /// All translations are flushed when this call is over: a TLB shootdown.
    pub fn flush(&mut self) {
        self.state.flush = true;
    }

    /// Spends processor time, ps: the thread's, or in a fault the vCPU's.
    pub fn spend(&mut self, stage: Stage, ps: u64) {
        let spent = &mut self.state.spent;
        match stage {
            Stage::Track => spent.track += ps,
            Stage::Classify => spent.classify += ps,
            Stage::Migrate => spent.migrate += ps,
        }
        self.state.spent_now += ps;
        self.state.left = self.state.left.saturating_sub_unsigned(ps);
    }

    /// Spends time that goes by the clock, or by samples whose period is divided by the scale, of which
    /// there are as many at any scale.
    pub fn spend_by_clock(&mut self, stage: Stage, ps: u64) {
        let scale = self.state.setup.scale;
        self.spend(stage, ps / scale);
    }

    /// Whether the mechanism's thread has time left in this pass.
    #[must_use]
    pub fn has_time(&self) -> bool {
        self.state.left > 0
    }

    /// Whether a unit is on a journey.
    #[must_use]
    pub fn travels(&self, unit: Unit) -> bool {
        self.state.travels(unit)
    }

    /// Units on journeys.
    #[must_use]
    pub fn travelling(&self) -> u64 {
        self.state.under_way
    }

    /// Moves one unit at once, by whoever runs now: unmapped, copied, mapped. Says whether it was moved.
    /// A fault's own page needs no shootdown: nobody has a translation of a page with a hint.
    pub fn migrate_now(&mut self, unit: Unit, to: u8) -> bool {
        let Some(from) = self.tier(unit) else {
            return false;
        };
        let units = self.units_of(unit);
        if from == to || self.free(to) < units || self.travels(unit) {
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
        self.space.grant[usize::from(to)] -= units;
        self.space.grant[usize::from(from)] += units;
        if to < from {
            self.state.promoted += pages;
        } else {
            self.state.demoted += pages;
        }
        true
    }

    /// Sends units on a journey, each to a tier, by the mechanism's movers; what became of them is told
    /// ([`super::Mechanism::moved`]). For an exchange, each two that follow each other change places.
    /// Units that already travel are left out (of an exchange, with their partner). Transactions are made
    /// page by page, everything else in batches. Whole 2 MiB pages and parts of split ones should not go on
    /// one journey: its batches would be small for both.
    pub fn submit(&mut self, wanted: &[(Unit, u8)], kind: Kind) {
        let by = if kind == Kind::Exchange { 2 } else { 1 };
        let mut units = Vec::with_capacity(wanted.len());
        for together in wanted.chunks_exact(by) {
            if together.iter().any(|(unit, _)| self.travels(*unit)) {
                continue;
            }
            for (unit, to) in together {
                self.state.travelling.set(u64::from(*unit));
                self.state.under_way += 1;
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
        let batch = self.env.costs.move_batch / place(largest.unwrap_or(1));
        let way = Way {
            kind,
            side: self.state.setup.side,
            batch: self.state.batch.unwrap_or(match kind {
                Kind::Exchange => EXCHANGE_BATCH,
                Kind::Transaction => 1,
                _ => batch,
            }),
        };
        self.state.journeys.push(Journey {
            travel: Travel::new(units, way),
        });
    }

    /// Sets how many threads move pages; 1 at first.
    pub fn set_movers(&mut self, threads: usize) {
        self.state.movers = threads.max(1);
    }

    /// Sets how many pages are unmapped together; at first, what the machine's kernel does. An even number
    /// for exchanges.
    pub fn set_batch(&mut self, pages: usize) {
        self.state.batch = Some(pages);
    }

    /// Counts memory of a tier as taken, beside what the VM's pages hold (shadow copies), in units;
    /// negative: as free again.
    pub fn keep(&mut self, tier: u8, units: i64) {
        let tier = usize::from(tier);
        let kept = &mut self.space.kept[tier];
        *kept = kept.saturating_add_signed(units);
        let grant = &mut self.space.grant[tier];
        *grant = grant.saturating_add_signed(units.saturating_neg());
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
        self.space.grant[usize::from(to)] = self.space.grant[usize::from(to)].saturating_sub(units);
        self.space.grant[usize::from(from)] += units;
        if to < from {
            self.state.promoted += pages;
        } else {
            self.state.demoted += pages;
        }
    }

    /// Sets what the processor's counters sample from now on; none: nothing.
    pub fn sample(&mut self, pmu: Option<super::Pmu>) {
        self.space.pmu = pmu;
    }

    /// Processor time in ps of so many ns.
    #[must_use]
    pub fn ps(ns: u64) -> u64 {
        ns * PS
    }
}
