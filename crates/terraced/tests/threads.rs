//! The rights of each thread of the daemon, by the kernel's word: `/proc/PID/task/*/status`.

#![allow(clippy::unwrap_used, reason = "test helpers outside of test functions")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(120);
const GLANCE: Duration = Duration::from_millis(50);

const DAC_OVERRIDE: u64 = 1 << 1;
const PERFMON: u64 = 1 << 38;
const DAC_READ_SEARCH: u64 = 1 << 2;
const SYS_PTRACE: u64 = 1 << 19;
const SYS_NICE: u64 = 1 << 23;

/// A process that ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // The kill fails only if it has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Daemon {
    folder: tempfile::TempDir,
    process: Running,
}

impl Daemon {
    fn start(more: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("qmp")).unwrap();
        let place = folder.path().display();
        let text = format!(
            "[daemon]\nsocket = \"{place}/api\"\n\
             [discover]\nqmp_folders = [\"{place}/qmp\"]\nprocesses = false\nevery = \"1s\"\n\
             [hypervisors]\ncgroups = [\"/*\"]\nown_cgroups = [\"/*\"]\n{more}"
        );
        let config = folder.path().join("terrace.toml");
        fs::write(&config, text).unwrap();
        let log = fs::File::create(folder.path().join("log")).unwrap();
        let process = Command::new(env!("CARGO_BIN_EXE_terraced"))
            .arg("--config")
            .arg(&config)
            .stderr(log)
            .spawn()
            .unwrap();
        let daemon = Self {
            folder,
            process: Running(process),
        };
        daemon.wait("the API", |daemon| daemon.get("/v1/status").is_some());
        daemon
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    fn wait(&self, what: &str, is_so: impl Fn(&Self) -> bool) {
        let begin = Instant::now();
        while !is_so(self) {
            let log = self.log();
            assert!(begin.elapsed() < PATIENCE, "no {what}: {log}");
            sleep(GLANCE);
        }
    }

    fn get(&self, path: &str) -> Option<String> {
        let mut stream = UnixStream::connect(self.path("api")).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let ask = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        stream.write_all(ask.as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        answer.starts_with("HTTP/1.1 200").then_some(answer)
    }

    fn threads(&self) -> Vec<Thread> {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.process.0.id())).unwrap();
        let tasks = tasks.flatten().map(|task| task.path());
        tasks.filter_map(|task| Thread::read(&task)).collect()
    }

    fn names(&self) -> BTreeSet<String> {
        self.threads()
            .into_iter()
            .map(|thread| thread.name)
            .collect()
    }
}

#[derive(Debug)]
struct Thread {
    name: String,
    permitted: u64,
    effective: u64,
    bounding: u64,
    ambient: u64,
    no_new_privileges: u64,
    seccomp: u64,
    filters: u64,
}

impl Thread {
    /// The state of a thread; `None` if it has ended.
    fn read(task: &Path) -> Option<Self> {
        let status = fs::read_to_string(task.join("status")).ok()?;
        let field = |key: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(key));
            line.unwrap_or_else(|| panic!("no {key} in {status}"))
                .trim()
        };
        let set = |key| u64::from_str_radix(field(key), 16).unwrap();
        Some(Self {
            name: field("Name:").to_owned(),
            permitted: set("CapPrm:"),
            effective: set("CapEff:"),
            bounding: set("CapBnd:"),
            ambient: set("CapAmb:"),
            no_new_privileges: set("NoNewPrivs:"),
            seccomp: set("Seccomp:"),
            filters: set("Seccomp_filters:"),
        })
    }
}

