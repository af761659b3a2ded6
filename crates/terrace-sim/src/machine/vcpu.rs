//! A vCPU: takes its load's accesses one after another, and its clock goes on.

use super::TIERS;
use super::costs::Costs;
use super::faults::Faults;
use super::histogram::Histogram;
use super::pml::Buffer;
use super::pmu::Sample;
use super::space::Space;
use super::tier::Traffic;
use super::tlb::{Cached, Tlb};
use super::walk::Walked;
use crate::words::access::{Access, Pace, Source};
use crate::words::number::{float, low, place, whole};

/// Accesses that are taken from the load at a time.
const BATCH: usize = 64;

/// Where tables are larger than this many pages, a batch's entries are read ahead: the simulator's own
/// memory is as slow as that of the machine it simulates.
const READ_AHEAD_PAGES: u64 = 1 << 16;

/// What holds for all vCPUs in one quantum.
#[derive(Clone, Debug)]
pub struct Environment {
    /// The constants.
    pub costs: Costs,
    /// Latency of a read per tier, ps.
    pub read_ps: [u64; TIERS],
    /// Latency of a write per tier, ps.
    pub write_ps: [u64; TIERS],
    /// What an access takes from the medium, bytes.
    pub line: [u64; TIERS],
    /// The last tier.
    pub last_tier: u8,
    /// End of the quantum, ps.
    pub end_ps: u64,
    /// Time of the full-size machine at the quantum's start, ns.
    pub now_ns: u64,
    /// What one processor takes to copy 4 KiB from a tier to another, ps.
    pub copy_ps: [[u64; TIERS]; TIERS],
}

/// What a vCPU's accesses cost now, ps.
#[derive(Clone, Copy, Debug, Default)]
struct Prices {
    compute: u64,
    read: [u64; TIERS],
    write: [u64; TIERS],
}

/// A vCPU.
pub struct Vcpu {
    /// Its time, ps.
    pub clock: u64,
    /// When its load ended, if it did.
    pub ended: Option<u64>,
    /// Accesses it may still make.
    pub left: u64,
    /// Times of its operations.
    pub times: Histogram,
    source: Box<dyn Source>,
    batch: [Access; BATCH],
    next: usize,
    len: usize,
    prices: Prices,
    /// Start of the operation under way, ps.
    operation: u64,
    /// The medium's line that was accessed last, per tier, and whether it was written.
    last_line: [(u64, bool); TIERS],
    /// When the guest next changes its address space, ns of the full-size machine.
    flush_at: u64,
    /// It waits for a page that is being copied.
    waiting: bool,
    /// Its number among its VM's: no two vCPUs' counters run out together.
    number: u32,
    /// Loads and stores until the next sample.
    events_left: [u64; 2],
    /// Periods that these count for; 0: nothing is sampled.
    periods: [u64; 2],
    /// Samples that its buffer holds.
    samples: Vec<Sample>,
    /// Full buffers so far.
    full_buffers: u64,
    /// Of the guest's own shootdowns, those it saw.
    shootdowns: u64,
    pub(super) tlb_shift: u32,
    pub(super) walk_overlap: u64,
    pub(super) l1: Tlb,
    /// First-level translations of 4 KiB, where 2 MiB pages can be split.
    pub(super) small: Option<Tlb>,
    pub(super) l2: Tlb,
    pub(super) pde: Tlb,
    pub(super) pdpte: Tlb,
    pub(super) host_pde: Tlb,
    pub(super) host_pdpte: Tlb,
    pub(super) pml: Buffer,
}

