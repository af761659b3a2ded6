//! The guest's kernel module `terrace_guest`: accessed bits of base pages, pages gathered into one block, exchanged
//! between nodes, and moved by frame number.
//!
//! Responsible for: its ioctls, arguments that the module takes, and answers that mean something. It leaves to others:
//! which pages, and what to do if it is not there; it is always optional.

pub mod abi;
mod device;
#[cfg(test)]
mod tests;

use std::io;
use std::ops::Range;

use crate::{HostRoot, SysError};

pub use device::{Call, Calls, Device, Errno};

/// The device below the root folder.
pub const DEVICE: &str = "dev/terrace_guest";
const PAGE: u64 = 4096;
/// The status of a page that the module did not get to; no error number.
const NOT_ANSWERED: i32 = crate::NOT_ANSWERED;
/// Largest error number of the kernel.
const MAX_ERRNO: i32 = 4095;

/// The reason why the module cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ModuleError {
    /// There is no device.
    #[error("the module terrace_guest is not loaded")]
    NotLoaded,
    /// The device may not be opened.
    #[error("{0}: opening the device takes CAP_SYS_ADMIN")]
    NotAllowed(SysError),
    /// The module speaks another version of the interface.
    #[error("the loaded module speaks version {0} of the interface, this program version {v}", v = abi::VERSION)]
    OtherVersion(u32),
    /// The device does not answer.
    #[error(transparent)]
    Failed(SysError),
}

/// State of one call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallState {
    /// Name of the call, as in [`abi::CALLS`].
    pub name: &'static str,
    /// The reason why it does not work; `None` if it does.
    pub missing: Option<String>,
    /// Pages that it scanned or moved since the module was loaded.
    pub pages: u64,
}

/// Base pages that a scan found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Scanned {
    /// Pages that are there.
    pub present: u64,
    /// Pages that were accessed.
    pub accessed: u64,
}

/// The block into which pages are gathered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Block {
    /// First frame, a multiple of 512; 0 if none is open.
    pub frame: u64,
    /// Pages of it that are free yet.
    pub left: u32,
}

/// The module, by one descriptor. One call at a time is carried out; others wait.
pub struct GuestModule {
    calls: Box<dyn Calls>,
}

