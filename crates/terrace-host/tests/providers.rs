//! Resizing by virtio-mem and the balloon, with a QEMU that a test plays; one test per fault.

#![allow(clippy::unwrap_used, reason = "test helpers outside of test functions")]

use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use terrace_host::providers::{Means, Plan, ResizeError, probe};
use terrace_host::qemu::{Monitor, QemuError};

use terrace_testkit::monitor::{human, serve};

const LONG: Duration = Duration::from_secs(20);
const MIB: u64 = 1 << 20;
const NUMA: &str = "2 nodes\r\nnode 0 cpus: 0 1\r\nnode 0 size: 256 MB\r\nnode 0 plugged: 0 MB\r\n\
                    node 1 cpus:\r\nnode 1 size: 512 MB\r\nnode 1 plugged: 256 MB\r\n";

fn device(id: &str, node: i64, plugged: u64) -> Value {
    json!({"type": "virtio-mem", "data": {
        "id": id, "memdev": format!("/objects/{id}"), "memaddr": 1_u64 << 32, "node": node,
        "block-size": 2 * MIB, "size": plugged * MIB, "requested-size": plugged * MIB, "max-size": 1024 * MIB,
    }})
}

/// A QEMU with these memory devices, this balloon and these nodes.
#[derive(Clone)]
struct Script {
    devices: Value,
    balloon: Value,
    numa: String,
    /// The device that takes no order.
    refuses: Option<&'static str>,
}

impl Default for Script {
    fn default() -> Self {
        let dimm = json!({"type": "dimm", "data": {
            "addr": 1, "hotpluggable": true, "hotplugged": false, "memdev": "/objects/d", "node": 0, "size": 1,
            "slot": 0,
        }});
        Self {
            devices: json!([device("v1", 1, 256), dimm, device("v0", 0, 0)]),
            balloon: json!({"error": {"class": "DeviceNotActive", "desc": "No balloon device"}}),
            numa: NUMA.into(),
            refuses: None,
        }
    }
}

impl Script {
    fn answer(&self, line: &str) -> Option<String> {
        let answer = match line {
            l if l.contains("query-memory-devices") => json!({"return": self.devices}),
            l if l.contains("query-memory-size") => {
                json!({"return": {"base-memory": 512 * MIB, "plugged-memory": 256 * MIB}})
            }
            l if l.contains("query-memdev") => {
                let memdev = |id: &str, policy: &str| {
                    json!({
                        "id": id, "size": 1024 * MIB, "share": true, "merge": true, "dump": true, "prealloc": false,
                        "policy": policy, "host-nodes": [3],
                    })
                };
                json!({"return": [memdev("v0", "default"), memdev("v1", "bind")]})
            }
            l if l.contains("query-balloon") => self.balloon.clone(),
            l if l.contains("info numa") => return human(&self.numa),
            l if l.contains("qom-set") && self.refuses.is_some_and(|id| l.contains(id)) => {
                json!({"error": {"class": "GenericError", "desc": "no change while migrating"}})
            }
            _ => json!({"return": {}}),
        };
        Some(answer.to_string())
    }
}

struct Played {
    _dir: tempfile::TempDir,
    monitor: Monitor,
    /// Orders that QEMU got.
    orders: Arc<Mutex<Vec<Value>>>,
}

fn play(script: Script) -> Played {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("vm");
    let orders: Arc<Mutex<Vec<Value>>> = Arc::default();
    let noted = Arc::clone(&orders);
    serve(&socket, move |line| {
        let request: Value = serde_json::from_str(line).unwrap();
        if request["execute"] == "qom-set" || request["execute"] == "balloon" {
            noted.lock().unwrap().push(request["arguments"].clone());
        }
        script.answer(line)
    });
    Played {
        monitor: Monitor::connect(&socket, LONG).unwrap(),
        _dir: dir,
        orders,
    }
}

fn fails(script: Script) -> String {
    probe(&mut play(script).monitor).unwrap_err().to_string()
}

#[test]
fn virtio_mem_is_found_and_told_growth_first() {
    let mut vm = play(Script::default());
    let Some(Means::VirtioMem(tiers)) = probe(&mut vm.monitor).unwrap() else {
        panic!("no virtio-mem found");
    };
    let sizes: Vec<_> = tiers.iter().map(|t| t.size_bytes / MIB).collect();
    assert_eq!(sizes, [256, 512]);
    // If QEMU was given no policy, memory may come from anywhere.
    let nodes: Vec<_> = tiers.iter().map(|t| t.host_nodes.clone()).collect();
    assert_eq!(nodes, [vec![], vec![3]]);
    let plan = Plan::new(&tiers, &[Some(512 * MIB), Some(256 * MIB)]).unwrap();
    plan.carry_out(&mut vm.monitor).unwrap();
    let order = |id: &str, mib: u64| json!({"path": format!("/machine/peripheral/{id}"), "property": "requested-size", "value": mib * MIB});
    assert_eq!(
        *vm.orders.lock().unwrap(),
        [order("v0", 256), order("v1", 0)]
    );
}

