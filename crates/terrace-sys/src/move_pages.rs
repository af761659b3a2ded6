//! `move_pages(2)`: asking on which node pages are, and moving them to another.

use std::io;

use crate::SysError;

/// Most addresses in one call: a call holds the process's map lock, and 1,024 pages keep the worst
/// one under some 30 ms, and 16,384 took 250 ms.
pub const MAX_BATCH: usize = 1024;

/// The status of a page that the kernel did not get to; no node and no error number.
pub const NOT_ANSWERED: i32 = i32::MIN;

/// The flag of `linux/mempolicy.h` for pages that only this process maps.
const MPOL_MF_MOVE: libc::c_int = 2;
/// The flag of `linux/mempolicy.h` for pages that other processes map, too.
const MPOL_MF_MOVE_ALL: libc::c_int = 4;

/// The pages that may be moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoveScope {
    /// Pages that only this process maps.
    Exclusive,
    /// Also pages that other processes map; needs `CAP_SYS_NICE`.
    Shared,
}

/// The outcome of a call to move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoveOutcome {
    /// The kernel went through all pages; each has its status.
    Complete,
    /// The kernel stopped early or could not migrate some: statuses are incomplete, query where the pages are.
    Partial,
}

/// The destination of pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MoveTo {
    /// The node.
    pub node: i32,
    /// The pages that may go there.
    pub scope: MoveScope,
}

/// The port over `move_pages(2)`: the one way of host and guest agent to ask where pages are and to move them, so that
/// tests bring a kernel of their own.
pub trait Pages {
    /// Moves pages of a process to `to`; without it, asks on which node each page is. Give one address for a huge page.
    ///
    /// A status becomes a node, or a negative error number: `-ENOENT` if nothing is mapped, `-EFAULT` for the zero
    /// page or an address outside of all mappings. Absent pages are not faulted in. The status is [`NOT_ANSWERED`] if
    /// the kernel stopped before that page: after [`MoveOutcome::Partial`] only another query shows where pages
    /// are.
    ///
    /// # Errors
    /// If the kernel refuses: `ESRCH` (the process is gone), `EPERM` (not permitted); of a move also `EACCES` (the node
    /// is not among those allowed to the process), `ENODEV` (no such node), `ENOMEM` (the node is full; some pages may
    /// have moved).
    ///
    /// # Panics
    /// If the slices differ in length.
    fn call(
        &self,
        pid: u32,
        addresses: &[u64],
        to: Option<MoveTo>,
        status: &mut [i32],
    ) -> Result<MoveOutcome, SysError>;

    /// Asks on which node each page is; see [`Pages::call`].
    ///
    /// # Errors
    /// If the kernel refuses: `ESRCH` (the process is gone), `EPERM` (it may not be inspected).
    fn query(&self, pid: u32, addresses: &[u64], status: &mut [i32]) -> Result<(), SysError> {
        self.call(pid, addresses, None, status).map(drop)
    }

    /// Whether [`Pages::swap`] works.
    ///
    /// # Errors
    /// The reason why it does not, for people.
    fn swaps(&self) -> Result<(), String> {
        Err("move_pages(2) goes through free pages".into())
    }

    /// Exchanges base pages of two processes (or of one), pair by pair, that lie on different nodes; neither node needs a
    /// free page. The status of a pair becomes 0, or a negative error number; it is [`NOT_ANSWERED`] if the call ended
    /// before that pair.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if that cannot be done, as by `move_pages(2)`; `ESRCH` if a process is gone.
    ///
    /// # Panics
    /// If the slices differ in length.
    fn swap(
        &self,
        up: (u32, &[u64]),
        down: (u32, &[u64]),
        status: &mut [i32],
    ) -> Result<(), SysError> {
        let _ = down;
        status.fill(NOT_ANSWERED);
        Err(SysError {
            call: "exchange",
            what: format!("process {}", up.0),
            source: io::Error::from_raw_os_error(libc::EOPNOTSUPP),
        })
    }

    /// Whether [`Pages::migrate`] works.
    ///
    /// # Errors
    /// The reason why it does not, for people.
    fn migrates(&self) -> Result<(), String> {
        Err("move_pages(2) knows no frames".into())
    }

    /// Moves what lies in frames of this machine to a node, whoever has it. The status of a frame becomes 0, `-EEXIST` if it
    /// is on that node, or another negative error number; it is [`NOT_ANSWERED`] if the call ended before that frame.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if that cannot be done, as by `move_pages(2)`; `EINVAL` for a node that is not there.
    ///
    /// # Panics
    /// If the slices differ in length.
    fn migrate(&self, node: u32, frames: &[u64], status: &mut [i32]) -> Result<(), SysError> {
        let _ = frames;
        status.fill(NOT_ANSWERED);
        Err(SysError {
            call: "migrate",
            what: format!("node {node}"),
            source: io::Error::from_raw_os_error(libc::EOPNOTSUPP),
        })
    }
}

