//! The shipped unit file: systemd accepts it, and it takes nothing away that the program needs.

#![allow(clippy::unwrap_used, reason = "test helpers outside of test functions")]

use std::io::Write as _;
use std::path::Path;
use std::process::Command;

const UNIT: &str = "terrace-agent.service";

fn shipped() -> String {
    let dist = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dist");
    std::fs::read_to_string(dist.join(UNIT)).unwrap()
}

/// The last value of a key.
fn value(key: &str) -> Option<String> {
    let text = shipped();
    let mut lines = text.lines().filter_map(|line| line.strip_prefix(key));
    lines
        .rfind(|rest| rest.starts_with('='))
        .map(|rest| rest[1..].to_owned())
}

#[test]
fn gathering_is_possible_and_undone_when_the_service_ends() {
    let value = |key| value(key).unwrap_or_default();
    assert_eq!(
        value("ExecStopPost"),
        "/usr/bin/terrace-agent gather --undo"
    );
    assert_eq!(value("RuntimeDirectory"), "terrace-agent terrace-gather");
    assert_eq!(value("RuntimeDirectoryPreserve"), "yes");
    for capability in [
        "CAP_SYS_ADMIN",
        "CAP_SYS_NICE",
        "CAP_SYS_PTRACE",
        "CAP_PERFMON",
    ] {
        assert!(value("CapabilityBoundingSet").contains(capability));
    }
    for call in ["move_pages", "process_madvise", "pidfd_open", "seccomp"] {
        assert!(value("SystemCallFilter").contains(call), "{call}");
    }
    assert_eq!(
        value("ProtectKernelTunables"),
        "",
        "the node's pool is written"
    );
}

#[test]
fn systemd_has_no_word_against_the_unit() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(UNIT);
    // `systemd-analyze` searches for the program, too.
    let text = shipped().replace(
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
            let message = format!("\nSKIPPED {UNIT}: NOT TESTED, since systemd-analyze: {error}\n");
            std::io::stderr().write_all(message.as_bytes()).unwrap();
            return;
        }
    };
    let stderr = String::from_utf8_lossy(&said.stderr);
    let about_it = stderr.lines().filter(|line| line.contains("terrace-"));
    assert_eq!(about_it.collect::<Vec<_>>(), [""; 0], "{stderr}");
    assert!(said.status.success(), "{stderr}");
}
