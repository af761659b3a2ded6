//! The unit and the options that are shipped are ones that systemd and the program take.

#![allow(clippy::unwrap_used, reason = "test helpers outside of test functions")]

use std::io::Write as _;
use std::path::Path;
use std::process::Command;

use clap::Parser as _;
use terrace_hyperflex::{Args, Config};

const UNIT: &str = "terrace-hyperflex@.service";

fn shipped(name: &str) -> String {
    let dist = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dist");
    std::fs::read_to_string(dist.join(name)).unwrap()
}

/// The value of a key, without the ends of lines in it.
fn value(text: &str, key: &str) -> String {
    let joined = text.replace("\\\n", " ");
    let line = joined.lines().find_map(|line| line.strip_prefix(key));
    line.and_then(|line| line.strip_prefix('='))
        .unwrap()
        .to_owned()
}

#[test]
fn the_unit_starts_the_program_with_options_that_it_takes() {
    let options = value(&shipped("terrace-hyperflex.conf"), "HYPERFLEX_OPTIONS");
    let command = value(&shipped(UNIT), "ExecStart")
        .replace("%t", "/run")
        .replace("%i", "vm1")
        .replace("$HYPERFLEX_OPTIONS", &options);
    let args = Args::try_parse_from(command.split_whitespace()).unwrap();
    let folder = Path::new("/run/terrace-hyperflex/vm1");
    assert_eq!(args.socket, folder.join("hypervisor"));
    assert_eq!(args.control, folder.join("control"));
    assert_eq!(args.state, Some(folder.join("state")));
    let config = Config::try_from(&args).unwrap();
    let hosts: Vec<_> = config.tiers().iter().map(|tier| tier.host_node).collect();
    assert_eq!(hosts, [Some(0), Some(1)]);
    assert_eq!(
        value(&shipped(UNIT), "RuntimeDirectory"),
        "terrace-hyperflex/%i"
    );
}

#[test]
fn systemd_has_no_word_against_the_unit() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("terrace-hyperflex@vm1.service");
    // `systemd-analyze` searches for the program, too.
    let unit = shipped(UNIT).replace(
        "/usr/bin/terrace-hyperflex",
        env!("CARGO_BIN_EXE_terrace-hyperflex"),
    );
    std::fs::write(&path, unit).unwrap();
    let said = match Command::new("systemd-analyze")
        .arg("verify")
        .arg(&path)
        .output()
    {
        Ok(said) => said,
        Err(error) => {
            // Past the capture of the test harness.
            let message = format!(
                "\nSKIPPED systemd_has_no_word_against_the_unit: NOT TESTED, since systemd-analyze: {error}\n"
            );
            std::io::stderr().write_all(message.as_bytes()).unwrap();
            return;
        }
    };
    let stderr = String::from_utf8_lossy(&said.stderr);
    let about_it = stderr
        .lines()
        .filter(|line| line.contains("terrace-hyperflex"));
    assert_eq!(about_it.collect::<Vec<_>>(), [""; 0], "{stderr}");
    assert!(said.status.success(), "{stderr}");
}
