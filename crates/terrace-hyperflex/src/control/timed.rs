//! A connection whose other end may hang: each wait and the whole exchange have a limit.

use std::io::{Error, ErrorKind, Read, Result, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// How long the other end may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limits {
    /// For its next byte, or for room for the next one.
    pub wait: Duration,
    /// For all of them: one that sends a byte now and then ends here.
    pub whole: Duration,
}

/// A socket that reads and writes within limits; a late read or write is an error of kind `TimedOut`.
#[derive(Debug)]
pub(super) struct Timed<'a> {
    socket: &'a UnixStream,
    limits: Limits,
    end: Instant,
}

impl<'a> Timed<'a> {
    /// The whole begins now.
    pub(super) fn new(socket: &'a UnixStream, limits: Limits) -> Self {
        let end = Instant::now() + limits.whole;
        Self {
            socket,
            limits,
            end,
        }
    }

    /// The longest wait for the next byte.
    fn next(&self) -> Result<Duration> {
        let left = self.end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(late("not done", self.limits.whole));
        }
        Ok(left.min(self.limits.wait))
    }
}

fn late(what: &str, limit: Duration) -> Error {
    let limit = limit.as_secs_f32();
    Error::new(ErrorKind::TimedOut, format!("{what} within {limit} s"))
}

impl Read for Timed<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> Result<usize> {
        let next = self.next()?;
        self.socket.set_read_timeout(Some(next))?;
        let read = self.socket.read(bytes);
        read.map_err(|error| named(error, "no answer", next))
    }
}

impl Write for Timed<'_> {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        let next = self.next()?;
        self.socket.set_write_timeout(Some(next))?;
        let written = self.socket.write(bytes);
        written.map_err(|error| named(error, "nothing was taken", next))
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }
}

/// Names the limit in an error; the kernel returns `EAGAIN` if a limit of a socket is over.
pub(super) fn named(error: Error, what: &str, limit: Duration) -> Error {
    match error.kind() {
        ErrorKind::WouldBlock => late(what, limit),
        _ => error,
    }
}
