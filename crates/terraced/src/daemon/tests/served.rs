//! The daemon's answers about VMs that the discoverer found, over its socket.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use terrace_api::types::{Doctor, Done, EventLine, Mode, Planning, Setting, Status, Vm};
use terrace_sys::{Damon, ProcessId};

use crate::api;
use crate::api::asker::Asker;
use crate::api::snapshot::{About, Snapshot};
use crate::messages::{Discovered, Input, State};
use crate::played::{Served, play_process, process, put, runtime, serve_with};

fn serve() -> Served {
    serve_with(|_| "[vm.web1]\nscan = true\n".to_owned())
}

#[test]
fn the_tiers_and_their_free_memory_are_told() {
    let served = serve();
    let status: Status = served.get("/v1/status").unwrap();
    let free: Vec<u64> = status.tiers.iter().map(|t| t.free_bytes).collect();
    assert_eq!(free, [1 << 20, 1 << 20]);
    assert_eq!(status.policy, "terrace");
    let doctor: Doctor = served.get("/v1/doctor").unwrap();
    assert!(doctor.host.iter().any(|f| f.name == "topology"));
}

#[test]
fn vms_that_are_not_managed_are_listed_with_the_reason() {
    let served = serve();
    play_process(served.folder.path(), process(7));
    served.find("other", Some(7), State::Ignored);
    served.find(
        "web1",
        None,
        State::Unscannable("its RAM is private".into()),
    );
    let vms: Vec<Vm> = served.get("/v1/vms").unwrap();
    assert_eq!(
        (vms[0].mode, vms[1].mode),
        (Mode::Ignored, Mode::Unscannable)
    );
    assert_eq!(vms[1].reason, "its RAM is private");
    let error = served
        .get::<serde_json::Value>("/v1/vms/web1/pages/0x1000")
        .unwrap_err();
    assert!(error.contains("its RAM is private"), "{error}");
}

#[test]
fn a_stale_socket_is_told_once_and_goes_with_the_socket() {
    let served = serve();
    for _ in 0..5 {
        served.find(
            "web1",
            None,
            State::Unscannable("connection refused".into()),
        );
        served.discovery_scan(&["web1"]);
    }
    assert_eq!(served.names(), ["web1"]);
    let events: Vec<EventLine> = served.get("/v1/events?after=0").unwrap();
    let about = events.iter().filter(|e| e.vm.as_deref() == Some("web1"));
    assert_eq!(about.count(), 1);
    served.discovery_scan(&[]);
    assert_eq!(served.names(), Vec::<String>::new());
}

#[test]
fn the_second_vm_of_a_name_is_refused_and_the_first_one_stays() {
    let served = serve();
    for pid in [7, 8] {
        play_process(served.folder.path(), process(pid));
    }
    served.find("web1", Some(7), State::Ignored);
    for _ in 0..3 {
        let found = Discovered {
            name: "web1".into(),
            process: Some(process(8)),
            socket: served.socket("other"),
            state: State::Unscannable("it is the second".into()),
            findings: Vec::new(),
        };
        served
            .inbox
            .send(Input::Discovered(Box::new(found)))
            .unwrap();
        served.discovery_scan(&["web1", "other"]);
    }
    let vms: Vec<Vm> = served.get("/v1/vms").unwrap();
    let known: Vec<_> = vms.iter().map(|vm| (vm.name.as_str(), vm.pid)).collect();
    assert_eq!(known, [("web1", Some(7))]);
    let events: Vec<EventLine> = served.get("/v1/events?after=0").unwrap();
    let refused = events.iter().filter(|e| e.text.starts_with("refused:"));
    let refused: Vec<_> = refused.map(|e| e.text.as_str()).collect();
    assert_eq!(refused.len(), 1, "told once: {refused:?}");
    assert!(
        refused[0].contains("process 8") && refused[0].contains("process 7 already is the VM web1")
    );
    let doctor: Doctor = served.get("/v1/doctor").unwrap();
    let finding = doctor.host.iter().find(|f| f.name == "hypervisor").unwrap();
    assert!(finding.advice.as_deref().unwrap().contains("another name"));
    // Once the first one ended, the second has the name alone.
    fs::remove_file(served.folder.path().join("proc/7/stat")).unwrap();
    served.find("web1", Some(8), State::Ignored);
    let vms: Vec<Vm> = served.get("/v1/vms").unwrap();
    assert_eq!((vms.len(), vms[0].pid), (1, Some(8)));
}

