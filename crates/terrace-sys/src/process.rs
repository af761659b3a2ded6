//! A process that can be distinguished from a later one with the same number.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use crate::opener;

/// A process that could not be taken hold of.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// A file of the process in procfs could not be read.
    #[error("{}: {source}; the process has ended, or /proc hides it (hidepid)", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the system call.
        #[source]
        source: io::Error,
    },
    /// The process's `stat` is not in the kernel's format.
    #[error("{}: no start time in it", .0.display())]
    Stat(PathBuf),
    /// The kernel gave no descriptor for the process.
    #[error("pidfd_open of process {pid}: {source}")]
    Open {
        /// The process's number.
        pid: u32,
        /// The error of the system call.
        #[source]
        source: io::Error,
    },
    /// Another process has the number now.
    #[error("process {0} ended and its number was given to another one")]
    Reused(u32),
}

/// The identity of a process: its number and the time at which it started. A process that is given the number later
/// is another one: any user can have a number that became free, by starting processes until it comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProcessId {
    /// Time of the start, clock ticks after boot.
    pub start_time: u64,
    /// The process's number.
    pub pid: u32,
}

impl ProcessId {
    /// Whether the process still exists, running or not yet waited for; `proc` is the folder where procfs is mounted.
    #[must_use]
    pub fn exists(&self, proc: &Path) -> bool {
        start_time(proc, self.pid).is_ok_and(|started| started == self.start_time)
    }
}

/// A running process, held by a pidfd: as long as [`Process::is_alive`] holds, its number is its own.
#[derive(Debug)]
pub struct Process {
    pid: u32,
    start_time: u64,
    pidfd: OwnedFd,
}

impl Process {
    /// Takes hold of a process; `proc` is the folder where procfs is mounted.
    ///
    /// # Errors
    /// If it is gone or cannot be inspected.
    pub fn open(proc: &Path, pid: u32) -> Result<Self, ProcessError> {
        let before = start_time(proc, pid)?;
        // SAFETY: takes no pointers.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
        let fd = i32::try_from(fd).unwrap_or(-1);
        if fd < 0 {
            let source = io::Error::last_os_error();
            return Err(ProcessError::Open { pid, source });
        }
        // SAFETY: the call above made this descriptor; nothing else owns it.
        let pidfd = unsafe { OwnedFd::from_raw_fd(fd) };
        if start_time(proc, pid)? != before {
            return Err(ProcessError::Reused(pid));
        }
        Ok(Self {
            pid,
            start_time: before,
            pidfd,
        })
    }

    /// The process's number.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The descriptor by which calls name the process.
    pub(crate) fn pidfd(&self) -> &OwnedFd {
        &self.pidfd
    }

    /// Time of the start, clock ticks after boot: with the number, the process's identity across restarts of ours.
    #[must_use]
    pub fn start_time(&self) -> u64 {
        self.start_time
    }

    /// Whether the process still runs. A process that has ended and not been waited for is not alive.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        !has_ended(&self.pidfd)
    }
}

/// Whether the process behind a pidfd has ended.
pub(crate) fn has_ended(pidfd: &OwnedFd) -> bool {
    let mut poll = libc::pollfd {
        fd: pidfd.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one valid entry; a time-out of zero returns at once.
    let ready = unsafe { libc::poll(&raw mut poll, 1, 0) };
    // -1: a signal came in between (EINTR); the next query shows it.
    ready > 0
}

/// The time at which a process started, clock ticks after boot; `proc` is the folder where procfs is mounted.
///
/// The time is field 22 of `stat`. The second field is the name in parentheses, which may hold anything.
///
/// # Errors
/// If it is gone or cannot be inspected.
pub fn start_time(proc: &Path, pid: u32) -> Result<u64, ProcessError> {
    let path = proc.join(pid.to_string()).join("stat");
    let text = opener::read(&path).map_err(|source| ProcessError::Read {
        path: path.clone(),
        source,
    })?;
    parse_start_time(&String::from_utf8_lossy(&text)).ok_or(ProcessError::Stat(path))
}

fn parse_start_time(stat: &str) -> Option<u64> {
    let (_, after_name) = stat.rsplit_once(')')?;
    after_name.split_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_process_is_alive_until_it_ends_even_if_nobody_waited() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let process = Process::open(Path::new("/proc"), child.id()).unwrap();
        assert!(process.is_alive());
        assert_eq!(process.pid(), child.id());
        assert!(process.start_time() > 0);
        child.kill().unwrap();
        while process.is_alive() {
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert!(!process.is_alive());
        assert!(Process::open(Path::new("/proc"), child.id()).is_err());
    }

    #[test]
    fn a_reused_process_id_is_another_process() {
        let proc = Path::new("/proc");
        let pid = std::process::id();
        let start_time = start_time(proc, pid).unwrap();
        assert!(ProcessId { start_time, pid }.exists(proc));
        let before = ProcessId {
            start_time: start_time - 1,
            pid,
        };
        assert!(!before.exists(proc));
    }

    #[test]
    fn a_name_with_parentheses_and_spaces_does_not_shift_the_fields() {
        let stat = "12 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4711 20";
        assert_eq!(parse_start_time(stat), Some(4711));
        assert_eq!(parse_start_time("12 (cut off) S 1"), None);
        assert_eq!(parse_start_time(""), None);
    }
}
