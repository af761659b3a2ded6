//! A monitor that a test plays: one that behaves, and ones that hang, refuse or talk nonsense.

#![allow(clippy::unwrap_used, reason = "test helpers outside of test functions")]

mod scripted;

use std::fs;
use std::io::Write;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use terrace_host::HostRoot;
use terrace_host::qemu::{Candidate, Monitor, QemuError, Vm};
use terrace_proto::{Gpa, Hva};

use scripted::{human, serve};

const SHORT: Duration = Duration::from_millis(80);
const LONG: Duration = Duration::from_secs(20);

/// As QEMU answers; with an event of the future before each answer.
fn qemu(line: &str) -> Option<String> {
    let event = r#"{"timestamp": {"seconds": 1, "microseconds": 2}, "event": "FROM_THE_FUTURE", "data": {"x": 1}}"#;
    let answer = match line {
        l if l.contains("query-name") => r#"{"return": {"name": "vm1"}}"#.into(),
        l if l.contains("query-uuid") => {
            r#"{"return": {"UUID": "00000000-0000-0000-0000-000000000000"}}"#.into()
        }
        l if l.contains("query-kvm") => r#"{"return": {"enabled": true, "present": true}}"#.into(),
        l if l.contains("query-status") => {
            r#"{"return": {"status": "paused", "singlestep": false, "running": false}}"#.into()
        }
        l if l.contains("gpa2hva 0x1000") => {
            human("Host virtual address for 0x1000 (m0) is 0x7f0000001000\r\n")?
        }
        l if l.contains("gpa2hva") => {
            r#"{"error": {"class": "GenericError", "desc": "not today"}}"#.into()
        }
        l if l.contains("info registers") => human("nothing that makes sense")?,
        _ => r#"{"return": {}}"#.into(),
    };
    Some(format!("{event}\n{answer}"))
}

struct Fixture {
    _dir: tempfile::TempDir,
    socket: PathBuf,
    root: HostRoot,
}

/// A socket, and a tree in which this process looks like a QEMU.
fn fixture(answer: fn(&str) -> Option<String>) -> Fixture {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("vm.sock");
    serve(&socket, answer);
    let own = dir.path().join(format!("proc/{}", std::process::id()));
    fs::create_dir_all(&own).unwrap();
    fs::write(own.join("cmdline"), "/usr/bin/qemu-system-x86_64\0").unwrap();
    fs::copy("/proc/self/stat", own.join("stat")).unwrap();
    Fixture {
        root: HostRoot::new(dir.path()),
        _dir: dir,
        socket,
    }
}

#[test]
fn a_vm_is_known_by_its_monitor_and_the_process_behind_it() {
    let f = fixture(qemu);
    let mut vm = Vm::open(&f.root, &Candidate::at(&f.socket), LONG).unwrap();
    let identity = vm.identity().clone();
    assert_eq!((identity.name.as_str(), identity.uuid), ("vm1", None));
    assert!(identity.kvm && vm.process().is_alive());
    assert_eq!(identity.pid, std::process::id());
    let status = vm.status().unwrap();
    assert!(!status.running && status.state == "paused");
}

#[test]
fn a_listener_that_is_no_qemu_is_not_taken_for_one() {
    let f = fixture(qemu);
    let own = f.root.process(std::process::id(), "cmdline");
    fs::write(own, "/usr/sbin/libvirtd\0").unwrap();
    let error = Vm::open(&f.root, &Candidate::at(&f.socket), LONG).unwrap_err();
    assert!(matches!(error, QemuError::NoProcess { .. }), "{error}");
}

#[test]
fn refusals_and_nonsense_leave_the_connection_usable() {
    let f = fixture(qemu);
    let mut monitor = Monitor::connect(&f.socket, LONG).unwrap();
    let refused = monitor.host_address(Gpa(0)).unwrap_err().to_string();
    assert!(
        refused.contains("not today") && refused.contains("gpa2hva 0x0"),
        "{refused}"
    );
    assert!(matches!(monitor.registers(), Err(QemuError::Parse { .. })));
    let found = monitor.host_address(Gpa(0x1000)).unwrap();
    assert_eq!(found, Some(("m0".into(), Hva(0x7f00_0000_1000))));
}

#[test]
fn a_monitor_that_another_program_holds_is_said_so() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("held");
    let _listener = UnixListener::bind(&socket).unwrap();
    let begin = Instant::now();
    let error = Monitor::connect(&socket, SHORT).unwrap_err();
    assert!(matches!(error, QemuError::Held { .. }), "{error}");
    assert!(error.to_string().contains("libvirt"));
    assert!(begin.elapsed() < LONG / 2);
    let nobody = Monitor::connect(&dir.path().join("none"), SHORT).unwrap_err();
    assert!(matches!(nobody, QemuError::Connect { .. }), "{nobody}");
}

#[test]
fn qmp_that_hangs_is_timed_out_and_its_late_answer_is_not_mistaken() {
    let f = fixture(|line| match line {
        l if l.contains("query-name") => {
            thread::sleep(3 * SHORT);
            Some(r#"{"return": {"name": "late"}}"#.into())
        }
        line => qemu(line),
    });
    let mut monitor = Monitor::connect(&f.socket, SHORT).unwrap();
    let error = monitor.name().unwrap_err();
    assert!(matches!(error, QemuError::TimedOut { .. }), "{error}");
    thread::sleep(4 * SHORT);
    assert!(!monitor.status().unwrap().running);
}

#[test]
fn qmp_that_sends_garbage_or_closes_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    for (name, text) in [("closed", ""), ("http", "HTTP/1.1 400 Bad Request\n")] {
        let socket = dir.path().join(name);
        let listener = UnixListener::bind(&socket).unwrap();
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(text.as_bytes()).unwrap();
        });
        let error = Monitor::connect(&socket, LONG).unwrap_err();
        assert!(matches!(error, QemuError::Broken { .. }), "{error}");
    }
}

#[test]
fn a_migration_that_goes_on_is_told_from_none_and_one_that_is_over() {
    let f = fixture(qemu);
    let mut vm = Vm::open(&f.root, &Candidate::at(&f.socket), LONG).unwrap();
    assert_eq!(vm.migration().unwrap(), None);
    type Answer = fn(&str) -> Option<String>;
    let cases: [(Answer, Option<&str>); 4] = [
        (
            |line| migrating(line, "postcopy-active"),
            Some("postcopy-active"),
        ),
        (|line| migrating(line, "active"), Some("active")),
        (|line| migrating(line, "completed"), None),
        (|line| migrating(line, "failed"), None),
    ];
    for (answer, want) in cases {
        let f = fixture(answer);
        let mut vm = Vm::open(&f.root, &Candidate::at(&f.socket), LONG).unwrap();
        assert_eq!(vm.migration().unwrap().as_deref(), want);
    }
}

fn migrating(line: &str, status: &str) -> Option<String> {
    if line.contains("query-migrate") {
        Some(serde_json::json!({ "return": { "status": status } }).to_string())
    } else {
        qemu(line)
    }
}