/// A monitor that did not answer is listed by its socket until its name is known.
#[test]
fn what_was_listed_by_its_socket_goes_once_the_vm_has_a_name() {
    let served = serve();
    play_process(served.folder.path(), process(7));
    let found = |name: &str, process, state| Discovered {
        name: name.into(),
        process,
        socket: served.socket("web1"),
        state,
        findings: Vec::new(),
    };
    let silent = found("/run/web1.sock", None, State::Unscannable("silent".into()));
    let named = found("web1", Some(process(7)), State::Ignored);
    for found in [silent, named] {
        served
            .inbox
            .send(Input::Discovered(Box::new(found)))
            .unwrap();
    }
    let vms: Vec<Vm> = served.get("/v1/vms").unwrap();
    let names: Vec<_> = vms.iter().map(|vm| vm.name.as_str()).collect();
    assert_eq!(names, ["web1"]);
}

/// Any user can start processes until one has the number that it wants.
#[test]
fn a_name_is_free_once_its_vm_ended_even_if_the_pid_is_reused() {
    let served = serve();
    for pid in [7, 8] {
        play_process(served.folder.path(), process(pid));
    }
    served.find("web1", Some(7), State::Unscannable("paused".into()));
    let taker = ProcessId {
        start_time: 200,
        pid: 7,
    };
    play_process(served.folder.path(), taker);
    served.find("web1", Some(8), State::Unscannable("paused".into()));
    let vms: Vec<Vm> = served.get("/v1/vms").unwrap();
    assert_eq!((vms.len(), vms[0].pid), (1, Some(8)));
    let taker = ProcessId { pid: 8, ..taker };
    play_process(served.folder.path(), taker);
    let forgotten = (0..600).any(|_| {
        std::thread::sleep(Duration::from_millis(50));
        served.names().is_empty()
    });
    assert!(forgotten);
}

#[test]
fn a_refused_vm_is_no_vm_and_goes_with_its_socket() {
    let served = serve();
    let refusal = terrace_host::qemu::who::bad_name("\x1b[2Jx");
    served.find("x", Some(7), State::Refused(refusal));
    assert_eq!(served.names(), Vec::<String>::new());
    let refused = || {
        let doctor: Doctor = served.get("/v1/doctor").unwrap();
        let host = doctor.host.into_iter();
        host.filter(|f| f.name == "hypervisor").collect::<Vec<_>>()
    };
    assert!(
        refused()[0].found.contains("\\u{1b}[2Jx"),
        "{:?}",
        refused()
    );
    served.discovery_scan(&[]);
    assert_eq!(refused().len(), 0);
}

#[test]
fn a_vm_whose_process_ended_is_forgotten() {
    let served = serve();
    play_process(served.folder.path(), process(7));
    served.find("other", Some(7), State::Ignored);
    assert_eq!(served.names(), ["other"]);
    fs::remove_file(served.folder.path().join("proc/7/stat")).unwrap();
    let forgotten = (0..600).any(|_| {
        std::thread::sleep(Duration::from_millis(50));
        served.names().is_empty()
    });
    assert!(forgotten);
}

