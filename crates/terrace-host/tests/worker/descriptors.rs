//! Test of the descriptors that a worker inherits from the process that starts it.

use std::fs::{self, File};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use terrace_host::worker::WorkerHandle;

use super::command;

pub const TESTS: [(&str, fn()); 1] = [(
    "a_worker_inherits_no_descriptor_but_its_own",
    a_worker_inherits_no_descriptor_but_its_own,
)];

/// As a library opens them that forgot to say what is to be closed.
fn opened_without_cloexec(file: &File, count: usize) -> Vec<OwnedFd> {
    let another = |_| {
        // SAFETY: takes no pointers.
        let fd = unsafe { libc::dup(file.as_raw_fd()) };
        assert!(fd > 2, "no descriptor left");
        // SAFETY: the call above made it; nothing else owns it.
        unsafe { OwnedFd::from_raw_fd(fd) }
    };
    (0..count).map(another).collect()
}

/// The open descriptors of a process, and their files.
fn descriptors_of(pid: u32) -> Vec<(u32, PathBuf)> {
    let listed = fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let mut has: Vec<(u32, PathBuf)> = listed
        .flatten()
        .filter_map(|entry| {
            let number = entry.file_name().to_str()?.parse().ok()?;
            Some((number, fs::read_link(entry.path()).ok()?))
        })
        .collect();
    has.sort();
    has
}

fn a_worker_inherits_no_descriptor_but_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let file = File::create(folder.path().join("secret")).unwrap();
    let _open = opened_without_cloexec(&file, 200);
    // One that waits: what it opens itself by and by is its own.
    let worker = WorkerHandle::spawn(&command("silent")).unwrap();
    let mut has = descriptors_of(worker.pid());
    let deadline = Instant::now() + Duration::from_secs(60);
    let numbers =
        |has: &[(u32, PathBuf)]| -> Vec<u32> { has.iter().map(|(number, _)| *number).collect() };
    // Its libraries are open while they are loaded.
    while numbers(&has) != [0, 1, 2] && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(20));
        has = descriptors_of(worker.pid());
    }
    assert_eq!(numbers(&has), [0, 1, 2], "{} in all: {has:?}", has.len());
    let kinds = ["socket:", "/dev/null", "pipe:"];
    for ((_, target), kind) in has.iter().zip(kinds) {
        assert!(target.to_string_lossy().starts_with(kind), "{has:?}");
    }
}
