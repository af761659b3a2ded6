//! The worker as a process of its own, under its sandbox, on memory of this test.
//!
//! Started with the argument `worker`, this program is the worker itself; otherwise it runs the tests.

#![allow(clippy::unwrap_used, reason = "a test without the harness")]

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use terrace_host::memory_map::GuestMemory;
use terrace_host::tracker::GuestTables;
use terrace_host::worker::{WorkerCommand, WorkerError, WorkerHandle, run};
use terrace_proto::{
    Gpa, Hva, PAGE_SIZE, PageBitmap, PagingRegisters, Rearm, RequestId, ScanRequest, Space, VmId,
};

const SECONDS: Duration = Duration::from_secs(20);
/// Guest RAM below and above a hole, in one file.
const LOW_PAGES: u64 = 64;
const HIGH_GFN: u64 = 1 << 20;
const HIGH_PAGES: u64 = 64;

fn main() {
    match std::env::args().nth(1).as_deref() {
        Some("worker") => run().expect("the daemon's messages make sense"),
        Some("silent") => std::thread::sleep(SECONDS),
        Some("chatter") => panic!("a worker's last words"),
        _ => tests(),
    }
}

fn tests() {
    let tests: [(&str, fn()); 6] = [
        (
            "tables_are_scanned_and_re_armed",
            tables_are_scanned_and_re_armed,
        ),
        ("roots_are_discovered", roots_are_discovered),
        (
            "a_dead_worker_is_an_error_and_is_replaced",
            a_dead_worker_is_an_error_and_is_replaced,
        ),
        (
            "a_silent_worker_is_timed_out_and_killed",
            a_silent_worker_is_timed_out_and_killed,
        ),
        ("last_words_are_passed_on", last_words_are_passed_on),
        (
            "a_truncated_file_ends_the_worker_only",
            a_truncated_file_ends_the_worker_only,
        ),
    ];
    for (name, test) in tests {
        test();
        println!("test {name} ... ok");
    }
}

fn command(arg: &str) -> WorkerCommand {
    WorkerCommand::this_program(&[arg])
}

/// A guest with two processes whose tables are at frames 1 and 2 (kernel half shared). Each maps a
/// level of its own at 3.. and 8..; the first maps guest pages 20 to 29, the second the high page 5.
struct Guest {
    file: File,
    memory: Arc<GuestMemory>,
}

const PRESENT_USER: u64 = 0x7;
const ACCESSED: u64 = 0x20;

impl Guest {
    fn new() -> Self {
        let file = tempfile::tempfile_in("/dev/shm").unwrap();
        file.set_len((LOW_PAGES + HIGH_PAGES) * PAGE_SIZE).unwrap();
        let runs = [(0, LOW_PAGES, 0), (HIGH_GFN, HIGH_PAGES, LOW_PAGES)];
        let ranges = runs.map(|(gfn, pages, offset)| terrace_host::memory_map::Range {
            gpa: Gpa(gfn * PAGE_SIZE),
            len: pages * PAGE_SIZE,
            hva: Hva(offset * PAGE_SIZE),
            file_index: 0,
            file_offset: offset * PAGE_SIZE,
        });
        let memory = GuestMemory::new(ranges.to_vec(), vec![file.try_clone().unwrap().into()]);
        let guest = Self {
            file,
            memory: Arc::new(memory.unwrap()),
        };
        for (root, first) in [(1, 3), (2, 8)] {
            guest.set(root, 0, first << 12 | PRESENT_USER | ACCESSED);
            guest.set(root, 511, 0xf << 12 | 0x63);
            guest.set(first, 0, (first + 1) << 12 | PRESENT_USER | ACCESSED);
            guest.set(first + 1, 0, (first + 2) << 12 | PRESENT_USER | ACCESSED);
        }
        for page in 20..30 {
            let accessed = if page % 2 == 0 { ACCESSED } else { 0 };
            guest.set(5, page, page << 12 | PRESENT_USER | accessed);
        }
        guest.set(10, 0, (HIGH_GFN + 5) << 12 | PRESENT_USER | ACCESSED);
        guest
    }

    /// Writes an entry of a table in low memory.
    fn set(&self, frame: u64, index: u64, entry: u64) {
        let at = frame * PAGE_SIZE + index * 8;
        self.file.write_all_at(&entry.to_le_bytes(), at).unwrap();
    }