#[test]
fn a_balloon_is_found_where_there_is_no_virtio_mem() {
    let mut vm = play(Script {
        devices: json!([]),
        balloon: json!({"return": {"actual": 300 * MIB}}),
        ..Script::default()
    });
    let Some(Means::Balloon(balloon)) = probe(&mut vm.monitor).unwrap() else {
        panic!("no balloon found");
    };
    assert_eq!((balloon.size, balloon.ram), (300 * MIB, 768 * MIB));
    vm.monitor.set_balloon(200 * MIB).unwrap();
    assert_eq!(*vm.orders.lock().unwrap(), [json!({"value": 200 * MIB})]);
}

#[test]
fn a_vm_with_neither_is_told_from_one_that_does_not_answer() {
    let none = play(Script {
        devices: json!([]),
        ..Script::default()
    });
    let mut monitor = none.monitor;
    assert_eq!(probe(&mut monitor).unwrap(), None);
    let why = fails(Script {
        devices: json!([]),
        balloon: json!({"error": {"class": "KVMMissingCap", "desc": "no synchronous MMU"}}),
        ..Script::default()
    });
    assert!(why.contains("no synchronous MMU"), "{why}");
}

#[test]
fn a_refusal_after_another_order_was_taken_says_what_was_done() {
    let mut vm = play(Script {
        refuses: Some("v1"),
        ..Script::default()
    });
    let Some(Means::VirtioMem(tiers)) = probe(&mut vm.monitor).unwrap() else {
        panic!("no virtio-mem found");
    };
    let plan = Plan::new(&tiers, &[Some(512 * MIB), Some(256 * MIB)]).unwrap();
    let error = plan.carry_out(&mut vm.monitor).unwrap_err();
    assert!(matches!(error, ResizeError::HalfWay { .. }), "{error}");
    let why = error.to_string();
    assert!(why.contains("v0 to 256 MiB done"), "{why}");
    assert!(why.contains("no change while migrating"), "{why}");
}

#[test]
fn a_block_that_is_no_power_of_two_is_refused() {
    let mut odd = device("v", 0, 0);
    odd["data"]["block-size"] = json!(3 * MIB);
    assert!(with_devices(json!([odd])).contains("blocks of 3145728 bytes"));
    let mut zero = device("v", 0, 0);
    zero["data"]["block-size"] = json!(0);
    assert!(with_devices(json!([zero])).contains("blocks of 0 bytes"));
}

#[test]
fn more_plugged_than_there_can_be_is_refused() {
    assert!(with_devices(json!([device("v", 0, 1026)])).contains("of 1073741824"));
}

#[test]
fn a_name_that_leads_elsewhere_in_qemus_objects_is_refused() {
    for name in ["../../objects/m0", "", "a b"] {
        let why = with_devices(json!([device(name, 0, 0)]));
        assert!(why.contains("a device is called"), "{why}");
    }
}

#[test]
fn two_devices_of_one_name_are_refused() {
    let why = with_devices(json!([device("v", 0, 0), device("v", 1, 0)]));
    assert!(why.contains("two devices are called"), "{why}");
}

#[test]
fn a_node_below_zero_is_refused() {
    assert!(with_devices(json!([device("v", -1, 0)])).contains("node -1"));
}

#[test]
fn thousands_of_devices_are_refused() {
    let many: Vec<_> = (0..1025).map(|n| device(&format!("v{n}"), 0, 0)).collect();
    assert!(with_devices(json!(many)).contains("more than 1024 devices"));
}

#[test]
fn an_unknown_kind_of_device_is_an_error_and_no_panic() {
    let why = with_devices(json!([{"type": "of-the-future", "data": {}}]));
    assert!(why.contains("query-memory-devices"), "{why}");
}

#[test]
fn nodes_that_make_no_sense_are_refused() {
    for numa in [
        "",
        "many nodes\r\n",
        "9999999 nodes\r\n",
        "2 nodes\r\nnode 0 size: 256 MB\r\n",
        "1 nodes\r\nnode 0 size: 1 MB\r\nnode 0 plugged: 2 MB\r\n",
        "1 nodes\r\nnode 0 size: 18446744073709551615 MB\r\n",
        "1 nodes\r\nnode 0 size: -1 MB\r\n",
        "2 nodes\r\nnode 0 size: 1 MB\r\nnode 0 size: 1 MB\r\n",
    ] {
        let numa = numa.to_owned();
        let why = fails(Script {
            numa,
            ..Script::default()
        });
        assert!(why.contains("info numa"), "{why}");
    }
}

