//! Commands against a daemon that a test plays: canned answers on a unix socket.

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

/// Answers by method and path. A path may have several, of which the last one stays.
type Answers = HashMap<&'static str, Vec<Value>>;

struct Daemon {
    folder: tempfile::TempDir,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Daemon {
    fn start(answers: Answers) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let listener = UnixListener::bind(folder.path().join("s")).expect("a socket");
        let asked = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&asked);
        std::thread::spawn(move || {
            let mut answers = answers;
            for stream in listener.incoming() {
                // A client that gives up is its own affair.
                let _ = answer(stream.expect("a client"), &mut answers, &seen);
            }
        });
        Self { folder, asked }
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("s")
    }

    fn terrace(&self, args: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_terrace"))
            .arg("--socket")
            .arg(self.socket())
            .args(args)
            .output()
            .expect("the program starts")
    }

    fn posts(&self) -> Vec<String> {
        let asked = self.asked.lock().expect("no panic");
        asked
            .iter()
            .filter(|a| a.starts_with("POST"))
            .cloned()
            .collect()
    }
}

fn answer(
    mut stream: UnixStream,
    answers: &mut Answers,
    seen: &Mutex<Vec<String>>,
) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut request = String::new();
    reader.read_line(&mut request)?;
    let mut length = 0;
    loop {
        let mut header = String::new();
        reader.read_line(&mut header)?;
        if header.trim().is_empty() {
            break;
        }
        if let Some(n) = header.to_lowercase().strip_prefix("content-length:") {
            length = n.trim().parse().expect("a length");
        }
    }
    reader.read_exact(&mut vec![0; length])?;
    let request = request.trim_end_matches(" HTTP/1.1\r\n").to_owned();
    let without_query = request.split('?').next().expect("a path").to_owned();
    seen.lock().expect("no panic").push(request);
    let (status, body) = match answers.get_mut(without_query.as_str()) {
        Some(list) if list.len() > 1 => ("200 OK", list.remove(0)),
        Some(list) => ("200 OK", list[0].clone()),
        None => (
            "404 Not Found",
            json!({"error": format!("no {without_query}")}),
        ),
    };
    let body = body.to_string();
    write!(
        stream,
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

fn vm() -> Value {
    json!({
        "name": "web1", "pid": 7, "hypervisor": "QEMU with KVM", "mode": "managed",
        "reason": "policy vtmm", "memory_bytes": 64 << 20, "tier_bytes": [16 << 20, 48 << 20],
        "rounds": 3, "moves": true, "hot_pages": 4000, "hot_on_fast_pages": 3000,
        "promoted_pages": 512, "demoted_pages": 256
    })
}

fn round(number: u64, planned: Value) -> Value {
    json!({
        "number": number, "known_pages": 16_000, "hot_pages": 4000, "hot_on_fast_before": 1000,
        "hot_on_fast_after": 1000, "threshold_degree": 2, "degree_histogram": [], "promoted_pages": 0,
        "demoted_pages": 0, "failed_pages": 0, "proposed_promotions": 3000,
        "proposed_demotions": 2500, "abandoned": null, "planned": planned,
        "refused": [{"reason": "moved recently", "units": 5},
                    {"reason": "only a plan was asked for", "units": 5495}],
        "scans": 9, "scan_cpu_ns": 1
    })
}

fn detail(under_way: Option<u64>, history: &[Value]) -> Value {
    json!({
        "vm": vm(), "unit_bytes": 4096, "unit_reason": "as configured", "stages": [], "phase": "in window 3 of 8",
        "limits": [{"floor_bytes": 0, "ceiling_bytes": 16 << 20},
                   {"floor_bytes": 0, "ceiling_bytes": null}],
        "round_under_way": under_way, "next_round_in_s": 5.0, "history": history,
        "reasons": [{"at_s": 1.0, "text": "because"}]
    })
}

fn status() -> Value {
    let tier = |name: &str| json!({"name": name, "nodes": [0], "total_bytes": 2u64 << 30, "free_bytes": 1 << 30});
    json!({
        "version": "0", "uptime_s": 100.0, "policy": "vtmm", "moves": true, "paused": false,
        "tiers": [tier("fast"), tier("slow")], "vms": 1
    })
}

fn printed(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn a_plan_waits_for_the_round_before_it_and_for_its_own() {
    let planned = json!([
        {"gpa": 0x5000, "bytes": 4096, "from": "slow", "to": "fast", "degree": 8}
    ]);
    let before = round(3, Value::Null);
    let done = [before.clone(), round(4, planned)];
    let daemon = || {
        Daemon::start(HashMap::from([
            ("GET /v1/status", vec![status()]),
            ("POST /v1/vms/web1/plan", vec![json!({"round": 4})]),
            (
                "GET /v1/vms/web1",
                vec![
                    detail(Some(3), &[]),
                    detail(None, std::slice::from_ref(&before)),
                    detail(Some(4), std::slice::from_ref(&before)),
                    detail(None, &done),
                ],
            ),
        ]))
    };
    let text = daemon();
    let text = printed(&text.terrace(&["plan", "web1", "--dry-run"]));
    for has in [
        "Nothing was moved.",
        "4000 of 16000 known pages are hot: degree 2 and up. 1000 of them are in fast.",
        "promote       3000 pages    11.7 MiB",
        "not tried: 20 KiB: moved recently",
        "ceiling 16 MiB",
        "0x5000  4 KiB       8  slow -> fast",
    ] {
        assert!(text.contains(has), "no {has:?} in\n{text}");
    }
    assert!(!text.contains("only a plan"), "{text}");
    let asked = daemon();
    let json = printed(&asked.terrace(&["plan", "--dry-run", "web1", "--json"]));
    let json: Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(json["planned"][0]["gpa"], 0x5000);
    assert_eq!(asked.posts(), ["POST /v1/vms/web1/plan"]);
}

#[test]
fn a_plan_that_was_given_up_is_a_failure_with_the_reason() {
    let mut round = round(4, json!([]));
    round["abandoned"] = json!("paused");
    let daemon = Daemon::start(HashMap::from([
        ("POST /v1/vms/web1/plan", vec![json!({"round": 4})]),
        (
            "GET /v1/vms/web1",
            vec![detail(None, &[]), detail(None, &[round])],
        ),
    ]));
    let output = daemon.terrace(&["plan", "web1", "--dry-run"]);
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("the round was given up: paused"), "{said}");
    let unasked = daemon.terrace(&["plan", "web1"]);
    assert_eq!(unasked.status.code(), Some(2), "--dry-run is required");
}

#[test]
fn top_prints_one_frame_as_text_or_as_a_picture() {
    let cell =
        json!({"tier_pages": [9, 0], "known_pages": 9, "warm_pages": [9, 0], "degree_sum": 9});
    let map =
        json!({"pages_per_cell": 9, "tiers": ["fast", "slow"], "max_degree": 8, "cells": [cell]});
    let daemon = Daemon::start(HashMap::from([
        ("GET /v1/status", vec![status()]),
        ("GET /v1/vms", vec![json!([vm()])]),
        (
            "GET /v1/vms/web1",
            vec![detail(Some(4), &[round(3, Value::Null)])],
        ),
        ("GET /v1/vms/web1/map", vec![map]),
    ]));
    let text = printed(&daemon.terrace(&["top", "--once", "--size", "130x30"]));
    assert_eq!(text.lines().count(), 30, "{text}");
    assert!(text.contains("75 %") && text.contains("│F "), "{text}");
    let file = daemon.folder.path().join("top.svg");
    let file = file.to_str().expect("a name");
    printed(&daemon.terrace(&["top", "--once", "--svg", file]));
    let svg = std::fs::read_to_string(file).expect("a picture");
    assert!(svg.starts_with("<svg") && svg.contains("web1"), "{svg}");
    let wrong = daemon.terrace(&["top", "--once", "--vm", "nope"]);
    assert_eq!(wrong.status.code(), Some(1), "no other VM in its place");
    let live = daemon.terrace(&["top"]);
    assert_eq!(live.status.code(), Some(1));
    let said = String::from_utf8_lossy(&live.stderr).into_owned();
    assert!(said.contains("--once"), "{said}");
}

#[test]
fn an_explanation_names_counts_threshold_and_limits() {
    let daemon = Daemon::start(HashMap::from([
        ("GET /v1/status", vec![status()]),
        (
            "GET /v1/vms/web1",
            vec![detail(None, &[round(3, Value::Null)])],
        ),
    ]));
    let text = printed(&daemon.terrace(&["explain", "web1"]));
    for has in [
        "fast: holds 16 MiB, at least 0 B by its floor, at most 16 MiB by its ceiling",
        "16000 known pages ranked by degree; the hottest 4000 fit",
        "degree 2 is the threshold",
        "not tried: 20 KiB: moved recently",
        "because",
    ] {
        assert!(text.contains(has), "no {has:?} in\n{text}");
    }
    let json = printed(&daemon.terrace(&["explain", "web1", "--json"]));
    let json: Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(json["last_round"]["threshold_degree"], 2);
}

#[test]
fn a_guest_managed_vm_shows_its_agent_and_the_fallback_reason() {
    let report = json!({
        "mode": "guest", "paused": false, "sampler": "damon", "policy": "hyperplace",
        "mover": "move_pages", "nodes": [
            {"node": 0, "tier": 0, "total_bytes": 1u64 << 30, "free_bytes": 1 << 28},
            {"node": 1, "tier": 1, "total_bytes": 3u64 << 30, "free_bytes": 1 << 30}],
        "pressure_some_avg10_hundredths": 125, "pressure_full_avg10_hundredths": 0,
        "major_faults": 7, "swap_in_pages": 0, "swap_out_pages": 256, "cpu_ns": 2_500_000_000u64,
        "resident_bytes": 6 << 20, "budget_bytes_per_s": 1 << 30, "budget_cpu_percent": 10,
        "epochs": 42, "processes": 3, "promoted_pages": 512, "demoted_pages": 512, "failed_pages": 0
    });
    let agent = json!({
        "mode": "guest", "in_force": "the host manages it", "fallback": "its agent lies: node 0 …",
        "state": "lying: node 0 …", "version": "0.1.0", "socket": "/run/terrace/agent/web1.sock",
        "heartbeats": 9, "report": report
    });
    let mut detail = detail(None, &[]);
    detail["vm"]["agent"] = agent;
    detail["vm"]["mode"] = json!("guest");
    let vms = json!([detail["vm"]]);
    let daemon = Daemon::start(HashMap::from([
        ("GET /v1/status", vec![status()]),
        ("GET /v1/vms", vec![vms]),
        ("GET /v1/vms/web1", vec![detail]),
    ]));
    let text = printed(&daemon.terrace(&["show", "web1"]));
    for has in [
        "agent in the guest (mode guest, version 0.1.0): lying",
        "manages it: the host manages it",
        "fallback: its agent lies",
        "768 MiB used of 1 GiB",
        "3 processes, 42 epochs; sampler damon",
        "costs: 2.5 s of CPU (10 % of one at most), 6 MiB of memory",
        "waits for memory: 1.25 % of the time",
    ] {
        assert!(text.contains(has), "no {has:?} in\n{text}");
    }
    let list = printed(&daemon.terrace(&["vms"]));
    assert!(list.contains("guest"), "{list}");
}

/// A VM with so many bytes of fast memory that is to have 2 GiB, with its order in this state.
fn provisioning(state: &str, fast: u64, why: Value) -> Value {
    let tier = |name: &str, size: u64, target: u64, verified_ratio: f64| {
        json!({
            "name": name, "node": 0, "host_nodes": [0], "whole_bytes": 4_u64 << 30, "target_bytes": target,
            "size_bytes": size, "present_bytes": 7_u64 << 29, "kept_bytes": 1_u64 << 29, "honesty": verified_ratio,
            "verified_age_s": 3.2, "stuck": why, "counted_bytes": 4_u64 << 30, "may_take_bytes": 1_u64 << 29,
            "guest": {"free_bytes": 1 << 20, "total_bytes": 4_u64 << 30, "pressure_pages": 512},
        })
    };
    let mut detail = detail(None, &[]);
    detail["provisioning"] = json!({
        "by": "hyperflex", "by_words": "HyperFlex", "at": "/run/web1/control", "problem": null, "age_s": 1.5,
        "connected": true, "told": true, "resizing": true, "refused_entries": 7,
        "order": {
            "number": 4, "origin": "operator", "age_s": 9.0, "from_bytes": [4_u64 << 30, 3_u64 << 30],
            "size_bytes": [2_u64 << 30, null], "state": state, "why": why,
        },
        "resident": {"shared_bytes": 3_u64 << 30, "private_bytes": 1 << 20, "fell_bytes": 1 << 30},
        "pinned_by": null, "admission": "admission counts 200 % of web1: its driver has not inflated yet",
        "tiers": [tier("fast", fast, 2 << 30, 0.5), tier("slow", 3 << 30, 3 << 30, 1.0)],
    });
    detail
}

fn resized(details: Vec<Value>) -> Daemon {
    let ordered = json!({
        "done": "web1: fast 4 GiB → 2 GiB ordered by HyperFlex", "number": 4, "by": "hyperflex",
        "by_words": "HyperFlex", "size_bytes": [2_u64 << 30, null],
    });
    Daemon::start(HashMap::from([
        ("GET /v1/status", vec![status()]),
        ("GET /v1/vms/web1", details),
        ("POST /v1/vms/web1/resize", vec![ordered]),
    ]))
}

#[test]
fn a_resize_is_posted_in_bytes_and_show_says_how_far_it_is() {
    let stuck = json!("its node has 1 MiB free");
    let daemon = resized(vec![provisioning("stuck", 3 << 30, stuck)]);
    let said = printed(&daemon.terrace(&["resize", "web1", "--fast", "2GiB"]));
    assert!(said.contains("ordered by HyperFlex"), "{said}");
    assert_eq!(daemon.posts(), ["POST /v1/vms/web1/resize"]);
    let text = printed(&daemon.terrace(&["show", "web1"]));
    for has in [
        "resizable memory, by HyperFlex (/run/web1/control): the guest's driver knows the targets",
        "3 GiB of 4 GiB, target 2 GiB (the guest cannot for now), host node 0",
        "its node has 1 MiB free",
        "target 3 GiB (reached)",
        "50.0 % of what the guest says it gave back is gone (checked 3 s ago)",
        "512 MiB that it says it gave back is still there",
        "the guest says: 1 MiB of 4 GiB free, 2 MiB taken back under pressure",
        "the hypervisor's process holds 3 GiB, 1 GiB less than at the last order",
        "order 4 by the operator, 9 s ago: stuck: its node has 1 MiB free",
        "7 requests of the guest were refused",
        "admission counts 200 % of web1: its driver has not inflated yet",
    ] {
        assert!(text.contains(has), "no {has:?} in\n{text}");
    }
    let nothing = daemon.terrace(&["resize", "web1"]);
    assert_eq!(nothing.status.code(), Some(2), "a size is required");
}

#[test]
fn a_total_is_taken_for_a_vm_of_one_size_alone() {
    let tiered = provisioning("met", 2 << 30, Value::Null);
    let daemon = resized(vec![tiered.clone()]);
    let refused = daemon.terrace(&["resize", "web1", "--total", "2GiB"]);
    assert_eq!(refused.status.code(), Some(1));
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("web1 has 2 tiers"), "{said}");
    assert!(daemon.posts().is_empty());
    let mut whole = tiered;
    let tiers = whole["provisioning"]["tiers"].as_array_mut().unwrap();
    tiers.truncate(1);
    let daemon = resized(vec![whole]);
    printed(&daemon.terrace(&["resize", "web1", "--total", "2GiB"]));
    assert_eq!(daemon.posts(), ["POST /v1/vms/web1/resize"]);
}