    fn tables(&self) -> GuestTables {
        let tables = GuestTables::attach(command("worker"), self.memory.clone(), SECONDS).unwrap();
        assert_eq!(tables.sandbox_gaps(), [] as [String; 0]);
        tables
    }
}

fn vcpu() -> Vec<PagingRegisters> {
    vec![PagingRegisters {
        cr0: 0x8005_0033,
        cr3: 1 << 12,
        cr4: 0x20,
        efer: 0xd01,
    }]
}

fn request(rearm: Rearm, discover: bool) -> ScanRequest {
    ScanRequest {
        id: RequestId(7),
        space: Space::Guest(VmId(1)),
        rearm,
        prune: false,
        discover,
    }
}

fn pages(map: &PageBitmap) -> Vec<u64> {
    map.iter().collect()
}

fn tables_are_scanned_and_re_armed() {
    let guest = Guest::new();
    let mut tables = guest.tables();
    let first = tables
        .scan_from(request(Rearm::All, false), vcpu())
        .unwrap();
    assert_eq!(pages(&first.known), (20..30).collect::<Vec<_>>());
    assert_eq!(pages(&first.accessed), [20, 22, 24, 26, 28]);
    assert_eq!(first.known.pages(), HIGH_GFN + HIGH_PAGES);
    assert!(first.stats.elapsed_ns > 0 && first.stats.cpu_ns > 0);
    let second = tables
        .scan_from(request(Rearm::All, false), vcpu())
        .unwrap();
    assert_eq!(pages(&second.accessed), [] as [u64; 0]);
    let off = tables.scan_from(
        request(Rearm::None, false),
        vec![PagingRegisters::default()],
    );
    assert!(off.unwrap_err().reason.contains("paging off"));
    assert!(
        tables
            .scan_from(request(Rearm::None, false), vcpu())
            .is_ok()
    );
}

fn roots_are_discovered() {
    let guest = Guest::new();
    let mut tables = guest.tables();
    let found = tables
        .scan_from(request(Rearm::None, true), vcpu())
        .unwrap();
    assert_eq!(found.stats.roots, 2);
    assert!(found.known.get(HIGH_GFN + 5) && found.known.get(20));
    guest.set(2, 300, 0xbad);
    let rest = tables
        .scan_from(request(Rearm::None, false), vcpu())
        .unwrap();
    assert_eq!(rest.stats.roots, 1);
    assert!(!rest.known.get(HIGH_GFN + 5));
}

fn kill(pid: u32) {
    let status = std::process::Command::new("kill")
        .args(["-9", &pid.to_string()])
        .status();
    assert!(status.unwrap().success());
}

fn a_dead_worker_is_an_error_and_is_replaced() {
    let guest = Guest::new();
    let mut tables = guest.tables();
    let pid = tables.worker_pid().unwrap();
    kill(pid);
    let failure = tables
        .scan_from(request(Rearm::None, false), vcpu())
        .unwrap_err();
    assert!(
        failure.reason.contains("killed") && !failure.fatal,
        "{}",
        failure.reason
    );
    assert!(
        tables
            .scan_from(request(Rearm::None, false), vcpu())
            .is_ok()
    );
    assert_ne!(tables.worker_pid(), Some(pid));
}

fn a_silent_worker_is_timed_out_and_killed() {
    let guest = Guest::new();
    let mut worker = WorkerHandle::spawn(&command("silent")).unwrap();
    let begin = Instant::now();
    let error = worker
        .attach(&guest.memory, Duration::from_millis(50))
        .unwrap_err();
    assert!(matches!(error, WorkerError::TimedOut { .. }), "{error}");
    assert!(begin.elapsed() < SECONDS / 2);
}

fn last_words_are_passed_on() {
    let guest = Guest::new();
    let mut worker = WorkerHandle::spawn(&command("chatter")).unwrap();
    let error = worker
        .attach(&guest.memory, SECONDS)
        .unwrap_err()
        .to_string();
    assert!(error.contains("last words"), "{error}");
}

fn a_truncated_file_ends_the_worker_only() {
    let guest = Guest::new();
    let mut tables = guest.tables();
    guest.file.set_len(0).unwrap();
    let failure = tables
        .scan_from(request(Rearm::None, false), vcpu())
        .unwrap_err();
    assert!(
        failure.reason.contains("guest RAM vanished"),
        "{}",
        failure.reason
    );
}
