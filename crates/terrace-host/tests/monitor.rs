//! A monitor that a test plays: one that behaves, and ones that hang, refuse or talk nonsense.

#![allow(clippy::unwrap_used, reason = "test helpers outside of test functions")]

use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use terrace_host::HostRoot;
use terrace_host::qemu::who::Refusal;
use terrace_host::qemu::{Candidate, Monitor, QemuError};
use terrace_host::vm::Vm;
use terrace_proto::{Gpa, Hva};

use terrace_testkit::monitor::{human, serve};
use terrace_testkit::qemu::{play_qemu, rules};

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

/// A socket, and a tree in which this process passes for a QEMU.
fn fixture(answer: fn(&str) -> Option<String>) -> Fixture {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("vm.sock");
    serve(&socket, answer);
    play_qemu(dir.path(), std::process::id(), &[]);
    Fixture {
        root: HostRoot::new(dir.path()),
        _dir: dir,
        socket,
    }
}

fn open(f: &Fixture) -> Result<Vm, QemuError> {
    Vm::open(&f.root, &rules(&f.root), &Candidate::at(&f.socket), LONG)
}

/// Makes the process behind the fixture's monitor run another program, under the same command line.
fn runs(f: &Fixture, program: &str) {
    let path = f.root.join(program);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, "").unwrap();
    let link = f.root.process(std::process::id(), "exe");
    fs::remove_file(&link).unwrap();
    symlink(path, link).unwrap();
}

#[test]
fn a_vm_is_known_by_its_monitor_and_the_process_behind_it() {
    let f = fixture(qemu);
    let mut vm = open(&f).unwrap();
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
    runs(&f, "usr/sbin/libvirtd");
    let error = open(&f).unwrap_err();
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
fn a_hung_qmp_times_out_and_its_late_answer_is_not_mistaken() {
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
fn a_migration_under_way_is_distinguished_from_an_ended_one() {
    let f = fixture(qemu);
    let mut vm = open(&f).unwrap();
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
        let mut vm = open(&f).unwrap();
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

#[test]
fn an_impostor_with_the_name_of_a_vm_is_not_taken_for_it() {
    let f = fixture(qemu);
    // `exec -a qemu-system-x86_64 python3 …`.
    let own = f.root.process(std::process::id(), "cmdline");
    fs::write(own, "/usr/bin/qemu-system-x86_64\0-name\0vm1\0").unwrap();
    runs(&f, "usr/bin/python3");
    let error = open(&f).unwrap_err();
    assert!(matches!(error, QemuError::NoProcess { .. }), "{error}");
    assert!(error.to_string().contains("usr/bin/python3"), "{error}");
}

#[test]
fn a_monitor_in_a_folder_writable_by_others_is_not_opened() {
    let f = fixture(|_| panic!("it was asked something"));
    let folder = f.socket.parent().unwrap();
    fs::set_permissions(folder, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    let error = open(&f).unwrap_err();
    assert!(matches!(error, QemuError::NotAVm { .. }), "{error}");
    assert!(error.to_string().contains("which others write"), "{error}");
}

#[test]
fn a_listener_of_a_user_that_may_not_run_vms_is_asked_nothing() {
    let f = fixture(|_| panic!("it was asked something"));
    let refused = Monitor::connect_to(&f.socket, LONG, &|peer| {
        assert_eq!(peer.unwrap().pid, Some(std::process::id()));
        Err(Refusal {
            why: "not you".into(),
            change: String::new(),
        })
    });
    let error = refused.unwrap_err();
    assert!(matches!(error, QemuError::NotAVm { .. }), "{error}");
}

#[test]
fn a_name_of_15_mb_and_one_with_escapes_are_refused() {
    type Answer = fn(&str) -> Option<String>;
    let cases: [(Answer, &str); 3] = [
        (
            |line| named(line, &"x".repeat(15 << 20)),
            "a line of more than",
        ),
        (|line| named(line, &"x".repeat(256)), "not 1 to 255"),
        (|line| named(line, "\x1b[2Jvm"), "\\u{1b}[2Jvm"),
    ];
    for (answer, want) in cases {
        let error = open(&fixture(answer)).unwrap_err().to_string();
        assert!(error.len() < 2000, "{} bytes", error.len());
        assert!(error.contains(want) && !error.contains('\x1b'), "{error}");
    }
}

fn named(line: &str, name: &str) -> Option<String> {
    if line.contains("query-name") {
        Some(serde_json::json!({ "return": { "name": name } }).to_string())
    } else {
        qemu(line)
    }
}

#[test]
fn a_uuid_that_is_none_is_refused() {
    let error = open(&fixture(|line| match line {
        l if l.contains("query-uuid") => {
            Some(serde_json::json!({ "return": { "UUID": "\x1b[2J" } }).to_string())
        }
        line => qemu(line),
    }));
    let error = error.unwrap_err();
    assert!(matches!(error, QemuError::Parse { .. }), "{error}");
    assert!(!error.to_string().contains('\x1b'));
}

#[test]
fn a_refusal_of_qemu_brings_no_escapes() {
    let f = fixture(|line| match line {
        l if l.contains("query-name") => Some(
            serde_json::json!({ "error": { "class": "GenericError", "desc": "\x1b]0;owned\x07" } })
                .to_string(),
        ),
        line => qemu(line),
    });
    let error = Monitor::connect(&f.socket, LONG)
        .unwrap()
        .name()
        .unwrap_err();
    assert!(
        error.to_string().contains("\\u{1b}]0;owned\\u{7}"),
        "{error}"
    );
}

/// libvirt opens the monitor and hands it over: who listens there is libvirtd.
#[test]
fn a_monitor_opened_by_root_or_the_user_belongs_to_its_uuid() {
    const UUID: &str = "c5a0b6f4-0000-4000-8000-000000000001";
    let f = fixture(|line| match line {
        l if l.contains("query-uuid") => Some(format!(r#"{{"return": {{"UUID": "{UUID}"}}}}"#)),
        line => qemu(line),
    });
    runs(&f, "usr/sbin/libvirtd");
    let mut child = std::process::Command::new("sleep")
        .arg("1000")
        .spawn()
        .unwrap();
    let mut second = std::process::Command::new("sleep")
        .arg("1000")
        .spawn()
        .unwrap();
    let error = open(&f).unwrap_err().to_string();
    assert!(error.contains("none has this VM's UUID"), "{error}");
    play_qemu(f.root.join("").as_path(), child.id(), &["-uuid", UUID]);
    assert_eq!(open(&f).unwrap().identity().pid, child.id());
    play_qemu(f.root.join("").as_path(), second.id(), &["-uuid", UUID]);
    let error = open(&f).unwrap_err().to_string();
    assert!(error.contains("2 have this VM's UUID"), "{error}");
    for child in [&mut child, &mut second] {
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

#[test]
fn a_process_that_execs_while_it_is_inspected_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (root, socket) = (dir.path().to_owned(), dir.path().join("vm.sock"));
    let exe = root.join(format!("proc/{}/exe", std::process::id()));
    serve(&socket, move |line| {
        if line.contains("query-kvm") {
            fs::write(root.join("other"), "").unwrap();
            fs::remove_file(&exe).unwrap();
            symlink(root.join("other"), &exe).unwrap();
        }
        qemu(line)
    });
    play_qemu(dir.path(), std::process::id(), &[]);
    let root = HostRoot::new(dir.path());
    let opened = Vm::open(&root, &rules(&root), &Candidate::at(&socket), LONG);
    let error = opened.unwrap_err().to_string();
    assert!(error.contains("became another program"), "{error}");
}
