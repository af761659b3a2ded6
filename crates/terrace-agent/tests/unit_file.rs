//! The shipped unit files: systemd accepts them, and they take nothing away that the programs need.

#![allow(clippy::unwrap_used, reason = "test helpers outside of test functions")]

use std::io::Write as _;
use std::path::Path;
use std::process::Command;

const UNITS: [&str; 2] = ["terrace-agent.service", "terrace-gather.service"];

fn shipped(unit: &str) -> String {
    let dist = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dist");
    std::fs::read_to_string(dist.join(unit)).unwrap()
}

/// The last value of a key of a unit.
fn value(unit: &str, key: &str) -> Option<String> {
    let text = shipped(unit);
    let mut lines = text.lines().filter_map(|line| line.strip_prefix(key));
    lines
        .rfind(|rest| rest.starts_with('='))
        .map(|rest| rest[1..].to_owned())
}

#[test]
fn gathering_is_undone_when_its_service_ends() {
    let unit = UNITS[1];
    let value = |key| value(unit, key).unwrap_or_default();
    assert_eq!(
        value("ExecStopPost"),
        "/usr/bin/terrace-agent gather --undo"
    );
    assert_eq!(value("RuntimeDirectory"), "terrace-gather");
    assert_eq!(value("RuntimeDirectoryPreserve"), "yes");
    assert_eq!(
        value("CapabilityBoundingSet"),
        "CAP_SYS_ADMIN CAP_SYS_NICE CAP_SYS_PTRACE"
    );
    assert!(value("SystemCallFilter").contains("move_pages"));
    assert_eq!(
        value("ProtectKernelTunables"),
        "",
        "the node's pool is written"
    );
}

#[test]
fn systemd_has_no_word_against_the_units() {
    let folder = tempfile::tempdir().unwrap();
    for unit in UNITS {
        let path = folder.path().join(unit);
        // `systemd-analyze` searches for the program, too.
        let text = shipped(unit).replace(
            "/usr/bin/terrace-agent",
            env!("CARGO_BIN_EXE_terrace-agent"),
        );
        std::fs::write(&path, text).unwrap();
        let said = match Command::new("systemd-analyze")
            .arg("verify")
            .arg(&path)
            .output()
        {
            Ok(said) => said,
            Err(error) => {
                // Past the capture of the test harness.
                let message =
                    format!("\nSKIPPED {unit}: NOT TESTED, since systemd-analyze: {error}\n");
                std::io::stderr().write_all(message.as_bytes()).unwrap();
                return;
            }
        };
        let stderr = String::from_utf8_lossy(&said.stderr);
        let about_it = stderr.lines().filter(|line| line.contains("terrace-"));
        assert_eq!(about_it.collect::<Vec<_>>(), [""; 0], "{stderr}");
        assert!(said.status.success(), "{stderr}");
    }
}
