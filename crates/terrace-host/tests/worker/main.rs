//! The worker as a process of its own, under its sandbox, on memory of this test.
//!
//! Started with the argument `worker`, this program is the worker itself; otherwise it runs the tests.

#![allow(clippy::unwrap_used, reason = "a test without the harness")]

mod descriptors;
mod frozen;
mod liars;
mod parts;

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use terrace_host::HostRoot;
use terrace_host::memory_map::GuestMemory;
use terrace_host::qemu::Candidate;
use terrace_host::tracker::GuestTables;
use terrace_host::vm::Vm;
use terrace_host::worker::{WorkerCommand, WorkerError, WorkerHandle, run};
use terrace_proto::worker::Withheld;
use terrace_proto::{
    Gpa, Hva, PAGE_SIZE, PageBitmap, PagingRegisters, Part, PartAnswer, PartRequest, Pass, Passed,
    Readings, Rearm, RequestId, ScanRequest, Space, VmId,
};
use terrace_sys::monotonic_now;

use terrace_testkit::qemu::{play_qemu, rules};

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
        Some("liar") => liars::lie(&std::env::args().nth(2).unwrap()),
        _ => tests(),
    }
}

/// Tests with their names.
macro_rules! named {
    ($($test:ident),+ $(,)?) => {
        [$((stringify!($test), $test as fn())),+]
    };
}

fn tests() {
    let tests = named![
        a_vm_gone_mid_scan_is_never_scanned_again,
        qmp_that_lies_about_registers_makes_no_scan_write,
        no_search_of_all_ram_while_a_migration_goes_on,
        workers_that_fail_again_and_again_are_not_fatal,
        tables_are_scanned_and_re_armed,
        writes_are_reported_where_asked,
        roots_are_discovered,
        registers_from_before_a_search_start_no_walk,
        what_was_found_before_a_reset_is_not_walked_after_it,
        tables_that_name_untouched_memory_allocate_none_of_it,
        a_forged_table_is_not_searched_for_without_kaslr,
        registers_that_are_too_old_start_no_walk,
        parts_of_the_tables_are_scanned_alone,
        several_threads_find_what_one_does,
        a_vcpu_that_ran_a_nested_guest_is_left_out,
        a_dead_worker_is_an_error_and_is_replaced,
        a_silent_worker_is_timed_out_and_killed,
        last_message_is_passed_on,
        a_truncated_file_ends_no_more_than_the_scan,
    ];
    let more = frozen::TESTS.into_iter().chain(descriptors::TESTS);
    let more = more.chain(parts::TESTS).chain(liars::TESTS);
    for (name, test) in tests.into_iter().chain(more) {
        test();
        println!("test {name} ... ok");
    }
}

fn command(arg: &str) -> WorkerCommand {
    WorkerCommand::this_program(&[arg])
}

/// A guest with two processes whose tables are at frames 1 and 2 (kernel half shared). Each maps a
/// level of its own at 3.. and 8..; the first maps guest pages 20 to 29, the second the high page 5. The kernel's
/// direct map, of low memory alone, has its tables from frame 40.
struct Guest {
    file: File,
    memory: Arc<GuestMemory>,
}

const PRESENT_USER: u64 = 0x7;
const ACCESSED: u64 = 0x20;
/// Index in a top-level table: not where kernels without KASLR have it (273).
const DIRECT_MAP: u64 = 300;

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
            shared: true,
        });
        let memory = GuestMemory::new(ranges.to_vec(), vec![file.try_clone().unwrap().into()]);
        let guest = Self {
            file,
            memory: Arc::new(memory.unwrap()),
        };
        for (root, first) in [(1, 3), (2, 8)] {
            guest.set(root, 0, first << 12 | PRESENT_USER | ACCESSED);
            guest.set(root, 511, 0xf << 12 | 0x63);
            guest.set(root, DIRECT_MAP, 40 << 12 | 0x63);
            guest.set(first, 0, (first + 1) << 12 | PRESENT_USER | ACCESSED);
            guest.set(first + 1, 0, (first + 2) << 12 | PRESENT_USER | ACCESSED);
        }
        guest.set(15, 0, 0);
        guest.set(40, 1, 41 << 12 | 0x63);
        guest.set(41, 0, 42 << 12 | 0x63);
        (0..LOW_PAGES).for_each(|page| guest.set(42, page, page << 12 | 0x63));
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

