//! The processes that have a VM's RAM besides its hypervisor.
//!
//! Responsible for: a census of all processes by what they map and hold open, and what of it counts for one VM. A
//! process that serves a VM (SPDK, DPDK behind vhost-user) maps the file behind its RAM, and may have pinned it for a
//! device: a hole in that file takes the page from the guest and not from the device, which still writes to the
//! old one. The kernel does not report who pinned what, so every process that could have counts. It leaves to others:
//! what is refused then.
//!
//! Whether a process is a known one is decided by its number and start time, or by the file that it runs; never by a
//! name.

mod process;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use terrace_sys::{FileId, ProcessId, start_time};

use crate::process_memory::may_have_pinned;
use crate::{HostRoot, ReadError};

/// Files that are mapped in parts below this are no RAM of a VM: logs and rings that programs share.
const MIN_RAM: u64 = 2 << 20;

/// Most rounds in which processes that came during a census are inspected too, if some ended before they were.
const ROUNDS: usize = 32;

/// Most characters of a path that are stored.
const MAX_PATH_CHARS: usize = 200;

/// The way in which a process has a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// The process maps the memory.
    Maps,
    /// The process holds the file open: iommufd pins a file by a descriptor alone.
    Holds,
    /// The process did either, and still has something by which memory can be pinned: pages that were pinned stay so
    /// without mapping or descriptor.
    Pins,
}

/// A process with files that were asked about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sharer {
    /// The process.
    pub process: ProcessId,
    /// The program's name, for people: nothing in it steers a terminal.
    pub program: String,
    /// The file that the process runs, if it can be seen.
    pub runs: Option<FileId>,
    /// The files that the process has, and how.
    pub files: BTreeMap<FileId, How>,
}

/// A process that could not be inspected: what it has is not known.
#[derive(Clone, Debug)]
struct Unseen {
    process: Option<ProcessId>,
    runs: Option<FileId>,
    why: String,
}

/// All processes, as they stood between the start of a census and its end.
#[derive(Clone, Debug, Default)]
pub struct Census {
    sharers: Vec<Sharer>,
    unseen: Vec<Unseen>,
}

/// The processes that do not count.
#[derive(Clone, Copy, Debug)]
pub struct Known<'a> {
    /// The VM's hypervisor and what is ours.
    pub processes: &'a [ProcessId],
    /// Programs that do not pin, by the operator's word.
    pub programs: &'a BTreeSet<FileId>,
}

/// The answer to who else has the RAM of a VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holders {
    /// No process.
    Nobody,
    /// These, in words.
    Somebody(String),
    /// That is not known; why.
    Unknown(String),
}

/// The shared files that a hypervisor maps: what may be RAM of its VM.
///
/// # Errors
/// If its mappings cannot be read.
pub fn ram_files(root: &HostRoot, pid: u32) -> Result<BTreeSet<FileId>, ReadError> {
    let path = root.process(pid, "maps");
    let dev = FileId::behind(&root.join("dev")).ok();
    let mut files = BTreeSet::new();
    let read = process::each_mapping(&path, |mapping| {
        let len = mapping.end.saturating_sub(mapping.start);
        if mapping.is_shared && len >= MIN_RAM && may_be_ram(mapping.path, mapping.file, dev) {
            files.insert(mapping.file);
        }
    });
    read.map_err(|source| ReadError::Io { path, source })?;
    Ok(files)
}

/// Whether what is mapped can be pages of memory, and not a device's. A file system mounted below `/dev` is not of its
/// file system.
fn may_be_ram(path: &str, file: FileId, dev: Option<FileId>) -> bool {
    let is_device = path.starts_with("/dev/") && dev.is_some_and(|dev| dev.dev == file.dev);
    path.starts_with('/') && !is_device
}

/// The files behind these programs; one that is not there runs nowhere.
#[must_use]
pub fn programs(paths: &[PathBuf]) -> BTreeSet<FileId> {
    let files = paths.iter().filter_map(|path| FileId::behind(path).ok());
    files.collect()
}

impl Census {
    /// Inspects every process for these files. A process found `before` still counts while the process has what may pin
    /// without a mapping. `at` is the process that is inspected, which can make a census last for ever: reading what it
    /// maps waits for it.
    #[must_use]
    pub fn take(root: &HostRoot, files: &BTreeSet<FileId>, before: &Self, at: &AtomicU32) -> Self {
        let mut census = Self::default();
        let inspect = |pid| {
            at.store(pid, Ordering::Relaxed);
            census.inspect(root, pid, files)
        };
        if let Err(why) = inspect_all(|| numbers(&root.join("proc")), inspect) {
            census.unseen.push(Unseen {
                process: None,
                runs: None,
                why,
            });
        }
        census.carry(root, before);
        census
    }

