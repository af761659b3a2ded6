//! The processor of this program and the node of its memory. Children inherit both.

use std::io;

/// Lets pages come from `node` from now on while it has room. Pages that are there may be moved anywhere.
///
/// # Errors
/// If there is no such node.
pub fn prefer(node: u32) -> io::Result<()> {
    let nodes: libc::c_ulong = 1_u64
        .checked_shl(node)
        .ok_or_else(|| io::Error::other("nodes are numbered from 0 to 63"))?;
    set_policy(libc::MPOL_PREFERRED, &raw const nodes)
}

/// Lets pages come from the node of the processor that touches them, from now on.
///
/// # Errors
/// None that is known.
pub fn prefer_none() -> io::Result<()> {
    set_policy(libc::MPOL_DEFAULT, std::ptr::null())
}

fn set_policy(mode: i32, nodes: *const libc::c_ulong) -> io::Result<()> {
    let bits = if nodes.is_null() {
        0
    } else {
        libc::c_ulong::BITS
    };
    // SAFETY: the mask is null with no bits, or one word with as many bits as it has, which outlives the
    // call.
    let result = unsafe { libc::syscall(libc::SYS_set_mempolicy, mode, nodes, bits) };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Keeps this program on one processor.
///
/// # Errors
/// If there is no such processor.
pub fn pin(processor: usize) -> io::Result<()> {
    // SAFETY: a set of bits, of which none is a valid value.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    if processor >= size_of_val(&set) * 8 {
        return Err(io::Error::other("no such processor"));
    }
    // SAFETY: the set holds that bit.
    unsafe { libc::CPU_SET(processor, &mut set) };
    // SAFETY: the set outlives the call, which reads as many bytes as it has.
    let result = unsafe { libc::sched_setaffinity(0, size_of_val(&set), &raw const set) };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_there_is_refused() {
        assert!(prefer(64).is_err());
        assert!(pin(1 << 20).is_err());
    }
}
