//! Test that QEMU is sent only commands on a list: some that seem harmless end the VM. `calc-dirty-rate` crashed an
//! emulated guest's QEMU 7.2 (rule 9 of `docs/data-rules.md`).

#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Commands of the machine protocol, as the `qapi` crate names them, or as we do if it does not know one. Only
/// `balloon` and `qom_set` change anything: they are orders of an operator or of the arbiter, or have QEMU ask a guest for
/// statistics; the properties that are set are named here too. `query_stats` and `info registers` have each virtual CPU stop for as long as it is read.
const MACHINE: [&str; 18] = [
    "balloon",
    "human_monitor_command",
    "qmp_capabilities",
    "qom_get",
    "qom_list",
    "qom_set",
    "query_balloon",
    "query_blockstats",
    "query_cpus_fast",
    "query_kvm",
    "query_memdev",
    "query_memory_devices",
    "query_memory_size_summary",
    "query_migrate",
    "query_name",
    "query_stats",
    "query_status",
    "query_uuid",
];

/// Lines for the human monitor, each up to its first argument that is not fixed.
const HUMAN: [&str; 4] = [
    "gpa2hva ",
    "info mtree -f",
    "info numa",
    "info registers -a",
];

/// Properties of QEMU's objects that are set.
const PROPERTIES: [&str; 2] = ["guest-stats-polling-interval", "requested-size"];

#[test]
fn qemu_is_asked_nothing_but_what_is_listed() {
    let (mut machine, mut human, mut properties) =
        (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    for member in fs::read_dir(crates).unwrap() {
        for_each_source(&member.unwrap().path().join("src"), &mut |text| {
            machine.extend(commands(text));
            human.extend(human_lines(text));
            properties.extend(properties_set(text));
        });
    }
    assert_eq!(machine, MACHINE.map(str::to_owned).into());
    assert_eq!(human, HUMAN.map(str::to_owned).into());
    assert_eq!(properties, PROPERTIES.map(str::to_owned).into());
}

#[test]
fn a_command_that_crashed_qemu_would_be_noticed() {
    let wrong = "self.execute(\"calc-dirty-rate\", &qmp::calc_dirty_rate { calc_time: 1 })?;\n\
                 self.human(\"calc_dirty_rate 1\")?; self.human(&format!(\"x {y}\"))";
    assert_eq!(commands(wrong), ["calc_dirty_rate"]);
    let own = "impl Command for query_stats {\n}\nimpl<C> Command for Loose<C> {\n}";
    assert_eq!(commands(own), ["query_stats"]);
    let counted = "self.human_counted(\"stop\")?; self.human_counted(line)?;";
    assert_eq!(human_lines(counted), ["stop"]);
    assert_eq!(human_lines(wrong), ["calc_dirty_rate 1", "x "]);
    let set = "qmp::qom_set { path, property: \"size\".into(), value }";
    assert_eq!(properties_set(set), ["size"]);
}

fn for_each_source(folder: &Path, visit: &mut impl FnMut(&str)) {
    let Ok(entries) = fs::read_dir(folder) else {
        return;
    };
    for entry in entries {
        let path = entry.unwrap().path();
        if path.is_dir() {
            for_each_source(&path, visit);
        } else if path.extension().is_some_and(|end| end == "rs") {
            visit(&fs::read_to_string(&path).unwrap());
        }
    }
}

/// Commands that are made: `qmp::name {`, and those of our own: `impl Command for name {`. The types of their
/// answers, and of what wraps commands, begin with a capital letter.
fn commands(text: &str) -> Vec<String> {
    let after = |mark| text.split(mark).skip(1);
    let made = after("qmp::").chain(after("impl Command for "));
    let made = made.filter_map(|rest| rest.split_once(" {"));
    made.map(|(name, _)| name)
        .filter(|name| name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'))
        .map(str::to_owned)
        .collect()
}

/// Lines given to `human(…)` or `human_counted(…)`, up to the first placeholder.
fn human_lines(text: &str) -> Vec<String> {
    let after = |mark| text.split(mark).skip(1);
    let quoted = after(".human(").filter_map(|rest| rest.split('"').nth(1));
    let counted = after(".human_counted(\"").filter_map(|rest| rest.split('"').next());
    let lines = quoted.chain(counted);
    lines
        .map(|line| line.split('{').next().unwrap_or_default().to_owned())
        .collect()
}

/// Properties given to `qom_set`.
fn properties_set(text: &str) -> Vec<String> {
    let sets = text.split("qmp::qom_set {").skip(1);
    let named = sets.filter_map(|rest| rest.split_once("property: "));
    let names = named.filter_map(|(_, rest)| rest.split('"').nth(1));
    names.map(str::to_owned).collect()
}
