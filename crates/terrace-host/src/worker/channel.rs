//! Frames over the socket between daemon and worker.

use std::io::{self, Read, Write};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;
use terrace_proto::worker::{FrameError, body_len, decode, encode};
use terrace_sys::{SysError, receive_with_fds, send_with_fds};

/// Errors of the channel.
#[derive(Debug, thiserror::Error)]
pub(super) enum ChannelError {
    #[error("the time is over")]
    TimedOut,
    #[error("the other side closed in the middle of a message")]
    Closed,
    #[error(transparent)]
    Io(io::Error),
    #[error(transparent)]
    Sys(#[from] SysError),
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error("a message of {len} bytes; at most {limit} are allowed")]
    TooLong { len: usize, limit: usize },
}

impl From<io::Error> for ChannelError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => Self::TimedOut,
            io::ErrorKind::UnexpectedEof | io::ErrorKind::BrokenPipe => Self::Closed,
            io::ErrorKind::ConnectionReset => Self::Closed,
            _ => Self::Io(error),
        }
    }
}

/// One end. Without a deadline no socket option is touched: the locked worker may not.
#[derive(Debug)]
pub(super) struct Channel {
    socket: Arc<UnixStream>,
}

impl Channel {
    pub(super) fn new(socket: UnixStream) -> Self {
        Self {
            socket: Arc::new(socket),
        }
    }

    /// To close it from another thread, which ends what waits here.
    pub(super) fn socket(&self) -> &Arc<UnixStream> {
        &self.socket
    }

    pub(super) fn send<T: Serialize>(
        &self,
        message: &T,
        fds: &[BorrowedFd<'_>],
        deadline: Option<Instant>,
    ) -> Result<(), ChannelError> {
        let frame = encode(message)?;
        if let Some(deadline) = deadline {
            self.socket.set_write_timeout(Some(left(deadline)?))?;
        }
        let mut sent = if fds.is_empty() {
            0
        } else {
            send_with_fds(&self.socket, &frame, fds)?
        };
        while sent < frame.len() {
            if let Some(deadline) = deadline {
                self.socket.set_write_timeout(Some(left(deadline)?))?;
            }
            match (&*self.socket).write(&frame[sent..]) {
                Ok(0) => return Err(ChannelError::Closed),
                Ok(len) => sent += len,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// `None`: the other side closed instead of sending another message.
    pub(super) fn receive<T: DeserializeOwned>(
        &self,
        limit: usize,
        deadline: Option<Instant>,
    ) -> Result<Option<T>, ChannelError> {
        let mut header = [0; 4];
        let got = self.fill(&mut header, deadline)?;
        if got == 0 {
            return Ok(None);
        }
        self.body(header, got, limit, deadline).map(Some)
    }

    /// The same for a message that brings descriptors beside its first byte.
    pub(super) fn receive_with_fds<T: DeserializeOwned>(
        &self,
        limit: usize,
    ) -> Result<Option<(T, Vec<OwnedFd>)>, ChannelError> {
        let mut header = [0; 4];
        let (got, fds) = receive_with_fds(&self.socket, &mut header)?;
        if got == 0 {
            return Ok(None);
        }
        let got = got + self.fill(&mut header[got..], None)?;
        Ok(Some((self.body(header, got, limit, None)?, fds)))
    }

    fn body<T: DeserializeOwned>(
        &self,
        header: [u8; 4],
        got: usize,
        limit: usize,
        deadline: Option<Instant>,
    ) -> Result<T, ChannelError> {
        if got < header.len() {
            return Err(ChannelError::Closed);
        }
        let len = body_len(header)?;
        if len > limit {
            return Err(ChannelError::TooLong { len, limit });
        }
        let mut body = vec![0; len];
        if self.fill(&mut body, deadline)? < len {
            return Err(ChannelError::Closed);
        }
        Ok(decode(&body)?)
    }

    /// Reads until the buffer is full or the other side closes.
    fn fill(&self, buffer: &mut [u8], deadline: Option<Instant>) -> Result<usize, ChannelError> {
        let mut got = 0;
        while got < buffer.len() {
            if let Some(deadline) = deadline {
                self.socket.set_read_timeout(Some(left(deadline)?))?;
            }
            match (&*self.socket).read(&mut buffer[got..]) {
                Ok(0) => break,
                Ok(len) => got += len,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(got)
    }
}

fn left(deadline: Instant) -> Result<Duration, ChannelError> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        Err(ChannelError::TimedOut)
    } else {
        Ok(left)
    }
}
