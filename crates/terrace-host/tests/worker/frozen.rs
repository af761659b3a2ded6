//! Workers in their VM's cgroup, which may be frozen or killed with them.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use terrace_host::HostRoot;
use terrace_host::tracker::GuestTables;
use terrace_host::worker::{ChargedTo, WorkerError};
use terrace_proto::Rearm;
use terrace_sys::Process;

use super::{Guest, SECONDS, command, kill, request, signal, vcpu};

pub const TESTS: [(&str, fn()); 5] = [
    (
        "a_worker_joins_its_vms_memory_cgroup_before_it_maps_anything",
        a_worker_joins_its_vms_memory_cgroup_before_it_maps_anything,
    ),
    (
        "a_worker_that_cannot_join_a_cgroup_says_why_and_works",
        a_worker_that_cannot_join_a_cgroup_says_why_and_works,
    ),
    (
        "a_frozen_worker_is_killed_and_replaced",
        a_frozen_worker_is_killed_and_replaced,
    ),
    (
        "a_frozen_worker_ends_with_its_vm_and_holds_up_no_other",
        a_frozen_worker_ends_with_its_vm_and_holds_up_no_other,
    ),
    (
        "a_worker_is_killed_before_its_hypervisor_under_oom",
        a_worker_is_killed_before_its_hypervisor_under_oom,
    ),
];

/// A tree in which this process is a hypervisor in a cgroup of its own; the cgroup's folder.
fn with_cgroup(mounts: &str) -> (tempfile::TempDir, ChargedTo, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let own = dir.path().join(format!("proc/{}", std::process::id()));
    let group = dir.path().join("sys/fs/cgroup/vm.scope");
    for folder in [&own, &dir.path().join("proc/self"), &group] {
        std::fs::create_dir_all(folder).unwrap();
    }
    std::fs::copy("/proc/self/stat", own.join("stat")).unwrap();
    std::fs::write(own.join("cgroup"), "0::/vm.scope\n").unwrap();
    std::fs::write(dir.path().join("proc/self/cgroup"), "0::/daemon\n").unwrap();
    std::fs::write(dir.path().join("proc/self/mountinfo"), mounts).unwrap();
    std::fs::write(group.join("cgroup.type"), "domain\n").unwrap();
    std::fs::write(group.join("cgroup.procs"), "").unwrap();
    let root = HostRoot::new(dir.path());
    let hypervisor = Process::open(&root.proc(), std::process::id()).unwrap();
    let charged_to = ChargedTo {
        root,
        hypervisor: Arc::new(hypervisor),
    };
    (dir, charged_to, group)
}

const CGROUP2: &str = "31 23 0:27 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";

pub fn a_worker_joins_its_vms_memory_cgroup_before_it_maps_anything() {
    let guest = Guest::new();
    let (_dir, charged_to, group) = with_cgroup(CGROUP2);
    // One that is never heard of, so it cannot have mapped anything.
    let (silent, limit) = (command("silent"), Duration::from_millis(50));
    let memory = guest.memory.clone();
    let tables = GuestTables::attach_charged(silent, memory, limit, Some(charged_to.clone()));
    let WorkerError::TimedOut { pid, .. } = tables.unwrap_err() else {
        panic!("no time-out");
    };
    let joined = || std::fs::read_to_string(group.join("cgroup.procs")).unwrap();
    assert_eq!(joined(), pid.to_string());
    // The one that replaces it, too.
    let memory = guest.memory.clone();
    let tables = GuestTables::attach_charged(command("worker"), memory, SECONDS, Some(charged_to));
    let mut tables = tables.unwrap();
    assert_eq!(tables.uncharged(), None);
    kill(tables.worker_pid().unwrap());
    assert!(
        tables
            .scan_from(request(Rearm::None, false), vcpu())
            .is_err()
    );
    let _ = tables.scan_from(request(Rearm::None, false), vcpu());
    assert_eq!(joined(), tables.worker_pid().unwrap().to_string());
}

pub fn a_worker_that_cannot_join_a_cgroup_says_why_and_works() {
    let guest = Guest::new();
    let (_dir, charged_to, _) = with_cgroup("");
    let (worker, memory) = (command("worker"), guest.memory.clone());
    let tables = GuestTables::attach_charged(worker, memory, SECONDS, Some(charged_to));
    let mut tables = tables.unwrap();
    assert_eq!(tables.uncharged(), Some("no cgroup2 is mounted"));
    assert_eq!(tables.sandbox_gaps(), [] as [String; 0]);
    assert!(tables.scan_from(request(Rearm::None, true), vcpu()).is_ok());
}

pub fn a_worker_is_killed_before_its_hypervisor_under_oom() {
    let guest = Guest::new();
    let tables = guest.tables();
    let file = format!("/proc/{}/oom_score_adj", tables.worker_pid().unwrap());
    assert_eq!(std::fs::read_to_string(file).unwrap().trim(), "1000");
}

/// Stops a process as a cgroup's freezer does.
fn freeze(pid: u32) {
    signal(pid, "-STOP");
    let state = || {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let (_, after_name) = stat.rsplit_once(") ").unwrap();
        after_name.starts_with('T')
    };
    wait_until("the worker is stopped", state);
}

fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < SECONDS, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn is_there(pid: u32) -> bool {
    std::path::Path::new(&format!("/proc/{pid}")).exists()
}

pub fn a_frozen_worker_is_killed_and_replaced() {
    let guest = Guest::new();
    let limit = Duration::from_millis(300);
    let memory = guest.memory.clone();
    let mut tables = GuestTables::attach(command("worker"), memory, limit).unwrap();
    let pid = tables.worker_pid().unwrap();
    freeze(pid);
    let failure = tables.scan_from(request(Rearm::None, false), vcpu());
    let failure = failure.unwrap_err();
    assert!(
        failure.reason.contains("did not answer") && !failure.fatal,
        "{}",
        failure.reason
    );
    wait_until("the frozen worker is gone", || !is_there(pid));
    wait_until("another one answers", || {
        tables.scan_from(request(Rearm::None, true), vcpu()).is_ok()
    });
}

pub fn a_frozen_worker_ends_with_its_vm_and_holds_up_no_other() {
    const NEVER: Duration = Duration::from_secs(3600);
    let guest = Guest::new();
    let memory = guest.memory.clone();
    let mut tables = GuestTables::attach(command("worker"), memory, NEVER).unwrap();
    let (pid, stop) = (tables.worker_pid().unwrap(), tables.worker_stop());
    freeze(pid);
    let scan = std::thread::spawn(move || {
        let first = tables.scan_from(request(Rearm::None, false), vcpu());
        let second = tables.scan_from(request(Rearm::None, false), vcpu());
        (first, second)
    });
    let other = Guest::new();
    let mut others = other.tables();
    assert!(others.scan_from(request(Rearm::None, true), vcpu()).is_ok());
    assert!(!scan.is_finished() && is_there(pid));
    stop.stop();
    let (first, second) = scan.join().unwrap();
    assert!(first.unwrap_err().reason.contains("killed"));
    let second = second.unwrap_err().reason;
    assert!(second.contains("ended with its VM"), "{second}");
    wait_until("the frozen worker is gone", || !is_there(pid));
    assert!(
        others
            .scan_from(request(Rearm::None, false), vcpu())
            .is_ok()
    );
}