#[test]
fn a_balloon_that_leaves_less_than_nothing_is_refused() {
    let why = fails(Script {
        devices: json!([]),
        balloon: json!({"return": {"actual": -4096}}),
        ..Script::default()
    });
    assert!(why.contains("-4096"), "{why}");
}

fn with_devices(devices: Value) -> String {
    fails(Script {
        devices,
        ..Script::default()
    })
}

#[test]
fn who_resizes_a_vm_shares_the_connection_of_who_watches_it() {
    let mut watching = play(Script::default());
    let socket = watching.monitor.socket().to_owned();
    // QEMU greets no other client while the first is there.
    let mut resizing = Monitor::connect(&socket, LONG).unwrap();
    let turns = thread::spawn(move || (0..50).all(|_| resizing.request_size("v0", 0).is_ok()));
    for _ in 0..50 {
        watching.monitor.nodes().unwrap();
    }
    assert!(turns.join().unwrap());
    assert_eq!(watching.orders.lock().unwrap().len(), 50);
}

#[test]
fn a_connection_that_broke_is_made_anew_for_who_comes_later() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("vm");
    let mut left = 1;
    serve(&socket, move |line| {
        if line.contains("query-name") && left > 0 {
            left -= 1;
            return Some("no JSON".into());
        }
        Script::default().answer(line)
    });
    let mut first = Monitor::connect(&socket, LONG).unwrap();
    let error = first.name().unwrap_err();
    assert!(matches!(error, QemuError::Broken { .. }), "{error}");
    let mut second = Monitor::connect(&socket, LONG).unwrap();
    assert_eq!(second.nodes().unwrap().len(), 2);
    assert_eq!(first.nodes().unwrap().len(), 2);
}

#[test]
fn a_monitor_that_was_let_go_is_free_for_other_programs() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("vm");
    let listener = UnixListener::bind(&socket).unwrap();
    let held = thread::spawn(move || {
        use std::io::{BufRead as _, BufReader, Write as _};
        let (mut stream, _) = listener.accept().unwrap();
        writeln!(stream, "{}", terrace_testkit::monitor::GREETING).unwrap();
        for line in BufReader::new(stream.try_clone().unwrap()).lines() {
            line.unwrap();
            writeln!(stream, "{}", json!({"return": {}})).unwrap();
        }
    });
    let monitors = [LONG, LONG].map(|time| Monitor::connect(&socket, time));
    drop(monitors);
    held.join().unwrap();
}

/// Names the socket of a monitor that another process plays.
const PLAYED: &str = "TERRACE_TEST_MONITOR";

/// Not a test: another process that plays a monitor, for the test below.
#[test]
#[ignore = "the other process of a_path_that_changed_hands_belongs_to_the_new_vm"]
fn plays_a_monitor_elsewhere() {
    let Some(socket) = std::env::var_os(PLAYED) else {
        return;
    };
    serve(Path::new(&socket), |line| Script::default().answer(line));
    // Until the other one closes it, or ends.
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink()).unwrap();
}

/// Ends with this value.
struct Elsewhere(Child);

impl Elsewhere {
    fn play(socket: &Path) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--ignored", "--exact", "plays_a_monitor_elsewhere"])
            .env(PLAYED, socket)
            .stdin(Stdio::piped())
            .stdout(Stdio::null());
        let process = Self(command.spawn().unwrap());
        while !socket.exists() {
            thread::sleep(Duration::from_millis(10));
        }
        process
    }
}

impl Drop for Elsewhere {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_path_that_changed_hands_belongs_to_the_new_vm() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("vm");
    let first = Elsewhere::play(&socket);
    let mut old = connect(&socket);
    assert_eq!(old.nodes().unwrap().len(), 2);
    drop(first);
    std::fs::remove_file(&socket).unwrap();
    let _second = Elsewhere::play(&socket);
    // Who has the old VM has not noticed yet.
    let mut new = connect(&socket);
    assert_eq!(new.nodes().unwrap().len(), 2);
    drop(new);
    assert!(old.nodes().is_err());
    let error = old.nodes().unwrap_err();
    assert!(matches!(error, QemuError::NoProcess { .. }), "{error}");
}

/// The socket is there a moment before QEMU listens.
fn connect(socket: &Path) -> Monitor {
    loop {
        match Monitor::connect(socket, LONG) {
            Err(QemuError::Connect { .. }) => thread::sleep(Duration::from_millis(10)),
            connected => return connected.unwrap(),
        }
    }
}