/// The capabilities of each thread by its name.
fn wanted() -> BTreeMap<&'static str, u64> {
    BTreeMap::from([
        ("terraced", 0),
        ("ctrl-c", 0),
        (
            "start",
            SYS_NICE | SYS_PTRACE | DAC_READ_SEARCH | DAC_OVERRIDE | PERFMON,
        ),
        ("open", SYS_PTRACE | DAC_OVERRIDE),
        ("workers", 0),
        ("worker-start", 0),
        ("worker-end", 0),
        ("discoverer", SYS_PTRACE | DAC_READ_SEARCH),
        ("monitor", 0),
        ("observe", 0),
        ("map", 0),
        ("census", SYS_PTRACE | DAC_READ_SEARCH),
        ("place", SYS_PTRACE | DAC_READ_SEARCH),
        ("move", SYS_NICE | SYS_PTRACE | DAC_READ_SEARCH),
        ("reconciler", 0),
        ("agents", 0),
        ("api", 0),
        ("view", 0),
        ("doctor", 0),
        ("record", 0),
    ])
}

/// Whether this test has the capabilities that the daemon would keep.
fn has_all_capabilities() -> bool {
    let own = Thread::read(Path::new("/proc/thread-self")).unwrap();
    let needed = wanted()["start"];
    own.permitted & needed == needed
}

fn say(message: &str) {
    // Past the capture of the test harness.
    let message = format!("\n{message}\n");
    std::io::stderr().write_all(message.as_bytes()).unwrap();
}

fn check(threads: &[Thread], test: &str) {
    let wanted = wanted();
    for thread in threads {
        let name = thread.name.as_str();
        let expected = *wanted
            .get(name)
            .unwrap_or_else(|| panic!("a thread that this test does not know: {thread:?}"));
        assert_eq!(thread.no_new_privileges, 1, "{thread:?}");
        assert_eq!(thread.seccomp, 2, "{thread:?}");
        // Two of the process, one of its own.
        let own = !matches!(name, "start" | "workers" | "worker-start" | "worker-end");
        assert_eq!(thread.filters, 2 + u64::from(own), "{thread:?}");
        assert_eq!(thread.ambient, 0, "{thread:?}");
        assert_eq!(thread.permitted & !expected, 0, "{thread:?}");
        assert_eq!(thread.effective & !thread.permitted, 0, "{thread:?}");
        if has_all_capabilities() {
            assert_eq!(thread.permitted, expected, "{thread:?}");
            // The one that starts threads uses nothing of it.
            let used = if name == "start" { 0 } else { expected };
            assert_eq!(thread.effective, used, "{thread:?}");
            assert_eq!(thread.bounding, 0, "{thread:?}");
        }
    }
    if !has_all_capabilities() {
        say(&format!(
            "SKIPPED in part {test}: that threads keep what their work needs was NOT TESTED, since this test lacks \
             CAP_SYS_NICE, CAP_SYS_PTRACE, CAP_DAC_READ_SEARCH or CAP_DAC_OVERRIDE (run it as root)"
        ));
    }
}

#[test]
fn each_thread_of_the_daemon_may_do_only_what_its_work_needs() {
    let daemon = Daemon::start("");
    let test = "each_thread_of_the_daemon_may_do_only_what_its_work_needs";
    let always = ["terraced", "discoverer", "agents", "api", "view"];
    daemon.wait("threads", |daemon| {
        let _ = daemon.get("/v1/doctor");
        always.iter().all(|name| daemon.names().contains(*name))
    });
    check(&daemon.threads(), test);
    let names = daemon.names();
    for name in ["start", "open", "worker-start", "monitor"] {
        assert!(names.contains(name), "no {name}: {names:?}");
    }
    let doctor = daemon.get("/v1/doctor").unwrap();
    assert!(
        doctor.contains("each thread's system calls are filtered"),
        "{doctor}"
    );
}

