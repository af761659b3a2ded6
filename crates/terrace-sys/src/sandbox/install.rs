//! A filter of system calls for one thread.

use crate::SysError;

/// The flag that logs what a filter refuses (`SECCOMP_FILTER_FLAG_LOG`, Linux 4.14).
const FILTER_LOG: libc::c_ulong = 1 << 1;
/// `SECCOMP_SET_MODE_FILTER`.
const SET_FILTER: libc::c_ulong = 1;

/// Puts a filter on the calling thread, for good; threads and programs that it starts have it too. With `log`, the
/// kernel's log names each call that is refused, if this kernel can do that.
///
/// # Errors
/// If the kernel has no filters, if it refuses this one, or if the thread may still gain privileges
/// ([`crate::no_new_privileges`]).
pub fn filter_system_calls(program: &[libc::sock_filter], log: bool) -> Result<(), SysError> {
    let called = if log {
        filter(program, FILTER_LOG)
    } else {
        filter(program, 0)
    };
    match called {
        Err(error) if log && error.errno() == libc::EINVAL => filter(program, 0),
        called => called,
    }
}

fn filter(program: &[libc::sock_filter], flags: libc::c_ulong) -> Result<(), SysError> {
    let failed = || SysError::last("seccomp", "this thread");
    let Ok(len) = u16::try_from(program.len()) else {
        return Err(SysError {
            call: "seccomp",
            what: format!("a filter of {} instructions", program.len()),
            source: std::io::Error::from_raw_os_error(libc::E2BIG),
        });
    };
    let program = libc::sock_fprog {
        len,
        filter: program.as_ptr().cast_mut(),
    };
    // SAFETY: `program` names instructions with their number, which the kernel only reads.
    let rc = unsafe { libc::syscall(libc::SYS_seccomp, SET_FILTER, flags, &raw const program) };
    if rc == 0 { Ok(()) } else { Err(failed()) }
}
