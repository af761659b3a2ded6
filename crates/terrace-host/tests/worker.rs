//! The worker as a process of its own, under its sandbox, on memory of this test.
//!
//! Started with the argument `worker`, this program is the worker itself; otherwise it runs the tests.

#![allow(clippy::unwrap_used, reason = "a test without the harness")]

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{FileExt, symlink};
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

use terrace_host::HostRoot;
use terrace_host::memory_map::GuestMemory;
use terrace_host::qemu::{Candidate, Vm};
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
    let tests: [(&str, fn()); 11] = [
        (
            "a_vm_gone_mid_scan_is_never_scanned_again",
            a_vm_gone_mid_scan_is_never_scanned_again,
        ),
        (
            "qmp_that_lies_about_registers_makes_no_scan_write",
            qmp_that_lies_about_registers_makes_no_scan_write,
        ),
        (
            "no_search_of_all_ram_while_a_migration_goes_on",
            no_search_of_all_ram_while_a_migration_goes_on,
        ),
        (
            "workers_that_fail_again_and_again_are_not_fatal",
            workers_that_fail_again_and_again_are_not_fatal,
        ),
        (
            "tables_are_scanned_and_re_armed",
            tables_are_scanned_and_re_armed,
        ),
        ("writes_are_told_where_asked", writes_are_told_where_asked),
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

    /// After one request, which proves nothing alone.
    fn tables_that_know_the_kernel(&self) -> GuestTables {
        let mut tables = self.tables();
        let first = tables.scan_from(request(Rearm::All, false), vcpu());
        let failure = first.unwrap_err();
        assert!(failure.reason.contains("not recognised") && !failure.fatal);
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
    let mut tables = guest.tables_that_know_the_kernel();
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
    let failure = off.unwrap_err();
    assert!(failure.reason.contains("left its paging mode") && !failure.fatal);
    // What was known is forgotten: one sighting more, then it goes on.
    let once = tables.scan_from(request(Rearm::None, false), vcpu());
    assert!(once.unwrap_err().reason.contains("not recognised"));
    assert!(
        tables
            .scan_from(request(Rearm::None, false), vcpu())
            .is_ok()
    );
}

fn writes_are_told_where_asked() {
    const WRITTEN: u64 = PRESENT_USER | ACCESSED | 1 << 1 | 1 << 6;
    let guest = Guest::new();
    let mut tables = guest.tables_that_know_the_kernel();
    guest.set(5, 21, 21 << 12 | WRITTEN);
    let mut scan = |writes: bool| {
        tables.tell_writes(writes);
        let answer = tables.scan_from(request(Rearm::All, false), vcpu());
        answer.unwrap().written
    };
    assert_eq!(scan(false), None);
    assert_eq!(scan(true).as_ref().map(pages), Some(vec![21]));
    assert_eq!(scan(true).as_ref().map(pages), Some(vec![]));
    guest.set(5, 22, 22 << 12 | WRITTEN);
    assert_eq!(scan(true).as_ref().map(pages), Some(vec![22]));
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
    assert!(tables.scan_from(request(Rearm::None, true), vcpu()).is_ok());
    assert_ne!(tables.worker_pid(), Some(pid));
}

fn workers_that_fail_again_and_again_are_not_fatal() {
    let guest = Guest::new();
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("worker");
    let link = || symlink(std::env::current_exe().unwrap(), &program).unwrap();
    link();
    let start = WorkerCommand {
        program: program.clone(),
        ..command("worker")
    };
    let mut tables = GuestTables::attach(start, guest.memory.clone(), SECONDS).unwrap();
    std::fs::remove_file(&program).unwrap();
    kill(tables.worker_pid().unwrap());
    for why in ["killed", "cannot start", "cannot start", "cannot start"] {
        let failure = tables
            .scan_from(request(Rearm::None, true), vcpu())
            .unwrap_err();
        assert!(
            failure.reason.contains(why) && !failure.fatal,
            "{}",
            failure.reason
        );
    }
    link();
    assert!(tables.scan_from(request(Rearm::None, true), vcpu()).is_ok());
}

/// A monitor that is asked for its migration and its registers.
const GREETING: &str = r#"{"QMP": {"version": {"qemu": {"micro": 0, "minor": 0, "major": 9}, "package": ""}, "capabilities": []}}"#;

fn monitor(line: &str) -> String {
    let registers =
        "CPU#0\nCR0=80050033 CR2=0 CR3=0000000000001000 CR4=00000020\nEFER=0000000000000d01\n";
    let value = match line {
        l if l.contains("query-uuid") => serde_json::json!({ "UUID": "0-0" }),
        l if l.contains("query-kvm") => serde_json::json!({ "enabled": true, "present": true }),
        l if l.contains("query-migrate") => serde_json::json!({ "status": "postcopy-active" }),
        l if l.contains("info registers") => serde_json::json!(registers),
        _ => serde_json::json!({}),
    };
    serde_json::json!({ "return": value }).to_string()
}

/// QEMU's process is a child that its monitor kills in the middle of an answer.
fn a_vm_gone_mid_scan_is_never_scanned_again() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("vm.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let mut qemu = std::process::Command::new("sleep")
        .arg("1000")
        .spawn()
        .unwrap();
    let pid = qemu.id();
    let folder = dir.path().join(format!("proc/{pid}"));
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("cmdline"), "qemu-kvm\0").unwrap();
    std::fs::copy(format!("/proc/{pid}/stat"), folder.join("stat")).unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        writeln!(stream, "{GREETING}").unwrap();
        for line in BufReader::new(stream.try_clone().unwrap()).lines() {
            let line = line.unwrap();
            if line.contains("info registers") {
                break;
            }
            writeln!(stream, "{}", monitor(&line)).unwrap();
        }
        qemu.kill().unwrap();
        qemu.wait().unwrap();
        write!(stream, "{{\"retu").unwrap();
    });
    let mut candidate = Candidate::at(&socket);
    candidate.pid = Some(pid);
    let mut vm = Vm::open(&HostRoot::new(dir.path()), &candidate, SECONDS).unwrap();
    let guest = Guest::new();
    let mut tables = guest.tables();
    let failure = tables
        .scan(&mut vm, request(Rearm::All, false))
        .unwrap_err();
    assert!(failure.fatal, "{}", failure.reason);
    assert!(!vm.process().is_alive());
}

