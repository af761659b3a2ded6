//! Memory that moves between VMs: the daemon with monitors that a test plays, whose guests use so much memory.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use serde_json::{Value, json};
use terrace_api::provision::{BalanceStatus, ProvisioningStatus, Resize, SizeChange, SizePlan};
use terrace_api::types::{Done, EventLine, Setting, VmDetail};
use terrace_core::provision::ProvisionConfig;
use terrace_host::qemu::who::HypervisorConfig;
use terrace_testkit::monitor::{self, CLOSE};

use super::super::Provisioning;
use super::super::finder;
use super::MIB;
use super::script::live;
use crate::messages::State;
use crate::played::{Served, serve_resizable};

/// The address of a VM's RAM in QEMU.
pub const HVA: u64 = 0x7f00_0000_0000;

/// RAM of each VM, MiB.
pub const RAM: u64 = 512;

/// A VM with a balloon, whose guest uses so much memory, and swaps what does not fit.
#[derive(Clone)]
pub struct Vm(Arc<Mutex<Inside>>);

pub struct Inside {
    /// The size that the balloon leaves, bytes.
    pub size: u64,
    /// Least size that the guest gives, bytes.
    pub gives_to: u64,
    /// Memory that it uses, bytes.
    pub used: u64,
    /// Memory swapped out so far, bytes.
    pub swapped: u64,
    /// Reports of the driver so far; `None`: it has none.
    pub reports: Option<u64>,
    /// Whether the driver reports anew when it is asked.
    pub is_stale: bool,
    /// A value that it says is free in place of the true one.
    pub lie: Option<Value>,
    pub interval: u64,
    pub status: &'static str,
    pub migration: Option<&'static str>,
    /// The fate of each command; `None`: it is answered.
    pub trouble: Option<Trouble>,
    pub orders: Vec<u64>,
}

/// The fate of a command instead of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// It is never answered.
    Hangs,
    /// The monitor takes an order, and closes the connection in place of the answer.
    ClosesOnOrder,
}

impl Vm {
    /// Sizes in MiB.
    pub fn new(size: u64, used: u64) -> Self {
        Self(Arc::new(Mutex::new(Inside {
            size: size * MIB,
            gives_to: 0,
            used: used * MIB,
            swapped: 0,
            reports: Some(0),
            is_stale: false,
            lie: None,
            interval: 0,
            status: "running",
            migration: None,
            trouble: None,
            orders: Vec::new(),
        })))
    }

    pub fn inside(&self) -> MutexGuard<'_, Inside> {
        self.0.lock().unwrap()
    }

    pub fn play(&self, socket: &Path) {
        let vm = self.clone();
        monitor::serve(socket, move |line| {
            let request: Value = serde_json::from_str(line).ok()?;
            let mut inside = vm.inside();
            if inside.trouble == Some(Trouble::Hangs) {
                return None;
            }
            let answer = inside.answer(&request).to_string();
            let is_order = request["execute"] == "balloon";
            match inside.trouble {
                Some(Trouble::ClosesOnOrder) if is_order => Some(CLOSE.into()),
                _ => Some(answer),
            }
        });
    }
}

impl Inside {
    fn answer(&mut self, request: &Value) -> Value {
        let arguments = &request["arguments"];
        let result = match request["execute"].as_str().unwrap_or_default() {
            "query-memdev" => json!([{
                "id": "m0", "size": RAM * MIB, "merge": true, "dump": true, "prealloc": false, "share": false,
                "host-nodes": [], "policy": "default",
            }]),
            "human-monitor-command" => json!(where_is(&arguments["command-line"])),
            "query-memory-devices" => json!([]),
            "query-memory-size-summary" => json!({"base-memory": RAM * MIB}),
            "query-balloon" => json!({"actual": self.size}),
            "query-status" => json!({
                "status": self.status, "running": self.status == "running", "singlestep": false,
            }),
            "query-migrate" => self
                .migration
                .map_or(json!({}), |status| json!({"status": status})),
            "balloon" => {
                let wanted = arguments["value"].as_u64().unwrap();
                self.orders.push(wanted);
                self.size = wanted.max(self.gives_to.min(self.size));
                json!({})
            }
            "qom-list" if arguments["path"] == "/machine/peripheral" => json!([]),
            "qom-list" => json!([{"name": "device[0]", "type": "child<virtio-balloon-pci>"}]),
            "qom-get" if arguments["property"] == "guest-stats" => self.stats(),
            "qom-get" => json!(self.interval),
            "qom-set" => {
                self.interval = arguments["value"].as_u64().unwrap();
                json!({})
            }
            _ => json!({}),
        };
        json!({ "return": result })
    }

