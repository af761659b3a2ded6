//! What the scout asks of a VM that its agent manages, by a monitor that a test plays.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::mpsc::channel;

use super::*;
use crate::served_tests::host;

type Asked = Arc<Mutex<Vec<String>>>;

fn converse(mut stream: UnixStream, asked: &Asked) -> std::io::Result<()> {
    let greeting = r#"{"QMP": {"version": {"qemu": {"micro": 0, "minor": 0, "major": 10}, "package": ""}, "capabilities": []}}"#;
    writeln!(stream, "{greeting}")?;
    for line in BufReader::new(stream.try_clone()?).lines() {
        let line = line?;
        let answer = match line.as_str() {
            l if l.contains("query-name") => r#"{"name": "db1"}"#,
            l if l.contains("query-uuid") => r#"{"UUID": "0-0"}"#,
            l if l.contains("query-kvm") => r#"{"enabled": true, "present": true}"#,
            l if l.contains("memory-size") => {
                r#"{"base-memory": 1073741824, "plugged-memory": 536870912}"#
            }
            l if l.contains("human-monitor") => r#""nonsense""#,
            _ => "{}",
        };
        asked.lock().unwrap().push(line);
        writeln!(stream, "{{\"return\": {answer}}}")?;
    }
    Ok(())
}

struct Fixture {
    _folder: tempfile::TempDir,
    scout: Scout,
    candidate: Candidate,
    asked: Asked,
}

fn fixture(vm: &str) -> Fixture {
    let folder = tempfile::tempdir().unwrap();
    host(folder.path());
    let own = folder.path().join(format!("proc/{}", std::process::id()));
    fs::create_dir_all(&own).unwrap();
    fs::write(own.join("cmdline"), "/usr/bin/qemu-system-x86_64\0").unwrap();
    fs::copy("/proc/self/stat", own.join("stat")).unwrap();
    let socket = folder.path().join("db1.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let asked = Asked::default();
    let seen = Arc::clone(&asked);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            // The scout hangs up when it knows enough.
            let _ = converse(stream.unwrap(), &seen);
        }
    });
    let config = Config::parse(&format!("[vm.db1]\n{vm}\n")).unwrap();
    let root = HostRoot::new(folder.path());
    let topology = Arc::new(Topology::read(&root, &[]).unwrap());
    let worker = WorkerCommand {
        program: "/nonexistent/worker".into(),
        args: Vec::new(),
    };
    let damon = Damon::new(folder.path());
    let (inbox, _) = channel();
    Fixture {
        scout: Scout::new(
            root,
            topology,
            Arc::new(config),
            worker,
            damon,
            inbox,
            Claims::default(),
        ),
        candidate: Candidate::at(&socket),
        asked,
        _folder: folder,
    }
}

impl Fixture {
    /// Whether anything about the VM's memory or registers was asked.
    fn looked_inside(&self) -> bool {
        let asked = self.asked.lock().unwrap();
        asked
            .iter()
            .any(|l| l.contains("human-monitor") || l.contains("memdev"))
    }
}

#[test]
fn a_vm_that_its_agent_manages_is_asked_its_size_and_nothing_of_its_memory() {
    let f = fixture("mode = \"guest\"\nscan = true");
    let found = f.scout.look_at(&f.candidate);
    let State::Agent(vm) = found.state else {
        panic!("not left to its agent");
    };
    assert_eq!(found.name, "db1");
    assert_eq!(vm.ram_bytes, Some(3 << 29));
    assert!(!f.looked_inside(), "{:?}", f.asked);
}

#[test]
fn a_vm_whose_agent_fell_silent_is_looked_at_as_if_it_had_none() {
    let f = fixture("mode = \"guest\"\nscan = true");
    f.scout.claims.set("db1", true);
    let found = f.scout.look_at(&f.candidate);
    assert!(
        matches!(found.state, State::Unscannable(_)),
        "its answers are nonsense"
    );
    assert!(f.looked_inside());
}

#[test]
fn a_vm_is_looked_at_again_when_another_one_is_to_manage_it() {
    let f = fixture("mode = \"guest\"\nscan = true");
    assert!(f.scout.is_new(&f.candidate));
    f.scout
        .note(&f.candidate, None, None, Some(("db1".into(), false)));
    assert!(!f.scout.is_new(&f.candidate));
    f.scout.claims.set("db1", true);
    assert!(f.scout.is_new(&f.candidate));
    f.scout
        .note(&f.candidate, None, None, Some(("db1".into(), true)));
    assert!(!f.scout.is_new(&f.candidate));
    f.scout.claims.look_again("db1");
    assert!(f.scout.is_new(&f.candidate));
}

#[test]
fn a_vm_without_a_monitor_still_has_its_agent() {
    let f = fixture("mode = \"guest\"");
    let candidate = Candidate {
        socket: "/nonexistent/x.sock".into(),
        pid: Some(7),
        name: Some("db1".into()),
        uuid: None,
    };
    let State::Agent(vm) = f.scout.look_at(&candidate).state else {
        panic!("not left to its agent");
    };
    assert_eq!(vm.ram_bytes, None);
}

#[test]
fn what_stands_in_for_an_agent_moves_only_where_that_is_configured() {
    for (fallback, moves) in [("host", true), ("observe", false)] {
        let text = format!(
            "[vm.a]\nmode = \"guest\"\nscan = true\nmoves = true\nfallback = \"{fallback}\""
        );
        let vm = Config::parse(&text).unwrap().vm("a").unwrap();
        assert_eq!(Scout::in_place_of_agent(vm).moves, moves);
    }
}