#[test]
fn a_vm_whose_device_is_gone_is_shown_as_it_was() {
    let mut gone = provisioning("under-way", 3 << 30, Value::Null);
    gone["provisioning"]["problem"] = json!("connection refused");
    gone["provisioning"]["age_s"] = json!(40.0);
    let text = printed(&resized(vec![gone]).terrace(&["show", "web1"]));
    for has in [
        "(/run/web1/control): connection refused",
        "as it was 40 s ago",
        "3 GiB of 4 GiB",
    ] {
        assert!(text.contains(has), "no {has:?} in\n{text}");
    }
}

#[test]
fn a_resize_that_is_waited_for_ends_when_the_target_is_met() {
    let daemon = resized(vec![
        provisioning("sent", 4 << 30, Value::Null),
        provisioning("under-way", 3 << 30, Value::Null),
        provisioning("met", 2 << 30, Value::Null),
    ]);
    let said = printed(&daemon.terrace(&["resize", "web1", "--fast", "2GiB", "--wait"]));
    assert!(said.ends_with("web1: fast 2 GiB; slow 3 GiB\n"), "{said}");
    let json = daemon.terrace(&["resize", "web1", "--fast", "2GiB", "--wait", "--json"]);
    let value: Value = serde_json::from_str(&printed(&json)).expect("one JSON value");
    assert_eq!(value["tiers"][0]["size_bytes"], 2_u64 << 30);
}

