//! RAM that is plugged in or taken out while a VM is managed: a monitor that a test plays, memory of this process in
//! the place of QEMU's, and a worker that the test steers.

use std::cell::Cell;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::symlink;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use terrace_api::types::{EventLine, Vm as ListedVm, VmDetail};
use terrace_host::HostRoot;
use terrace_host::qemu::Candidate;
use terrace_host::qemu::who::{HypervisorConfig, Rules};
use terrace_host::topology::Topology;
use terrace_host::tracker::GuestTables;
use terrace_host::vm::Vm;
use terrace_host::worker::WorkerCommand;
use terrace_proto::action::{PageMove, PlacementQuery};
use terrace_proto::worker::{Request, Response, decode, encode};
use terrace_proto::{
    Event, Gfn, MovePlan, MoveReport, MoveStatus, PageBitmap, Passed, PlanId, Rearm, RequestId,
    ScanAnswer, ScanRequest, ScanStats, Space, TierId, VmId,
};
use terrace_sys::{Damon, SharedMapping};

use super::super::map_guard::MapGuard;
use super::super::*;
use super::start;
use crate::discovery::Discoverer;
use crate::messages::Input;
use crate::played::{Served, host, play_qemu, put, serve_with};
use terrace_config::Config;

const PATIENCE: Duration = Duration::from_secs(60);
const MIB: usize = 1 << 20;
const HIGH: u64 = 1 << 32;

/// A memory backend: a file on tmpfs that this process maps, of one MiB.
struct Backend {
    id: &'static str,
    gpa: u64,
    mapping: SharedMapping,
    _file: fs::File,
}

impl Backend {
    fn new(id: &'static str, gpa: u64) -> Self {
        let file = tempfile::tempfile_in("/dev/shm").unwrap();
        file.set_len(MIB as u64).unwrap();
        let mapping = SharedMapping::new(file.as_fd(), 0, MIB).unwrap();
        for page in 0..MIB / 4096 {
            // SAFETY: inside of the mapping.
            unsafe { mapping.as_ptr().add(page * 4096).write_volatile(1) };
        }
        Self {
            id,
            gpa,
            mapping,
            _file: file,
        }
    }

    fn hva(&self, gpa: u64) -> u64 {
        self.mapping.as_ptr() as u64 + (gpa - self.gpa)
    }
}

/// The state of QEMU that the monitor shows.
#[derive(Default)]
struct Qemu {
    backends: Vec<Backend>,
    clients: Vec<UnixStream>,
}

impl Qemu {
    fn answer(&self, line: &str) -> Value {
        match line {
            l if l.contains("query-name") => json!({ "name": "web1" }),
            l if l.contains("query-uuid") => json!({ "UUID": "0-0" }),
            l if l.contains("query-kvm") => json!({ "enabled": true, "present": true }),
            l if l.contains("query-cpus-fast") => json!([{ "cpu-index": 0, "qom-path": "/cpu" }]),
            l if l.contains("qom-get") => json!(false),
            l if l.contains("query-memdev") => self.backends.iter().map(memdev).collect(),
            l if l.contains("info registers") => {
                json!("CPU#0\nCR0=80050033 CR2=0 CR3=00001000 CR4=00000020\nEFER=00000d01\n")
            }
            l if l.contains("info mtree") => json!(self.mtree()),
            l if l.contains("gpa2hva") => json!(self.gpa2hva(l)),
            _ => json!({}),
        }
    }

    fn mtree(&self) -> String {
        let line = |b: &Backend| {
            let (first, last) = (b.gpa, b.gpa + MIB as u64 - 1);
            format!("  {first:016x}-{last:016x} (prio 0, ram): {}\n", b.id)
        };
        let lines: String = self.backends.iter().map(line).collect();
        format!("FlatView #0\n AS \"memory\", root: system\n Root memory region: system\n{lines}\n")
    }

