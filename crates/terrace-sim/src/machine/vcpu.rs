//! A vCPU: makes its load's accesses one after another, and its clock advances.

use super::TIERS;
use super::costs::Costs;
use super::faults::Faults;
use super::last_level::Touched;
use super::mmu::Mmu;
use super::pmu::Counters;
use super::progress::Progress;
use super::space::Space;
use super::stream::Stream;
use super::tier::{LastLines, Traffic};
use crate::base::access::{Access, Pace, Source};
use crate::base::number::{float, low, whole};

/// Pages above which the entries of a batch are read ahead: large tables are as slow to read in the simulator's own
/// memory as in that of the machine it simulates.
const READ_AHEAD_PAGES: u64 = 1 << 16;

/// The state of the machine that all vCPUs see in one quantum.
#[derive(Clone, Debug)]
pub struct Environment {
    /// The machine's constants.
    pub costs: Costs,
    /// Latency of a read per tier, ps.
    pub read_ps: [u64; TIERS],
    /// Latency of a write per tier, ps.
    pub write_ps: [u64; TIERS],
    /// Bytes that an access takes from each tier's medium.
    pub line: [u64; TIERS],
    /// Bytes that each further write to such a line takes.
    pub rewrite: [u64; TIERS],
    /// The last tier.
    pub last_tier: u8,
    /// End of the quantum, ps.
    pub end_ps: u64,
    /// Time of the full-size machine at the quantum's start, ns.
    pub now_ns: u64,
    /// Time that one processor takes to copy 4 KiB from a tier to another, ps.
    pub copy_ps: [[u64; TIERS]; TIERS],
}

/// The cost of a vCPU's accesses now, ps.
#[derive(Clone, Copy, Debug, Default)]
struct Prices {
    compute: u64,
    /// Of reads and of writes, per tier.
    memory: [[u64; TIERS]; 2],
    /// A hit in the last-level cache.
    cached: u64,
}

impl Prices {
    /// The cost of accesses at this pace, on the machine as it is now: misses in flight share the wait.
    fn of(pace: Pace, env: &Environment) -> Self {
        let part = 1.0 / pace.parallelism;
        let share = |ps: u64| whole(float(ps) * part);
        Self {
            compute: whole(pace.compute_ns * float(super::PS)),
            memory: [env.read_ps.map(share), env.write_ps.map(share)],
            cached: share(env.costs.cached_line),
        }
    }

    #[inline]
    fn access(&self, tier: usize, write: bool) -> u64 {
        self.memory[usize::from(write)][tier]
    }
}

/// A vCPU.
pub struct Vcpu {
    progress: Progress,
    stream: Stream,
    prices: Prices,
    last_lines: LastLines,
    mmu: Mmu,
    counters: Counters,
    /// When the guest next changes its address space, ns of the full-size machine.
    flush_at: u64,
    /// Whether the vCPU waits for a page that is being copied.
    waiting: bool,
    /// The pace of the accesses of the batch, for which prices are.
    pace: Pace,
    /// Number of programs that ended before that of the batch.
    program: u64,
}

impl Vcpu {
    /// A vCPU at time 0 whose load may make `left` accesses. `huge`: both dimensions map 2 MiB. The vCPU is the first
    /// of its VM; see [`Vcpu::numbered`].
    #[must_use]
    pub fn new(source: Box<dyn Source>, left: u64, costs: &Costs, scale: u64, huge: bool) -> Self {
        let stream = Stream::new(source);
        let pace = stream.pace();
        Self {
            progress: Progress::new(left),
            stream,
            prices: Prices::default(),
            last_lines: LastLines::default(),
            mmu: Mmu::new(costs, scale, huge),
            counters: Counters::new(0),
            flush_at: 0,
            waiting: false,
            pace,
            program: 0,
        }
    }

    /// Numbers the vCPU within its VM.
    #[must_use]
    pub fn numbered(mut self, number: u32) -> Self {
        self.counters = Counters::new(number);
        self
    }

    /// Lets the load begin at a time, ps.
    #[must_use]
    pub fn beginning(mut self, ps: u64) -> Self {
        self.progress.begin(ps);
        self
    }

    /// Adds a first-level TLB for 4 KiB pages, for a VM whose 2 MiB pages can be split.
    #[must_use]
    pub fn with_small_pages(mut self, costs: &Costs, scale: u64) -> Self {
        self.mmu.add_small_pages(costs, scale);
        self
    }

    /// The progress of the vCPU with its load.
    #[must_use]
    pub fn progress(&self) -> &Progress {
        &self.progress
    }

