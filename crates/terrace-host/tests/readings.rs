//! Tests of the readings that a scan starts from, asked of a monitor that a test plays: a VM whose processor can
//! nest, one that is reset, and monitors that talk nonsense.

#![allow(clippy::unwrap_used, reason = "test helpers outside of test functions")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use terrace_host::HostRoot;
use terrace_host::qemu::{Candidate, Monitor, QemuError, Uncounted};
use terrace_host::vm::Vm;

use terrace_testkit::monitor::{human, serve};
use terrace_testkit::qemu::{play_qemu, rules};

const PATIENCE: Duration = Duration::from_secs(20);
const RESET: &str = r#"{"timestamp": {"seconds": 1, "microseconds": 2}, "event": "RESET", "data": {"guest": true}}"#;

/// The answers of the monitor of a VM with four virtual CPUs. Those of `statistics` are given one after the other,
/// the last one again and again.
struct Script {
    kvm: bool,
    /// The answer to `qom-get`.
    feature: Value,
    statistics: Vec<Value>,
    vcpus: u64,
    /// A message that is sent right before the answer to the command that contains this word.
    before: Option<(&'static str, String)>,
    asked: Vec<String>,
}

impl Script {
    /// Under KVM with a processor that can nest, which it does not.
    fn nesting() -> Self {
        Self {
            kvm: true,
            feature: json!({ "return": true }),
            statistics: vec![out()],
            vcpus: 4,
            before: None,
            asked: Vec::new(),
        }
    }

    fn plain() -> Self {
        Self {
            feature: json!({ "return": false }),
            ..Self::nesting()
        }
    }

    fn answer(&mut self, line: &str) -> String {
        self.asked.push(line.to_owned());
        let value = match line {
            l if l.contains("query-uuid") => json!({ "UUID": "0-0" }),
            l if l.contains("query-kvm") => json!({ "enabled": self.kvm, "present": true }),
            l if l.contains("query-status") => {
                json!({ "status": "running", "singlestep": false, "running": true })
            }
            l if l.contains("query-cpus-fast") => (0..self.vcpus).map(vcpu).collect(),
            l if l.contains("info registers") => {
                let reply = human(&(0..4).map(registers).collect::<String>()).unwrap();
                return self.sent(line, &serde_json::from_str(&reply).unwrap());
            }
            l if l.contains("qom-get") => return self.sent(line, &self.feature),
            l if l.contains("query-stats") => {
                let last = self.statistics.len() == 1;
                let next = self.statistics[0].clone();
                if !last {
                    self.statistics.remove(0);
                }
                return self.sent(line, &next);
            }
            _ => json!({}),
        };
        self.sent(line, &json!({ "return": value }))
    }

    fn sent(&self, line: &str, answer: &Value) -> String {
        match &self.before {
            Some((word, events)) if line.contains(word) => format!("{events}\n{answer}"),
            _ => answer.to_string(),
        }
    }
}

fn vcpu(index: u64) -> Value {
    json!({ "cpu-index": index, "qom-path": path(index), "thread-id": 9, "target": "x86_64", "props": {} })
}

fn path(index: u64) -> String {
    format!("/machine/unattached/device[{index}]")
}

fn registers(index: u64) -> String {
    format!(
        "\nCPU#{index}\nCR0=80050033 CR2=0 CR3=000000000000{index}000 CR4=00000020\nEFER=0000000000000d01\n"
    )
}

/// Statistics of four virtual CPUs, each with whether it is in a nested guest and how often it was.
fn statistics(vcpus: [(Value, u64); 4]) -> Value {
    let entry = |(index, (inside, runs)): (usize, (Value, u64))| {
        json!({
            "provider": "kvm",
            "qom-path": path(index as u64),
            "stats": [
                { "name": "guest_mode", "value": inside },
                { "name": "nested_run", "value": runs },
            ],
        })
    };
    let list: Vec<Value> = vcpus.into_iter().enumerate().map(entry).collect();
    json!({ "return": list })
}

/// None is in a nested guest.
fn out() -> Value {
    statistics([0, 1, 2, 3].map(|_| (json!(false), 7)))
}

/// The third is, and was `runs` times.
fn third(inside: bool, runs: u64) -> Value {
    let of = |n| if n == 2 { (inside, runs) } else { (false, 7) };
    statistics([0, 1, 2, 3].map(|n| {
        let (inside, runs) = of(n);
        (json!(inside), runs)
    }))
}

fn refused() -> Value {
    json!({ "error": { "class": "CommandNotFound", "desc": "The command query-stats has not been found" } })
}

struct Fixture {
    dir: tempfile::TempDir,
    script: Arc<Mutex<Script>>,
    vm: Vm,
}

fn fixture(script: Script) -> Fixture {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("vm.sock");
    let script = Arc::new(Mutex::new(script));
    let played = Arc::clone(&script);
    serve(&socket, move |line| {
        Some(played.lock().unwrap().answer(line))
    });
    play_qemu(dir.path(), std::process::id(), &[]);
    let root = HostRoot::new(dir.path());
    let vm = Vm::open(&root, &rules(&root), &Candidate::at(&socket), PATIENCE).unwrap();
    Fixture { dir, script, vm }
}

impl Fixture {
    /// Number of commands with this word in them that were asked.
    fn asked(&self, word: &str) -> usize {
        let script = self.script.lock().unwrap();
        script.asked.iter().filter(|l| l.contains(word)).count()
    }

