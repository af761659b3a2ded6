//! Descriptors that a child process inherits from this one.

use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

/// First descriptor after standard input, output and error.
const FIRST: libc::c_uint = 3;
/// Most descriptors that are checked on a kernel without `close_range(2)` (before Linux 5.11).
const MAX: libc::c_int = 1 << 20;

/// Has a child inherit its standard input, output and error, and no other descriptor, however the others were opened:
/// a library may have forgotten to mark one as close-on-exec.
pub fn inherit_nothing(command: &mut Command) {
    // SAFETY: the closure runs between fork and exec, and makes system calls alone: no memory is allocated, no lock
    // taken.
    unsafe {
        command.pre_exec(close_on_exec);
    }
}

/// Marks the other descriptors as close-on-exec, but does not close them yet: the standard library learns by a
/// descriptor of its own whether the program was started.
fn close_on_exec() -> io::Result<()> {
    const CLOEXEC: libc::c_uint = 4;
    // SAFETY: takes no pointers.
    let rc = unsafe { libc::syscall(libc::SYS_close_range, FIRST, libc::c_uint::MAX, CLOEXEC) };
    if rc == 0 {
        return Ok(());
    }
    match io::Error::last_os_error().raw_os_error() {
        Some(libc::ENOSYS | libc::EINVAL) => mark_one_by_one(),
        _ => Err(io::Error::last_os_error()),
    }
}

fn mark_one_by_one() -> io::Result<()> {
    // SAFETY: takes no pointers.
    let most = unsafe { libc::sysconf(libc::_SC_OPEN_MAX) };
    let most = libc::c_int::try_from(most).unwrap_or(MAX).min(MAX);
    for fd in 3..most {
        // SAFETY: takes no pointers; a number that is no descriptor is an error, and passed over.
        let flags = unsafe { libc::fcntl(fd, libc::F_GETFD) };
        // SAFETY: as above.
        if flags >= 0 && unsafe { libc::fcntl(fd, libc::F_SETFD, flags | libc::FD_CLOEXEC) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd as _;
    use std::process::Stdio;

    use super::*;

    /// A shell's list of its own descriptors.
    fn descriptors(prepare: impl FnOnce(&mut Command)) -> String {
        let mut shell = Command::new("sh");
        shell
            .args(["-c", "for f in /proc/$$/fd/*; do readlink $f; done"])
            .stdin(Stdio::null());
        prepare(&mut shell);
        String::from_utf8(shell.output().unwrap().stdout).unwrap()
    }

    #[test]
    fn a_child_inherits_no_descriptor_without_cloexec() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("leaked");
        let file = std::fs::File::create(&path).unwrap();
        // SAFETY: takes no pointers.
        let result = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFD, 0) };
        assert_eq!(result, 0);
        let leaked = |said: String| said.lines().any(|line| line.ends_with("/leaked"));
        assert!(
            leaked(descriptors(|_| {})),
            "the test sees what is inherited"
        );
        assert!(!leaked(descriptors(inherit_nothing)));
        // SAFETY: as in `inherit_nothing`.
        let old = |shell: &mut Command| unsafe {
            shell.pre_exec(mark_one_by_one);
        };
        assert!(!leaked(descriptors(old)), "on older kernels");
    }
}
