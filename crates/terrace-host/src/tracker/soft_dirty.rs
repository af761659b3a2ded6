//! Writes, once a round, from the soft-dirty bits of the hypervisor's page tables.
//!
//! The bits are exact, but clearing them write-protects all of the process's memory at once, under a lock that its
//! virtual CPUs need to take faults, and huge pages are not formed again meanwhile. So they are cleared once a round,
//! only if that fits a pause budget, and not if the VM is backed by huge pages. Otherwise there are reads only, and
//! [`SoftDirty::text`] holds the reason.

use std::sync::Arc;
use std::time::{Duration, Instant};

use terrace_proto::{Gfn, PAGE_SIZE, PageBitmap, ScanAnswer};
use terrace_sys::{Pagemap, Process, clear_soft_dirty, soft_dirty_supported};

use crate::HostRoot;
use crate::memory_map::GuestMemory;

/// The assumed cost of clearing one page before it was measured: 58 ms for 256 MiB.
const NS_PER_PAGE: u64 = 58_000_000 / (256 << 20 >> 12);
/// Pages asked about at once: every second one written makes a run of 24 bytes for each two.
const CHUNK_PAGES: u64 = 1 << 20;

/// One VM's soft-dirty bits.
#[derive(Debug)]
pub struct SoftDirty {
    root: HostRoot,
    process: Arc<Process>,
    memory: Arc<GuestMemory>,
    budget: Duration,
    /// Windows of a round: the last one's answer reports writes.
    windows: u8,
    /// Windows since the clearing pass; `None` if the bits were not cleared.
    window: Option<u8>,
    cost: Cost,
    text: String,
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
            cost: Cost::default(),
            text: "soft-dirty, from the next round on".into(),
        }
    }

    /// The state in words, for people.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Follows the round by its passes: clears after the clearing pass, and adds the writes to the answer
    /// of the last window.
    pub fn follow(&mut self, clearing: bool, answer: &mut ScanAnswer) {
        if clearing {
            self.window = None;
            self.text = match self.clear() {
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
                Err(why) => self.text = format!("reads only ({why})"),
            }
        }
    }

    /// Clears the bits if that may be done, and returns how long it took.
    fn clear(&mut self) -> Result<Duration, String> {
        if !soft_dirty_supported() {
            return Err("the kernel has no soft-dirty bits: CONFIG_MEM_SOFT_DIRTY".into());
        }
        let pid = self.process.pid();
        let resident = self.resident()?;
        self.cost.allow(resident, self.budget)?;
        self.not_huge()?;
        let begin = Instant::now();
        let clear_refs = self.root.process(pid, "clear_refs");
        clear_soft_dirty(&clear_refs, &self.process).map_err(|e| e.to_string())?;
        let elapsed = begin.elapsed();
        self.cost.measured(resident, elapsed);
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
            return Err(
                "the kernel does not distinguish huge pages: run Linux 6.7 or later".into(),
            );
        }
        for chunk in chunks(&self.memory) {
            let runs = map.present(chunk.start, chunk.end);
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
        let map = Pagemap::open(&path).map_err(|e| e.to_string())?;
        // The open file stays with the task that had the number, which is the VM's if it runs now.
        if !self.process.is_alive() {
            return Err(format!("process {} has ended", self.process.pid()));
        }
        Ok(map)
    }

    fn written(&self) -> Result<PageBitmap, String> {
        let map = self.pagemap()?;
        let mut written = PageBitmap::new(self.memory.span_pages());
        for chunk in chunks(&self.memory) {
            let runs = map.soft_dirty(chunk.start, chunk.end);
            for run in runs.map_err(|e| e.to_string())? {
                let first = chunk.first.0 + (run.start - chunk.start) / PAGE_SIZE;
                written.set_range(first, (run.end - run.start) / PAGE_SIZE);
            }
        }
        Ok(written)
    }
}

/// Part of a range of RAM.
struct Chunk {
    first: Gfn,
    /// Host addresses.
    start: u64,
    end: u64,
}

/// All RAM, in parts of at most [`CHUNK_PAGES`].
fn chunks(memory: &GuestMemory) -> impl Iterator<Item = Chunk> {
    const BYTES: u64 = CHUNK_PAGES * PAGE_SIZE;
    memory.ranges().iter().flat_map(|range| {
        (0..range.len.div_ceil(BYTES)).map(move |n| Chunk {
            first: Gfn(range.gpa.gfn().0 + n * CHUNK_PAGES),
            start: range.hva.0 + n * BYTES,
            end: range.hva.0 + range.len.min((n + 1) * BYTES),
        })
    })
}