    fn gpa2hva(&self, line: &str) -> String {
        let (_, rest) = line.split_once("gpa2hva 0x").unwrap();
        let digits: String = rest.chars().take_while(char::is_ascii_hexdigit).collect();
        let gpa = u64::from_str_radix(&digits, 16).unwrap();
        let range = |b: &&Backend| (b.gpa..b.gpa + MIB as u64).contains(&gpa);
        match self.backends.iter().find(range) {
            Some(b) => format!(
                "Host virtual address for {gpa:#x} ({}) is {:#x}",
                b.id,
                b.hva(gpa)
            ),
            None => format!("No memory is mapped at address {gpa:#x}"),
        }
    }
}

fn memdev(backend: &Backend) -> Value {
    json!({
        "id": backend.id, "size": MIB, "merge": true, "dump": true, "prealloc": false, "share": true,
        "host-nodes": [], "policy": "default",
    })
}

/// A host with a VM, whose process is this one.
struct Machine {
    folder: tempfile::TempDir,
    qemu: Arc<Mutex<Qemu>>,
}

impl Machine {
    fn new(folder: tempfile::TempDir, backends: Vec<Backend>) -> Self {
        let qemu = Arc::new(Mutex::new(Qemu {
            backends,
            ..Qemu::default()
        }));
        Self::prepare(folder.path(), &qemu);
        Self { folder, qemu }
    }

    fn prepare(root: &Path, qemu: &Arc<Mutex<Qemu>>) {
        host(root);
        let pid = std::process::id();
        play_qemu(root, pid);
        for name in ["maps", "smaps", "fd", "fdinfo", "pagemap"] {
            let path = format!("proc/{pid}/{name}");
            symlink(Path::new("/").join(&path), root.join(&path)).unwrap();
        }
        put(
            root,
            "proc/meminfo",
            "MemTotal: 16777216 kB\nSwapTotal: 0 kB\n",
        );
        fs::create_dir_all(root.join("qmp")).unwrap();
        let listener = UnixListener::bind(root.join("qmp/web1.sock")).unwrap();
        let qemu = Arc::clone(qemu);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (stream, qemu) = (stream.unwrap(), Arc::clone(&qemu));
                std::thread::spawn(move || converse(stream, &qemu));
            }
        });
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn vm(&self) -> Vm {
        let root = HostRoot::new(self.path());
        let rules = Rules::read(&root, &HypervisorConfig::default()).0;
        let candidate = Candidate::at(self.path().join("qmp/web1.sock"));
        Vm::open(&root, &rules, &candidate, PATIENCE).unwrap()
    }
}

fn converse(stream: UnixStream, qemu: &Mutex<Qemu>) {
    let greeting = r#"{"QMP": {"version": {"qemu": {"micro": 0, "minor": 0, "major": 10}, "package": ""}, "capabilities": []}}"#;
    let mut out = stream.try_clone().unwrap();
    writeln!(out, "{greeting}").unwrap();
    qemu.lock().unwrap().clients.push(out.try_clone().unwrap());
    for line in BufReader::new(stream).lines() {
        let Ok(line) = line else { return };
        let qemu = qemu.lock().unwrap();
        // The client may be gone.
        let _ = writeln!(out, "{}", json!({ "return": qemu.answer(&line) }));
    }
}

fn plug(qemu: &Mutex<Qemu>, backend: Backend) {
    qemu.lock().unwrap().backends.push(backend);
}

fn unplug(qemu: &Mutex<Qemu>, id: &str) {
    qemu.lock().unwrap().backends.retain(|b| b.id != id);
}

fn tell(qemu: &Mutex<Qemu>, event: &str) {
    for client in &mut qemu.lock().unwrap().clients {
        // A client may be gone.
        let _ = writeln!(client, "{{\"event\": \"{event}\", \"data\": {{}}}}");
    }
}

/// A worker that keeps the files that it is given to map, reports that it is attached, and answers its first request
/// once the test lets it go.
fn worker(folder: &Path) -> WorkerCommand {
    let script = r#"dd bs=65536 count=1 <&0 > "$1/given.$$" 2> /dev/null
        printf '\002\000\000\000\000\000' >&0; echo $$ >> "$1/workers"
        head -c 1 <&0 > /dev/null; touch "$1/asked"
        while [ ! -e "$1/go" ]; do sleep 0.02; done
        cat "$1/answer" >&0; exec sleep 1000"#;
    WorkerCommand {
        program: "/bin/sh".into(),
        args: ["-c", script, "sh", folder.to_str().unwrap()]
            .map(Into::into)
            .into(),
    }
}

fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < PATIENCE, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The threads of a VM with two backends, as the daemon starts them.
struct Threads {
    machine: Machine,
    executor: Executor,
    events: Receiver<Input>,
    changes: Vec<String>,
}

impl Threads {
    fn start() -> Self {
        let backends = vec![Backend::new("m0", 0), Backend::new("d1", HIGH)];
        let machine = Machine::new(tempfile::tempdir().unwrap(), backends);
        let mut vm = machine.vm();
        let memory = Arc::new(vm.memory().unwrap());
        assert_eq!(memory.span_pages(), (HIGH >> 12) + 256);
        let answer = Response::Scanned(
            Passed::All(Box::new(answer(memory.span_pages()))),
            Vec::new(),
        );
        fs::write(machine.path().join("answer"), encode(&answer).unwrap()).unwrap();
        let worker = worker(machine.path());
        let tables = GuestTables::attach(worker, Arc::clone(&memory), PATIENCE).unwrap();
        let (inbox, events) = channel();
        Self {
            executor: start(machine.path(), vm, memory, tables, inbox),
            machine,
            events,
            changes: Vec::new(),
        }
    }

    /// The next event for the engine.
    fn event(&mut self) -> Event {
        loop {
            match self.events.recv_timeout(PATIENCE).unwrap() {
                // The cost of the scan is reported beside its answer.
                Input::Event(Event::ScanSpent(_)) => {}
                Input::Event(event) => return event,
                Input::MapChanged(vm, change) => {
                    assert_eq!(vm, VmId(1));
                    self.changes.push(change);
                }
                _ => {}
            }
        }
    }

    fn moved(&mut self, id: u64) -> MoveReport {
        let to = TierId(0);
        let pages = [0, 1, HIGH >> 12, (HIGH >> 12) + 255];
        self.executor.act(Action::Move(MovePlan {
            id: PlanId(id),
            vm: VmId(1),
            moves: pages.map(|gfn| PageMove { gfn: Gfn(gfn), to }).into(),
        }));
        match self.event() {
            Event::Moved(report) if report.id == PlanId(id) => report,
            other => panic!("{other:?}"),
        }
    }

    fn placed(&mut self, id: u64) -> Result<u64, String> {
        let (id, vm) = (RequestId(id), VmId(1));
        let query = PlacementQuery { id, vm };
        self.executor.act(Action::QueryPlacement(query));
        let mut pages = 0;
        loop {
            match self.event() {
                Event::Placement(report) => {
                    pages += report.codes.iter().filter(|c| c.tier().is_some()).count() as u64;
                    if report.last {
                        return Ok(pages);
                    }
                }
                Event::ScanFailed(failure) => return Err(failure.reason),
                other => panic!("{other:?}"),
            }
        }
    }
}

fn answer(span: u64) -> ScanAnswer {
    ScanAnswer {
        id: RequestId(1),
        space: Space::Guest(VmId(1)),
        known: PageBitmap::full(span),
        accessed: PageBitmap::full(span),
        written: None,
        huge_leaf: PageBitmap::new(span.div_ceil(512)),
        stats: ScanStats::default(),
    }
}

fn scan() -> ScanRequest {
    ScanRequest {
        id: RequestId(1),
        space: Space::Guest(VmId(1)),
        rearm: Rearm::All,
        prune: false,
        discover: false,
    }
}