const LONG_MODE: PagingRegisters = PagingRegisters {
    cr0: 0x8005_0033,
    cr3: 1 << 12,
    cr4: 0x20,
    efer: 0xd01,
};

fn vcpu() -> Readings {
    vec![LONG_MODE].into()
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
        vec![PagingRegisters::default()].into(),
    );
    let failure = off.unwrap_err();
    assert!(failure.reason.contains("left its paging mode") && !failure.fatal);
    // The known roots are forgotten; those that the registers name are proven anew.
    assert!(
        tables
            .scan_from(request(Rearm::None, false), vcpu())
            .is_ok()
    );
}

fn writes_are_reported_where_asked() {
    const WRITTEN: u64 = PRESENT_USER | ACCESSED | 1 << 1 | 1 << 6;
    let guest = Guest::new();
    let mut tables = guest.tables();
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
    guest.set(2, 280, 0xbad);
    let rest = tables
        .scan_from(request(Rearm::None, false), vcpu())
        .unwrap();
    assert_eq!(rest.stats.roots, 1);
    assert!(!rest.known.get(HIGH_GFN + 5));
}

/// Two thousand pages of tables that name every page that the guest never touched.
fn tables_that_name_untouched_memory_allocate_none_of_it() {
    let guest = Guest::new();
    let high = |page: u64| (HIGH_GFN + page) << 12 | PRESENT_USER | ACCESSED;
    let blocks = || guest.file.metadata().unwrap().blocks();
    // As tables of every level, through a table of their own and through themselves.
    for index in 1..512 {
        guest.set(1, index % 200 + 1, high(index % HIGH_PAGES));
        guest.set(3, index, high(index * 7 % HIGH_PAGES));
        guest.set(4, index, high(index * 5 % HIGH_PAGES));
    }
    // The proof's reads, too: the kernel half of another table names holes.
    guest.set(6, 0, 3 << 12 | PRESENT_USER);
    guest.set(6, 511, HIGH_GFN << 12 | 0x63);
    let before = blocks();
    let mut tables = guest.tables();
    for discover in [false, true, false] {
        let answer = tables.scan_from(request(Rearm::All, discover), vcpu());
        assert!(answer.unwrap().stats.out_of_ram > 500);
        let hole = PagingRegisters {
            cr3: 6 << 12,
            ..LONG_MODE
        };
        let untouched = PagingRegisters {
            cr3: (HIGH_GFN + 9) << 12,
            ..LONG_MODE
        };
        for lie in [hole, untouched] {
            assert!(
                tables
                    .scan_from(request(Rearm::All, discover), vec![lie].into())
                    .is_err()
            );
        }
    }
    assert_eq!(blocks(), before);
}

fn a_forged_table_is_not_searched_for_without_kaslr() {
    let guest = Guest::new();
    for root in [1, 2] {
        guest.set(root, DIRECT_MAP, 0);
        guest.set(root, 273, 40 << 12 | 0x63);
    }
    guest.set(40, 1, 0);
    guest.set(40, 0, 41 << 12 | 0x63);
    // A process that copied the kernel half into its own page 30, which leads to its data.
    guest.set(30, 511, 0xf << 12 | 0x63);
    guest.set(30, 273, 40 << 12 | 0x63);
    for (page, index) in [(30, 0), (31, 0), (32, 0)] {
        guest.set(page, index, (page + 1) << 12 | PRESENT_USER | ACCESSED);
    }
    (0..512).for_each(|word| guest.set(33, word, 20 << 12 | PRESENT_USER | ACCESSED));
    let data = || {
        let mut bytes = vec![0; 4 * 4096];
        guest
            .file
            .read_exact_at(&mut bytes, 30 * PAGE_SIZE)
            .unwrap();
        bytes
    };
    let before = data();
    let mut tables = guest.tables();
    for _ in 0..3 {
        let answer = tables.scan_from(request(Rearm::All, true), vcpu()).unwrap();
        assert_eq!(answer.stats.roots, 1);
        assert_eq!(tables.withheld(), Some(Withheld::DefaultBase));
    }
    assert!(data() == before, "a scan changed a process's data");
}

