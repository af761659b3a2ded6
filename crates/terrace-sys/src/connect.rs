//! Connecting to a Unix socket within a time limit.

use std::io;
use std::mem::{offset_of, size_of};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::{SysError, opener};

/// Between two tries to connect to a listener whose queue is full.
const PAUSE: Duration = Duration::from_millis(5);

/// Connects to a stream socket, by the thread's [`crate::opener`]. A listener that accepts nobody and whose queue is
/// full keeps the standard library's `connect` waiting for ever; this one gives up with `EAGAIN`. Writing has the same
/// time limit.
///
/// # Errors
/// Where nobody listens, the path is too long for a socket, or the time is over (`EAGAIN`).
pub fn connect_unix(path: &Path, timeout: Duration) -> Result<UnixStream, SysError> {
    let error = |call| {
        move |source| SysError {
            call,
            what: path.display().to_string(),
            source,
        }
    };
    let begin = Instant::now();
    let socket = loop {
        match opener::connect(path) {
            Ok(socket) => break UnixStream::from(socket),
            Err(source) if source.raw_os_error() == Some(libc::EAGAIN) => {
                let left = timeout.saturating_sub(begin.elapsed());
                if left.is_zero() {
                    return Err(error("connect")(source));
                }
                std::thread::sleep(left.min(PAUSE));
            }
            Err(source) => return Err(error("connect")(source)),
        }
    };
    socket
        .set_nonblocking(false)
        .map_err(error("ioctl(FIONBIO)"))?;
    socket
        .set_write_timeout(Some(timeout))
        .map_err(error("setsockopt(SO_SNDTIMEO)"))?;
    Ok(socket)
}

/// A connection that waits for nobody, by the rights of this thread.
pub(crate) fn connect_at_once(path: &Path) -> io::Result<OwnedFd> {
    let (address, len) = address(path)?;
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: takes no pointers.
    let fd = unsafe { libc::socket(libc::AF_UNIX, kind, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call above made this descriptor; nobody else owns it.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: `address` is a valid socket address of `len` bytes.
    let rc = unsafe { libc::connect(socket.as_raw_fd(), (&raw const address).cast(), len) };
    if rc != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(socket)
}

/// The address of a socket at a path.
pub(crate) fn address(path: &Path) -> io::Result<(libc::sockaddr_un, libc::socklen_t)> {
    let bytes = path.as_os_str().as_bytes();
    let mut address = libc::sockaddr_un {
        sun_family: libc::sa_family_t::try_from(libc::AF_UNIX).unwrap_or_default(),
        sun_path: [0; 108],
    };
    if bytes.len() >= address.sun_path.len() || bytes.contains(&0) {
        return Err(io::Error::from_raw_os_error(libc::ENAMETOOLONG));
    }
    for (to, from) in address.sun_path.iter_mut().zip(bytes) {
        *to = libc::c_char::from_ne_bytes([*from]);
    }
    let len = offset_of!(libc::sockaddr_un, sun_path) + bytes.len() + 1;
    debug_assert!(len <= size_of::<libc::sockaddr_un>());
    Ok((address, libc::socklen_t::try_from(len).unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn a_listener_with_a_full_queue_is_given_up_on() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let _listener = UnixListener::bind(&path).unwrap();
        let short = Duration::from_millis(10);
        let mut queued = Vec::new();
        let error = loop {
            match connect_unix(&path, short) {
                Ok(socket) => queued.push(socket),
                Err(error) => break error,
            }
            if queued.len() > 8192 {
                return; // net.core.somaxconn is huge here
            }
        };
        assert_eq!(error.errno(), libc::EAGAIN);
    }

    #[test]
    fn nobody_there_and_paths_too_long_are_errors() {
        let dir = tempfile::tempdir().unwrap();
        let none = connect_unix(&dir.path().join("none"), Duration::from_secs(1)).unwrap_err();
        assert_eq!(none.errno(), libc::ENOENT);
        let long = connect_unix(&dir.path().join("x".repeat(120)), Duration::from_secs(1));
        assert_eq!(long.unwrap_err().errno(), libc::ENAMETOOLONG);
    }
}