    /// The progress of the vCPU with its load, to end it.
    pub fn progress_mut(&mut self) -> &mut Progress {
        &mut self.progress
    }

    /// Whether the load has not ended.
    #[must_use]
    #[inline]
    pub fn is_running(&self) -> bool {
        self.progress.ended().is_none()
    }

    /// The vCPU's MMU: its translations, and its log of dirty pages.
    pub fn mmu(&mut self) -> &mut Mmu {
        &mut self.mmu
    }

    /// Runs until the end of the quantum or of the load.
    pub fn run(&mut self, space: &mut Space, env: &Environment, faults: &mut impl Faults) {
        self.follow_pace(env);
        if env.now_ns >= self.flush_at {
            self.flush_at = env.now_ns + env.costs.flush_every_ns;
            self.mmu.flush();
            // The kernel empties the buffer of samples when it switches processes.
            self.counters.empty(space);
        }
        self.mmu.follow_reclaim(space);
        self.counters.follow(space.sampling.pmu());
        let batch = match space.is_plain() {
            true => Self::run_batch::<true, _>,
            false => Self::run_batch::<false, _>,
        };
        while self.progress.clock() < env.end_ps && self.is_running() {
            if self.stream.is_empty() && !self.refill(space, env) {
                self.progress.end();
                return;
            }
            // Otherwise another vCPU is still in the program before.
            let goes_on = self.program == space.guest.ended_programs();
            if !goes_on || !batch(self, space, env, faults) {
                self.progress.wait(env.end_ps);
                return;
            }
        }
    }

    /// Makes accesses of the batch until none is left, or the time or the load is over. Returns false if a page must be
    /// waited for, which comes back at some time of a later quantum.
    ///
    /// `PLAIN` is [`Space::is_plain`]: known in advance, the parts of the machine that few runs have cost the others
    /// nothing.
    fn run_batch<const PLAIN: bool, F: Faults>(
        &mut self,
        space: &mut Space,
        env: &Environment,
        faults: &mut F,
    ) -> bool {
        while !self.stream.is_empty() && self.progress.clock() < env.end_ps && self.is_running() {
            if !self.step::<PLAIN>(space, env, faults) {
                return false;
            }
        }
        true
    }

    /// Makes one access; returns whether it was made.
    #[inline(always)]
    fn step<const PLAIN: bool>(
        &mut self,
        space: &mut Space,
        env: &Environment,
        faults: &mut impl Faults,
    ) -> bool {
        let access = self.stream.front();
        let page = low(access.page());
        let write = access.is_write();
        let found = self.mmu.translate::<PLAIN>(space, env, faults, page, write);
        let Some((tier, ps)) = found else {
            if !self.waiting {
                space.counts.exits += u64::from(!faults.moves_in_guest());
                self.waiting = true;
            }
            return false;
        };
        self.waiting = false;
        self.progress.advance(self.prices.compute + ps);
        let hit = self.pace.before_cache && self.hits_cache(space, env, access, tier);
        let tier = match hit {
            true => tier,
            false => self.access_memory::<PLAIN>(space, env, access, tier),
        };
        // The counters' event of loads is a miss of the last-level cache; that of stores is any store.
        if self.counters.count(access.loads() & !hit, write) {
            self.record(space, env, page, tier);
        }
        self.stream.advance();
        self.progress.made(access.ends_operation());
        true
    }

    /// Makes an access that reaches memory; returns the tier that served it.
    #[inline(always)]
    fn access_memory<const PLAIN: bool>(
        &mut self,
        space: &mut Space,
        env: &Environment,
        access: Access,
        tier: usize,
    ) -> usize {
        if !PLAIN && space.caches.memory_mode.is_some() {
            return self.access_through_dram(space, env, access);
        }
        let write = access.is_write();
        let waited = self.prices.access(tier, write);
        self.progress.advance(waited);
        if let Some(profile) = &mut space.profile
            && !PLAIN
        {
            profile.access(env, access, tier, waited);
        }
        let medium = self
            .last_lines
            .take(access, tier, env.line[tier], env.rewrite[tier]);
        space.count(tier, low(access.page()), write, medium);
        tier
    }

    /// Makes an access of a page of `tier`, if the last-level cache has its line; returns whether it does.
    #[inline(always)]
    fn hits_cache(
        &mut self,
        space: &mut Space,
        env: &Environment,
        access: Access,
        tier: usize,
    ) -> bool {
        let Some(cache) = &mut space.caches.last_level else {
            return false;
        };
        let Touched::Hit { dirtied } = cache.touch(access) else {
            space.counts.cache_misses += 1;
            return false;
        };
        self.progress.advance(self.prices.cached);
        space.counts.cache_hits += 1;
        if dirtied {
            self.write_back(space, env, access, tier);
        }
        true
    }