fn qmp_that_lies_about_registers_makes_no_scan_write() {
    let guest = Guest::new();
    let mut tables = guest.tables();
    let size = (LOW_PAGES + HIGH_PAGES) * PAGE_SIZE;
    let bytes = || {
        let mut bytes = vec![0; usize::try_from(size).unwrap()];
        guest.file.read_exact_at(&mut bytes, 0).unwrap();
        bytes
    };
    let before = bytes();
    let good = vcpu()[0];
    let lies = [
        // Beyond RAM, in the hole, a data page, all ones, garbage. (A lie that fits the tables, such as
        // another number of levels, cannot be told from the truth: QEMU owns that memory anyway.)
        (good.cr0, 1 << 50, good.cr4, good.efer),
        (good.cr0, 1 << 30, good.cr4, good.efer),
        (good.cr0, 22 << 12, good.cr4, good.efer),
        (u64::MAX, u64::MAX, u64::MAX, u64::MAX),
        (0x1234, 0xdead_beef, 0x5678, 0x9abc),
    ];
    for (cr0, cr3, cr4, efer) in lies {
        let lie = PagingRegisters {
            cr0,
            cr3,
            cr4,
            efer,
        };
        for _ in 0..3 {
            // An error or an answer that knows no page: both are fine, a write is not.
            if let Ok(answer) = tables.scan_from(request(Rearm::All, false), vec![lie]) {
                assert_eq!(pages(&answer.known), [] as [u64; 0], "{lie:?}");
            }
        }
        assert!(bytes() == before, "{lie:?} changed guest memory");
    }
}

fn no_search_of_all_ram_while_a_migration_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("vm.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        writeln!(stream, "{GREETING}").unwrap();
        for line in BufReader::new(stream.try_clone().unwrap()).lines() {
            writeln!(stream, "{}", monitor(&line.unwrap())).unwrap();
        }
    });
    let own = dir.path().join(format!("proc/{}", std::process::id()));
    std::fs::create_dir_all(&own).unwrap();
    std::fs::write(own.join("cmdline"), "qemu-kvm\0").unwrap();
    std::fs::copy("/proc/self/stat", own.join("stat")).unwrap();
    let root = HostRoot::new(dir.path());
    let mut vm = Vm::open(&root, &Candidate::at(&socket), SECONDS).unwrap();
    let guest = Guest::new();
    let mut tables = guest.tables();
    let failure = tables
        .scan(&mut vm, request(Rearm::None, true))
        .unwrap_err();
    assert!(
        failure.reason.contains("postcopy-active") && !failure.fatal,
        "{}",
        failure.reason
    );
    let other = tables
        .scan(&mut vm, request(Rearm::None, false))
        .unwrap_err();
    assert!(other.reason.contains("not recognised"), "{}", other.reason);
    assert!(tables.scan(&mut vm, request(Rearm::None, false)).is_ok());
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
        failure.reason.contains("guest RAM vanished") && !failure.fatal,
        "{}",
        failure.reason
    );
    let never = tables
        .scan_from(request(Rearm::None, false), vcpu())
        .unwrap_err();
    assert!(
        never.reason.contains("beyond the end of its file") && never.fatal,
        "{}",
        never.reason
    );
}
