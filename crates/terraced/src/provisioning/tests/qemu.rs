//! Providers that a VM's QEMU has, with a monitor that a test plays.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use terrace_api::provision::{OrderState, Ordered, ProvisioningStatus, Resize};
use terrace_api::types::{EventLine, VmDetail};
use terrace_host::qemu::who::HypervisorConfig;

use super::super::Provisioning;
use super::super::finder;
use super::MIB;
use crate::messages::State;
use crate::played::{Served, serve_resizable};
use terrace_core::provision::ProvisionConfig;

/// A QEMU's memory devices and balloon, which change by its orders at once.
#[derive(Clone, Default)]
pub struct Qemu(Arc<Mutex<Inside>>);

#[derive(Default)]
struct Inside {
    /// Name, node, plugged and requested bytes.
    devices: Vec<(&'static str, u32, u64, u64)>,
    /// The size that the balloon leaves, bytes, and whether the guest has a driver for it.
    balloon: Option<(u64, bool)>,
    /// Connections that were greeted.
    greeted: u32,
    /// Whether connections end without a greeting.
    busy: bool,
    /// The address and the length of its RAM in its process, if that is asked for.
    ram: Option<(usize, usize)>,
}

impl Qemu {
    /// A device for each of two nodes of 256 MiB, each with 256 MiB plugged.
    fn with_virtio_mem() -> Self {
        let qemu = Self::default();
        let devices = [("v0", 0), ("v1", 1)];
        qemu.inside().devices = devices
            .map(|(id, node)| (id, node, 256 * MIB, 256 * MIB))
            .into();
        qemu
    }

    /// The RAM of this process that its guest has at 0.
    pub fn with_ram(self, address: usize, len: usize) -> Self {
        self.inside().ram = Some((address, len));
        self
    }

    pub fn with_balloon(self, has_driver: bool) -> Self {
        self.inside().balloon = Some((512 * MIB, has_driver));
        self
    }

    fn inside(&self) -> std::sync::MutexGuard<'_, Inside> {
        self.0.lock().unwrap()
    }

    /// Plays its monitor for as long as the test runs, for one client at a time.
    pub fn play(&self, socket: &Path) {
        let listener = UnixListener::bind(socket).unwrap();
        let qemu = self.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                qemu.inside().greeted += 1;
                // A client that gives up is its own affair.
                let _ = qemu.converse(stream.unwrap());
            }
        });
    }

    fn converse(&self, mut stream: UnixStream) -> std::io::Result<()> {
        if self.inside().busy {
            return Ok(());
        }
        let version = json!({"qemu": {"micro": 2, "minor": 0, "major": 10}, "package": ""});
        let greeting = json!({"QMP": {"version": version, "capabilities": []}});
        writeln!(stream, "{greeting}")?;
        for line in BufReader::new(stream.try_clone()?).lines() {
            let request: Value = serde_json::from_str(&line?)?;
            let answer = self.inside().answer(&request);
            writeln!(stream, "{answer}")?;
        }
        Ok(())
    }
}

impl Inside {
    fn answer(&mut self, request: &Value) -> Value {
        let arguments = &request["arguments"];
        let result = match request["execute"].as_str().unwrap_or_default() {
            "query-memory-devices" => self.devices.iter().map(device).collect(),
            "query-memory-size-summary" => json!({"base-memory": 512 * MIB}),
            "query-memdev" => self.ram.iter().map(memdev).collect(),
            "query-status" => json!({"status": "running", "running": true, "singlestep": false}),
            "human-monitor-command" => {
                let line = arguments["command-line"].as_str().unwrap_or_default();
                json!(self.say(line))
            }
            "qom-set" => {
                let (path, value) = (&arguments["path"], arguments["value"].as_u64().unwrap());
                let is_path_of = |id: &str| *path == format!("/machine/peripheral/{id}");
                let device = self.devices.iter_mut().find(|d| is_path_of(d.0)).unwrap();
                (device.2, device.3) = (value, value);
                json!({})
            }
            "query-balloon" => match self.balloon {
                Some((bytes, _)) => json!({"actual": bytes}),
                None => return json!({"error": {"class": "DeviceNotActive", "desc": "none"}}),
            },
            "balloon" => {
                if let Some((bytes, true)) = &mut self.balloon {
                    *bytes = arguments["value"].as_u64().unwrap();
                }
                json!({})
            }
            _ => json!({}),
        };
        json!({ "return": result })
    }

