//! Permissions of the second stage's level 2 entries, one per 2 MiB of guest memory whatever the page size: an access
//! to a block whose permission was taken away exits to the host, which gives it back.

use terrace_proto::PageBitmap;

use super::PS;
use super::costs::Costs;
use super::space::Counts;

/// The permissions of one VM, if somebody watches it by protection faults.
#[derive(Clone, Debug)]
pub struct Permissions {
    /// Blocks whose permission was taken away.
    denied: PageBitmap,
    /// First block of the load's memory: tables lie before it, and are never protected.
    first_data: u32,
    /// Blocks that faulted since they were last taken, in order.
    faulted: Vec<u32>,
    /// Number of faults so far.
    faults: u64,
    /// Time of vCPUs in these faults so far, ps.
    spent: u64,
    /// Simulated accesses, and loads and stores of the program, so far.
    made: (u64, u64),
}

impl Permissions {
    /// All permissions are there. Guest frames below `first_data` hold tables.
    #[must_use]
    pub fn new(frames: u64, first_data: u32) -> Self {
        Self {
            denied: PageBitmap::new(frames.div_ceil(512)),
            first_data: first_data >> 9,
            faulted: Vec::new(),
            faults: 0,
            spent: 0,
            made: (0, 0),
        }
    }

    /// Takes a block's permission away; returns whether it had one. Translations of the block must be flushed.
    pub fn deny(&mut self, block: u32) -> bool {
        let at = u64::from(block);
        let takes = block >= self.first_data && at < self.denied.pages() && !self.denied.get(at);
        if takes {
            self.denied.set(at);
        }
        takes
    }

    /// Gives all permissions back.
    pub fn permit_all(&mut self) {
        self.denied.clear();
    }

    /// Gives a block's permission back.
    #[cfg(test)]
    pub(crate) fn permit(&mut self, block: u32) {
        self.denied.put(u64::from(block), false);
    }

    /// Answers an access by a walk to a frame; returns the time that the vCPU waits, ps.
    #[inline]
    pub(super) fn access(&mut self, counts: &mut Counts, costs: &Costs, frame: u32) -> u64 {
        let block = frame >> 9;
        if !self.denied.get(u64::from(block)) {
            return 0;
        }
        self.denied.put(u64::from(block), false);
        self.faulted.push(block);
        self.faults += 1;
        counts.exits += 1;
        let ps = costs.second_stage_fault + costs.sample_work;
        self.spent += ps;
        ps
    }

    /// Takes the blocks that faulted since the last call, in order.
    pub fn take_faulted(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.faulted)
    }

    /// Adds time of vCPUs that taking permissions away cost, ps.
    pub fn spend(&mut self, ps: u64) {
        self.spent += ps;
    }

    /// Takes in the number of simulated accesses so far, of which those since the last call took the processor so many ps
    /// each: meanwhile the program made loads and stores that no simulated cache or memory sees.
    pub fn follow(&mut self, accesses: u64, compute_ps: u64, costs: &Costs) {
        let news = accesses.saturating_sub(self.made.0);
        let unseen = u128::from(news) * u128::from(compute_ps * costs.instructions_per_us);
        let unseen = unseen / u128::from(1000 * PS);
        self.made = (
            accesses,
            self.made.1 + news + u64::try_from(unseen).unwrap_or(0),
        );
    }

    /// Loads and stores of the program so far, as HPMBS counts them by the processor's counters.
    #[must_use]
    pub fn instructions(&self) -> u64 {
        self.made.1
    }

    /// Number of faults so far.
    #[must_use]
    pub fn faults(&self) -> u64 {
        self.faults
    }

    /// Time of vCPUs in faults and flushes so far, ps.
    #[must_use]
    pub fn spent(&self) -> u64 {
        self.spent
    }

    /// Bytes on the heap.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        self.denied.heap_bytes() + self.faulted.capacity() * size_of::<u32>()
    }
}
