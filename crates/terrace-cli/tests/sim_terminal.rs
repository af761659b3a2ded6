//! `terrace sim compare` as seen at a terminal: the bar, and Ctrl-C in the middle of a sweep.
#![cfg(unix)]

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

/// A scenario of 32 MiB and half a million accesses: some tenths of a second at most.
const SMALL: &str = r#"[machine]
tiers = ["dram", "pmem"]
scale = 1
vcpus_per_vm = 2
[[vm]]
name = "vm1"
fast = "8MiB"
slow = "24MiB"
max_slowdown = 50
workload = { kind = "hotset", size = "16MiB", hot = 0.2, hot_access = 0.9, write = 0.5, ops = 500000 }
"#;

/// A terminal: our end and the program's.
fn terminal() -> (File, OwnedFd) {
    let (mut ours, mut theirs) = (-1, -1);
    let none = std::ptr::null_mut();
    // SAFETY: both numbers are ours to write, and null asks for no name and the default settings.
    let opened = unsafe {
        libc::openpty(
            &raw mut ours,
            &raw mut theirs,
            none,
            none.cast(),
            none.cast(),
        )
    };
    assert_eq!(opened, 0, "a terminal");
    // SAFETY: both were opened just now and have no other owner.
    unsafe { (File::from_raw_fd(ours), OwnedFd::from_raw_fd(theirs)) }
}

/// Starts the program with its standard error on the terminal, from which Ctrl-C reaches it.
fn start(folder: &Path, args: &[&str]) -> (Child, File) {
    let (ours, theirs) = terminal();
    let mut command = Command::new(env!("CARGO_BIN_EXE_terrace"));
    command.current_dir(folder).args(args);
    command.stdout(Stdio::piped()).stderr(theirs);
    // SAFETY: setsid and ioctl are safe to call between fork and exec; descriptor 2 is the terminal.
    unsafe {
        command.pre_exec(|| {
            if libc::setsid() < 0 || libc::ioctl(2, libc::TIOCSCTTY, 0) < 0 {
                return Err(std::io::Error::last_os_error());
            }
            Ok(())
        });
    }
    let child = command.spawn().expect("the program starts");
    // The program alone holds its end now, so that its end is the end of what we read.
    drop(command);
    (child, ours)
}

/// The terminal's text until the bar shows that so many runs are finished, or until the program ends.
fn shown_until(terminal: &mut File, finished: usize) -> String {
    let mut shown = Vec::new();
    let mut part = [0; 4096];
    loop {
        let text = String::from_utf8_lossy(&shown).into_owned();
        let bars = text.split(" of 1028 runs");
        let counts = bars.filter_map(|bar| bar.rsplit(' ').next()?.parse::<usize>().ok());
        if counts.max().unwrap_or(0) >= finished {
            return text;
        }
        // Reading fails when the other end is closed.
        match terminal.read(&mut part) {
            Ok(n) if n > 0 => shown.extend_from_slice(&part[..n]),
            _ => return text,
        }
    }
}

fn folder() -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a folder");
    std::fs::write(dir.path().join("small.toml"), SMALL).expect("a file");
    dir
}

const SWEEP: [&str; 7] = [
    "sim",
    "compare",
    "small.toml",
    "--policies",
    "first-touch,all-slow",
    "--jobs",
    "2",
];

#[test]
fn a_sweep_shows_a_bar_and_takes_it_away_before_the_table() {
    let dir = folder();
    let more = ["--sweep", "fast=4MiB..8MiB"];
    let (child, mut terminal) = start(dir.path(), &[&SWEEP[..], &more].concat());
    let shown = shown_until(&mut terminal, usize::MAX);
    let output = child.wait_with_output().expect("the program ends");
    assert_eq!(output.status.code(), Some(0));
    // Two policies, static-best and their reference, for two sizes.
    assert!(
        shown.contains("░") && shown.contains(" of 8 runs"),
        "{shown}"
    );
    assert!(shown.ends_with("\r\x1b[K"), "{shown:?}");
    let table = String::from_utf8_lossy(&output.stdout);
    assert!(
        table.contains("4 MiB") && table.contains("8 MiB"),
        "{table}"
    );
    assert!(
        table.contains("first-touch: fast = 4MiB is the cheapest that keeps every VM"),
        "{table}"
    );
}

#[test]
fn ctrl_c_in_a_sweep_keeps_the_finished_runs_and_is_130() {
    let dir = folder();
    let more = ["--sweep", "fast=4MiB..8MiB:16KiB", "--json", "out.json"];
    let (child, mut terminal) = start(dir.path(), &[&SWEEP[..], &more].concat());
    // A quarter of them are references.
    let shown = shown_until(&mut terminal, 6);
    assert!(shown.contains(" of 1028 runs"), "{shown}");
    terminal.write_all(b"\x03").expect("a key is pressed");
    let rest = shown_until(&mut terminal, usize::MAX);
    let output = child.wait_with_output().expect("the program ends");
    assert_eq!(output.status.code(), Some(130), "{rest}");
    let text = std::fs::read_to_string(dir.path().join("out.json")).expect("a file");
    let report: Value = serde_json::from_str(&text).expect("JSON");
    let runs = report["runs"].as_array().expect("a list");
    assert!((1..771).contains(&runs.len()), "{} runs", runs.len());
    let message = format!(
        "terrace: interrupted: {} of 771 runs were finished",
        runs.len()
    );
    assert!(rest.contains(&message), "{message}\n{rest:?}");
    let table = String::from_utf8_lossy(&output.stdout);
    let rows = table.lines().filter(|line| line.contains(" vm1 ")).count();
    assert_eq!(rows, runs.len(), "{table}");
}
