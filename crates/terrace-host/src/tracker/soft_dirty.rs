//! Writes, once a round, from the soft-dirty bits of the hypervisor's page tables.
//!
//! The bits are exact, but clearing them write-protects all of the process's memory at once, under a lock
//! that its virtual CPUs need to take faults, and huge pages are not formed again meanwhile. So they are
//! cleared once a round, only where that fits a pause budget, and not where the VM is backed by huge pages.
//! Otherwise there are reads only, and [`SoftDirty::words`] says why.

use std::sync::Arc;
use std::time::{Duration, Instant};

use terrace_proto::{PAGE_SIZE, PageBitmap, ScanAnswer};
use terrace_sys::{Pagemap, Process, clear_soft_dirty, soft_dirty_supported};

use crate::HostRoot;
use crate::memory_map::GuestMemory;

/// What clearing one page is taken to cost before it was measured: 58 ms for 256 MiB.
const NS_PER_PAGE: u64 = 58_000_000 / (256 << 20 >> 12);

/// One VM's soft-dirty bits.
#[derive(Debug)]
pub struct SoftDirty {
    root: HostRoot,
    process: Arc<Process>,
    memory: Arc<GuestMemory>,
    budget: Duration,
    /// Windows of a round: the last one's answer tells writes.
    windows: u8,
    /// Windows since the clearing pass; `None` where the bits were not cleared.
    window: Option<u8>,
    ns_per_page: u64,
    words: String,
}

impl SoftDirty {
    /// A source of writes for rounds of so many windows; clearing may pause the VM for `budget`.
    #[must_use]
    pub fn new(
        root: HostRoot,
        process: Arc<Process>,
        memory: Arc<GuestMemory>,
        budget: Duration,
        windows: u8,
    ) -> Self {
        Self {
            root,
            process,
            memory,
            budget,
            windows,
            window: None,
            ns_per_page: NS_PER_PAGE,
            words: "soft-dirty, from the next round on".into(),
        }
    }

    /// What it does, for people.
    #[must_use]
    pub fn words(&self) -> &str {
        &self.words
    }

    /// Follows the round by its passes: clears after the clearing pass, and adds the writes to the answer
    /// of the last window.
    pub fn follow(&mut self, clearing: bool, answer: &mut ScanAnswer) {
        if clearing {
            self.window = None;
            self.words = match self.clear() {
                Ok(elapsed) => {
                    self.window = Some(0);
                    format!(
                        "soft-dirty once a round (a pause of {} ms, budget {} ms)",
                        elapsed.as_millis(),
                        self.budget.as_millis()
                    )
                }
                Err(why) => format!("reads only ({why})"),
            };
            return;
        }
        let Some(window) = &mut self.window else {
            return;
        };
        *window = window.saturating_add(1);
        if *window == self.windows {
            match self.written() {
                Ok(written) => answer.written = Some(written),
                Err(why) => self.words = format!("reads only ({why})"),
            }
        }
    }

    /// Clears the bits where that may be; says how long it took.
    fn clear(&mut self) -> Result<Duration, String> {
        if !soft_dirty_supported() {
            return Err("the kernel has no soft-dirty bits: CONFIG_MEM_SOFT_DIRTY".into());
        }
        let pid = self.process.pid();
        let resident = self.resident()?;
        affordable(resident, self.ns_per_page, self.budget)?;
        self.not_huge()?;
        let begin = Instant::now();
        clear_soft_dirty(&self.root.process(pid, "clear_refs")).map_err(|e| e.to_string())?;
        let elapsed = begin.elapsed();
        let ns = u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX);
        self.ns_per_page = ns.div_ceil(resident.max(1));
        Ok(elapsed)
    }

    /// Resident pages of the process.
    fn resident(&self) -> Result<u64, String> {
        let path = format!("proc/{}/statm", self.process.pid());
        let text = self.root.read(&path).map_err(|e| e.to_string())?;
        let pages = text.split_whitespace().nth(1).and_then(|n| n.parse().ok());
        pages.ok_or_else(|| format!("{path} makes no sense"))
    }

    fn not_huge(&self) -> Result<(), String> {
        let map = self.pagemap()?;
        if !map.sees_huge_pages() {
            return Err("the kernel does not tell huge pages apart: run Linux 6.7 or later".into());
        }
        for range in self.memory.ranges() {
            let runs = map.present(range.hva.0, range.hva.0 + range.len);
            if runs.map_err(|e| e.to_string())?.iter().any(|run| run.huge) {
                return Err(
                    "huge pages back the VM, and soft-dirty keeps new ones from forming".into(),
                );
            }
        }
        Ok(())
    }

    fn pagemap(&self) -> Result<Pagemap, String> {
        let path = self.root.process(self.process.pid(), "pagemap");
        Pagemap::open(&path).map_err(|e| e.to_string())
    }

    fn written(&self) -> Result<PageBitmap, String> {
        let map = self.pagemap()?;
        let mut written = PageBitmap::new(self.memory.span_pages());
        for range in self.memory.ranges() {
            let runs = map.soft_dirty(range.hva.0, range.hva.0 + range.len);
            for run in runs.map_err(|e| e.to_string())? {
                let first = range.gpa.gfn().0 + (run.start - range.hva.0) / PAGE_SIZE;
                written.set_range(first, (run.end - run.start) / PAGE_SIZE);
            }
        }
        Ok(written)
    }
}

