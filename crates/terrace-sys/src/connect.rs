//! Connecting to a Unix socket within a time limit.

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::{SysError, opener};

/// Pause between two tries to connect to a listener whose queue is full.
const PAUSE: Duration = Duration::from_millis(5);

/// Connects to a stream socket, by the thread's [`crate::opener`]. A listener that accepts no connection and whose
/// queue is full keeps the standard library's `connect` waiting for ever; this one gives up with `EAGAIN`. Writing has
/// the same time limit.
///
/// # Errors
/// If no process listens, if the path is too long for a socket, or if the time is over (`EAGAIN`).
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