/// The guest is reset during a search: a walk from the registers of before would be one of data.
fn registers_from_before_a_search_start_no_walk() {
    let mut asked = 0;
    let (_dir, mut vm) = vm_with_monitor(move |line| {
        if line.contains("query-migrate") {
            return serde_json::json!({ "return": {} }).to_string();
        }
        if !line.contains("info registers") {
            return monitor(line);
        }
        asked += 1;
        let cr0 = if asked == 1 { "80050033" } else { "60000010" };
        let text = format!("CPU#0\nCR0={cr0} CR2=0 CR3=00001000 CR4=00000020\nEFER=00000d01\n");
        serde_json::json!({ "return": text }).to_string()
    });
    let guest = Guest::new();
    let mut tables = guest.tables();
    let failure = tables.scan(&mut vm, request(Rearm::All, true)).unwrap_err();
    assert!(failure.reason.contains("paging"), "{}", failure.reason);
}

fn what_was_found_before_a_reset_is_not_walked_after_it() {
    let guest = Guest::new();
    let mut tables = guest.tables();
    let found = tables.scan_from(request(Rearm::None, true), vcpu());
    assert_eq!(found.unwrap().stats.roots, 2);
    let mut after = vcpu();
    after.resets = 1;
    let answer = tables.scan_from(request(Rearm::None, false), after);
    let answer = answer.unwrap();
    assert_eq!(answer.stats.roots, 1);
    assert!(answer.known.get(20) && !answer.known.get(HIGH_GFN + 5));
}

fn a_vcpu_that_ran_a_nested_guest_is_left_out() {
    let guest = Guest::new();
    let mut tables = guest.tables();
    let readings = |vcpus: &[Option<PagingRegisters>]| Readings {
        vcpus: vcpus.to_vec(),
        resets: 0,
    };
    let one = readings(&[None, Some(LONG_MODE)]);
    let answer = tables.scan_from(request(Rearm::None, false), one);
    assert_eq!(answer.unwrap().stats.roots, 1);
    let none = tables.scan_from(request(Rearm::All, false), readings(&[None, None]));
    let failure = none.unwrap_err();
    assert!(
        failure
            .reason
            .contains("every virtual CPU ran a nested guest")
            && !failure.fatal,
        "{}",
        failure.reason
    );
    assert!(
        tables
            .scan_from(request(Rearm::None, false), vcpu())
            .is_ok()
    );
}

/// The parts of a draw, each cleared and read by itself: together they are the guest, and each page is in one of them.
fn parts_of_the_tables_are_scanned_alone() {
    let guest = Guest::new();
    let mut worker = WorkerHandle::spawn(&command("worker")).unwrap();
    worker.attach(&guest.memory, SECONDS).unwrap();
    let mut scan = |part, clear| {
        let request = PartRequest {
            id: RequestId(3),
            space: Space::Guest(VmId(1)),
            part,
            clear,
            prune: false,
            discover: false,
        };
        let until = monotonic_now().after(SECONDS);
        let how = (false, 1, true);
        let scanned = worker.scan(Pass::Part(request), vcpu(), until, how, SECONDS);
        match scanned.map(|(passed, _)| passed) {
            Ok(Passed::Part(answer)) => *answer,
            other => panic!("{other:?}"),
        }
    };
    let first = Part::new(1, 2, 0).unwrap();
    let parts: Vec<Part> = std::iter::successors(Some(first), |part| part.next()).collect();
    let seen = |answers: &[PartAnswer]| {
        let cells = answers.iter().flat_map(|answer| &answer.cells);
        cells.fold((0, 0), |(mapped, accessed), cell| {
            assert_eq!((cell.at, mapped & cell.mapped), (0, 0));
            (mapped | cell.mapped, accessed | cell.accessed)
        })
    };
    let cleared: Vec<_> = parts.iter().map(|part| scan(*part, true)).collect();
    assert_eq!(seen(&cleared), (0x3ff << 20, 0x155 << 20));
    let again: Vec<_> = parts.iter().map(|part| scan(*part, false)).collect();
    assert_eq!(seen(&again), (0x3ff << 20, 0));
}