impl GuestModule {
    /// Opens the device and asks for its version. Needs `CAP_SYS_ADMIN`; the calls do not.
    ///
    /// # Errors
    /// If the module is not loaded, may not be opened, or is of another version.
    pub fn open(root: &HostRoot) -> Result<Self, ModuleError> {
        let path = root.join(DEVICE);
        let device = Device::open(&path).map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => ModuleError::NotLoaded,
            kind => {
                let error = SysError {
                    call: "open",
                    what: path.display().to_string(),
                    source,
                };
                match kind {
                    io::ErrorKind::PermissionDenied => ModuleError::NotAllowed(error),
                    _ => ModuleError::Failed(error),
                }
            }
        })?;
        let module = Self::of(Box::new(device));
        let version = module.read_info().map_err(ModuleError::Failed)?.version;
        match version {
            abi::VERSION => Ok(module),
            other => Err(ModuleError::OtherVersion(other)),
        }
    }

    /// A module behind a port of the caller's, such as a test's.
    #[must_use]
    pub fn of(calls: Box<dyn Calls>) -> Self {
        Self { calls }
    }

    fn read_info(&self) -> Result<abi::Info, SysError> {
        let mut info = abi::Info::default();
        let answer = self.calls.carry_out(Call::Info(&mut info));
        answer.map_err(|errno| failed("ioctl(INFO)", "the module".into(), errno))?;
        Ok(info)
    }

    /// Which calls work, and why others do not.
    ///
    /// # Errors
    /// If the device does not answer.
    pub fn states(&self) -> Result<Vec<CallState>, SysError> {
        let info = self.read_info()?;
        let each = abi::CALLS.into_iter().zip(info.call).zip(info.pages);
        let states = each.map(|((name, call), pages)| CallState {
            name,
            missing: (call.error != 0).then(|| reason(&call)),
            pages,
        });
        Ok(states.collect())
    }

    /// Reads accessed bits of a range of a process's addresses, and clears them if `clear` is set. `entries` becomes one
    /// entry for each page: [`abi::ENTRY_PRESENT`] and so on.
    ///
    /// # Errors
    /// `EINVAL` for a range that is not of whole pages or leaves the process's part of the address space, `ESRCH` for a
    /// process that has ended, `EOPNOTSUPP` if the call does not work here.
    pub fn scan(
        &self,
        pid: u32,
        range: Range<u64>,
        clear: bool,
        entries: &mut Vec<u64>,
    ) -> Result<Scanned, SysError> {
        let wrong = |errno| failed("ioctl(SCAN)", process(pid), errno);
        let whole = (range.start | range.end).is_multiple_of(PAGE);
        if !whole || range.is_empty() || range.end > 1 << 56 {
            return Err(wrong(libc::EINVAL));
        }
        let pages = (range.end - range.start) / PAGE;
        entries.clear();
        let fits = usize::try_from(pages).is_ok_and(|pages| {
            let reserved = entries.try_reserve_exact(pages).is_ok();
            if reserved {
                entries.resize(pages, 0);
            }
            reserved
        });
        if !fits {
            return Err(wrong(libc::ENOMEM));
        }
        let mut scan = abi::Scan {
            version: abi::VERSION,
            flags: abi::SCAN_SPARSE | if clear { abi::SCAN_CLEAR } else { 0 },
            pid: number(pid).map_err(wrong)?,
            start: range.start,
            end: range.end,
            ..abi::Scan::default()
        };
        let answer = self.calls.carry_out(Call::Scan(&mut scan, entries));
        answer.map_err(wrong)?;
        // No more than there are pages, whatever was answered.
        let present = scan.present.min(pages);
        Ok(Scanned {
            present,
            accessed: scan.accessed.min(present),
        })
    }

    /// Moves base pages of a process into one aligned block of 2 MiB, of `node` or of the first page's node. The status
    /// of a page becomes 0 if it was moved, or a negative error number (`guest/modules/README.md` lists them). The block
    /// stays open for the next call; what is left of it is freed with this value.
    ///
    /// # Errors
    /// `ENOMEM` without a free block, `ESRCH` for a process that has ended, `EINVAL` for a node that is not there. Pages
    /// of batches before it may have been moved; the status of others is [`crate::NOT_ANSWERED`].
    ///
    /// # Panics
    /// If the slices differ in length.
    pub fn consolidate(
        &self,
        pid: u32,
        node: Option<u32>,
        addresses: &[u64],
        statuses: &mut [i32],
    ) -> Result<Block, SysError> {
        assert_eq!(
            addresses.len(),
            statuses.len(),
            "one status for each address"
        );
        let wrong = |errno| failed("ioctl(CONSOLIDATE)", process(pid), errno);
        statuses.fill(NOT_ANSWERED);
        let node = node.map_or(Ok(abi::ANY_NODE), number).map_err(wrong)?;
        let mut block = Block::default();
        let batches = addresses.chunks(abi::MAX_BATCH);
        for (addresses, statuses) in batches.zip(statuses.chunks_mut(abi::MAX_BATCH)) {
            let mut call = abi::Consolidate {
                version: abi::VERSION,
                pid: number(pid).map_err(wrong)?,
                node,
                count: count(addresses),
                ..abi::Consolidate::default()
            };
            let all = Call::Consolidate(&mut call, addresses, statuses);
            let answer = self.calls.carry_out(all);
            answered(answer, statuses).map_err(wrong)?;
            block = Block {
                frame: call.block,
                left: call.left,
            };
        }
        Ok(block)
    }

    /// Exchanges pages of two processes (or of one), pair by pair, that lie on different nodes; neither node needs a
    /// free page. The status of a pair becomes 0 if both changed nodes, or a negative error number. Returns the number of
    /// pairs of which one page changed nodes alone.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the call does not work here, `ESRCH` for a process that has ended. Pairs of batches before it may
    /// have been exchanged; the status of others is [`crate::NOT_ANSWERED`].
    ///
    /// # Panics
    /// If the slices differ in length.
    pub fn exchange(
        &self,
        first: (u32, &[u64]),
        second: (u32, &[u64]),
        statuses: &mut [i32],
    ) -> Result<u64, SysError> {
        assert_eq!(first.1.len(), statuses.len(), "one status for each pair");
        assert_eq!(second.1.len(), statuses.len(), "one status for each pair");
        let both = format!("processes {} and {}", first.0, second.0);
        let wrong = |errno| failed("ioctl(EXCHANGE)", both.clone(), errno);
        statuses.fill(NOT_ANSWERED);
        let mut halves = 0;
        let firsts = first.1.chunks(abi::MAX_BATCH);
        let seconds = second.1.chunks(abi::MAX_BATCH);
        let batches = firsts.zip(seconds).zip(statuses.chunks_mut(abi::MAX_BATCH));
        for ((ups, downs), statuses) in batches {
            let mut call = abi::Exchange {
                version: abi::VERSION,
                pid: number(first.0).map_err(wrong)?,
                other: number(second.0).map_err(wrong)?,
                count: count(ups),
                ..abi::Exchange::default()
            };
            let all = Call::Exchange(&mut call, [ups, downs], statuses);
            let answer = self.calls.carry_out(all);
            answered(answer, statuses).map_err(wrong)?;
            halves += u64::from(call.halves.min(call.count));
        }
        Ok(halves)
    }

    /// Moves what has these frames now to a node; no cpuset is asked. The status of a frame becomes 0 if its page was
    /// moved, or a negative error number.
    ///
    /// # Errors
    /// `EINVAL` for a node that is not there. Pages of batches before it may have been moved; the status of others is
    /// [`crate::NOT_ANSWERED`].
    ///
    /// # Panics
    /// If the slices differ in length.
    pub fn migrate(&self, node: u32, frames: &[u64], statuses: &mut [i32]) -> Result<(), SysError> {
        assert_eq!(frames.len(), statuses.len(), "one status for each frame");
        let wrong = |errno| failed("ioctl(MIGRATE)", format!("node {node}"), errno);
        statuses.fill(NOT_ANSWERED);
        let batches = frames.chunks(abi::MAX_BATCH);
        for (frames, statuses) in batches.zip(statuses.chunks_mut(abi::MAX_BATCH)) {
            let mut call = abi::Migrate {
                version: abi::VERSION,
                node: number(node).map_err(wrong)?,
                count: count(frames),
                ..abi::Migrate::default()
            };
            let all = Call::Migrate(&mut call, frames, statuses);
            let answer = self.calls.carry_out(all);
            answered(answer, statuses).map_err(wrong)?;
        }
        Ok(())
    }
}

