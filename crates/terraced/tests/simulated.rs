//! A simulated host behind the API, by the library's face.

#![allow(clippy::unwrap_used, reason = "test helpers outside of test functions")]

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Result;
use serde::de::DeserializeOwned;
use terrace_api::client::Client;
use terrace_api::types::{
    Doctor, Done, EventLine, HeatMap, Mode, Neighbours, PageExplanation, Planning, Setting, Status,
    Vm, VmDetail,
};
use terrace_core::session::other::{Other, replay_with};
use terrace_core::session::replay::replay;
use terraced::{Inbox, Simulated, Speed, Stop};

/// A VM that the engine manages and one that it does not.
const SCENARIO: &str = r#"
[machine]
tiers = ["dram", "pmem"]
scale = 64
vcpus_per_vm = 1
[[vm]]
name = "web1"
fast = "64MiB"
slow = "256MiB"
policy = "vtmm"
workload = { kind = "hotset", size = "256MiB", hot = 0.2, hot_access = 0.9, write = 0.5, duration = "DURATION" }
[[vm]]
name = "db1"
fast = "64MiB"
slow = "256MiB"
policy = "all-slow"
workload = { kind = "hotset", size = "256MiB", hot = 0.2, hot_access = 0.9, write = 0.5, duration = "DURATION" }
"#;

/// The scenario, in which the second VM is resized.
fn resized(duration: &str) -> String {
    let resize = "policy = \"first-touch\"\nprovision = \"hyperflex\"\n\
        resize = [{ at = \"1s\", fast = \"32MiB\", slow = \"288MiB\" }]";
    let text = SCENARIO.replace("policy = \"all-slow\"", resize);
    text.replace("DURATION", duration)
}

struct Running {
    folder: tempfile::TempDir,
    stop: Stop,
    client: Client,
    thread: Option<JoinHandle<Result<()>>>,
}

fn run(duration: &str, speed: Speed, record: Option<&str>) -> Running {
    run_text(&SCENARIO.replace("DURATION", duration), speed, record)
}

fn run_text(text: &str, speed: Speed, record: Option<&str>) -> Running {
    let folder = tempfile::tempdir().unwrap();
    let scenario = folder.path().join("test.toml");
    std::fs::write(&scenario, text).unwrap();
    let record = record.map(|name| folder.path().join(name));
    let socket = folder.path().join("terraced.sock");
    let at = socket.clone();
    let inbox = Inbox::default();
    let stop = inbox.stop();
    let thread = std::thread::spawn(move || {
        Simulated::load(&scenario, speed, record.as_deref())?.serve(Some(at), inbox)
    });
    let running = Running {
        folder,
        stop,
        client: Client::new(&socket),
        thread: Some(thread),
    };
    running.wait("the socket", |_| UnixStream::connect(&socket).is_ok());
    running
}

/// An answer as other programs than ours get it.
fn raw(socket: &Path, path: &str) -> String {
    let mut stream = UnixStream::connect(socket).unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
}

impl Running {
    fn get<T: DeserializeOwned>(&self, path: &str) -> T {
        runtime().block_on(self.client.get(path)).unwrap()
    }

    fn raw_json(&self, path: &str) -> serde_json::Value {
        let answer = raw(&self.folder.path().join("terraced.sock"), path);
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        serde_json::from_str(body).unwrap()
    }

    fn post<T: DeserializeOwned>(&self, path: &str) -> Result<T, String> {
        let answer = runtime().block_on(self.client.post(path, &()));
        answer.map_err(|e| e.to_string())
    }

    fn set(&self, key: &str, value: &str) -> Result<Done, String> {
        let setting = Setting {
            key: key.into(),
            value: value.into(),
        };
        let answer = runtime().block_on(self.client.post("/v1/vms/web1/set", &setting));
        answer.map_err(|e| e.to_string())
    }

    fn wait(&self, what: &str, done: impl Fn(&Self) -> bool) {
        let came = (0..6000).any(|_| {
            std::thread::sleep(Duration::from_millis(10));
            done(self)
        });
        assert!(came, "{what} does not come");
    }

    fn wait_for_the_end(&self) {
        self.wait("the end", |r| {
            let events: Vec<EventLine> = r.get("/v1/events");
            events
                .iter()
                .any(|e| e.text.contains("the scenario is over"))
        });
    }

    fn stop(&mut self) {
        self.stop.stop();
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap().unwrap();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop();
    }
}

fn mode(running: &Running) -> Mode {
    let vms: Vec<Vm> = running.get("/v1/vms");
    vms.iter().find(|vm| vm.name == "web1").unwrap().mode
}