    /// The answer of the human monitor.
    fn say(&self, line: &str) -> String {
        let Some((address, len)) = self.ram else {
            return self.numa();
        };
        if line == "info mtree -f" {
            let last = len - 1;
            return format!(
                "FlatView #0\r\n AS \"memory\", root: system\r\n Root memory region: system\r\n  \
                 {:016x}-{last:016x} (prio 0, ram): ram KVM\r\n",
                0
            );
        }
        match line.strip_prefix("gpa2hva 0x") {
            Some(gpa) => {
                let at = address + usize::from_str_radix(gpa, 16).unwrap();
                format!("Host virtual address for 0x{gpa} (ram) is {at:#x}\r\n")
            }
            None => self.numa(),
        }
    }

    fn numa(&self) -> String {
        let node = |node: u32| {
            let devices = self.devices.iter().filter(|d| d.1 == node);
            let plugged: u64 = devices.map(|d| d.2 / MIB).sum();
            let size = 256 + plugged;
            format!("node {node} size: {size} MB\r\nnode {node} plugged: {plugged} MB\r\n")
        };
        format!("2 nodes\r\n{}{}", node(0), node(1))
    }
}

fn memdev((_, len): &(usize, usize)) -> Value {
    json!({
        "id": "ram", "size": len, "merge": true, "dump": true, "prealloc": false, "share": false,
        "host-nodes": [], "policy": "default",
    })
}

fn device((id, node, size, requested): &(&str, u32, u64, u64)) -> Value {
    json!({"type": "virtio-mem", "data": {
        "id": id, "memdev": format!("/objects/{id}"), "memaddr": 0, "node": node, "block-size": 2 * MIB,
        "size": size, "requested-size": requested, "max-size": 1024 * MIB,
    }})
}

/// A daemon that found `vm`, whose QEMU this is.
struct Host(Served);

fn host(qemu: &Qemu, config: &str) -> Host {
    let pace = ProvisionConfig {
        under_way_ms: 20,
        idle_ms: 30,
        patience_ms: 60_000,
        ..ProvisionConfig::default()
    };
    // QEMU's process is not known here, and so neither are other holders of its RAM.
    let config = format!("[defaults]\nnobody_pins = true\n{config}");
    let of = qemu.clone();
    let served = serve_resizable(
        move |folder| {
            of.play(&folder.join("vm.sock"));
            config
        },
        Provisioning::new(finder(HypervisorConfig::default()), pace),
    );
    let zones = "Node 0, zone Normal\n  pages free 2097152\n  high 0\n\
                 Node 1, zone Normal\n  pages free 2097152\n  high 0\n";
    crate::played::put(served.folder.path(), "proc/zoneinfo", zones);
    let host = Host(served);
    host.0.find("vm", None, State::Ignored);
    host
}

impl Host {
    fn resize(&self, mib: [Option<u64>; 2]) -> Result<Ordered, String> {
        let [fast_bytes, slow_bytes] = mib.map(|mib| mib.map(|mib| mib * MIB));
        let sizes = Resize {
            fast_bytes,
            slow_bytes,
            ..Resize::default()
        };
        self.0.post_body("/v1/vms/vm/resize", &sizes)
    }

    fn provisioning(&self) -> Option<ProvisioningStatus> {
        let detail: VmDetail = self.0.get("/v1/vms/vm").unwrap();
        detail.provisioning
    }