    fn set(&self, change: impl FnOnce(&mut Script)) {
        change(&mut self.script.lock().unwrap());
    }

    /// For each virtual CPU, whether it counts.
    fn counted(&mut self) -> Vec<bool> {
        let readings = self.vm.readings().unwrap();
        let each = readings.vcpus.iter().enumerate();
        each.map(|(index, registers)| {
            assert!(registers.is_none_or(|r| r.cr3 == (index as u64) << 12));
            registers.is_some()
        })
        .collect()
    }

    fn uncounted(&mut self) -> Uncounted {
        match self.vm.readings() {
            Err(QemuError::Uncounted { source, .. }) => source,
            other => panic!("{other:?}"),
        }
    }
}

const ALL: [bool; 4] = [true; 4];
const NOT_THE_THIRD: [bool; 4] = [true, true, false, true];

#[test]
fn a_nested_guests_registers_never_count_whenever_it_ran() {
    let mut f = fixture(Script::nesting());
    assert_eq!(f.counted(), ALL);
    for statistics in [
        // Before the registers were read, after, and in between.
        vec![third(true, 7), out()],
        vec![out(), third(true, 7)],
        vec![out(), third(false, 8)],
        vec![third(true, 7)],
    ] {
        f.set(|script| script.statistics = statistics);
        assert_eq!(f.counted(), NOT_THE_THIRD);
    }
    f.set(|script| script.statistics = vec![third(false, 9)]);
    assert_eq!(f.counted(), ALL, "it left it before");
}

#[test]
fn statistics_that_are_missing_or_of_others_count_as_nested() {
    let mut f = fixture(Script::nesting());
    let without = |index: usize| {
        let mut reply = out();
        reply["return"].as_array_mut().unwrap().remove(index);
        reply
    };
    f.set(|script| script.statistics = vec![without(2)]);
    assert_eq!(f.counted(), NOT_THE_THIRD);
    f.set(|script| script.statistics = vec![out(), without(2)]);
    assert_eq!(f.counted(), NOT_THE_THIRD);
    let of_others = json!({ "return": [{
        "provider": "kvm",
        "qom-path": "/machine/peripheral/cpu7",
        "stats": [{ "name": "guest_mode", "value": false }, { "name": "nested_run", "value": 7 }],
    }] });
    f.set(|script| script.statistics = vec![of_others]);
    assert_eq!(f.uncounted(), Uncounted::NoCounters);
    f.set(|script| script.statistics = vec![json!({ "return": [] })]);
    assert_eq!(f.uncounted(), Uncounted::NoCounters);
}

#[test]
fn hostile_statistics_are_no_error_of_the_connection() {
    let mut f = fixture(Script::nesting());
    for odd in [
        json!("false"),
        json!(-1),
        json!([0]),
        json!({}),
        json!(null),
    ] {
        let reply = statistics([0, 1, 2, 3].map(|n| {
            let good = json!(false);
            (if n == 2 { odd.clone() } else { good }, 7)
        }));
        f.set(|script| script.statistics = vec![reply]);
        assert_eq!(f.counted(), NOT_THE_THIRD, "{odd}");
    }
    for nonsense in [
        json!({ "return": 7 }),
        json!({ "return": vec![0; 100_000] }),
    ] {
        f.set(|script| script.statistics = vec![nonsense]);
        let error = f.vm.readings().unwrap_err();
        assert!(matches!(error, QemuError::Parse { .. }), "{error}");
    }
    f.set(|script| script.statistics = vec![out()]);
    assert_eq!(
        f.vm.readings().unwrap().resets,
        0,
        "still the first connection"
    );
}

#[test]
fn a_processor_that_can_nest_is_not_scanned_where_nobody_tells() {
    let emulated = Script {
        kvm: false,
        ..Script::nesting()
    };
    let mut f = fixture(emulated);
    assert_eq!(f.uncounted(), Uncounted::Emulated);
    let said = f.vm.readings().unwrap_err().to_string();
    assert!(said.contains("-cpu MODEL,-svm"), "{said}");
    let old = Script {
        statistics: vec![refused()],
        ..Script::nesting()
    };
    assert_eq!(fixture(old).uncounted(), Uncounted::NoStatistics);
}

#[test]
fn a_processor_of_unknown_nesting_counts_as_one_that_nests() {
    let unknown =
        json!({ "error": { "class": "GenericError", "desc": "Property 'cpu.svm' not found" } });
    for feature in [
        unknown,
        json!({ "return": "false" }),
        json!({ "return": 0 }),
    ] {
        let script = Script {
            kvm: false,
            feature: feature.clone(),
            ..Script::nesting()
        };
        assert_eq!(
            fixture(script).uncounted(),
            Uncounted::Emulated,
            "{feature}"
        );
    }
}

#[test]
fn a_processor_that_cannot_nest_is_asked_once_per_change() {
    let emulated = Script {
        kvm: false,
        ..Script::plain()
    };
    let mut f = fixture(emulated);
    assert_eq!(f.counted(), ALL);
    assert_eq!(f.counted(), ALL);
    assert_eq!(f.asked("qom-get"), 8, "two properties of four virtual CPUs");
    assert_eq!(f.asked("query-stats"), 0);
    f.set(|script| script.before = Some(("query-cpus-fast", RESET.into())));
    assert_eq!(f.counted(), ALL);
    assert_eq!(f.asked("qom-get"), 16, "asked again after the reset");
    f.set(|script| script.vcpus = 5);
    assert_eq!(f.uncounted(), Uncounted::Changed);
    assert_eq!(
        f.asked("qom-get"),
        26,
        "asked again of all that are there now"
    );
}

#[test]
fn a_reset_between_answers_is_counted_before_the_registers() {
    let mut f = fixture(Script::nesting());
    assert_eq!(f.vm.readings().unwrap().resets, 0);
    for (word, resets) in [("query-cpus-fast", 1), ("info registers", 2)] {
        f.set(|script| script.before = Some((word, RESET.into())));
        assert_eq!(f.vm.readings().unwrap().resets, resets);
    }
    // Once the registers were read they are those of the guest before.
    f.set(|script| {
        let late = format!("{RESET}\n{RESET}");
        script.before = Some(("query-stats", late));
    });
    assert_eq!(f.uncounted(), Uncounted::Reset);
    f.set(|script| script.before = None);
    assert_eq!(f.vm.readings().unwrap().resets, 6);
}

#[test]
fn a_flood_of_events_delays_no_answer_and_counts_only_resets() {
    let mut f = fixture(Script::nesting());
    let other = r#"{"event": "NIC_RX_FILTER_CHANGED", "data": {"path": "/machine/RESET"}}"#;
    let flood = format!("{other}\n{RESET}\n").repeat(20_000);
    f.set(|script| script.before = Some(("info registers", flood.trim_end().to_owned())));
    let readings = f.vm.readings().unwrap();
    assert_eq!((readings.resets, readings.vcpus.len()), (20_000, 4));
}

#[test]
fn a_reconnection_counts_as_a_reset_for_all_that_share_it() {
    let mut f = fixture(Script::nesting());
    let mut other = Monitor::connect(&f.dir.path().join("vm.sock"), PATIENCE).unwrap();
    assert_eq!(f.vm.readings().unwrap().resets, 0);
    f.set(|script| script.before = Some(("query-name", "no line of QMP".into())));
    assert!(matches!(other.name(), Err(QemuError::Broken { .. })));
    f.set(|script| script.before = Some(("query-status", RESET.into())));
    assert!(other.status().is_ok(), "the connection is made anew");
    assert_eq!(f.vm.readings().unwrap().resets, 2);
}