impl std::fmt::Debug for GuestModule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GuestModule").finish_non_exhaustive()
    }
}

fn process(pid: u32) -> String {
    format!("process {pid}")
}

fn failed(call: &'static str, what: String, errno: Errno) -> SysError {
    SysError {
        call,
        what,
        source: io::Error::from_raw_os_error(errno),
    }
}

fn number(value: u32) -> Result<i32, Errno> {
    i32::try_from(value).map_err(|_| libc::EINVAL)
}

/// Length of a batch, which fits.
fn count(batch: &[u64]) -> u32 {
    u32::try_from(batch.len()).unwrap_or(u32::MAX)
}

/// Statuses that mean something: after a failure none does, and what is neither 0 nor a negative error number is an
/// answer that nobody understands.
fn answered(answer: Result<(), Errno>, statuses: &mut [i32]) -> Result<(), Errno> {
    match answer {
        Ok(()) => {
            let senseless = |status: &&mut i32| !(-MAX_ERRNO..=0).contains(*status);
            for status in statuses.iter_mut().filter(senseless) {
                *status = -libc::EPROTO;
            }
        }
        Err(_) => statuses.fill(NOT_ANSWERED),
    }
    answer
}

/// The module's reason for people: printable, of one line.
fn reason(call: &abi::Call) -> String {
    let said = call.why.split(|byte| *byte == 0).next().unwrap_or_default();
    let text: String = String::from_utf8_lossy(said)
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    match text.trim() {
        "" => io::Error::from_raw_os_error(call.error).to_string(),
        said => said.to_owned(),
    }
}