impl Vcpu {
    /// A vCPU at time 0 whose load may make `left` accesses. `huge`: both dimensions map 2 MiB.
    /// Its VM's first vCPU; see [`Vcpu::numbered`].
    #[must_use]
    pub fn new(source: Box<dyn Source>, left: u64, costs: &Costs, scale: u64, huge: bool) -> Self {
        let l1 = if huge {
            costs.l1_huge_entries
        } else {
            costs.l1_entries
        };
        let upper = |entries: u64| Tlb::new(entries / scale, 4);
        Self {
            clock: 0,
            ended: None,
            left,
            times: Histogram::default(),
            source,
            batch: [Access::default(); BATCH],
            next: 0,
            len: 0,
            prices: Prices::default(),
            operation: 0,
            last_line: [(u64::MAX, false); TIERS],
            flush_at: 0,
            waiting: false,
            number: 0,
            events_left: [u64::MAX; 2],
            periods: [0; 2],
            samples: Vec::new(),
            full_buffers: 0,
            shootdowns: 0,
            tlb_shift: if huge { 9 } else { 0 },
            walk_overlap: 1,
            l1: Tlb::new((l1 / scale).max(1), 4),
            small: None,
            l2: Tlb::new((costs.l2_entries / scale).max(1), 12),
            pde: upper(costs.pde_entries),
            pdpte: upper(costs.pdpte_entries),
            host_pde: upper(costs.pde_entries),
            host_pdpte: upper(costs.pdpte_entries),
            pml: Buffer::new(costs.pml_entries),
        }
    }

    /// The same as one of its VM's later vCPUs.
    #[must_use]
    pub fn numbered(mut self, number: u32) -> Self {
        self.number = number;
        self
    }

    /// The same with a load that begins later, ps.
    #[must_use]
    pub fn beginning(mut self, ps: u64) -> Self {
        (self.clock, self.operation) = (ps, ps);
        self
    }

    /// The same where 2 MiB pages can be split: it has a first-level TLB for 4 KiB pages too.
    #[must_use]
    pub fn with_small_pages(mut self, costs: &Costs, scale: u64) -> Self {
        self.small = Some(Tlb::new((costs.l1_entries / scale).max(1), 4));
        self
    }

    /// Runs until the quantum's end, or until its load has ended.
    pub fn run(&mut self, space: &mut Space, env: &Environment, faults: &mut impl Faults) {
        self.set_prices(env);
        if env.now_ns >= self.flush_at {
            self.flush_at = env.now_ns + env.costs.flush_every_ns;
            self.flush();
            // The kernel empties the buffer of samples when it switches processes.
            space.samples.append(&mut self.samples);
        }
        self.follow_reclaim(space);
        self.follow_pmu(space);
        while self.clock < env.end_ps && self.ended.is_none() {
            if self.next == self.len && !self.refill(space, env) {
                self.ended = Some(self.clock);
                return;
            }
            if !self.step(space, env, faults) {
                // The page comes back at some time of a later quantum.
                self.clock = env.end_ps;
                return;
            }
        }
    }

    /// One access; says whether it was made.
    #[inline]
    fn step(&mut self, space: &mut Space, env: &Environment, faults: &mut impl Faults) -> bool {
        let access = self.batch[self.next];
        let page = low(access.page());
        let write = access.is_write();
        let Some((tier, ps)) = self.translate(space, env, faults, page, write) else {
            if !self.waiting {
                space.counts.exits += u64::from(!faults.moves_in_guest());
                self.waiting = true;
            }
            return false;
        };
        self.waiting = false;
        self.clock += self.prices.compute + ps;
        let tier = if space.memory_mode.is_some() {
            self.access_through_dram(space, env, access)
        } else {
            self.clock += self.price(tier, write);
            let medium = self.medium(env, access, tier);
            space.count(tier, page, write, medium);
            tier
        };
        if access.loads() {
            self.count_event(space, env, page, false, tier);
        }
        if write {
            self.count_event(space, env, page, true, tier);
        }
        if access.ends_operation() {
            self.times.add(self.clock - self.operation);
            self.operation = self.clock;
        }
        self.next += 1;
        self.left -= 1;
        if self.left == 0 {
            self.ended = Some(self.clock);
        }
        true
    }

    #[inline]
    fn price(&self, tier: usize, write: bool) -> u64 {
        if write {
            self.prices.write[tier]
        } else {
            self.prices.read[tier]
        }
    }

    /// What an access takes from a tier's medium.
    #[inline]
    fn medium(&mut self, env: &Environment, access: Access, tier: usize) -> Traffic {
        let write = access.is_write();
        let line =
            (access.page() << 6 | access.line()) * crate::words::access::LINE / env.line[tier];
        // The medium serves the same line once in a row to be read, and takes it once to be written.
        let (last, dirty) = self.last_line[tier];
        let again = last == line;
        self.last_line[tier] = (line, write || (again && dirty));
        Traffic {
            read: if again { 0 } else { env.line[tier] },
            written: if write && !(again && dirty) {
                env.line[tier]
            } else {
                0
            },
        }
    }