#[test]
fn memory_unplugged_in_mid_round_is_neither_scanned_nor_moved() {
    let mut threads = Threads::start();
    let folder = threads.machine.path().to_owned();
    // As long as the map holds, all of it is observed and moved.
    assert_eq!(threads.placed(7), Ok(512));
    let report = threads.moved(1);
    let there = MoveStatus::AlreadyThere;
    assert!(
        report.results.iter().all(|r| r.status == there),
        "{report:?}"
    );
    // The worker is at it.
    threads.executor.act(Action::Scan(scan()));
    wait_until("the worker is asked", || folder.join("asked").exists());
    unplug(&threads.machine.qemu, "d1");
    tell(&threads.machine.qemu, "DEVICE_DELETED");
    let report = threads.moved(2);
    for (result, gfn) in report.results.iter().zip([0, 1, HIGH >> 12]) {
        assert_eq!(
            (result.gfn, result.status),
            (Gfn(gfn), MoveStatus::NotTried)
        );
        assert_eq!(result.now.tier(), None, "by the old map");
    }
    assert_eq!(report.results.len(), 4, "page by page");
    // The worker's answer about the old map is not used.
    fs::write(folder.join("go"), "").unwrap();
    match threads.event() {
        Event::ScanFailed(failure) if failure.id == RequestId(1) && !failure.fatal => {
            assert!(failure.reason.contains("memory map changed"), "{failure:?}");
        }
        other => panic!("{other:?}"),
    }
    let reason = threads.placed(8).unwrap_err();
    assert!(reason.contains("memory map changed"), "{reason}");
    // The daemon's thread is notified once.
    assert_eq!(threads.changes.len(), 1, "{:?}", threads.changes);
    assert!(
        threads.changes[0].contains("'d1' at 0x100000000 is gone"),
        "{:?}",
        threads.changes
    );
}

/// The mapping goes without an event of QEMU: the map alone cannot show it.
#[test]
fn ram_unmapped_in_mid_round_is_neither_scanned_nor_moved() {
    let mut threads = Threads::start();
    let folder = threads.machine.path().to_owned();
    threads.executor.act(Action::Scan(scan()));
    wait_until("the worker is asked", || folder.join("asked").exists());
    unplug(&threads.machine.qemu, "d1");
    fs::write(folder.join("go"), "").unwrap();
    let event = threads.event();
    let Event::ScanFailed(failure) = event else {
        panic!("{event:?}");
    };
    assert!(
        failure.reason.contains("QEMU maps something else"),
        "{failure:?}"
    );
    let report = threads.moved(1);
    let not_tried = MoveStatus::NotTried;
    assert!(
        report.results.iter().all(|r| r.status == not_tried),
        "{report:?}"
    );
}

#[test]
fn nothing_is_begun_by_a_map_that_changed() {
    let backends = vec![Backend::new("m0", 0), Backend::new("d1", HIGH)];
    let machine = Machine::new(tempfile::tempdir().unwrap(), backends);
    let mut vm = machine.vm();
    let memory = vm.memory().unwrap();
    let (stop, (inbox, _events)) = (Arc::new(AtomicBool::new(false)), channel());
    let watch = Arc::new(vm.watch(&memory));
    let guard = MapGuard::start(VmId(1), watch, Arc::clone(&stop), inbox).unwrap();
    let begun = Cell::new(0);
    let act = || begun.set(begun.get() + 1);
    guard.around(false, act).unwrap();
    // QEMU sends no event of it, and is queried before a round.
    plug(&machine.qemu, Backend::new("d2", 2 * HIGH));
    guard.around(false, act).unwrap();
    assert!(!stop.load(Ordering::Relaxed));
    for whole in [true, false] {
        let doubt = guard.around(whole, act).unwrap_err();
        assert!(doubt.contains("'d2' at 0x200000000 is new"), "{doubt}");
    }
    assert_eq!(begun.get(), 2, "nothing is done by it any more");
    assert!(
        stop.load(Ordering::Relaxed),
        "moves end at their next batch"
    );
}

/// A daemon with a discoverer that finds the machine's VM.
fn served(backends: Vec<Backend>) -> (Served, Arc<Mutex<Qemu>>) {
    let qemu = Arc::new(Mutex::new(Qemu {
        backends,
        ..Qemu::default()
    }));
    let mut text = String::new();
    let served = serve_with(|folder| {
        text = format!(
            "[discover]\nevery = \"100ms\"\nprocesses = false\nqmp_folders = [\"{}\"]\n\
             [engine]\npolicy = \"prefer-slow\"\n[vm.web1]\nscan = true\nmoves = false\n",
            folder.join("qmp").display()
        );
        text.clone()
    });
    Machine::prepare(served.folder.path(), &qemu);
    let root = HostRoot::new(served.folder.path());
    let topology = Arc::new(Topology::read(&root, &[]).unwrap());
    let discoverer = Discoverer::new(
        root,
        topology,
        Arc::new(Config::parse(&text).unwrap()),
        worker(served.folder.path()),
        Damon::new(served.folder.path()),
        served.inbox.clone(),
        served.claims.clone(),
    );
    std::thread::spawn(move || discoverer.run());
    (served, qemu)
}