#[test]
fn a_resize_that_cannot_succeed_ends_with_the_reason() {
    let why = json!("its node has 1 MiB free");
    let mut newer = provisioning("under-way", 3 << 30, Value::Null);
    newer["provisioning"]["order"]["number"] = json!(5);
    newer["provisioning"]["order"]["size_bytes"] = json!([3_u64 << 30, null]);
    let timeout = ["--timeout", "100ms"].as_slice();
    for (detail, args, has) in [
        (
            provisioning("stuck", 3 << 30, why.clone()),
            [].as_slice(),
            "stuck: its node has 1 MiB",
        ),
        (
            provisioning("failed", 3 << 30, why),
            &[],
            "its node has 1 MiB free",
        ),
        (newer, &[], "a newer order replaced it"),
        (
            provisioning("under-way", 3 << 30, Value::Null),
            timeout,
            "fast 3 GiB, on the way to 2 GiB",
        ),
    ] {
        let daemon = resized(vec![detail]);
        let args = [&["resize", "web1", "--fast", "2GiB", "--wait"], args].concat();
        let output = daemon.terrace(&args);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(has), "no {has:?} in {said}");
    }
}

#[test]
fn a_newer_order_about_another_tier_does_not_end_the_wait() {
    let mut other = provisioning("met", 2 << 30, Value::Null);
    other["provisioning"]["order"]["number"] = json!(5);
    other["provisioning"]["order"]["size_bytes"] = json!([null, 3_u64 << 30]);
    let daemon = resized(vec![other]);
    printed(&daemon.terrace(&["resize", "web1", "--fast", "2GiB", "--wait"]));
}