    fn stats(&mut self) -> Value {
        let Some(reports) = &mut self.reports else {
            return json!({"stats": {}, "last-update": 0});
        };
        *reports += u64::from(!self.is_stale);
        let reports = *reports;
        let over = self.used.saturating_sub(self.size);
        self.swapped = self.swapped.max(over);
        let free = json!(self.size - self.used.min(self.size));
        let faults = if over > 0 { reports * 2000 } else { 0 };
        json!({"last-update": reports, "stats": {
            "stat-free-memory": self.lie.clone().unwrap_or(free),
            "stat-available-memory": -1,
            "stat-major-faults": faults,
            "stat-swap-in": 0,
            "stat-swap-out": self.swapped,
        }})
    }
}

/// QEMU's answer to where guest memory is: at [`HVA`].
fn where_is(question: &Value) -> String {
    let question = question.as_str().unwrap_or_default();
    let Some(gpa) = question.strip_prefix("gpa2hva 0x") else {
        let last = RAM * MIB - 1;
        return format!(
            "FlatView #0\r\n AS \"memory\", root: system\r\n  {:016x}-{last:016x} (prio 0, ram): m0\r\n",
            0
        );
    };
    let gpa = u64::from_str_radix(gpa, 16).unwrap();
    format!(
        "Host virtual address for {gpa:#x} (m0) is {:#x}\r\n",
        HVA + gpa
    )
}

/// A daemon that found these VMs: `a`, `b`, and so on.
pub struct Host(pub Served);

pub const ON: &str = "[balance]\nmode = \"on\"\nleast_shrink = \"32MiB\"\ncycle_ms = 200\nsettle_ms = 0\nboot_ms = 0\nvalley_ms = 0\n";
pub const FLOORS: &str = "[vm.a]\nmemory_floor = \"64MiB\"\n[vm.b]\nmemory_floor = \"64MiB\"\n";

pub fn host(vms: &[&Vm], config: &str) -> Host {
    host_of(vms, config, None)
}

/// The same, with the process of the first VM.
pub fn host_of(vms: &[&Vm], config: &str, pid: Option<u32>) -> Host {
    let pace = ProvisionConfig {
        under_way_ms: 20,
        idle_ms: 50,
        balanced_ms: 50,
        verify_ms: 50,
        patience_ms: 60_000,
        ..ProvisionConfig::default()
    };
    // QEMU's process is not known here, and so neither are other holders of its RAM.
    let config = format!("{config}[defaults]\nnobody_pins = true\n");
    let served = serve_resizable(
        |folder| {
            for node in 0..2 {
                let file = format!("sys/devices/system/node/node{node}/meminfo");
                let meminfo =
                    format!("Node {node} MemTotal: 8388608 kB\nNode {node} MemFree: 8388608 kB\n");
                crate::played::put(folder, &file, &meminfo);
            }
            for (name, vm) in ["a", "b"].iter().zip(vms) {
                vm.play(&folder.join(format!("{name}.sock")));
            }
            config
        },
        Provisioning::new(finder(HypervisorConfig::default()), pace),
    );
    let zones = "Node 0, zone Normal\n  pages free 2097152\n  high 0\n\
                 Node 1, zone Normal\n  pages free 2097152\n  high 0\n";
    crate::played::put(served.folder.path(), "proc/zoneinfo", zones);
    if let Some(pid) = pid {
        live(served.folder.path(), pid);
    }
    for ((name, _), pid) in ["a", "b"].iter().zip(vms).zip([pid, None]) {
        served.find(name, pid, State::Ignored);
    }
    Host(served)
}

impl Host {
    /// Lets so many MiB of the host's 8 GiB be available.
    pub fn available(&self, mib: u64) {
        let text = format!("MemTotal: 8388608 kB\nMemAvailable: {} kB\n", mib << 10);
        crate::played::put(self.0.folder.path(), "proc/meminfo", &text);
    }

    pub fn provisioning(&self, vm: &str) -> Option<ProvisioningStatus> {
        let detail: VmDetail = self.0.get(&format!("/v1/vms/{vm}")).ok()?;
        detail.provisioning
    }

