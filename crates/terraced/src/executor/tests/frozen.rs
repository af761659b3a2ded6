//! The threads of a VM whose worker is frozen with it.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use serde_json::json;
use terrace_host::HostRoot;
use terrace_host::memory_map::{GuestMemory, Range};
use terrace_host::qemu::Candidate;
use terrace_host::qemu::who::{HypervisorConfig, Rules};
use terrace_host::tracker::GuestTables;
use terrace_host::vm::Vm;
use terrace_host::worker::WorkerCommand;
use terrace_proto::{Gpa, Hva, Rearm, RequestId, ScanRequest, Space, VmId};
use terrace_sys::Process;

use super::super::*;
use super::start;
use crate::played::{host, play_qemu};

const PATIENCE: Duration = Duration::from_secs(20);
const NEVER: Duration = Duration::from_secs(3600);

/// A worker's script that reports that it is attached, and nothing ever after.
const FROZEN: &str = r"printf '\002\000\000\000\000\000' >&0; exec sleep 1000";

fn answer(line: &str) -> serde_json::Value {
    let registers = "CPU#0\nCR0=80050033 CR2=0 CR3=00001000 CR4=00000020\nEFER=00000d01\n";
    match line {
        l if l.contains("query-uuid") => json!({ "UUID": "0-0" }),
        l if l.contains("query-kvm") => json!({ "enabled": true, "present": true }),
        l if l.contains("query-cpus-fast") => json!([{ "cpu-index": 0, "qom-path": "/cpu" }]),
        l if l.contains("qom-get") => json!(false),
        l if l.contains("info registers") => json!(registers),
        _ => json!({}),
    }
}

/// A VM whose monitor answers, and whose process is this one.
fn vm(folder: &Path) -> Vm {
    host(folder);
    play_qemu(folder, std::process::id());
    let socket = folder.join("vm.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let greeting = r#"{"QMP": {"version": {"qemu": {"micro": 0, "minor": 0, "major": 9}, "package": ""}, "capabilities": []}}"#;
        writeln!(stream, "{greeting}").unwrap();
        for line in BufReader::new(stream.try_clone().unwrap()).lines() {
            let answer = json!({ "return": answer(&line.unwrap()) });
            writeln!(stream, "{answer}").unwrap();
        }
    });
    let root = HostRoot::new(folder);
    let rules = Rules::read(&root, &HypervisorConfig::default()).0;
    Vm::open(&root, &rules, &Candidate::at(&socket), PATIENCE).unwrap()
}

fn memory() -> Arc<GuestMemory> {
    let file = tempfile::tempfile().unwrap();
    file.set_len(1 << 20).unwrap();
    let range = Range {
        gpa: Gpa(0),
        len: 1 << 20,
        hva: Hva(1 << 20),
        file_index: 0,
        file_offset: 0,
        shared: true,
    };
    Arc::new(GuestMemory::new(vec![range], vec![file.into()]).unwrap())
}

fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < PATIENCE, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_vm_that_ends_takes_its_frozen_worker_along() {
    let folder = tempfile::tempdir().unwrap();
    let (vm, memory) = (vm(folder.path()), memory());
    let shell = WorkerCommand {
        program: "/bin/sh".into(),
        args: ["-c", FROZEN].map(Into::into).into(),
    };
    let tables = GuestTables::attach(shell, Arc::clone(&memory), NEVER).unwrap();
    let worker = Process::open(Path::new("/proc"), tables.worker_pid().unwrap()).unwrap();
    let (inbox, _events) = channel();
    let executor = start(folder.path(), vm, memory, tables, inbox);
    executor.act(Action::Scan(ScanRequest {
        id: RequestId(1),
        space: Space::Guest(VmId(1)),
        rearm: Rearm::All,
        prune: false,
        discover: false,
    }));
    assert!(worker.is_alive());
    let threads = executor.threads();
    drop(executor);
    wait_until("the worker has ended", || !worker.is_alive());
    wait_until("the threads have ended", || threads.strong_count() == 0);
}
