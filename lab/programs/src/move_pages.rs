//! `move_pages(2)`, to ask and to move.

use std::ffi::c_void;
use std::io;

use anyhow::{Context, Result};

/// `MPOL_MF_MOVE_ALL`, which the libc crate does not have: also pages that other processes map.
const MOVE_ALL: i32 = 1 << 2;

/// Pages per call when only asking.
const QUERY_BATCH: usize = 4096;

/// The node each page is on, or a negated errno.
///
/// # Errors
/// If the kernel does not answer: there is no such process, or it may not be asked about.
pub fn query(pid: i32, addresses: &[usize]) -> Result<Vec<i32>> {
    let mut statuses = Vec::with_capacity(addresses.len());
    for batch in addresses.chunks(QUERY_BATCH) {
        statuses.extend(call(pid, batch, None)?);
    }
    Ok(statuses)
}

/// Moves the pages to `node`, `batch` pages a call, even those that other processes map too.
/// Returns the node that each page is on afterwards, or a negated errno.
///
/// # Errors
/// As for [`query`].
pub fn move_to(pid: i32, addresses: &[usize], node: i32, batch: usize) -> Result<Vec<i32>> {
    let mut statuses = Vec::with_capacity(addresses.len());
    for batch in addresses.chunks(batch.max(1)) {
        statuses.extend(call(pid, batch, Some(node))?);
    }
    Ok(statuses)
}

fn call(pid: i32, addresses: &[usize], node: Option<i32>) -> Result<Vec<i32>> {
    let pages: Vec<*mut c_void> = addresses
        .iter()
        .map(|address| std::ptr::without_provenance_mut(*address))
        .collect();
    let nodes = node.map(|node| vec![node; pages.len()]);
    let mut statuses = vec![-libc::EINVAL; pages.len()];
    // SAFETY: the arrays have the length given, or the node array is null, which asks only. The
    // addresses are another process's and are not dereferenced here.
    let result = unsafe {
        libc::syscall(
            libc::SYS_move_pages,
            pid,
            pages.len(),
            pages.as_ptr(),
            nodes
                .as_ref()
                .map_or(std::ptr::null(), |nodes| nodes.as_ptr()),
            statuses.as_mut_ptr(),
            MOVE_ALL,
        )
    };
    // A positive result is the number of pages that could not be moved; the statuses show which.
    if result < 0 {
        return Err(io::Error::last_os_error())
            .with_context(|| format!("move_pages of process {pid}"));
    }
    Ok(statuses)
}
