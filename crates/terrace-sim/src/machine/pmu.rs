//! Samples of the processor's counters (PEBS): a record for every n-th load or store.
//!
//! Loads count if they miss the last-level cache, whichever tier serves them (`MEM_LOAD_L3_MISS_RETIRED`); stores count
//! whether they miss it or not (`MEM_INST_RETIRED.ALL_STORES`). A vCPU's records are seen when its buffer is full, which
//! interrupts it, or when it changes its address space. The counters of each vCPU begin at a different point of the
//! period: otherwise vCPUs that sweep the same memory in lockstep would all sample the same pages.

use super::space::Space;
use super::vcpu::Environment;

/// The configuration of a PMU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pmu {
    /// Loads per sample, of the full-size machine; 0: none are sampled.
    pub load_period: u64,
    /// Stores per sample, of the full-size machine; 0: none are sampled.
    pub store_period: u64,
    /// Records that a vCPU's buffer takes before it interrupts.
    pub buffer: usize,
    /// Divisor of the periods, and of the cost of a record and of an interrupt. 1 if samples are counted per page: a
    /// page has as many accesses at any scale. The scale if they are counted per range, because ranges are smaller by
    /// the scale.
    pub divisor: u64,
}

impl Pmu {
    /// Loads and stores per sample as simulated. A divided period is made odd, so that it never keeps step with the
    /// lines of a page or with sizes, which are powers of two.
    #[must_use]
    pub fn periods(&self) -> [u64; 2] {
        [self.load_period, self.store_period].map(|period| match (period, self.divisor) {
            (0, _) | (_, 1) => period,
            (period, divisor) => (period / divisor) | 1,
        })
    }
}

/// A sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// The load's 4 KiB page.
    pub page: u32,
    /// Whether it is a store.
    pub write: bool,
    /// The tier that served it or, of a store to a cached line, that its page is in.
    pub tier: u8,
}

/// The sampling of a VM: its configuration, and the samples that full buffers of its vCPUs gave.
#[derive(Clone, Debug, Default)]
pub struct Sampling {
    pmu: Option<Pmu>,
    samples: Vec<Sample>,
}

impl Sampling {
    /// The configuration; `None` if nothing is sampled.
    #[must_use]
    pub fn pmu(&self) -> Option<Pmu> {
        self.pmu
    }

    /// Sets the configuration; `None`: nothing is sampled from now on.
    pub fn follow(&mut self, pmu: Option<Pmu>) {
        self.pmu = pmu;
    }

    /// The samples that buffers gave so far.
    #[cfg(test)]
    pub(super) fn samples(&self) -> &[Sample] {
        &self.samples
    }

    /// Takes out the samples that buffers gave so far.
    pub fn take(&mut self) -> Vec<Sample> {
        std::mem::take(&mut self.samples)
    }

    /// Gives back the memory of samples that were taken out, if no others came meanwhile.
    pub fn reuse(&mut self, mut samples: Vec<Sample>) {
        samples.clear();
        self.samples = samples;
    }

    /// Bytes on the heap.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        self.samples.capacity() * size_of::<Sample>()
    }
}

/// The counters of one vCPU, and its buffer of records.
#[derive(Clone, Debug)]
pub struct Counters {
    /// The vCPU's number within its VM: no two vCPUs' counters run out together.
    number: u32,
    /// Loads and stores until the next sample.
    left: [u64; 2],
    /// Periods of loads and stores that are in force; 0: nothing is sampled.
    periods: [u64; 2],
    /// Samples in the buffer.
    buffer: Vec<Sample>,
    /// Full buffers so far.
    full_buffers: u64,
}

impl Counters {
    /// Counters that sample nothing yet.
    #[must_use]
    pub fn new(number: u32) -> Self {
        Self {
            number,
            left: [u64::MAX; 2],
            periods: [0; 2],
            buffer: Vec::new(),
            full_buffers: 0,
        }
    }

    /// Advances the counters of loads and of stores, each by one or not; returns whether one ran out, which asks for a
    /// record.
    #[inline]
    pub(super) fn count(&mut self, loads: bool, stores: bool) -> bool {
        self.left[0] -= u64::from(loads);
        self.left[1] -= u64::from(stores);
        self.ran_out(false) || self.ran_out(true)
    }

    /// Whether the counter of loads or that of stores ran out: it is at 0 until its record is written.
    #[inline]
    pub(super) fn ran_out(&self, write: bool) -> bool {
        self.left[usize::from(write)] == 0
    }

    /// Restarts a counter that ran out and writes a record; returns the time that this takes, ps.
    pub(super) fn record(
        &mut self,
        space: &mut Space,
        env: &Environment,
        page: u32,
        write: bool,
        tier: usize,
    ) -> u64 {
        let of = usize::from(write);
        self.left[of] = self.periods[of];
        let Some(pmu) = space.sampling.pmu else {
            return 0;
        };
        let tier = u8::try_from(tier).unwrap_or(0);
        self.buffer.push(Sample { page, write, tier });
        let mut ps = env.costs.sample / pmu.divisor;
        if self.buffer.len() >= pmu.buffer {
            ps += env.costs.sample_interrupt / pmu.divisor;
            self.full_buffers += 1;
            // With a divided period there are so many more of them than accesses are simulated.
            if self.full_buffers.is_multiple_of(pmu.divisor) {
                space.counts.exits += 1;
            }
            self.empty(space);
        }
        ps
    }

    /// Hands the buffer's records over to the VM's samples.
    pub(super) fn empty(&mut self, space: &mut Space) {
        space.sampling.samples.append(&mut self.buffer);
    }

    /// Follows the VM's configuration of sampling.
    pub(super) fn follow(&mut self, pmu: Option<Pmu>) {
        let wanted = pmu.map_or([0, 0], |pmu| pmu.periods());
        if self.periods == wanted {
            return;
        }
        self.periods = wanted;
        // Fractions of the golden ratio: any number of vCPUs is spread evenly over the period. Half of it
        // lies between the two counters, or of updates both would take the same ones.
        let part = self.number.wrapping_mul(0x9e37_79b9);
        let parts = [part, part.wrapping_add(1 << 31)];
        for ((left, period), part) in self.left.iter_mut().zip(wanted).zip(parts) {
            let phase = place_in(period, u64::from(part));
            *left = if period == 0 {
                u64::MAX
            } else {
                period - phase
            };
        }
    }
}

/// A fraction of a period: `part` of 2^32.
fn place_in(period: u64, part: u64) -> u64 {
    let place = (u128::from(period) * u128::from(part)) >> 32;
    u64::try_from(place).unwrap_or(0)
}