/// Whether clearing so many pages fits the budget, by what one took or is taken to take.
fn affordable(pages: u64, ns_per_page: u64, budget: Duration) -> Result<(), String> {
    let pause = Duration::from_nanos(pages.saturating_mul(ns_per_page));
    if pause <= budget {
        return Ok(());
    }
    Err(format!(
        "soft-dirty would take ~{} ms of pause, budget {} ms",
        pause.as_millis(),
        budget.as_millis()
    ))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use terrace_proto::{Gpa, Hva, RequestId, ScanStats, Space, VmId};
    use terrace_sys::SharedMapping;

    use super::*;
    use crate::memory_map::Range;

    #[test]
    fn a_pause_above_the_budget_is_refused_with_both_figures() {
        let budget = Duration::from_millis(20);
        let pages_of_mib = |mib: u64| mib << 8;
        assert!(affordable(pages_of_mib(64), NS_PER_PAGE, budget).is_ok());
        let why = affordable(pages_of_mib(256), NS_PER_PAGE, budget).unwrap_err();
        assert_eq!(why, "soft-dirty would take ~57 ms of pause, budget 20 ms");
        // A host that was measured to be faster affords more.
        assert!(affordable(pages_of_mib(4096), 10, budget).is_ok());
        assert!(affordable(u64::MAX, u64::MAX, budget).is_err());
    }

    fn answer() -> ScanAnswer {
        ScanAnswer {
            id: RequestId(1),
            space: Space::Guest(VmId(1)),
            known: PageBitmap::new(68),
            accessed: PageBitmap::new(68),
            written: None,
            huge_leaf: PageBitmap::new(1),
            stats: ScanStats::default(),
        }
    }

    /// A source over 64 pages of this very process, at guest page 4.
    fn source(map: &SharedMapping, budget: Duration) -> SoftDirty {
        let root = HostRoot::default();
        let memory = GuestMemory::of_ranges(vec![Range {
            gpa: Gpa(4 * PAGE_SIZE),
            len: 64 * PAGE_SIZE,
            hva: Hva(map.as_ptr() as u64),
            file_index: 0,
            file_offset: 0,
        }]);
        let process = Process::open(&root.proc(), std::process::id()).unwrap();
        SoftDirty::new(root, Arc::new(process), Arc::new(memory), budget, 2)
    }

    fn ram() -> SharedMapping {
        let file = tempfile::tempfile_in("/dev/shm").unwrap();
        file.set_len(64 * PAGE_SIZE).unwrap();
        let map = SharedMapping::new(file.as_fd(), 0, 64 * 4096).unwrap();
        (0..64).for_each(|page| write(&map, page));
        map
    }

    fn write(map: &SharedMapping, page: usize) {
        // SAFETY: inside of the mapping.
        unsafe { map.as_ptr().add(page * 4096).write_volatile(1) };
    }

    #[test]
    fn the_last_windows_answer_tells_the_rounds_writes() {
        let map = ram();
        let mut source = source(&map, Duration::from_secs(3600));
        let mut answers = [answer(), answer(), answer(), answer()];
        source.follow(true, &mut answers[0]);
        if !soft_dirty_supported() {
            assert!(source.words().contains("CONFIG_MEM_SOFT_DIRTY"));
            return;
        }
        assert!(
            source.words().contains("once a round"),
            "{}",
            source.words()
        );
        write(&map, 7);
        source.follow(false, &mut answers[1]);
        write(&map, 63);
        source.follow(false, &mut answers[2]);
        source.follow(false, &mut answers[3]);
        let told: Vec<_> = answers.map(|a| a.written).into();
        let [None, None, Some(written), None] = &told[..] else {
            panic!("{told:?}");
        };
        assert_eq!(written.iter().collect::<Vec<_>>(), [11, 67]);
    }

    #[test]
    fn without_a_budget_nothing_is_cleared_and_reads_are_all_there_is() {
        let map = ram();
        let mut source = source(&map, Duration::ZERO);
        for clearing in [true, false, false] {
            let mut answer = answer();
            source.follow(clearing, &mut answer);
            assert_eq!(answer.written, None);
        }
        assert!(
            source.words().starts_with("reads only ("),
            "{}",
            source.words()
        );
    }
}