/// The assumed cost of clearing one page, nanoseconds.
#[derive(Debug)]
struct Cost {
    expected: u64,
    /// The least that was measured, or what it was taken to be at first.
    least: u64,
}

impl Default for Cost {
    fn default() -> Self {
        Self {
            expected: NS_PER_PAGE,
            least: NS_PER_PAGE,
        }
    }
}

impl Cost {
    /// Whether clearing so many pages fits the budget. Each refusal brings the expectation nearer to the
    /// least known: one measurement that something else disturbed is forgotten, but a VM whose clearing
    /// would not fit at best is never paused by trying.
    fn allow(&mut self, pages: u64, budget: Duration) -> Result<(), String> {
        let pause = Duration::from_nanos(pages.saturating_mul(self.expected));
        if pause <= budget {
            return Ok(());
        }
        let quarter = self.expected.div_ceil(4);
        self.expected = (self.expected - quarter).max(self.least);
        Err(format!(
            "soft-dirty would take ~{} ms of pause, budget {} ms",
            pause.as_millis(),
            budget.as_millis()
        ))
    }

    fn measured(&mut self, pages: u64, pause: Duration) {
        let ns = u64::try_from(pause.as_nanos()).unwrap_or(u64::MAX);
        self.expected = ns.div_ceil(pages.max(1));
        self.least = self.least.min(self.expected);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt as _;
    use std::path::Path;
    use std::process::Command;

    use terrace_proto::{Gpa, Hva, RequestId, ScanStats, Space, VmId};
    use terrace_sys::SharedMapping;

    use super::*;
    use crate::memory_map::Range;

    const BUDGET: Duration = Duration::from_millis(20);

    fn pages_of_mib(mib: u64) -> u64 {
        mib << 8
    }

    #[test]
    fn a_pause_above_the_budget_is_refused_with_both_figures() {
        let mut cost = Cost::default();
        assert!(cost.allow(pages_of_mib(64), BUDGET).is_ok());
        let why = cost.allow(pages_of_mib(256), BUDGET).unwrap_err();
        assert_eq!(why, "soft-dirty would take ~57 ms of pause, budget 20 ms");
        assert!(cost.allow(u64::MAX, BUDGET).is_err());
        // A host that was measured to be faster affords more.
        cost.measured(1000, Duration::from_micros(10));
        assert!(cost.allow(pages_of_mib(4096), BUDGET).is_ok());
    }

    #[test]
    fn one_disturbed_clear_does_not_end_soft_dirty() {
        // Also if it was the first.
        for before in [None, Some(Duration::from_millis(4))] {
            let mut cost = Cost::default();
            let pages = pages_of_mib(64);
            if let Some(pause) = before {
                cost.measured(pages, pause);
            }
            cost.measured(pages, Duration::from_secs(1));
            let refused = (0..100).take_while(|_| cost.allow(pages, BUDGET).is_err());
            let refused = refused.count();
            assert!((1..100).contains(&refused), "{refused}");
        }
    }

    #[test]
    fn a_vm_whose_clear_never_fits_is_never_paused_to_try() {
        let mut cost = Cost::default();
        let pages = pages_of_mib(65_536);
        assert!((0..10_000).all(|_| cost.allow(pages, BUDGET).is_err()));
        // A cost that was found to be cheaper is the new floor, and is not passed either.
        cost.measured(pages, Duration::from_millis(500));
        assert!((0..10_000).all(|_| cost.allow(pages, BUDGET).is_err()));
        assert!(cost.allow(pages, Duration::from_millis(510)).is_ok());
    }

    #[test]
    fn the_first_estimate_allows_what_the_configuration_says() {
        let text = include_str!("../../../../dist/terrace.toml");
        assert!(text.contains("about 88 MiB"));
        assert!(Cost::default().allow(pages_of_mib(88), BUDGET).is_ok());
        assert!(Cost::default().allow(pages_of_mib(89), BUDGET).is_err());
    }

    fn range(page: u64, pages: u64, hva: u64) -> Range {
        Range {
            gpa: Gpa(page * PAGE_SIZE),
            len: pages * PAGE_SIZE,
            hva: Hva(hva),
            file_index: 0,
            file_offset: 0,
            shared: true,
        }
    }

    #[test]
    fn a_large_range_is_not_asked_about_at_once() {
        let memory = GuestMemory::of_ranges(vec![
            range(0, 2 * CHUNK_PAGES + 5, 0x10_0000),
            range(4 * CHUNK_PAGES, CHUNK_PAGES, 1 << 40),
        ]);
        let bytes = CHUNK_PAGES * PAGE_SIZE;
        let want = [
            (0, 0x10_0000, CHUNK_PAGES),
            (CHUNK_PAGES, 0x10_0000 + bytes, CHUNK_PAGES),
            (2 * CHUNK_PAGES, 0x10_0000 + 2 * bytes, 5),
            (4 * CHUNK_PAGES, 1 << 40, CHUNK_PAGES),
        ];
        let chunks = chunks(&memory).map(|c| (c.first.0, c.start, (c.end - c.start) / PAGE_SIZE));
        assert_eq!(chunks.collect::<Vec<_>>(), want);
    }

    /// A host on which a process has a page map of so many pages, all zero.
    fn host(process: &Process, pages: u64) -> (tempfile::TempDir, HostRoot) {
        let folder = tempfile::tempdir().unwrap();
        let root = HostRoot::new(folder.path());
        let map = root.process(process.pid(), "pagemap");
        fs::create_dir_all(map.parent().unwrap()).unwrap();
        fs::File::create(map).unwrap().set_len(pages * 8).unwrap();
        (folder, root)
    }

    #[test]
    fn writes_on_both_sides_of_a_chunks_end_are_told() {
        let process = Process::open(Path::new("/proc"), std::process::id()).unwrap();
        let (_folder, root) = host(&process, CHUNK_PAGES + 4);
        let map = fs::OpenOptions::new()
            .write(true)
            .open(root.process(process.pid(), "pagemap"))
            .unwrap();
        // RAM from guest page 7 on is at the process's page 1.
        for page in [0, CHUNK_PAGES - 1, CHUNK_PAGES, CHUNK_PAGES + 2] {
            let entry = (1_u64 << 55).to_ne_bytes();
            map.write_all_at(&entry, (page + 1) * 8).unwrap();
        }
        let memory = GuestMemory::of_ranges(vec![range(7, CHUNK_PAGES + 3, PAGE_SIZE)]);
        let source = SoftDirty::new(root, Arc::new(process), Arc::new(memory), BUDGET, 2);
        let written: Vec<_> = source.written().unwrap().iter().collect();
        let want = [0, CHUNK_PAGES - 1, CHUNK_PAGES, CHUNK_PAGES + 2].map(|page| page + 7);
        assert_eq!(written, want);
    }

    #[test]
    fn a_reused_pid_reports_nothing_of_the_ended_vm() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let process = Process::open(Path::new("/proc"), child.id()).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        let (_folder, root) = host(&process, 8);
        let memory = GuestMemory::of_ranges(vec![range(0, 4, PAGE_SIZE)]);
        let source = SoftDirty::new(root, Arc::new(process), Arc::new(memory), BUDGET, 2);
        assert!(source.written().unwrap_err().contains("has ended"));
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
        let memory = GuestMemory::of_ranges(vec![range(4, 64, map.as_ptr() as u64)]);
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
    fn only_a_kernel_without_soft_dirty_bits_is_said_to_lack_them() {
        let map = ram();
        let mut source = source(&map, Duration::from_secs(3600));
        source.follow(true, &mut answer());
        let said = source.text().contains("CONFIG_MEM_SOFT_DIRTY");
        assert_eq!(said, !soft_dirty_supported(), "{}", source.text());
    }

    #[test]
    #[ignore = "needs a kernel with CONFIG_MEM_SOFT_DIRTY; the lab's soft_dirty_bits test runs the whole way on one"]
    fn the_last_windows_answer_tells_the_rounds_writes() {
        let map = ram();
        let mut source = source(&map, Duration::from_secs(3600));
        let mut answers = [answer(), answer(), answer(), answer()];
        source.follow(true, &mut answers[0]);
        assert!(source.text().contains("once a round"), "{}", source.text());
        write(&map, 7);
        source.follow(false, &mut answers[1]);
        write(&map, 63);
        source.follow(false, &mut answers[2]);
        source.follow(false, &mut answers[3]);
        let bitmaps: Vec<_> = answers.map(|a| a.written).into();
        let [None, None, Some(written), None] = &bitmaps[..] else {
            panic!("{bitmaps:?}");
        };
        assert_eq!(written.iter().collect::<Vec<_>>(), [11, 67]);
    }

    #[test]
    fn without_a_budget_nothing_is_cleared() {
        let map = ram();
        let mut source = source(&map, Duration::ZERO);
        for clearing in [true, false, false] {
            let mut answer = answer();
            source.follow(clearing, &mut answer);
            assert_eq!(answer.written, None);
        }
        assert!(
            source.text().starts_with("reads only ("),
            "{}",
            source.text()
        );
    }
}