#[test]
fn a_simulated_vm_is_listed_shown_explained_and_steered() {
    let r = run("100000s", Speed::Max, None);
    r.wait("a round", |r| r.get::<Vec<Vm>>("/v1/vms")[1].rounds > 0);
    let vms: Vec<Vm> = r.get("/v1/vms");
    assert_eq!((vms[0].name.as_str(), vms[0].mode), ("db1", Mode::Ignored));
    assert!(vms[0].reason.contains("all-slow"), "{}", vms[0].reason);
    assert_eq!(
        (vms[1].mode, vms[1].hypervisor.as_str()),
        (Mode::Managed, "simulated")
    );
    assert!(vms[1].promoted_pages > 0);
    let detail: VmDetail = r.get("/v1/vms/web1");
    assert!(detail.stages[0].mechanism.contains("guest page tables"));
    assert!(!detail.history.is_empty());
    let page: PageExplanation = r.get("/v1/vms/web1/pages/0x280000");
    assert!(page.tier.is_some() && !page.because.is_empty());
    let map: HeatMap = r.get("/v1/vms/web1/map?cells=16");
    assert_eq!(map.tiers, ["dram", "pmem"]);
    assert_eq!(
        r.post::<Done>("/v1/vms/web1/pause").unwrap().done,
        "web1: paused"
    );
    assert_eq!(mode(&r), Mode::Paused);
    r.post::<Done>("/v1/vms/web1/resume").unwrap();
    assert_eq!(mode(&r), Mode::Managed);
    r.set("moves", "off").unwrap();
    assert_eq!(mode(&r), Mode::Observed);
    assert!(r.set("floor", "1GB2").unwrap_err().contains("not a size"));
    for (key, size, has) in [
        ("fast", "3MiB", "2.0 MiB"),
        ("slow.ceiling", "9TiB", "8.0 MiB"),
    ] {
        let refused = r.set(key, size).unwrap_err();
        assert!(refused.contains(key) && refused.contains(has), "{refused}");
    }
    r.wait("a plan", |r| {
        r.post::<Planning>("/v1/vms/web1/plan").is_ok()
    });
}

#[test]
fn what_a_vm_costs_the_others_is_among_the_figures() {
    let r = run("100000s", Speed::Max, None);
    let costs = || r.get::<VmDetail>("/v1/vms/web1").neighbours.unwrap();
    r.wait("a move", |_| costs().moved_bytes > 0);
    let before = costs();
    let said = raw(&r.folder.path().join("terraced.sock"), "/metrics");
    let after = costs();
    let figure = |name: &str| -> f64 {
        let begin = format!("terrace_{name}{{vm=\"web1\"}} ");
        let line = said.lines().find_map(|line| line.strip_prefix(&begin));
        line.unwrap_or_else(|| panic!("no {name} in {said}"))
            .parse()
            .unwrap()
    };
    type Read = fn(&Neighbours) -> f64;
    let counts: [(&str, Read); 6] = [
        ("vm_moved_bytes_total", |n| n.moved_bytes as f64),
        ("vm_late_plans_total", |n| n.late_plans as f64),
        ("vm_late_scans_total", |n| n.late_scans as f64),
        ("vm_scan_cpu_seconds_total", |n| n.scan_cpu_ns as f64 / 1e9),
        ("vm_late_plans_seconds_total", |n| {
            n.late_plans_ns as f64 / 1e9
        }),
        ("vm_late_scans_seconds_total", |n| {
            n.late_scans_ns as f64 / 1e9
        }),
    ];
    for (name, read) in counts {
        let value = figure(name);
        assert!((read(&before)..=read(&after)).contains(&value), "{name}");
    }
    assert!(figure("vm_scan_cpu_seconds_total") > 0.0, "{said}");
    assert_eq!(figure("vm_weight"), 1000.0);
    let right = before.right_bytes.unwrap();
    assert_eq!(figure("vm_right_bytes"), right as f64);
    assert!(said.contains("terrace_vm_most_bytes{"), "{said}");
    for name in ["vm_above_right_bytes", "vm_refused_bytes"] {
        figure(name);
    }
    assert!(
        !said.contains("terrace_vm_weight{vm=\"db1\"}"),
        "it is left alone"
    );
}