/// Threads start under the worker's sandbox, and what they find together is what one finds.
fn several_threads_find_what_one_does() {
    for threads in [2, 3, 4, 16] {
        let guest = Guest::new();
        let mut tables = guest.tables();
        tables.use_threads(threads);
        tables.name_tables(true);
        let first = tables
            .scan_from(request(Rearm::All, false), vcpu())
            .unwrap();
        assert_eq!(pages(&first.known), (20..30).collect::<Vec<_>>());
        assert_eq!(pages(&first.accessed), [20, 22, 24, 26, 28]);
        assert_eq!((first.stats.leaves, first.stats.cleared), (10, 5));
        let named = tables.take_tables();
        assert!(named.len() == 4 && named.iter().all(|t| t.accessed == 5));
        assert!(first.stats.cpu_ns > 0);
        let worker = tables.worker_pid();
        // Often, since what a thread does when it ends is up to the C library.
        for pass in 0..40 {
            let rearm = if pass % 2 == 0 {
                Rearm::None
            } else {
                Rearm::All
            };
            let again = tables.scan_from(request(rearm, false), vcpu()).unwrap();
            assert_eq!(pages(&again.known), pages(&first.known));
            assert_eq!(again.accessed.count(), 0);
        }
        assert_eq!(tables.worker_pid(), worker, "none was replaced");
    }
}

/// The worker is stopped between the registers and the walk, for longer than a guest takes to start anew.
fn registers_that_are_too_old_start_no_walk() {
    let guest = Guest::new();
    let mut worker = WorkerHandle::spawn(&command("worker")).unwrap();
    worker.attach(&guest.memory, SECONDS).unwrap();
    let mut scan = |until| {
        worker.scan(
            Pass::All(request(Rearm::All, false)),
            vcpu(),
            until,
            (false, 1, false),
            SECONDS,
        )
    };
    let failure = scan(monotonic_now()).unwrap_err();
    let too_old =
        matches!(&failure, WorkerError::Scan(f) if f.reason.contains("too long ago") && !f.fatal);
    assert!(too_old, "{failure}");
    let Ok((Passed::All(answer), _)) = scan(monotonic_now().after(SECONDS)) else {
        panic!("registers of now are believed");
    };
    assert_eq!(
        pages(&answer.accessed),
        [20, 22, 24, 26, 28],
        "nothing was cleared before"
    );
}

fn kill(pid: u32) {
    signal(pid, "-KILL");
}