    pub fn balance(&self, vm: &str) -> Option<BalanceStatus> {
        self.provisioning(vm)?.balance
    }

    pub fn until(&self, vm: &str, so: impl Fn(&BalanceStatus) -> bool) -> BalanceStatus {
        until(
            || self.balance(vm).filter(&so),
            || format!("{:?}", self.provisioning(vm)),
        )
    }

    pub fn said(&self, vm: &str, text: &str) -> bool {
        let events: Vec<EventLine> = self.0.get("/v1/events?after=0").unwrap();
        let of = |event: &&EventLine| event.vm.as_deref() == Some(vm);
        events
            .iter()
            .filter(of)
            .any(|event| event.text.contains(text))
    }

    pub fn until_said(&self, vm: &str, text: &str) {
        let events = || {
            let events: Vec<EventLine> = self.0.get("/v1/events?after=0").unwrap();
            format!("{text:?} in {events:?}")
        };
        until(|| self.said(vm, text).then_some(()), events);
    }

    pub fn set(&self, vm: &str, key: &str, value: &str) -> Result<Done, String> {
        let setting = Setting {
            key: key.into(),
            value: value.into(),
        };
        self.0.post_body(&format!("/v1/vms/{vm}/set"), &setting)
    }
}

pub fn until<T>(so: impl Fn() -> Option<T>, or: impl Fn() -> String) -> T {
    for _ in 0..6000 {
        if let Some(found) = so() {
            return found;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("not yet: {}", or());
}

#[test]
fn a_guest_that_swaps_gets_memory_of_one_that_idles() {
    let (a, b) = (Vm::new(256, 400), Vm::new(RAM, 100));
    let host = host(&[&a, &b], &format!("{ON}{FLOORS}"));
    until(
        || (a.inside().size >= 400 * MIB).then_some(()),
        || format!("{:?} {:?}", host.provisioning("a"), host.provisioning("b")),
    );
    let (a, b) = (a.inside(), b.inside());
    assert!(b.size >= 100 * MIB, "it was given what it uses: {}", b.size);
    assert!(
        a.size + b.size <= (256 + RAM) * MIB,
        "{} and {}",
        a.size,
        b.size
    );
    drop((a, b));
    assert!(host.said("a", "it swaps"));
    assert!(host.said("b", "calls"));
    let changes = host.provisioning("a").unwrap().changes;
    let why = |change: &SizeChange| {
        change.is_ordered && change.why.contains("b gave") && change.why.contains("estimated gain")
    };
    assert!(changes.iter().any(why), "{changes:?}");
    let order = host.provisioning("a").and_then(|seen| seen.order);
    assert_eq!(order.map(|order| order.origin).as_deref(), Some("arbiter"));
    let figures = crate::played::figures(&host.0.folder.path().join("terraced.sock"));
    for (figure, least) in [
        ("balance_acts{vm=\"a\"}", 1.0),
        ("balance_floor_bytes{vm=\"b\"}", (64 * MIB) as f64),
        ("balance_statistics_age_seconds{vm=\"a\"}", 0.0),
        ("balance_orders_total{vm=\"a\"}", 1.0),
        ("balance_given_bytes_total{vm=\"a\"}", (144 * MIB) as f64),
        ("balance_taken_bytes_total{vm=\"b\"}", (64 * MIB) as f64),
    ] {
        let shown = figures.lines().find_map(|line| {
            let rest = line.strip_prefix("terrace_")?.strip_prefix(figure)?;
            rest.trim().parse::<f64>().ok()
        });
        assert!(shown >= Some(least), "{figure} {shown:?} in\n{figures}");
    }
}

#[test]
fn a_daemon_that_ends_has_qemu_ask_guests_no_more() {
    let (a, b) = (Vm::new(256, 100), Vm::new(RAM, 100));
    // Somebody else has QEMU ask this one.
    b.inside().interval = 10;
    let host = host(&[&a, &b], &format!("{ON}{FLOORS}"));
    for vm in ["a", "b"] {
        host.until(vm, |seen| seen.free_bytes.is_some());
    }
    let asked = [&a, &b].map(|vm| vm.inside().interval);
    assert_eq!(asked, [2, 10]);
    drop(host);
    let asks = [&a, &b].map(|vm| vm.inside().interval);
    assert_eq!(asks, [0, 10]);
}

#[test]
fn sizes_are_said_and_not_ordered_by_default() {
    let (a, b) = (Vm::new(256, 400), Vm::new(RAM, 100));
    let observe = ON.replace("\"on\"", "\"observe\"");
    let host = host(&[&a, &b], &format!("{observe}{FLOORS}"));
    // The memory that the other one lacks is not there before it is given.
    host.until_said("b", "a has use for more");
    assert!(host.said("b", "it would be resized from 512 MiB to"));
    assert_eq!(host.until("a", |a| a.is_swapping).mode, "observe");
    let plan: SizePlan = host.0.get("/v1/plan").unwrap();
    let shared = plan.shared.unwrap();
    assert_eq!(shared.held_bytes, (256 + RAM) * MIB, "{shared:?}");
    let names: Vec<&str> = plan.vms.iter().map(|vm| vm.vm.as_str()).collect();
    assert_eq!(names, ["a", "b"]);
    let of = |vm: &str| plan.changes.iter().find(|planned| planned.vm == vm);
    let change = &of("b").unwrap_or_else(|| panic!("{plan:?}")).change;
    assert!(change.to_bytes < RAM * MIB && change.why.contains("a has use for more"));
    let unchanged = plan.unchanged.iter().find(|vm| vm.vm == "a");
    let why = unchanged
        .and_then(|vm| vm.left_alone.clone())
        .unwrap_or_default();
    assert!(
        why.contains("it swaps, and grows once others have given"),
        "{plan:?}"
    );
    let changes = host.provisioning("b").unwrap().changes;
    assert!(!changes.is_empty() && changes.iter().all(|change| !change.is_ordered));
    assert!(a.inside().orders.is_empty() && b.inside().orders.is_empty());
    let status = host.until("b", |b| b.free_bytes.is_some());
    assert_eq!(status.free_bytes, Some(412 * MIB));
}

#[test]
fn vms_that_are_left_alone_say_why() {
    let (a, b) = (Vm::new(256, 400), Vm::new(RAM, 100));
    a.inside().migration = Some("active");
    let host = host(
        &[&a, &b],
        &format!("{ON}[vm.a]\nmemory_floor = \"64MiB\"\nbalance = true\n[vm.b]\nscan = true\n"),
    );
    let why = |vm: &str, text: &str| {
        host.until(vm, |seen| {
            seen.left_alone
                .as_deref()
                .is_some_and(|why| why.contains(text))
        });
    };
    why("b", "no memory_floor");
    why("a", "it migrates");
    a.inside().migration = None;
    a.inside().status = "paused";
    why("a", "it is stopped");
    a.inside().status = "running";
    host.until("a", |seen| seen.left_alone.is_none());
    host.set("a", "balance", "off").unwrap();
    why("a", "an operator switched that off");
    host.set("a", "balance", "on").unwrap();
    host.until("a", |seen| seen.left_alone.is_none());
    host.until_said("a", "its memory is balanced from now on");
    let _: Done = host.0.post("/v1/vms/a/pause").unwrap();
    why("a", "an operator paused it");
    let _: Done = host.0.post("/v1/vms/a/resume").unwrap();
    host.until("a", |seen| seen.left_alone.is_none());
    let _: Done = host.0.post("/v1/pause").unwrap();
    why("a", "an operator paused all VMs");
    let plan: SizePlan = host.0.get("/v1/plan").unwrap();
    assert_eq!(plan.changes, []);
    let _: Done = host.0.post("/v1/resume").unwrap();
    host.until("a", |seen| seen.left_alone.is_none());
    assert!(b.inside().orders.is_empty());
}

#[test]
fn a_trade_that_a_balloon_cannot_do_is_said() {
    let (a, b) = (Vm::new(256, 400), Vm::new(RAM, 100));
    let trade = ON.replace("mode", "share = \"trade\"\nmode");
    let host = host(&[&a, &b], &format!("{trade}{FLOORS}"));
    let why = |seen: &BalanceStatus| seen.left_alone.clone().unwrap_or_default();
    host.until("a", |seen| why(seen).contains("knows one size for all"));
    assert!(a.inside().orders.is_empty() && b.inside().orders.is_empty());
}

#[test]
fn an_operators_resize_ends_balancing_and_says_so() {
    let (a, b) = (Vm::new(300, 100), Vm::new(RAM, 100));
    let host = host(&[&a, &b], &format!("{ON}{FLOORS}"));
    host.until("a", |seen| seen.left_alone.is_none());
    let sizes = Resize {
        fast_bytes: Some(100 * MIB),
        slow_bytes: Some(100 * MIB),
        ..Resize::default()
    };
    let _: terrace_api::provision::Ordered = host.0.post_body("/v1/vms/a/resize", &sizes).unwrap();
    host.until_said("a", "an operator resized it");
    until(
        || (a.inside().size == 200 * MIB).then_some(()),
        || "its order".into(),
    );
    let of = |vm: &str| host.balance(vm).and_then(|seen| seen.left_alone);
    assert!(of("a").is_some() && of("b").is_none());
    host.set("a", "balance", "on").unwrap();
    host.until("a", |seen| seen.left_alone.is_none());
}

#[test]
fn a_guest_without_statistics_keeps_what_it_has_and_says_so() {
    let (a, b) = (Vm::new(256, 400), Vm::new(RAM, 100));
    a.inside().reports = None;
    b.inside().lie = Some(json!(u64::MAX));
    let host = host(&[&a, &b], &format!("{ON}{FLOORS}"));
    let missing = |vm: &str, text: &str| {
        host.until(vm, |seen| {
            seen.statistics_missing
                .as_deref()
                .is_some_and(|why| why.contains(text))
        });
    };
    missing("a", "has reported no statistics");
    missing("b", "lack its free memory");
    b.inside().lie = Some(json!((RAM + 1) * MIB));
    missing("b", "more is free than it has");
    assert!(a.inside().orders.is_empty() && b.inside().orders.is_empty());
}

#[test]
fn statistics_that_stand_still_are_old() {
    let a = Vm::new(256, 400);
    a.inside().is_stale = true;
    a.inside().reports = Some(7);
    let host = host(&[&a], &format!("{ON}{FLOORS}"));
    host.until("a", |seen| {
        seen.statistics_missing
            .as_deref()
            .is_some_and(|why| why.contains("s old"))
    });
}

#[test]
fn a_guest_that_gives_less_than_it_was_to_is_asked_no_more() {
    let (a, b) = (Vm::new(256, 400), Vm::new(RAM, 100));
    b.inside().gives_to = 450 * MIB;
    let text = format!("{ON}review_ms = 1000\n{FLOORS}");
    let host = host(&[&a, &b], &text);
    host.until_said("b", "gave what it could");
    until(
        || (a.inside().size > 256 * MIB).then_some(()),
        || format!("{:?}", host.provisioning("a")),
    );
    assert!(a.inside().size + b.inside().size <= (256 + RAM) * MIB);
}

#[test]
fn qemu_asks_the_guest_only_while_somebody_reads() {
    let (a, b) = (Vm::new(256, 100), Vm::new(RAM, 100));
    b.inside().interval = 7;
    let host = host(&[&a, &b], &format!("{ON}{FLOORS}"));
    host.until("a", |seen| seen.free_bytes.is_some());
    host.until("b", |seen| seen.free_bytes.is_some());
    assert_eq!((a.inside().interval, b.inside().interval), (2, 7));
    // Both VMs are gone from the host.
    host.0.discovery_scan(&[]);
    until(
        || (a.inside().interval == 0).then_some(()),
        || a.inside().interval.to_string(),
    );
    assert_eq!(b.inside().interval, 7);
}

#[test]
fn pressure_on_the_host_takes_what_is_free_and_nobody_grows() {
    let (a, b) = (Vm::new(256, 400), Vm::new(RAM, 100));
    let host = host(&[&a, &b], &format!("{ON}{FLOORS}"));
    // Settling takes a moment in which A may have got something.
    host.available(100);
    host.until_said("a", "none gets more until that is over");
    until(
        || (b.inside().size < 250 * MIB).then_some(()),
        || format!("{:?}", host.provisioning("b")),
    );
    let had = a.inside().size;
    host.until_said("b", "the host lacks");
    assert_eq!(
        a.inside().size,
        had,
        "it grew, or was shrunk while it swaps"
    );
    assert!(b.inside().size >= 100 * MIB, "{}", b.inside().size);
    host.available(7000);
    host.until_said("a", "the host has enough memory again");
    until(
        || (a.inside().size > had).then_some(()),
        || format!("{:?}", host.provisioning("a")),
    );
}