    fn until(&self, so: impl Fn(&ProvisioningStatus) -> bool) -> ProvisioningStatus {
        for _ in 0..6000 {
            if let Some(provisioning) = self.provisioning().filter(&so) {
                return provisioning;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("not yet: {:?}", self.provisioning());
    }
}

fn is_met(provisioning: &ProvisioningStatus) -> bool {
    let order = provisioning.order.as_ref();
    order.is_some_and(|order| order.state == OrderState::Met)
}

#[test]
fn virtio_mem_is_used_before_a_balloon_and_the_answer_says_so() {
    let qemu = Qemu::with_virtio_mem().with_balloon(true);
    let host = host(&qemu, "");
    let ordered = host.resize([Some(301), Some(768)]).unwrap();
    let message = "fast 512 MiB → 300 MiB (301 MiB rounded down to blocks of 2 MiB), slow 512 MiB → 768 MiB ordered by \
                 virtio-mem";
    assert!(ordered.done.contains(message), "{ordered:?}");
    assert_eq!(ordered.by, "virtio-mem");
    let provisioning = host.until(is_met);
    assert_eq!(provisioning.by, "virtio-mem");
    let tiers = provisioning.tiers.iter();
    let sizes = tiers.map(|t| (t.name.as_str(), t.size_bytes / MIB, t.whole_bytes / MIB));
    let sizes: Vec<_> = sizes.collect();
    assert_eq!(sizes, [("fast", 300, 1280), ("slow", 768, 1280)]);
    assert_eq!(qemu.inside().balloon, Some((512 * MIB, true)));
}

#[test]
fn virtio_mem_refuses_what_cannot_be_had_and_says_what_can() {
    let host = host(&Qemu::with_virtio_mem(), "");
    for (mib, has) in [(100, "too little"), (4000, "too much")] {
        let refused = host.resize([Some(mib), None]).unwrap_err();
        assert!(refused.contains(has), "{refused}");
        assert!(refused.contains("256 MiB to 1280 MiB"), "{refused}");
    }
}

#[test]
fn the_balloon_gets_the_sum_where_there_is_no_virtio_mem() {
    let qemu = Qemu::default().with_balloon(true);
    let host = host(&qemu, "");
    let one = host.resize([Some(128), None]).unwrap_err();
    assert!(
        one.contains("give both sizes") && one.contains("virtio-mem"),
        "{one}"
    );
    let ordered = host.resize([Some(128), Some(256)]).unwrap();
    assert!(
        ordered.done.contains("the balloon, which knows no tiers"),
        "{ordered:?}"
    );
    let provisioning = host.until(is_met);
    assert_eq!(
        (provisioning.by.as_str(), provisioning.tiers.len()),
        ("balloon", 1)
    );
    assert_eq!(qemu.inside().balloon, Some((384 * MIB, true)));
    let more = host.resize([Some(512), Some(512)]).unwrap_err();
    assert!(more.contains("from 1 MiB to 512 MiB"), "{more}");
}

#[test]
fn a_balloon_without_a_driver_stays_under_way() {
    let host = host(&Qemu::default().with_balloon(false), "");
    host.resize([Some(128), Some(256)]).unwrap();
    let provisioning = host.until(|provisioning| provisioning.resizing);
    assert_eq!(provisioning.tiers[0].size_bytes, 512 * MIB);
    assert_eq!(provisioning.tiers[0].target_bytes, 384 * MIB);
}

#[test]
fn a_balloon_moved_by_others_is_not_stuck_at_an_old_target() {
    let qemu = Qemu::default().with_balloon(true);
    let host = host(&qemu, "");
    host.resize([Some(128), Some(256)]).unwrap();
    host.until(is_met);
    qemu.inside().balloon = Some((448 * MIB, true));
    let provisioning = host.until(|provisioning| provisioning.tiers[0].size_bytes == 448 * MIB);
    assert_eq!(provisioning.tiers[0].target_bytes, 448 * MIB);
    assert!(
        is_met(&provisioning) && !provisioning.resizing,
        "{provisioning:?}"
    );
}

#[test]
fn a_configured_device_is_used_before_virtio_mem() {
    let qemu = Qemu::with_virtio_mem();
    let host = host(&qemu, "[vm.vm]\nhyperflex = \"/nowhere/control\"\n");
    let gone = host.resize([Some(256), None]).unwrap_err();
    assert!(gone.contains("/nowhere/control"), "{gone}");
    assert_eq!(qemu.inside().greeted, 0);
}

#[test]
fn a_vm_with_none_of_the_three_is_told_all_three() {
    let host = host(&Qemu::default(), "[vm.vm]\nscan = true\n");
    let none = host.resize([Some(256), None]).unwrap_err();
    for has in [
        "[vm.vm]",
        "hyperflex =",
        "virtio-mem-pci",
        "virtio-balloon-pci",
    ] {
        assert!(none.contains(has), "no {has:?} in {none}");
    }
    assert_eq!(host.provisioning(), None);
    let events: Vec<EventLine> = host.0.get("/v1/events?after=0").unwrap();
    let noise = events.iter().find(|event| event.text.contains("monitor"));
    assert!(noise.is_none(), "{noise:?}");
}

#[test]
fn a_monitor_that_is_not_opted_in_is_left_alone_until_a_resize() {
    let qemu = Qemu::with_virtio_mem();
    let host = host(&qemu, "");
    // The daemon has found it.
    let _: VmDetail = host.0.get("/v1/vms/vm").unwrap();
    assert_eq!(host.provisioning(), None);
    assert_eq!(qemu.inside().greeted, 0);
    host.resize([Some(256), None]).unwrap();
    assert_eq!(host.until(is_met).by, "virtio-mem");
}

#[test]
fn an_opted_in_vm_shows_what_resizes_it_before_anybody_does() {
    let host = host(&Qemu::with_virtio_mem(), "[vm.vm]\nscan = true\n");
    let provisioning = host.until(|provisioning| !provisioning.tiers.is_empty());
    assert_eq!(provisioning.by, "virtio-mem");
    assert!(provisioning.at.ends_with("vm.sock"), "{}", provisioning.at);
}

#[test]
fn a_monitor_that_was_busy_at_discovery_is_asked_again() {
    let qemu = Qemu::with_virtio_mem();
    qemu.inside().busy = true;
    let host = host(&qemu, "[vm.vm]\nscan = true\n");
    for _ in 0..6000 {
        if qemu.inside().greeted > 2 {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(qemu.inside().greeted > 2, "it was given up");
    assert_eq!(host.provisioning(), None);
    qemu.inside().busy = false;
    assert_eq!(host.until(|e| !e.tiers.is_empty()).by, "virtio-mem");
    let events: Vec<EventLine> = host.0.get("/v1/events?after=0").unwrap();
    let noise = events.iter().find(|event| event.text.contains("monitor"));
    assert!(noise.is_none(), "{noise:?}");
}

#[test]
fn a_vm_without_a_provider_is_not_queried_each_time() {
    let qemu = Qemu::default();
    let host = host(&qemu, "[vm.vm]\nscan = true\n");
    // Until its reconciler has searched and is gone.
    host.resize([Some(256), None]).unwrap_err();
    let greeted = qemu.inside().greeted;
    for _ in 0..20 {
        host.0.find("vm", None, State::Ignored);
        assert_eq!(host.provisioning(), None);
        std::thread::sleep(Duration::from_millis(20));
    }
    let more = qemu.inside().greeted - greeted;
    assert!(more <= 2, "asked {more} times");
}

#[test]
fn a_monitor_that_another_program_holds_is_said_so() {
    let qemu = Qemu::with_virtio_mem();
    let host = host(&qemu, "");
    let socket = host.0.folder.path().join("vm.sock");
    let holder = UnixStream::connect(socket).unwrap();
    let held = host.resize([Some(256), None]).unwrap_err();
    assert!(held.contains("another program"), "{held}");
    drop(holder);
    host.until(|provisioning| !provisioning.tiers.is_empty());
    host.resize([Some(256), None]).unwrap();
}