#[test]
fn wrong_questions_get_an_answer_that_helps() {
    let served = serve();
    let error = |path: &str| served.get::<serde_json::Value>(path).unwrap_err();
    assert!(
        error("/v1/vms/nobody")
            .contains("no VM nobody: no VMs were found; `terrace doctor` says why")
    );
    assert!(error("/v1/vms/x/map?cells=0").contains("from 1 to"));
    assert!(error("/v1/vms/x/pages/0xzz").contains("not a hexadecimal address"));
    assert!(error("/v2").contains("no such path"));
    let setting = Setting {
        key: "moves".into(),
        value: "on".into(),
    };
    let post = served.client.post::<_, Done>("/v1/vms/x/set", &setting);
    assert!(
        runtime()
            .block_on(post)
            .unwrap_err()
            .to_string()
            .contains("no VM x")
    );
}

#[test]
fn a_second_daemon_on_the_same_socket_is_refused() {
    let served = serve();
    let socket = served.folder.path().join("terraced.sock");
    let second = api::start(&socket, served.inbox.clone()).unwrap_err();
    assert!(second.to_string().contains("already listens"), "{second}");
    assert_eq!(
        served.names(),
        Vec::<String>::new(),
        "the first one goes on"
    );
}

#[test]
fn a_second_daemon_leaves_the_first_ones_kdamonds_alone() {
    let served = serve();
    let root = served.folder.path();
    let kdamonds = "sys/kernel/mm/damon/admin/kdamonds";
    put(root, &format!("{kdamonds}/nr_kdamonds"), "61\n");
    for slot in 0..61 {
        put(root, &format!("{kdamonds}/{slot}/state"), "off\n");
        let contexts = format!("{kdamonds}/{slot}/contexts/nr_contexts");
        put(root, &contexts, "0\n");
    }
    let mark = "0/contexts/0/monitoring_attrs/intervals/update_us";
    put(root, &format!("{kdamonds}/{mark}"), "132205262\n");
    put(root, &format!("{kdamonds}/0/state"), "on\n");
    put(root, &format!("{kdamonds}/0/contexts/nr_contexts"), "1\n");
    let state = || fs::read_to_string(root.join(kdamonds).join("0/state")).unwrap();
    let damon = Damon::new(root);
    let take_over =
        |socket: &str| crate::host::take_over(&root.join(socket), served.inbox.clone(), &damon);
    assert!(take_over("terraced.sock").is_err());
    assert_eq!(state(), "on\n");
    // Sockets without a listener are remnants of a crash.
    let _file = take_over("free.sock").unwrap();
    assert_eq!(state(), "off");
}

/// Each view reports the thread on which it is made, by the path of all routes.
#[test]
fn views_are_made_on_another_thread_than_the_engines() {
    let served = serve();
    let asker = Asker::new(served.inbox.clone());
    let of_engine = served.daemon.as_ref().unwrap().thread().id();
    let here = || std::thread::current().id();
    let (sender, threads) = channel();
    runtime().block_on(async {
        let on_engine = asker.ask(move |_| Ok(here())).await.ok().unwrap();
        assert_eq!(on_engine, of_engine);
        for about in [About::Host, About::Vms, About::Doctor] {
            let sender = sender.clone();
            let make = move |mut copy: Snapshot| {
                copy.inspect_host();
                sender.send(here()).unwrap();
                Ok((copy.status(), copy.list(), copy.doctor(), OnThread(sender)))
            };
            assert!(asker.view(about, make).await.is_ok());
        }
    });
    drop(sender);
    let threads: Vec<_> = threads.iter().collect();
    assert_eq!(threads.len(), 6, "three views and their JSON");
    assert!(threads.iter().all(|thread| *thread != of_engine));
}

/// A value that reports which thread makes JSON of it.
struct OnThread(Sender<std::thread::ThreadId>);

impl serde::Serialize for OnThread {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.send(std::thread::current().id()).unwrap();
        serializer.serialize_unit()
    }
}

