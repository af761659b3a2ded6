//! Restrictions that a process puts on itself, other than on capabilities and system calls.

use crate::SysError;

/// Ensures that no later `exec` gives privileges (`PR_SET_NO_NEW_PRIVS`).
///
/// # Errors
/// If the kernel refuses.
pub fn no_new_privileges() -> Result<(), SysError> {
    prctl("prctl(PR_SET_NO_NEW_PRIVS)", libc::PR_SET_NO_NEW_PRIVS, 1)
}

/// Forbids core dumps, and tracing by others of the same user (`PR_SET_DUMPABLE`).
///
/// # Errors
/// If the kernel refuses.
pub fn not_dumpable() -> Result<(), SysError> {
    prctl("prctl(PR_SET_DUMPABLE)", libc::PR_SET_DUMPABLE, 0)
}

/// Has the kernel kill this process when the *thread* that started it ends (`PR_SET_PDEATHSIG`): start it from a
/// thread that lives as long as its process.
///
/// # Errors
/// If the kernel refuses.
pub fn die_with_parent() -> Result<(), SysError> {
    let kill = libc::c_ulong::try_from(libc::SIGKILL).unwrap_or_default();
    prctl("prctl(PR_SET_PDEATHSIG)", libc::PR_SET_PDEATHSIG, kill)
}

fn prctl(call: &'static str, option: libc::c_int, value: libc::c_ulong) -> Result<(), SysError> {
    let zero: libc::c_ulong = 0;
    // SAFETY: the three options above take one number and no pointers.
    let rc = unsafe { libc::prctl(option, value, zero, zero, zero) };
    if rc == 0 {
        Ok(())
    } else {
        Err(SysError::last(call, "this process"))
    }
}