#[test]
fn a_vms_threads_may_do_only_their_work_its_worker_nothing() {
    let test = "a_vms_threads_may_do_only_their_work_its_worker_nothing";
    let program = Path::new("/usr/bin/qemu-system-x86_64");
    if !program.exists() {
        say(&format!(
            "SKIPPED {test}: NOT TESTED, since there is no {}",
            program.display()
        ));
        return;
    }
    let daemon = Daemon::start("[defaults]\nscan = true\nmoves = true\n");
    let socket = daemon.path("qmp/vm1.sock");
    let vm = Command::new(program)
        .args([
            "-name",
            "vm1",
            "-S",
            "-display",
            "none",
            "-nodefaults",
            "-m",
            "32M",
        ])
        .args([
            "-machine",
            "pc,accel=tcg,memory-backend=ram",
            "-cpu",
            "qemu64,-svm",
        ])
        .args(["-object", "memory-backend-memfd,id=ram,size=32M,share=on"])
        .args(["-device", "virtio-balloon-pci"])
        .arg("-qmp")
        .arg(format!("unix:{},server=on,wait=off", socket.display()))
        .stdin(Stdio::null())
        .spawn();
    let _vm = Running(vm.unwrap());
    let there = ["observe", "move", "reconciler", "view"];
    daemon.wait("VM that is managed", |daemon| {
        let _ = daemon.get("/v1/vms");
        there.iter().all(|name| daemon.names().contains(*name))
    });
    check(&daemon.threads(), test);
    assert!(daemon.names().contains("place"));
    let worker = worker_of(daemon.process.0.id()).unwrap();
    let worker = Thread::read(&PathBuf::from(format!("/proc/{worker}"))).unwrap();
    let held = [worker.permitted, worker.effective, worker.ambient];
    assert_eq!((held, worker.no_new_privileges), ([0; 3], 1), "{worker:?}");
    // Those of the process that started it, and its own: one has `clone3` fail, one lists what it may.
    assert_eq!((worker.seccomp, worker.filters), (2, 4), "{worker:?}");
    // The daemon's queries of the kernel and the monitor about it are not refused.
    daemon.wait("memory of the VM", |daemon| {
        let vm = daemon.get("/v1/vms/vm1").unwrap_or_default();
        !vm.contains("Operation not permitted") && vm.contains("managed")
    });
    let log = daemon.log();
    assert!(
        !log.contains("not permitted") && !log.contains("not implemented"),
        "{log}"
    );
}

fn worker_of(daemon: u32) -> Option<u32> {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let mut pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.find(|pid| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        status
            .lines()
            .any(|line| line == format!("PPid:\t{daemon}"))
    })
}

/// glibc opens a file when it shrinks a thread's own heap, which a thread that may open nothing is refused.
#[test]
fn no_thread_has_a_heap_of_its_own() {
    let daemon = Daemon::start("");
    daemon.wait("threads", |daemon| daemon.names().contains("agents"));
    let maps = fs::read_to_string(format!("/proc/{}/maps", daemon.process.0.id())).unwrap();
    // Each begins at a multiple of its size; its unused part is out of reach.
    const HEAP: u64 = 64 << 20;
    let reserved = maps.lines().filter(|line| {
        let (range, rest) = line.split_once(' ').unwrap();
        let (_, end) = range.split_once('-').unwrap();
        let end = u64::from_str_radix(end, 16).unwrap();
        rest.starts_with("---p") && end.is_multiple_of(HEAP)
    });
    assert_eq!(reserved.collect::<Vec<_>>(), [""; 0]);
}

#[test]
fn without_filters_capabilities_are_dropped_with_a_warning() {
    let daemon = Daemon::start("[security]\nseccomp = false\n");
    let log = daemon.log();
    assert!(log.contains("SYSTEM CALLS ARE NOT FILTERED"), "{log}");
    daemon.wait("threads", |daemon| daemon.names().contains("agents"));
    for thread in daemon.threads() {
        assert_eq!(
            (thread.seccomp, thread.no_new_privileges),
            (0, 1),
            "{thread:?}"
        );
        if matches!(
            thread.name.as_str(),
            "api" | "agents" | "monitor" | "terraced"
        ) {
            assert_eq!(thread.permitted, 0, "{thread:?}");
        }
    }
    let doctor = daemon.get("/v1/doctor").unwrap();
    assert!(doctor.contains("not filtered"), "{doctor}");
}