#[test]
fn escapes_reach_neither_events_nor_answers() {
    let served = serve();
    let bad = "\x1b[2J\u{202e}".to_owned();
    served.find("web1", None, State::Unscannable(bad));
    let text = |path: &str| {
        let mut client = raw(&served);
        let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        client.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        answer
    };
    let paths = [
        "/v1/vms",
        "/v1/vms/web1",
        "/v1/doctor",
        "/v1/events",
        "/v1/vms/web1/map?cells=1",
    ];
    for path in paths {
        let answer = text(path);
        assert!(answer.contains("u{1b}[2J"), "{path}: {answer}");
        // JSON would write it so, and every reader would have it back.
        let escapes = ["\x1b", "\\u001b", "\u{202e}", "\\u202e"];
        assert!(
            !escapes.iter().any(|e| answer.contains(e)),
            "{path}: {answer}"
        );
    }
}

/// A raw connection, as a client that does not speak HTTP has it.
fn raw(served: &Served) -> UnixStream {
    let socket = served.folder.path().join("terraced.sock");
    let stream = UnixStream::connect(socket).unwrap();
    let patience = Some(Duration::from_secs(60));
    stream.set_read_timeout(patience).unwrap();
    stream.set_write_timeout(patience).unwrap();
    stream
}

#[test]
fn an_api_client_that_sends_garbage_gets_an_error() {
    let served = serve();
    let huge = format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(1 << 20));
    for garbage in [
        &b"\x00\xff\xfe nonsense\r\n\r\n"[..],
        b"GET",
        b"POST /v1/vms/x/set HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 5\r\n\r\n{{{{{",
        b"POST /v1/pause HTTP/1.1\r\ncontent-length: 99999999999999999999\r\n\r\n",
        huge.as_bytes(),
    ] {
        let mut client = raw(&served);
        // It may hang up before all is sent.
        let _ = client.write_all(garbage);
        let _ = client.shutdown(Shutdown::Write);
        let mut answer = Vec::new();
        let _ = client.read_to_end(&mut answer);
        let answer = String::from_utf8_lossy(&answer);
        let refused = answer.is_empty() || answer.starts_with("HTTP/1.1 4");
        assert!(refused, "{answer}");
    }
    assert_eq!(served.names(), Vec::<String>::new());
}

#[test]
fn api_clients_that_never_read_keep_nobody_else_waiting() {
    let served = serve();
    for i in 0..2000 {
        served.find(&format!("vm{i}"), None, State::Unscannable("x".repeat(200)));
    }
    let sleepers: Vec<UnixStream> = (0..8)
        .map(|_| {
            let mut client = raw(&served);
            let request = b"GET /v1/vms HTTP/1.1\r\nhost: x\r\n\r\n";
            client.write_all(request).unwrap();
            client
        })
        .collect();
    assert_eq!(served.names().len(), 2000);
    let status: Status = served.get("/v1/status").unwrap();
    assert_eq!(status.vms, 2000);
    drop(sleepers);
}

#[test]
fn the_socket_is_for_its_owner_and_group_alone() {
    let served = serve();
    let socket = served.folder.path().join("terraced.sock");
    let mode = fs::metadata(socket).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o660);
}

#[test]
fn a_plan_for_an_unmanaged_vm_is_refused_with_the_reason() {
    let served = serve();
    served.find(
        "web1",
        None,
        State::Unscannable("its RAM is private".into()),
    );
    let post = served.client.post::<_, Planning>("/v1/vms/web1/plan", &());
    let error = runtime().block_on(post).unwrap_err().to_string();
    assert!(
        error.contains("web1 is not under management: its RAM is private"),
        "{error}"
    );
}

#[test]
fn an_unknown_setting_of_an_unmanaged_vm_is_called_unknown() {
    let served = serve();
    served.find(
        "web1",
        None,
        State::Unscannable("its RAM is private".into()),
    );
    let set = |key: &str| {
        let setting = Setting {
            key: key.into(),
            value: "1GiB".into(),
        };
        let post = served.client.post::<_, Done>("/v1/vms/web1/set", &setting);
        runtime().block_on(post).unwrap_err().to_string()
    };
    let error = set("memory_flor");
    assert!(error.contains("no setting memory_flor"), "{error}");
    let error = set("fast");
    assert!(error.contains("not under management"), "{error}");
}