    /// An access under memory mode; says which tier served it.
    #[cold]
    fn access_through_dram(
        &mut self,
        space: &mut Space,
        env: &Environment,
        access: Access,
    ) -> usize {
        let (page, write) = (low(access.page()), access.is_write());
        let dram = self.medium(env, access, 0);
        space.traffic[0].read += dram.read;
        space.traffic[0].written += dram.written;
        // Pages do not change frames: neither swap nor a balloon goes with memory mode.
        let frame = space.guest.first_data() + page;
        let touched = space.through_dram(env, frame, access.line(), write);
        let missed = touched.filter(|touched| !touched.hit);
        self.clock += self.price(0, write)
            + missed.map_or(0, |t| t.longer(self.prices.read[1], self.prices.write[1]));
        let tier = usize::from(missed.is_some());
        space.count(tier, page, write, Traffic::default());
        tier
    }

    /// The tier of a page, and what finding it took, ps; none while the page is being copied.
    #[inline]
    fn translate(
        &mut self,
        space: &mut Space,
        env: &Environment,
        faults: &mut impl Faults,
        page: u32,
        write: bool,
    ) -> Option<(usize, u64)> {
        let key = page >> self.tlb_shift;
        let mut known = false;
        if let Some(cached) = self.l1.find(key) {
            if cached.dirty() || !write {
                return Some((cached.tier(), 0));
            }
            known = true;
        } else if let Some(cached) = self.l2.find(key) {
            if cached.dirty() || !write {
                self.l1.push(cached);
                return Some((cached.tier(), env.costs.l2_hit));
            }
            known = true;
        } else if let Some((cached, ps)) = self.find_small(env, page) {
            if cached.dirty() || !write {
                return Some((cached.tier(), ps));
            }
            known = true;
        }
        match self.walk(space, env, faults, page, write, known) {
            Walked::Found(tier, ps) => Some((tier, ps + env.costs.l2_hit)),
            Walked::Wait => None,
        }
    }

    /// A translation of a page of a split block, and what finding it took, ps.
    fn find_small(&mut self, env: &Environment, page: u32) -> Option<(Cached, u64)> {
        let l1 = self.small.as_mut()?;
        let key = small_key(page);
        if let Some(cached) = l1.find(key) {
            return Some((cached, 0));
        }
        let cached = self.l2.find(key)?;
        l1.push(cached);
        Some((cached, env.costs.l2_hit))
    }

    /// Takes the next accesses from the load; says whether there are any.
    fn refill(&mut self, space: &Space, env: &Environment) -> bool {
        self.len = self.source.fill(env.now_ns, &mut self.batch);
        self.next = 0;
        self.set_prices(env);
        if space.guest.pages() > READ_AHEAD_PAGES {
            let read = |sum, access: &Access| sum ^ space.peek(access.page());
            std::hint::black_box(self.batch[..self.len].iter().fold(0, read));
        }
        self.len > 0
    }

    fn set_prices(&mut self, env: &Environment) {
        let Pace {
            compute_ns,
            parallelism,
        } = self.source.pace();
        self.prices.compute = whole(compute_ns * float(super::PS));
        let part = 1.0 / parallelism;
        let share = |ps: u64| whole(float(ps) * part);
        self.prices.read = env.read_ps.map(share);
        self.prices.write = env.write_ps.map(share);
        self.walk_overlap = whole(parallelism).clamp(1, env.costs.walkers);
    }

    /// Forgets all translations: a TLB shootdown's work on this vCPU.
    pub fn flush(&mut self) {
        for tlb in [
            &mut self.l1,
            &mut self.l2,
            &mut self.pde,
            &mut self.pdpte,
            &mut self.host_pde,
            &mut self.host_pdpte,
        ] {
            tlb.flush();
        }
        if let Some(small) = &mut self.small {
            small.flush();
        }
    }

