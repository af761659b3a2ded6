//! The shipped unit file: systemd accepts it, and it leaves the daemon the rights that its threads need and no more.

#![allow(clippy::unwrap_used, reason = "test helpers outside of test functions")]

use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output};

const UNIT: &str = "terraced.service";

fn shipped() -> String {
    let dist = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dist");
    std::fs::read_to_string(dist.join(UNIT)).unwrap()
}

/// All values of a key of the unit, in their order.
fn values(key: &str) -> Vec<String> {
    let joined = shipped().replace("\\\n", " ");
    let lines = joined.lines().filter_map(|line| line.strip_prefix(key));
    lines
        .filter_map(|line| line.strip_prefix('='))
        .map(str::to_owned)
        .collect()
}

/// The output of systemd-analyze on the unit; `None`, with a message, if there is no systemd.
fn analyze(test: &str, args: &[&str]) -> Option<Output> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(UNIT);
    // `systemd-analyze` searches for the program, too.
    let unit = shipped().replace("/usr/bin/terraced", env!("CARGO_BIN_EXE_terraced"));
    std::fs::write(&path, unit).unwrap();
    let said = Command::new("systemd-analyze")
        .args(args)
        .arg(&path)
        .output();
    match said {
        Ok(said) => Some(said),
        Err(error) => {
            // Past the capture of the test harness.
            let message = format!("\nSKIPPED {test}: NOT TESTED, since systemd-analyze: {error}\n");
            std::io::stderr().write_all(message.as_bytes()).unwrap();
            None
        }
    }
}

#[test]
fn the_unit_grants_the_daemon_exactly_its_threads_capabilities() {
    let [bounding] = &values("CapabilityBoundingSet")[..] else {
        panic!("one set");
    };
    let bounding: BTreeSet<&str> = bounding.split_whitespace().collect();
    let wanted = [
        "CAP_SYS_NICE",
        "CAP_SYS_PTRACE",
        "CAP_DAC_READ_SEARCH",
        "CAP_DAC_OVERRIDE",
        "CAP_PERFMON",
        "CAP_SETPCAP",
    ];
    assert_eq!(bounding, BTreeSet::from(wanted));
    assert_eq!(values("AmbientCapabilities"), [""]);
    assert_eq!(values("NoNewPrivileges"), ["yes"]);
}

#[test]
fn the_unit_takes_nothing_away_that_the_daemon_needs() {
    // DAMON's files and cgroup.procs are written, processes inspected, monitors connected to.
    for (key, want) in [
        ("ProtectKernelTunables", "no"),
        ("ProtectControlGroups", "no"),
        ("ProtectProc", "default"),
        ("PrivateTmp", "no"),
        ("RestrictAddressFamilies", "AF_UNIX"),
        ("RuntimeDirectoryPreserve", "yes"),
    ] {
        assert_eq!(values(key), [want], "{key}");
    }
    // The last word on it, since @resources takes it away.
    let filters = values("SystemCallFilter");
    assert!(
        filters.last().unwrap().contains("move_pages"),
        "{filters:?}"
    );
}

#[test]
fn systemd_has_no_word_against_the_unit() {
    let Some(said) = analyze("systemd_has_no_word_against_the_unit", &["verify"]) else {
        return;
    };
    let stderr = String::from_utf8_lossy(&said.stderr);
    let about_it = stderr.lines().filter(|line| line.contains("terraced"));
    assert_eq!(about_it.collect::<Vec<_>>(), [""; 0], "{stderr}");
    assert!(said.status.success(), "{stderr}");
}

#[test]
fn the_units_systemd_exposure_is_no_worse_than_recorded() {
    let name = "the_units_systemd_exposure_is_no_worse_than_recorded";
    // Of 100: 27 is the 2.7 of docs/operating.md; another systemd counts a little differently.
    let args = ["security", "--offline=true", "--threshold=30"];
    if let Some(said) = analyze(name, &args) {
        assert!(said.status.success(), "{said:?}");
    }
}
