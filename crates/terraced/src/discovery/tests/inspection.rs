//! The discoverer's inspections of VMs, by monitors that a test plays.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::mpsc::RecvTimeoutError;

use std::sync::mpsc::channel;

use super::super::*;
use crate::played::{host, play_process, play_qemu, process};

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
    folder: tempfile::TempDir,
    discoverer: Discoverer,
    candidate: Candidate,
    asked: Asked,
}

fn fixture(vm: &str) -> Fixture {
    let folder = tempfile::tempdir().unwrap();
    host(folder.path());
    play_qemu(folder.path(), std::process::id());
    let socket = folder.path().join("db1.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let asked = Asked::default();
    let seen = Arc::clone(&asked);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            // The discoverer hangs up when it knows enough.
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
        discoverer: Discoverer::new(
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
        folder,
    }
}

impl Fixture {
    fn view(&self, hypervisors: Vec<Hypervisor>) -> HostView {
        let config = &self.discoverer.config.hypervisors;
        HostView {
            rules: Rules::read(&self.discoverer.root, config).0,
            hypervisors,
        }
    }

    fn note(&self, candidate: &Candidate, became: Handled) {
        let socket = candidate.socket.clone();
        self.discoverer.handled().insert(socket, became);
    }

    fn inspect(&self) -> Discovered {
        self.discoverer
            .inspect(&self.candidate, &self.view(Vec::new()))
    }

    /// Whether anything about the VM's memory or registers was queried.
    fn asked_inside(&self) -> bool {
        let asked = self.asked.lock().unwrap();
        let inside = ["human-monitor", "memdev", "query-cpus"];
        asked
            .iter()
            .any(|l| inside.iter().any(|word| l.contains(word)))
    }
}

fn of_agent(name: &str, by_host: bool) -> Handled {
    Handled {
        is_pending: false,
        agent: Some((name.into(), by_host)),
        ..Handled::pending(None, Instant::now())
    }
}

fn hypervisor(pid: u32, start_time: u64, name: &str) -> Hypervisor {
    Hypervisor {
        pid,
        start_time,
        name: Some(name.into()),
        uuid: None,
    }
}

#[test]
fn an_agent_managed_vm_is_asked_only_its_size() {
    let f = fixture("mode = \"guest\"\nscan = true");
    let found = f.inspect();
    let State::Agent(vm) = found.state else {
        panic!("not left to its agent");
    };
    assert_eq!(found.name, "db1");
    assert_eq!(vm.ram_bytes, Some(3 << 29));
    assert!(!f.asked_inside(), "{:?}", f.asked);
}

#[test]
fn a_vm_whose_agent_fell_silent_is_looked_at_as_if_it_had_none() {
    let f = fixture("mode = \"guest\"\nscan = true");
    f.discoverer.claims.set("db1", true);
    let found = f.inspect();
    assert!(
        matches!(found.state, State::Unscannable(_)),
        "its answers are nonsense"
    );
    assert!(f.asked_inside());
}

#[test]
fn a_vm_is_looked_at_again_when_another_one_is_to_manage_it() {
    let f = fixture("mode = \"guest\"\nscan = true");
    assert!(f.discoverer.take_new(&f.candidate, Instant::now()));
    f.note(&f.candidate, of_agent("db1", false));
    assert!(!f.discoverer.take_new(&f.candidate, Instant::now()));
    f.discoverer.claims.set("db1", true);
    assert!(f.discoverer.take_new(&f.candidate, Instant::now()));
    f.note(&f.candidate, of_agent("db1", true));
    assert!(!f.discoverer.take_new(&f.candidate, Instant::now()));
    f.discoverer.claims.reinspect("db1");
    assert!(f.discoverer.take_new(&f.candidate, Instant::now()));
}

#[test]
fn a_vm_without_a_monitor_still_has_its_agent() {
    let f = fixture("mode = \"guest\"");
    let candidate = Candidate {
        socket: "/nonexistent/x.sock".into(),
        claims: vec![hypervisor(7, 7, "db1")],
    };
    let State::Agent(vm) = f.discoverer.inspect(&candidate, &f.view(Vec::new())).state else {
        panic!("not left to its agent");
    };
    assert_eq!(vm.ram_bytes, None);
}

#[test]
fn an_agents_substitute_moves_only_if_it_is_configured() {
    for (fallback, moves) in [("host", true), ("observe", false)] {
        let text = format!(
            "[vm.a]\nmode = \"guest\"\nscan = true\nmoves = true\nfallback = \"{fallback}\""
        );
        let vm = Config::parse(&text).unwrap().vm("a").unwrap();
        assert_eq!(Discoverer::in_place_of_agent(vm).moves, moves);
    }
}

/// A QEMU that was killed leaves its socket behind.
#[test]
fn a_socket_that_nobody_listens_at_is_no_vm() {
    let mut f = fixture("scan = true");
    let left = f.folder.path().join("left.sock");
    drop(UnixListener::bind(&left).unwrap());
    f.candidate = Candidate::at(&left);
    let found = f.inspect();
    let State::Refused(refusal) = found.state else {
        panic!("{} is listed", found.name);
    };
    assert!(refusal.change.contains("remove the socket"), "{refusal}");
}

#[test]
fn of_two_vms_of_one_name_the_younger_is_refused() {
    let f = fixture("mode = \"guest\"");
    let started = terrace_sys::start_time(Path::new("/proc"), std::process::id()).unwrap();
    for (pid, start_time) in [(7, started - 1), (8, started + 1)] {
        play_process(f.folder.path(), ProcessId { start_time, pid });
    }
    let inspect =
        |others: Vec<Hypervisor>| f.discoverer.inspect(&f.candidate, &f.view(others)).state;
    let State::Refused(refusal) = inspect(vec![hypervisor(7, started - 1, "db1")]) else {
        panic!("an older VM has its name");
    };
    assert!(
        refusal.why.contains("process 7 already is the VM db1"),
        "{refusal}"
    );
    let younger = vec![
        hypervisor(7, started - 1, "other"),
        hypervisor(8, started + 1, "db1"),
    ];
    assert!(matches!(inspect(younger), State::Agent(_)));
}

#[test]
fn a_vm_not_opted_in_is_left_alone_and_a_bad_name_refused() {
    let f = fixture("scan = true");
    let named = |name: &str| Candidate {
        claims: vec![hypervisor(7, 7, name)],
        ..f.candidate.clone()
    };
    let inspect = |name: &str| f.discoverer.inspect(&named(name), &f.view(Vec::new()));
    assert!(matches!(inspect("web1").state, State::Ignored));
    let long = "x".repeat(1 << 20);
    for name in ["\x1b[2J", "größe", &long] {
        let found = inspect(name);
        assert!(matches!(found.state, State::Refused(_)), "{name}");
        assert!(found.name.len() < 300 && !found.name.contains('\x1b'));
    }
    assert_eq!(f.asked.lock().unwrap().len(), 0);
}

#[test]
fn a_socket_named_by_two_processes_belongs_to_the_listener() {
    let f = fixture("mode = \"guest\"");
    let own = std::process::id();
    let candidate = Candidate {
        claims: vec![hypervisor(1, 1, "other"), hypervisor(own, 2, "db1")],
        ..f.candidate.clone()
    };
    let found = f.discoverer.inspect(&candidate, &f.view(Vec::new()));
    let pid = found.process.map(|process| process.pid);
    assert_eq!((found.name.as_str(), pid), ("db1", Some(own)));
    assert_eq!(found.findings.len(), 1);
    assert!(
        found.findings[0]
            .found
            .contains("process 1 names the monitor")
    );
}

/// Monitors that accept no connection, as many as a user can make.
#[test]
fn monitors_that_hang_do_not_become_as_many_threads() {
    let mut f = fixture("");
    let folder = tempfile::tempdir().unwrap();
    let sockets: Vec<PathBuf> = (0..200)
        .map(|i| folder.path().join(i.to_string()))
        .collect();
    let listeners: Vec<UnixListener> = sockets
        .iter()
        .map(|socket| UnixListener::bind(socket).unwrap())
        .collect();
    let (inbox, news) = channel();
    f.discoverer.inbox = inbox;
    let view = Arc::new(f.view(Vec::new()));
    let discoverer = Arc::new(f.discoverer);
    let (jobs, begun) = (discoverer.start_inspectors(3), Instant::now());
    // Who named it has ended, so that it is due again at once.
    let gone = Hypervisor {
        name: None,
        ..hypervisor(std::process::id(), 7, "")
    };
    for socket in &sockets {
        let candidate = Candidate {
            claims: vec![gone.clone()],
            ..Candidate::at(socket)
        };
        discoverer.hand_out(&candidate, &view, &jobs, begun);
        // A candidate that waits is not handed out again.
        discoverer.hand_out(&candidate, &view, &jobs, begun);
    }
    assert!(
        threads(&discoverer) <= 3,
        "{} threads",
        threads(&discoverer)
    );
    // Who hangs up is done with, one after the other.
    drop(listeners);
    let mut done = BTreeSet::new();
    while done.len() < sockets.len() {
        match news.recv_timeout(Duration::from_secs(60)) {
            Ok(Input::Discovered(one)) => assert!(done.insert(one.socket), "each one once"),
            Ok(_) => {}
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                panic!("{} of {} were looked at", done.len(), sockets.len())
            }
        }
        assert!(
            threads(&discoverer) <= 3,
            "{} threads",
            threads(&discoverer)
        );
    }
}