/// Writes an escape sequence into every text that is not one of few words, and into the keys of a map.
fn hostile(value: &mut Value, key: &str) {
    const EXEMPT_KEYS: [&str; 3] = ["mode", "health", "name"];
    match value {
        Value::String(text) if !EXEMPT_KEYS.contains(&key) => *text += "\u{1b}[2J\u{202e}",
        Value::Array(items) => items.iter_mut().for_each(|item| hostile(item, key)),
        Value::Object(fields) => fields.iter_mut().for_each(|(k, v)| hostile(v, k)),
        _ => {}
    }
}

#[test]
fn answers_cannot_send_escapes_and_a_15_mb_name_is_cut() {
    let escape = "\u{1b}]0;owned\u{7}";
    let finding = json!({"name": "x", "health": "ok", "found": "it is", "advice": "do"});
    let vm_of = |name: &str| {
        let mut vm = vm();
        vm["name"] = json!(name);
        vm
    };
    let mut doctor = json!({"host": [finding], "vms": {}});
    doctor["vms"][escape] = json!([finding]);
    let long = "猫".repeat(5 << 20);
    let mut answers = HashMap::from([
        ("GET /v1/status", status()),
        (
            "GET /v1/vms",
            json!([vm_of("web1"), vm_of(escape), vm_of(&long)]),
        ),
        ("GET /v1/vms/web1", detail(None, &[round(3, Value::Null)])),
        ("GET /v1/doctor", doctor),
        (
            "GET /v1/events",
            json!([{"sequence": 1, "at_s": 1.0, "vm": "web1", "text": "found"}]),
        ),
        ("POST /v1/vms/web1/pause", json!({"done": "paused"})),
    ]);
    answers.values_mut().for_each(|answer| hostile(answer, ""));
    let answers = answers.into_iter().map(|(k, v)| (k, vec![v]));
    let daemon = Daemon::start(answers.collect());
    let commands: [&[&str]; 9] = [
        &["vms"],
        &["vms", "--json"],
        &["show", "web1"],
        &["explain", "web1"],
        &["events"],
        &["doctor"],
        &["top", "--once"],
        &["pause", "web1"],
        &["show", "nobody\u{1b}[2J"],
    ];
    for command in commands {
        let output = daemon.terrace(command);
        let said = [output.stdout.as_slice(), &output.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        assert!(!said.contains("panicked"), "{command:?}: {said}");
        assert!(!said.is_empty(), "{command:?}");
        for escape in ['\u{1b}', '\u{7}', '\u{202e}'] {
            let around = said.find(escape).map(|at| &said[..at]);
            let around = around.map(|text| text.chars().rev().take(80).collect::<String>());
            assert_eq!(around, None, "{command:?} prints {escape:?}");
        }
    }
    let table = printed(&daemon.terrace(&["vms"]));
    assert!(table.len() < 64 << 10, "{} bytes", table.len());
}
