//! `process_madvise(2)` in another process: `MADV_COLLAPSE`, which makes a huge page of single ones, and `MADV_COLD` for a part of
//! one, which splits it.

use std::io;
use std::os::fd::AsRawFd;

use crate::{Process, SysError};

/// The number of `process_madvise(2)`, the same on all machines.
pub const PROCESS_MADVISE: u32 = 440;
/// The advice of `asm-generic/mman-common.h` (Linux 6.1).
pub const MADV_COLLAPSE: u32 = 25;
/// The advice of `asm-generic/mman-common.h` (Linux 5.4).
const MADV_COLD: u32 = 20;
/// Bytes of a base page.
const BASE: u64 = 4096;

/// The reason why the kernel collapses nothing at all.
#[derive(Debug, thiserror::Error)]
pub enum CollapseError {
    /// The kernel has no such call, or does not know the advice.
    #[error("the kernel cannot collapse memory of other processes (Linux 6.1 can): {0}")]
    NotKnown(SysError),
    /// The caller may not.
    #[error("{0}: collapsing memory of another process takes CAP_SYS_NICE and CAP_SYS_PTRACE")]
    NotAllowed(SysError),
    /// The call failed for a reason that may pass: the process has ended, or the kernel lacks memory.
    #[error(transparent)]
    Failed(SysError),
}

impl CollapseError {
    /// The error by its number.
    #[must_use]
    pub fn of(error: SysError) -> Self {
        match error.errno() {
            libc::ENOSYS | libc::EINVAL => Self::NotKnown(error),
            libc::EPERM | libc::EACCES => Self::NotAllowed(error),
            // No reason to give up for good.
            _ => Self::Failed(error),
        }
    }
}

/// The port over `process_madvise(2)`, so that tests bring a kernel of their own.
pub trait Collapse {
    /// Finds out whether memory of this process can be collapsed; changes nothing.
    ///
    /// # Errors
    /// If it cannot.
    fn probe(&self, process: &Process) -> Result<(), CollapseError>;

    /// Makes one huge page of the pages from `start` on, `len` bytes: a block of 2 MiB. The kernel allocates what is missing
    /// of the block, so the caller checks before that nothing is.
    ///
    /// # Errors
    /// `EAGAIN`, `EBUSY`: some page was in use; `ENOMEM`: there was no free huge page; others: the kernel refuses the block.
    fn collapse(&self, process: &Process, start: u64, len: u64) -> Result<(), SysError>;
}

/// The kernel's own call.
#[derive(Clone, Copy, Debug, Default)]
pub struct KernelCollapse;

impl Collapse for KernelCollapse {
    fn probe(&self, process: &Process) -> Result<(), CollapseError> {
        // Of no range: rights and advice are checked all the same.
        let Err(error) = advise(process, &[], MADV_COLLAPSE) else {
            return Ok(());
        };
        Err(CollapseError::of(error))
    }

    fn collapse(&self, process: &Process, start: u64, len: u64) -> Result<(), SysError> {
        advise(process, &[range(start, len)?], MADV_COLLAPSE)
    }
}

/// Splits the huge page at an address by advice on its first base page (`madvise_cold_or_pageout_pte_range` in `mm/madvise.c`).
/// Nothing happens to one that several processes map, or that is in use.
///
/// # Errors
/// If the kernel refuses: the process has ended, or `CAP_SYS_NICE` or `CAP_SYS_PTRACE` is missing.
pub fn split_huge_page(process: &Process, start: u64) -> Result<(), SysError> {
    advise(process, &[range(start, BASE)?], MADV_COLD)
}

fn range(start: u64, len: u64) -> Result<libc::iovec, SysError> {
    let too_long = |_| SysError {
        call: "process_madvise",
        what: format!("{len} bytes at {start:#x}"),
        source: io::Error::from_raw_os_error(libc::EINVAL),
    };
    Ok(libc::iovec {
        iov_base: std::ptr::without_provenance_mut(usize::try_from(start).map_err(too_long)?),
        iov_len: usize::try_from(len).map_err(too_long)?,
    })
}

fn advise(process: &Process, ranges: &[libc::iovec], advice: u32) -> Result<(), SysError> {
    // SAFETY: `ranges` is an array of so many; the addresses in it are the other process's and are not dereferenced here.
    let rc = unsafe {
        libc::syscall(
            libc::c_long::from(PROCESS_MADVISE),
            process.pidfd().as_raw_fd(),
            ranges.as_ptr(),
            ranges.len(),
            advice,
            0,
        )
    };
    match rc {
        0.. => Ok(()),
        _ => Err(SysError::last(
            match advice {
                MADV_COLD => "process_madvise(MADV_COLD)",
                _ => "process_madvise(MADV_COLLAPSE)",
            },
            format!("process {}", process.pid()),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_errors_of_the_kernel_and_of_rights_last() {
        let of = |errno| {
            CollapseError::of(SysError {
                call: "a test",
                what: String::new(),
                source: io::Error::from_raw_os_error(errno),
            })
        };
        for errno in [libc::ENOSYS, libc::EINVAL] {
            assert!(matches!(of(errno), CollapseError::NotKnown(_)));
        }
        for errno in [libc::EPERM, libc::EACCES] {
            assert!(matches!(of(errno), CollapseError::NotAllowed(_)));
        }
        for errno in [libc::ESRCH, libc::ENOMEM, libc::EINTR, libc::EBADF] {
            assert!(matches!(of(errno), CollapseError::Failed(_)));
        }
    }
}