/// Threads that inspect VMs for a discoverer: each holds it. Those of other tests in this process do not count.
fn threads(discoverer: &Arc<Discoverer>) -> usize {
    Arc::strong_count(discoverer) - 1
}

/// Any user can start processes until one has the number that it wants.
#[test]
fn a_restarted_vm_with_a_reused_pid_is_inspected() {
    let f = fixture("scan = true");
    let managed = || Handled {
        is_pending: false,
        ..Handled::pending(Some(process(7)), Instant::now())
    };
    play_process(f.folder.path(), process(7));
    f.note(&f.candidate, managed());
    f.discoverer.forget_all_but(&[]);
    assert!(
        !f.discoverer.take_new(&f.candidate, Instant::now()),
        "it is managed"
    );
    let taker = ProcessId {
        start_time: 200,
        pid: 7,
    };
    play_process(f.folder.path(), taker);
    assert!(f.discoverer.take_new(&f.candidate, Instant::now()));
    f.discoverer.forget_all_but(&[]);
    assert!(f.discoverer.handled.lock().unwrap().is_empty());
}

#[test]
fn sockets_that_are_gone_are_forgotten_with_their_process() {
    let f = fixture("");
    let gone = Candidate::at("/gone");
    f.note(&gone, of_agent("x", false));
    f.note(&f.candidate, of_agent("y", false));
    f.discoverer
        .forget_all_but(std::slice::from_ref(&f.candidate));
    let handled = f.discoverer.handled.lock().unwrap();
    assert_eq!(handled.keys().collect::<Vec<_>>(), [&f.candidate.socket]);
}

