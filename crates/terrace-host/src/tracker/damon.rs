//! DAMON: regions of the hypervisor's memory from the host's side, for VMs that cannot be scanned.
//!
//! The host's kernel samples one page of each region and takes the region to be like it, so this is exact
//! for heat that lies together and blind to heat that is scattered. A region counts as accessed if any
//! sample of the interval before the answer found it so: how hot it is shows in the number of windows.
//!
//! Every page of RAM is known, whether a user table of the guest maps it or not. Nothing is re-armed page
//! by page: DAMON clears what it samples itself, so each window is judged afresh.

use std::sync::Arc;

use terrace_proto::{
    Gfn, PAGE_SIZE, PAGES_PER_HUGE, PageBitmap, ScanAnswer, ScanFailure, ScanRequest, ScanStats,
};
use terrace_sys::{
    Damon, DamonAttrs, DamonError, DamonRegion, Kdamond, MonotonicClock, Process, thread_cpu_time,
};

use crate::memory_map::GuestMemory;

/// DAMON's own defaults: 20 samples make an interval. An answer takes one interval or two, which has to
/// fit into a window.
const ATTRS: DamonAttrs = DamonAttrs {
    sample_us: 5_000,
    aggregation_us: 100_000,
    min_regions: 10,
    max_regions: 1_000,
};

/// One VM's regions.
#[derive(Debug)]
pub struct DamonRegions {
    host: Arc<Damon>,
    process: Arc<Process>,
    memory: Arc<GuestMemory>,
    kdamond: Option<Kdamond>,
}

impl DamonRegions {
    /// Starts to watch. A kdamond that was stopped by another program is started again by the next pass.
    ///
    /// # Errors
    /// If DAMON cannot watch it.
    pub fn attach(
        host: Arc<Damon>,
        process: Arc<Process>,
        memory: Arc<GuestMemory>,
    ) -> Result<Self, DamonError> {
        let mut regions = Self {
            host,
            process,
            memory,
            kdamond: None,
        };
        regions.kdamond = Some(regions.start()?);
        Ok(regions)
    }

    fn start(&self) -> Result<Kdamond, DamonError> {
        let ranges = address_ranges(&self.memory);
        self.host.start(&self.process, &ranges, ATTRS)
    }

    /// The recent accesses. A clearing pass has nothing to clear and reports none.
    ///
    /// # Errors
    /// If DAMON does not answer; fatal if the VM has ended.
    pub fn scan(&mut self, request: &ScanRequest) -> Result<ScanAnswer, ScanFailure> {
        let (clock, cpu) = (MonotonicClock::start(), thread_cpu_time());
        let regions = self
            .regions(request.discover)
            .map_err(|error| ScanFailure {
                id: request.id,
                vm: request.space.vm(),
                reason: format!("DAMON: {error}"),
                fatal: !self.process.is_alive(),
            })?;
        let mut answer = answer(request, &self.memory, &regions);
        answer.stats.elapsed_ns = clock.now().0;
        let cpu = thread_cpu_time().saturating_sub(cpu);
        answer.stats.cpu_ns = u64::try_from(cpu.as_nanos()).unwrap_or(u64::MAX);
        Ok(answer)
    }

    fn regions(&mut self, clearing: bool) -> Result<Vec<DamonRegion>, DamonError> {
        let kdamond = match self.kdamond.take() {
            Some(kdamond) => kdamond,
            None => self.start()?,
        };
        let regions = if clearing {
            Ok(Vec::new())
        } else {
            kdamond.accessed()
        };
        // A kernel that is busy reports nothing about the kdamond, and would not let it be stopped either.
        if matches!(regions, Ok(_) | Err(DamonError::Busy(_))) {
            self.kdamond = Some(kdamond);
        }
        regions
    }
}

/// The RAM's addresses, ascending; runs that touch are one.
fn address_ranges(memory: &GuestMemory) -> Vec<(u64, u64)> {
    let ranges = memory.ranges().iter();
    let mut ranges: Vec<_> = ranges.map(|r| (r.hva.0, r.hva.0 + r.len)).collect();
    ranges.sort_unstable();
    ranges.dedup_by(|next, last| {
        let touch = next.0 == last.1;
        if touch {
            last.1 = next.1;
        }
        touch
    });
    ranges
}

fn answer(request: &ScanRequest, memory: &GuestMemory, regions: &[DamonRegion]) -> ScanAnswer {
    let span = memory.span_pages();
    let (mut known, mut accessed) = (PageBitmap::new(span), PageBitmap::new(span));
    for run in memory.ranges() {
        let Gfn(first) = run.gpa.gfn();
        known.set_range(first, run.len / PAGE_SIZE);
        for region in regions.iter().filter(|region| region.nr_accesses > 0) {
            let start = region.start.max(run.hva.0);
            let end = region.end.min(run.hva.0 + run.len);
            if start < end {
                let page = (start - run.hva.0) / PAGE_SIZE;
                let behind = (end - run.hva.0).div_ceil(PAGE_SIZE);
                accessed.set_range(first + page, behind - page);
            }
        }
    }
    ScanAnswer {
        id: request.id,
        space: request.space,
        stats: ScanStats {
            leaves: known.count(),
            accessed: accessed.count(),
            ..ScanStats::default()
        },
        known,
        accessed,
        written: None,
        // A region says nothing about a page of it.
        huge_leaf: PageBitmap::full(span.div_ceil(PAGES_PER_HUGE)),
    }
}

#[cfg(test)]
mod tests {
    use terrace_proto::{Gpa, Hva, Rearm, RequestId, Space, VmId};

    use super::*;
    use crate::memory_map::Range;

    /// Guest pages 0-3 and 16-19, the first run above the second in host memory, the third beside it.
    fn memory() -> GuestMemory {
        let run = |page: u64, hva: u64| Range {
            gpa: Gpa(page * PAGE_SIZE),
            len: 4 * PAGE_SIZE,
            hva: Hva(hva),
            file_index: 0,
            file_offset: 0,
            shared: true,
        };
        GuestMemory::of_ranges(vec![run(0, 0x8_0000), run(16, 0x1_0000), run(24, 0x1_4000)])
    }

    #[test]
    fn addresses_are_ascending_and_joined() {
        let want = [(0x1_0000, 0x1_8000), (0x8_0000, 0x8_4000)];
        assert_eq!(address_ranges(&memory()), want);
    }

    #[test]
    fn accessed_regions_become_pages_and_all_ram_is_known() {
        let request = ScanRequest {
            id: RequestId(3),
            space: Space::Guest(VmId(1)),
            rearm: Rearm::All,
            prune: true,
            discover: false,
        };
        let region = |start, end, nr_accesses| DamonRegion {
            start,
            end,
            nr_accesses,
        };
        let regions = [
            // Over the end of a run into the next, beyond RAM, and one that no sample found accessed.
            region(0x1_3000, 0x1_5000, 20),
            region(0x8_3000, 0x9_0000, 1),
            region(0x8_0000, 0x8_1000, 0),
            region(0x2_0000, 0x3_0000, 9),
        ];
        let answer = answer(&request, &memory(), &regions);
        assert_eq!(answer.accessed.iter().collect::<Vec<_>>(), [3, 19, 24]);
        let known: Vec<_> = answer.known.iter().collect();
        assert_eq!(
            known,
            (0..4).chain(16..20).chain(24..28).collect::<Vec<_>>()
        );
        assert_eq!(answer.known.pages(), 28);
        assert_eq!((answer.stats.leaves, answer.stats.accessed), (12, 3));
        assert_eq!((answer.id, answer.written), (RequestId(3), None));
    }
}
