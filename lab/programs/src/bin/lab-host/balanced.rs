//! Guest RAM that NUMA balancing may place.
//!
//! Of a shared mapping of a file on tmpfs, the kernel (`vma_policy_mof`) asks the file for a policy, and
//! leaves the memory alone unless that policy permits moves on a fault. QEMU cannot set such
//! a policy, so it is set here, on the file, before QEMU starts.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use anyhow::{Context, Result};

/// `MPOL_F_NUMA_BALANCING`, which the libc crate does not have.
const NUMA_BALANCING: i32 = 1 << 13;

/// Nodes that pages may be on: 0 and 1.
const NODES: libc::c_ulong = 0b11;

/// Creates the file that will be a guest's RAM and sets its policy.
pub fn create(path: &str, bytes: u64) -> Result<()> {
    let file = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(path)
        .with_context(|| format!("cannot create {path}"))?;
    file.set_len(bytes)
        .with_context(|| format!("cannot size {path}"))?;
    set_policy(&file, usize::try_from(bytes)?)
        .with_context(|| format!("cannot set the NUMA policy of {path}"))
}

fn set_policy(file: &File, bytes: usize) -> io::Result<()> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let descriptor = file.as_raw_fd();
    // SAFETY: a fresh mapping at an address of the kernel's choice; nothing else uses it.
    let start = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            bytes,
            access,
            libc::MAP_SHARED,
            descriptor,
            0,
        )
    };
    if start == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let nodes = NODES;
    // SAFETY: the range is the mapping; the mask outlives the call and holds the bits it is said to.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mbind,
            start,
            bytes,
            libc::MPOL_BIND | NUMA_BALANCING,
            &raw const nodes,
            libc::c_ulong::BITS,
            0,
        )
    };
    let outcome = match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    };
    // SAFETY: mapped above, and no reference into it exists.
    unsafe { libc::munmap(start, bytes) };
    outcome
}