/// The state of a candidate after an inspection.
fn after_inspection(f: &Fixture, candidate: &Candidate, view: &HostView) -> Handled {
    f.note(
        candidate,
        Handled::pending_again(candidate, None, Instant::now()),
    );
    f.discoverer.inspect_and_report(candidate, view);
    f.discoverer.handled()[&candidate.socket].clone()
}

#[test]
fn an_unready_monitor_is_retried_after_a_second() {
    let f = fixture("scan = true");
    let own = std::process::id();
    let dead = f.folder.path().join("dead.sock");
    drop(UnixListener::bind(&dead).unwrap());
    for socket in [dead, f.folder.path().join("none.sock")] {
        let candidate = Candidate {
            socket,
            claims: vec![hypervisor(own, 7, "db1")],
        };
        let begun = Instant::now();
        let handled = after_inspection(&f, &candidate, &f.view(Vec::new()));
        let pause = handled.again.unwrap() - begun;
        assert!(pause < Duration::from_secs(30), "{pause:?}");
        assert!(!f.discoverer.is_due(&candidate, begun), "not at once");
        assert!(f.discoverer.is_due(&candidate, begun + pause));
    }
}

#[test]
fn a_second_vm_of_a_name_is_inspected_once_the_first_ended() {
    let f = fixture("mode = \"guest\"");
    let started = terrace_sys::start_time(Path::new("/proc"), std::process::id()).unwrap();
    let first = ProcessId {
        start_time: started - 1,
        pid: 7,
    };
    play_process(f.folder.path(), first);
    let view = f.view(vec![hypervisor(7, started - 1, "db1")]);
    let handled = after_inspection(&f, &f.candidate, &view);
    assert_eq!(handled.waits_for, Some(first));
    let now = Instant::now();
    assert!(
        !f.discoverer.is_due(&f.candidate, now),
        "the first one lives"
    );
    fs::remove_file(f.folder.path().join("proc/7/stat")).unwrap();
    assert!(
        f.discoverer.is_due(&f.candidate, now),
        "the first one ended"
    );
    // The known state of processes is not read anew for this.
    let found = f.discoverer.inspect(&f.candidate, &view);
    assert!(matches!(found.state, State::Agent(_)));
}

/// Monitors that no process serves, as many as are inspected.
#[test]
fn a_thousand_unready_monitors_cost_few_threads_and_hide_no_vm() {
    let mut f = fixture("scan = true");
    let (inbox, news) = channel();
    f.discoverer.inbox = inbox;
    let folder = tempfile::tempdir().unwrap();
    let view = Arc::new(f.view(Vec::new()));
    let (own, proc) = (std::process::id(), Path::new("/proc"));
    let started = terrace_sys::start_time(proc, own).unwrap();
    let at = |i: usize| Candidate {
        socket: folder.path().join(i.to_string()),
        claims: vec![hypervisor(own, started, "db1")],
    };
    let fakes: Vec<Candidate> = (0..1000).map(at).collect();
    let discoverer = Arc::new(f.discoverer);
    let (jobs, begun) = (discoverer.start_inspectors(INSPECTORS), Instant::now());
    // The inspections may take any time: the clock of the thread that hands them out stands still.
    for _ in 0..2 {
        let all = fakes.iter();
        all.for_each(|fake| discoverer.hand_out(fake, &view, &jobs, begun));
    }
    let wanted = fakes.len() + 1;
    discoverer.hand_out(&at(wanted), &view, &jobs, begun);
    let mut seen = BTreeSet::new();
    let mut receive = || {
        let Ok(Input::Discovered(one)) = news.recv_timeout(Duration::from_secs(60)) else {
            panic!("{} were looked at", seen.len());
        };
        assert!(seen.insert(one.socket), "each one once");
        assert!(
            threads(&discoverer) <= INSPECTORS,
            "{} threads",
            threads(&discoverer)
        );
    };
    (0..wanted).for_each(|_| receive());
    // Those that were inspected are not due before their time, and then all of them are.
    assert!(
        !fakes.iter().any(|fake| discoverer.take_new(fake, begun)),
        "each one once"
    );
    let later = begun + Duration::from_secs(3600);
    assert!(fakes.iter().all(|fake| discoverer.is_due(fake, later)));
}