fn signal(pid: u32, signal: &str) {
    let status = std::process::Command::new("kill")
        .args([signal, &pid.to_string()])
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

/// A monitor that is asked for its migration and its registers; its one virtual CPU cannot nest.
const GREETING: &str = r#"{"QMP": {"version": {"qemu": {"micro": 0, "minor": 0, "major": 9}, "package": ""}, "capabilities": []}}"#;

fn monitor(line: &str) -> String {
    let registers =
        "CPU#0\nCR0=80050033 CR2=0 CR3=0000000000001000 CR4=00000020\nEFER=0000000000000d01\n";
    let value = match line {
        l if l.contains("query-uuid") => serde_json::json!({ "UUID": "0-0" }),
        l if l.contains("query-kvm") => serde_json::json!({ "enabled": true, "present": true }),
        l if l.contains("query-migrate") => serde_json::json!({ "status": "postcopy-active" }),
        l if l.contains("info registers") => serde_json::json!(registers),
        l if l.contains("query-cpus-fast") => {
            serde_json::json!([{ "cpu-index": 0, "qom-path": "/cpu", "thread-id": 1 }])
        }
        l if l.contains("qom-get") => serde_json::json!(false),
        _ => serde_json::json!({}),
    };
    serde_json::json!({ "return": value }).to_string()
}

fn open(root: &HostRoot, socket: &Path) -> Vm {
    Vm::open(root, &rules(root), &Candidate::at(socket), SECONDS).unwrap()
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
    // This test listens in its place, as libvirt does.
    let uuid = "c5a0b6f4-0000-4000-8000-000000000001";
    play_qemu(dir.path(), pid, &["-uuid", uuid]);
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        writeln!(stream, "{GREETING}").unwrap();
        for line in BufReader::new(stream.try_clone().unwrap()).lines() {
            let line = line.unwrap();
            if line.contains("info registers") {
                break;
            }
            let answer = monitor(&line).replace("0-0", uuid);
            writeln!(stream, "{answer}").unwrap();
        }
        qemu.kill().unwrap();
        qemu.wait().unwrap();
        write!(stream, "{{\"retu").unwrap();
    });
    let mut vm = open(&HostRoot::new(dir.path()), &socket);
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
    let good = LONG_MODE;
    let lies = [
        // Beyond RAM, in the hole, a data page, all ones, garbage. (A lie that fits the tables, such as
        // another number of levels, cannot be distinguished from the truth: QEMU owns that memory anyway.)
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
            if let Ok(answer) = tables.scan_from(request(Rearm::All, false), vec![lie].into()) {
                assert_eq!(pages(&answer.known), [] as [u64; 0], "{lie:?}");
            }
        }
        assert!(bytes() == before, "{lie:?} changed guest memory");
    }
}

/// A VM whose monitor answers so, and whose process is this one; with the folder that holds its socket.
fn vm_with_monitor(
    mut answer: impl FnMut(&str) -> String + Send + 'static,
) -> (tempfile::TempDir, Vm) {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("vm.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        writeln!(stream, "{GREETING}").unwrap();
        for line in BufReader::new(stream.try_clone().unwrap()).lines() {
            // At once, also if it is of several lines.
            let lines = format!("{}\n", answer(&line.unwrap()));
            stream.write_all(lines.as_bytes()).unwrap();
        }
    });
    play_qemu(dir.path(), std::process::id(), &[]);
    let root = HostRoot::new(dir.path());
    let vm = open(&root, &socket);
    (dir, vm)
}

fn no_search_of_all_ram_while_a_migration_goes_on() {
    let (_dir, mut vm) = vm_with_monitor(monitor);
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

fn last_message_is_passed_on() {
    let guest = Guest::new();
    let mut worker = WorkerHandle::spawn(&command("chatter")).unwrap();
    let error = worker
        .attach(&guest.memory, SECONDS)
        .unwrap_err()
        .to_string();
    assert!(error.contains("last words"), "{error}");
}

fn a_truncated_file_ends_no_more_than_the_scan() {
    let guest = Guest::new();
    let mut tables = guest.tables();
    guest.file.set_len(0).unwrap();
    let mut fails = |why: &str, fatal: bool| {
        let failure = tables.scan_from(request(Rearm::None, false), vcpu());
        let failure = failure.unwrap_err();
        assert!(
            failure.reason.contains(why) && failure.fatal == fatal,
            "{}",
            failure.reason
        );
        tables.worker_pid()
    };
    let worker = fails("outside of the guest's allocated RAM", false);
    kill(worker.unwrap());
    fails("killed", false);
    fails("beyond the end of its file", true);
}