#[test]
fn what_resizes_a_simulated_vm_is_shown_and_each_resize_is_told() {
    let r = run_text(&resized("4s"), Speed::Max, None);
    r.wait_for_the_end();
    let events: Vec<EventLine> = r.get("/v1/events");
    let resizes = |e: &&EventLine| e.vm.as_deref() == Some("db1") && e.text.contains("32 MiB");
    let resizes: Vec<_> = events.iter().filter(resizes).collect();
    assert!(!resizes.is_empty(), "{events:?}");
    let detail: VmDetail = r.get("/v1/vms/db1");
    let provisioning = detail.provisioning.unwrap();
    assert_eq!(
        provisioning.tiers[0].target_bytes,
        32 << 20,
        "{provisioning:?}"
    );
    assert!(r.get::<VmDetail>("/v1/vms/web1").provisioning.is_none());
}

/// Collects the path of each value of an answer: `share.pooled`, `history[].number`.
fn keys(value: &serde_json::Value, at: &str, found: &mut BTreeSet<String>) {
    match value {
        serde_json::Value::Object(members) => {
            for (key, value) in members {
                keys(value, &format!("{at}.{key}"), found);
            }
        }
        serde_json::Value::Array(items) => {
            for item in items {
                keys(item, &format!("{at}[]"), found);
            }
        }
        _ => drop(found.insert(at.to_owned())),
    }
}

/// Programs rely on the keys: keys are added, none is renamed or taken away.
#[test]
fn answers_have_the_keys_that_they_had() {
    let r = run_text(&resized("20s"), Speed::Max, None);
    r.wait_for_the_end();
    let mut found = BTreeSet::new();
    for path in [
        "/v1/status",
        "/v1/vms",
        "/v1/vms/web1",
        "/v1/vms/db1",
        "/v1/vms/web1/pages/0x280000",
        "/v1/vms/web1/map?cells=4",
        "/v1/doctor",
        "/v1/events",
    ] {
        keys(&r.raw_json(path), path, &mut found);
    }
    let had = include_str!("api_keys.txt");
    let gone: Vec<_> = had.lines().filter(|key| !found.contains(*key)).collect();
    assert!(gone.is_empty(), "gone: {gone:#?}, of {found:#?}");
    assert!(had.lines().count() > 100, "{found:#?}");
}

#[test]
fn that_the_host_is_simulated_is_said_with_its_scale() {
    let r = run("100000s", Speed::Times(0.001), None);
    let doctor: Doctor = r.get("/v1/doctor");
    let found = &doctor.host[0].found;
    assert!(
        found.contains("a simulation of test at scale 64"),
        "{found}"
    );
    let status: Status = r.get("/v1/status");
    assert_eq!(status.policy, "mixed");
    let sizes: Vec<u64> = status.tiers.iter().map(|t| t.total_bytes).collect();
    assert_eq!(sizes, [2 << 20, 8 << 20], "one 64th of 128 and 512 MiB");
    assert!(
        status.uptime_s < 1.0,
        "a thousandth of the time: {}",
        status.uptime_s
    );
}

#[test]
fn after_the_end_it_is_served_on_and_takes_no_commands() {
    let r = run("2s", Speed::Max, None);
    r.wait_for_the_end();
    assert_eq!(r.get::<Vec<Vm>>("/v1/vms").len(), 2);
    let error = r.post::<Done>("/v1/vms/web1/round").unwrap_err();
    assert!(error.contains("its clock has stopped"), "{error}");
    assert!(r.set("moves", "off").is_err());
}

#[test]
fn what_is_recorded_is_replayed_exactly_and_covers_every_window() {
    let mut r = run("8s", Speed::Max, Some("log"));
    r.wait_for_the_end();
    r.stop();
    let log = std::fs::read(r.folder.path().join("log")).unwrap();
    let replayed = replay(&log[..]).unwrap();
    assert!(replayed.actions > 8 && !replayed.cut_off, "{replayed:?}");
    let other = Other {
        policy: terrace_core::PolicyName::Random.into(),
        window_ms: None,
    };
    let report = replay_with(&log[..], &other).unwrap();
    assert_eq!(report.vms.len(), 1, "db1 is none of the engine's");
    assert_eq!(report.vms[0].coverage, Some(1.0));
}

#[test]
fn a_scenario_that_is_not_there_or_none_is_named() {
    let load = |file: &Path| Simulated::load(file, Speed::Max, None).map(drop);
    let error = |file: &Path| format!("{:#}", load(file).unwrap_err());
    let missing = error(Path::new("/nonexistent/quick.toml"));
    assert!(missing.contains("/nonexistent/quick.toml"), "{missing}");
    let folder = tempfile::tempdir().unwrap();
    let broken = folder.path().join("broken.toml");
    std::fs::write(&broken, "[machine]\ntires = 2\n").unwrap();
    let broken = error(&broken);
    assert!(
        broken.contains("broken.toml") && broken.contains("tires"),
        "{broken}"
    );
}