    /// Charges the way back of a line that became dirty in the cache. It goes when the line is evicted; that is not
    /// waited for.
    #[inline(never)]
    fn write_back(&mut self, space: &mut Space, env: &Environment, access: Access, tier: usize) {
        if space.caches.memory_mode.is_some() {
            let frame = space.guest.first_data() + low(access.page());
            space.traffic[0].written +=
                self.last_lines
                    .write_back(access, 0, env.line[0], env.rewrite[0]);
            space.through_dram(env, frame, access.line(), true);
            return;
        }
        if let Some(profile) = &mut space.profile {
            profile.write_back(env, access);
        }
        let bytes = self
            .last_lines
            .write_back(access, tier, env.line[tier], env.rewrite[tier]);
        space.traffic[tier].written += bytes;
        space.counts.written_bytes[tier] += bytes;
    }

    /// Records an access as a load or as a store, or as both.
    #[cold]
    fn record(&mut self, space: &mut Space, env: &Environment, page: u32, tier: usize) {
        for write in [false, true] {
            if self.counters.ran_out(write) {
                let ps = self.counters.record(space, env, page, write, tier);
                self.progress.advance(ps);
            }
        }
    }

    /// Makes one access under memory mode; returns the tier that served it.
    #[cold]
    fn access_through_dram(
        &mut self,
        space: &mut Space,
        env: &Environment,
        access: Access,
    ) -> usize {
        let (page, write) = (low(access.page()), access.is_write());
        let dram = self.last_lines.take(access, 0, env.line[0], env.rewrite[0]);
        space.traffic[0].read += dram.read;
        space.traffic[0].written += dram.written;
        // Pages do not change frames: neither swap nor a balloon goes with memory mode.
        let frame = space.guest.first_data() + page;
        let touched = space.through_dram(env, frame, access.line(), write);
        let missed = touched.filter(|touched| !touched.hit);
        let longer = missed.map_or(0, |t| {
            t.longer(self.prices.memory[0][1], self.prices.memory[1][1])
        });
        self.progress.advance(self.prices.access(0, write) + longer);
        let tier = usize::from(missed.is_some());
        space.count(tier, page, write, Traffic::default());
        tier
    }

    /// Takes the next accesses from the load; returns whether there are any.
    fn refill(&mut self, space: &Space, env: &Environment) -> bool {
        self.stream.refill(env.now_ns);
        self.program = self.stream.program();
        if self.stream.pace() != self.pace {
            self.follow_pace(env);
        }
        if space.guest.pages() > READ_AHEAD_PAGES {
            space.read_ahead(self.stream.at_hand());
        }
        if let Some(cache) = &space.caches.last_level
            && self.pace.before_cache
            && cache.reads_ahead()
        {
            let read = |sum, access: &Access| sum ^ cache.peek(*access);
            std::hint::black_box(self.stream.at_hand().iter().fold(0, read));
        }
        !self.stream.is_empty()
    }

    /// Follows the pace of the batch's accesses, and the machine's latencies.
    fn follow_pace(&mut self, env: &Environment) {
        self.pace = self.stream.pace();
        self.prices = Prices::of(self.pace, env);
        let walks = whole(self.pace.parallelism);
        self.mmu.overlap_walks(walks, &env.costs);
    }

    /// Interrupts the vCPU for so many ps, unless its load has ended.
    pub fn interrupt(&mut self, ps: u64) {
        if self.is_running() {
            self.progress.advance(ps);
        }
    }

    /// Number of programs that ended before the one that the vCPU is in; `None` after the load's end.
    #[must_use]
    pub fn program(&self) -> Option<u64> {
        self.is_running().then_some(self.program)
    }

    /// Time of the processor per access of the batch, ps.
    #[must_use]
    pub fn compute_ps(&self) -> u64 {
        self.prices.compute
    }

    /// The accesses left in the batch, and whether they come before the last-level cache.
    #[must_use]
    pub fn at_hand(&self) -> (&[Access], bool) {
        (self.stream.at_hand(), self.stream.pace().before_cache)
    }

    /// A copy of the source of the accesses after those.
    #[must_use]
    pub fn fork_source(&self) -> Box<dyn Source> {
        self.stream.fork_source()
    }

    /// Bytes on the heap.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        self.mmu.heap_bytes()
    }
}