    /// Whether it was there until it had been inspected.
    fn inspect(&mut self, root: &HostRoot, pid: u32, files: &BTreeSet<FileId>) -> bool {
        let inspected = process::of_process(root, pid, files);
        if let Ok(had) = &inspected
            && had.files.is_empty()
        {
            return !had.has_ended;
        }
        let process = process_id(root, pid);
        let runs = FileId::behind(&root.process(pid, "exe")).ok();
        match (inspected, process) {
            (Ok(had), Some(process)) => self.sharers.push(Sharer {
                process,
                program: program(&root.process(pid, "exe")),
                runs,
                files: had.files,
            }),
            // It ended meanwhile.
            (Ok(_), None) => return false,
            (Err(error), process) => self.unseen.push(Unseen {
                process,
                runs,
                why: error.to_string(),
            }),
        }
        true
    }

    /// Takes over who had a file and may have pinned it.
    fn carry(&mut self, root: &HostRoot, before: &Self) {
        for old in &before.sharers {
            let pid = old.process.pid;
            let now = self.sharers.iter_mut().find(|s| s.process == old.process);
            let has_all = now
                .as_ref()
                .is_some_and(|now| old.files.keys().all(|file| now.files.contains_key(file)));
            if has_all || process_id(root, pid) != Some(old.process) {
                continue;
            }
            // Descriptors that cannot be read are no proof that it lets go.
            if matches!(may_have_pinned(root, pid), Ok(false)) {
                continue;
            }
            let pinned = old.files.keys().map(|file| (*file, How::Pins));
            match now {
                Some(now) => pinned.for_each(|(file, how)| {
                    now.files.entry(file).or_insert(how);
                }),
                None => self.sharers.push(Sharer {
                    files: pinned.collect(),
                    ..old.clone()
                }),
            }
        }
    }

    /// The processes, other than those that are `known`, that have one of these files.
    #[must_use]
    pub fn who_else(&self, files: &BTreeSet<FileId>, known: Known<'_>) -> Holders {
        let counts = |process: Option<ProcessId>, runs: Option<FileId>| {
            !process.is_some_and(|process| known.processes.contains(&process))
                && !runs.is_some_and(|runs| known.programs.contains(&runs))
        };
        let others = self.sharers.iter().filter_map(|sharer| {
            let (_, how) = sharer.files.iter().find(|(file, _)| files.contains(file))?;
            counts(Some(sharer.process), sharer.runs).then(|| text(sharer, *how))
        });
        let others: Vec<String> = others.collect();
        if let Some((first, more)) = others.split_first() {
            let more = match more.len() {
                0 => String::new(),
                n => format!(", and {n} more"),
            };
            return Holders::Somebody(format!("{first}{more}"));
        }
        let mut unseen = self.unseen.iter();
        let unseen = unseen.find(|unseen| counts(unseen.process, unseen.runs));
        unseen.map_or(Holders::Nobody, |unseen| {
            Holders::Unknown(unseen.why.clone())
        })
    }
}

/// Inspects every process that is `listed`, and those that came meanwhile. `visit` returns whether a process was there
/// until it had been inspected: one that ends before may have left what it had to a child that is not listed yet. So
/// all are listed again until none did; a process that forks and ends, over and over, is met there.
fn inspect_all(
    mut listed: impl FnMut() -> io::Result<Vec<u32>>,
    mut visit: impl FnMut(u32) -> bool,
) -> Result<(), String> {
    let mut seen = BTreeSet::new();
    for _ in 0..ROUNDS {
        let mut all = listed().map_err(|error| format!("/proc: {error}"))?;
        all.retain(|pid| seen.insert(*pid));
        let ended = all.into_iter().filter(|pid| !visit(*pid)).count();
        if ended == 0 {
            return Ok(());
        }
    }
    let why = "processes come and go faster than they can be read";
    Err(format!("{why}, {ROUNDS} times"))
}

fn text(sharer: &Sharer, how: How) -> String {
    let what = match how {
        How::Maps => "maps",
        How::Holds => "holds open",
        How::Pins => "had, and may have pinned,",
    };
    let (pid, program) = (sharer.process.pid, &sharer.program);
    format!("process {pid} ({program}), which {what} its RAM")
}

/// A process's number and start time; `None` if the process is gone.
#[must_use]
pub fn process_id(root: &HostRoot, pid: u32) -> Option<ProcessId> {
    let start_time = start_time(&root.join("proc"), pid).ok()?;
    Some(ProcessId { start_time, pid })
}

fn numbers(proc: &Path) -> io::Result<Vec<u32>> {
    let mut numbers: Vec<u32> = Vec::new();
    for entry in fs::read_dir(proc)? {
        let name = entry?.file_name();
        numbers.extend(name.to_str().and_then(|name| name.parse::<u32>().ok()));
    }
    Ok(numbers)
}

/// The name of a process's program, for people.
fn program(link: &Path) -> String {
    let Ok(path) = fs::read_link(link) else {
        return "unknown program".into();
    };
    let path = path.to_string_lossy();
    let printable = path.chars().take(MAX_PATH_CHARS).flat_map(|c| {
        let escaped: Vec<char> = if c.is_control() {
            c.escape_default().collect()
        } else {
            vec![c]
        };
        escaped
    });
    printable.collect()
}

#[cfg(test)]
mod tests;