/// The kernel's own `move_pages(2)`.
#[derive(Clone, Copy, Debug, Default)]
pub struct KernelPages;

impl Pages for KernelPages {
    fn call(
        &self,
        pid: u32,
        addresses: &[u64],
        to: Option<MoveTo>,
        status: &mut [i32],
    ) -> Result<MoveOutcome, SysError> {
        assert_eq!(addresses.len(), status.len(), "one status for each address");
        status.fill(NOT_ANSWERED);
        let nodes = to.map(|to| vec![to.node; addresses.len()]);
        let (name, flags) = match to.map(|to| to.scope) {
            None => ("move_pages (query)", 0),
            Some(MoveScope::Exclusive) => ("move_pages", MPOL_MF_MOVE),
            Some(MoveScope::Shared) => ("move_pages", MPOL_MF_MOVE_ALL),
        };
        // SAFETY: all arrays have `addresses.len()` elements; the addresses are the other process's and are not
        // dereferenced here.
        let rc = unsafe {
            call(
                pid,
                addresses.len(),
                addresses.as_ptr(),
                nodes
                    .as_ref()
                    .map_or(std::ptr::null(), |nodes| nodes.as_ptr()),
                status.as_mut_ptr(),
                flags,
            )
        };
        match rc {
            0 => Ok(MoveOutcome::Complete),
            1.. => Ok(MoveOutcome::Partial),
            _ => Err(SysError::last(name, format!("process {pid}"))),
        }
    }
}

/// Whether this kernel has `move_pages` (it lacks it without `CONFIG_MIGRATION`, and seccomp may hide
/// it).
#[must_use]
pub fn move_pages_supported() -> bool {
    // SAFETY: no pages, so no array is read.
    let rc = unsafe {
        call(
            0,
            0,
            std::ptr::null(),
            std::ptr::null(),
            std::ptr::null_mut(),
            0,
        )
    };
    rc == 0
        || !matches!(
            io::Error::last_os_error().raw_os_error(),
            Some(libc::ENOSYS | libc::EPERM)
        )
}

/// # Safety
/// `addresses`, `status` and, unless null, `nodes` have `count` elements.
unsafe fn call(
    pid: u32,
    count: usize,
    addresses: *const u64,
    nodes: *const i32,
    status: *mut i32,
    flags: libc::c_int,
) -> libc::c_long {
    // SAFETY: the caller's promise; an address is as wide as a pointer on the targets supported.
    unsafe {
        libc::syscall(
            libc::SYS_move_pages,
            pid,
            count,
            addresses,
            nodes,
            status,
            flags,
        )
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::SharedMapping;

    fn touched(pages: usize, touch: &[usize]) -> (SharedMapping, Vec<u64>) {
        let file = tempfile::tempfile_in("/dev/shm").unwrap();
        file.set_len(pages as u64 * 4096).unwrap();
        let map = SharedMapping::new(file.as_fd(), 0, pages * 4096).unwrap();
        for page in touch {
            // SAFETY: inside of the mapping.
            unsafe { map.as_ptr().add(page * 4096).write_volatile(1) };
        }
        let base = map.as_ptr() as u64;
        (map, (0..pages as u64).map(|p| base + p * 4096).collect())
    }

    fn own(node: i32) -> MoveTo {
        MoveTo {
            node,
            scope: MoveScope::Exclusive,
        }
    }

    #[test]
    fn a_query_names_nodes_and_faults_nothing_in() {
        let (_map, addresses) = touched(8, &[0, 5]);
        let mut status = vec![0; 8];
        for _ in 0..2 {
            KernelPages
                .query(std::process::id(), &addresses, &mut status)
                .unwrap();
            let present: Vec<usize> = (0..8).filter(|i| status[*i] >= 0).collect();
            assert_eq!(present, [0, 5]);
            assert!(status.iter().all(|s| *s >= 0 || *s == -libc::ENOENT));
        }
    }

    #[test]
    fn a_page_moved_to_its_own_node_stays() {
        let (_map, addresses) = touched(2, &[0]);
        let pid = std::process::id();
        let mut status = vec![0; 2];
        KernelPages.query(pid, &addresses, &mut status).unwrap();
        let node = status[0];
        let outcome = KernelPages.call(pid, &addresses, Some(own(node)), &mut status);
        assert_eq!(outcome.unwrap(), MoveOutcome::Complete);
        assert_eq!(status, [node, -libc::ENOENT]);
    }

    #[test]
    fn a_missing_process_and_a_missing_node_are_errors() {
        assert!(move_pages_supported());
        let mut status = [0];
        let gone = KernelPages.query(u32::MAX >> 1, &[4096], &mut status);
        let gone = gone.unwrap_err();
        assert_eq!(gone.errno(), libc::ESRCH);
        let (_map, addresses) = touched(1, &[0]);
        let pid = std::process::id();
        let bad = KernelPages.call(pid, &addresses, Some(own(1023)), &mut status);
        assert!([libc::ENODEV, libc::EACCES].contains(&bad.unwrap_err().errno()));
    }
}