fn memory_of(served: &Served) -> u64 {
    let vms: Vec<ListedVm> = served.get("/v1/vms").unwrap();
    let vm = vms.iter().find(|vm| vm.name == "web1");
    vm.filter(|vm| vm.rounds > 0)
        .map_or(0, |vm| vm.memory_bytes)
}

fn reasons(served: &Served) -> Vec<String> {
    let detail: VmDetail = served.get("/v1/vms/web1").unwrap();
    detail.reasons.into_iter().map(|r| r.text).collect()
}

/// The guest addresses that each worker was given to map, in the order of their starts.
fn given(folder: &Path) -> Vec<(u32, Vec<u64>)> {
    let pids = fs::read_to_string(folder.join("workers")).unwrap_or_default();
    let of = |pid: &str| {
        let frame = fs::read(folder.join(format!("given.{pid}"))).unwrap();
        let Request::Attach { ranges, .. } = decode(&frame[4..]).unwrap() else {
            panic!("something else came first");
        };
        let gpas = ranges.iter().map(|range| range.gpa.0).collect();
        (pid.parse().unwrap(), gpas)
    };
    pids.split_whitespace().map(of).collect()
}

fn is_gone(pid: u32) -> bool {
    !PathBuf::from(format!("/proc/{pid}/task")).exists()
        || fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|s| s.contains(") Z "))
}

#[test]
fn memory_plugged_later_is_scanned_and_the_old_map_is_not() {
    let (served, qemu) = served(vec![Backend::new("m0", 0)]);
    let folder = served.folder.path().to_owned();
    wait_until("the VM's first round", || memory_of(&served) == MIB as u64);
    let first = given(&folder)[0].clone();
    assert_eq!(first.1, [0]);
    let set = terrace_api::types::Setting {
        key: "weight".into(),
        value: "7".into(),
    };
    let _: Value = served.post_body("/v1/vms/web1/set", &set).unwrap();
    // The guest reports the outcome of the plug, while no check is requested.
    plug(&qemu, Backend::new("d1", HIGH));
    tell(&qemu, "ACPI_DEVICE_OST");
    let grown = 2 * MIB as u64;
    wait_until("the new RAM is managed", || memory_of(&served) == grown);
    wait_until("the old map's worker has ended", || is_gone(first.0));
    let second = given(&folder).last().unwrap().clone();
    assert_eq!(second.1, [0, HIGH], "the new worker maps all of it");
    let said = reasons(&served);
    let known = "its new memory map is known: 2 MiB of RAM, before 1 MiB";
    assert!(said.iter().any(|text| text == known), "{said:?}");
    assert!(
        said.iter().any(|text| text == "weight is now 7"),
        "it goes on under its id"
    );
    let events: Vec<EventLine> = served.get("/v1/events?after=0").unwrap();
    let has_event = |text: &str| events.iter().any(|e| e.text.contains(text));
    assert!(has_event(
        "its memory map changed: 1 MiB of RAM, now 2 MiB; 'd1' at 0x100000000 is new"
    ));
    assert!(has_event("under management by its new memory map"));
    assert_eq!(
        events
            .iter()
            .filter(|e| e.text == "under management")
            .count(),
        1
    );
    // Without a word of QEMU the next round notices.
    unplug(&qemu, "d1");
    let planned = || served.post::<Value>("/v1/vms/web1/plan").is_ok();
    wait_until("a round starts", planned);
    wait_until("the old RAM is gone", || memory_of(&served) == MIB as u64);
    wait_until("the second map's worker has ended", || is_gone(second.0));
    assert_eq!(given(&folder).last().unwrap().1, [0]);
}