    /// Forgets the translations of one page of the load, and what leads to them, as INVLPG does.
    pub fn forget(&mut self, page: u32) {
        let key = page >> self.tlb_shift;
        self.l1.forget(key);
        self.l2.forget(key);
        if let Some(small) = &mut self.small {
            small.forget(small_key(page));
            self.l2.forget(small_key(page));
        }
        self.pde.flush();
        self.pdpte.flush();
    }

    /// Forgets all translations if the guest took pages out since it last did.
    pub(super) fn follow_reclaim(&mut self, space: &Space) {
        if space.shootdowns != self.shootdowns {
            self.shootdowns = space.shootdowns;
            self.flush();
        }
    }

    /// It is interrupted for so many ps, unless its load has ended.
    pub fn interrupt(&mut self, ps: u64) {
        if self.ended.is_none() {
            self.clock += ps;
        }
    }

    /// A counter of the processor goes on; where it runs out, a record is written.
    #[inline]
    fn count_event(
        &mut self,
        space: &mut Space,
        env: &Environment,
        page: u32,
        write: bool,
        tier: usize,
    ) {
        let left = &mut self.events_left[usize::from(write)];
        *left -= 1;
        if *left == 0 {
            self.record(space, env, page, write, tier);
        }
    }

    fn record(
        &mut self,
        space: &mut Space,
        env: &Environment,
        page: u32,
        write: bool,
        tier: usize,
    ) {
        let of = usize::from(write);
        self.events_left[of] = self.periods[of];
        let Some(pmu) = space.pmu else {
            return;
        };
        let tier = u8::try_from(tier).unwrap_or(0);
        self.samples.push(Sample { page, write, tier });
        self.clock += env.costs.sample / pmu.divisor;
        if self.samples.len() >= pmu.buffer {
            self.clock += env.costs.sample_interrupt / pmu.divisor;
            self.full_buffers += 1;
            // With a divided period there are so many more of them than accesses are simulated.
            if self.full_buffers.is_multiple_of(pmu.divisor) {
                space.counts.exits += 1;
            }
            space.samples.append(&mut self.samples);
        }
    }

    /// Follows what is to be sampled.
    fn follow_pmu(&mut self, space: &Space) {
        let wanted = space.pmu.map_or([0, 0], |pmu| pmu.periods());
        if self.periods == wanted {
            return;
        }
        self.periods = wanted;
        // Fractions of the golden ratio: any number of vCPUs is spread evenly over the period. Half of it
        // lies between the two counters, or of updates both would take the same ones.
        let part = self.number.wrapping_mul(0x9e37_79b9);
        let parts = [part, part.wrapping_add(1 << 31)];
        for ((left, period), part) in self.events_left.iter_mut().zip(wanted).zip(parts) {
            let phase = place_in(period, u64::from(part));
            *left = if period == 0 {
                u64::MAX
            } else {
                period - phase
            };
        }
    }

    /// What full and part-full PML buffers hold.
    pub fn drain_pml(&mut self) -> impl Iterator<Item = u32> + '_ {
        self.pml.drain()
    }

    /// Pages changed tier for free: cached translations follow.
    pub fn retier(&mut self, tier: impl Fn(u32) -> u8 + Copy) {
        self.l1.retier(tier);
        self.l2.retier(tier);
    }

    /// The accesses that it will make next: those at hand, and a copy of the source of the others.
    #[must_use]
    pub fn ahead(&self) -> (&[Access], Box<dyn Source>) {
        (&self.batch[self.next..self.len], self.source.fork())
    }

    /// Bytes on the heap.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        let tlbs = [
            &self.l1,
            &self.l2,
            &self.pde,
            &self.pdpte,
            &self.host_pde,
            &self.host_pdpte,
        ];
        let small = self.small.as_ref().map_or(0, Tlb::heap_bytes);
        tlbs.iter().map(|tlb| tlb.heap_bytes()).sum::<usize>() + small + place(4 * 512)
    }
}

/// The key of a 4 KiB translation where there are those of 2 MiB too, whose keys are block numbers.
pub(super) fn small_key(page: u32) -> u32 {
    page | 1 << 28
}

/// A 2^32nd part of a period, so many times.
fn place_in(period: u64, part: u64) -> u64 {
    let place = (u128::from(period) * u128::from(part)) >> 32;
    u64::try_from(place).unwrap_or(0)
}
