//! A client's connection as the HTTP library sees it. Writing ends if the client does not read, and the library's
//! answer before a request was understood is held back, to be given in the API's own shape.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::http::StatusCode;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tokio::time::{Sleep, sleep};

/// A connection and its state.
#[derive(Debug)]
pub struct Line {
    stream: UnixStream,
    /// Whether a request's head was understood.
    asked: AtomicBool,
    /// The status by which the library refused an input that it did not understand; 0 if there was none.
    refused: AtomicU16,
}

impl Line {
    /// A connection over which nothing was sent yet.
    pub fn new(stream: UnixStream) -> Arc<Self> {
        Arc::new(Self {
            stream,
            asked: AtomicBool::new(false),
            refused: AtomicU16::new(0),
        })
    }

    /// Notes that a request's head was understood: from now on the library's output goes to the client.
    pub fn ask(&self) {
        self.asked.store(true, Ordering::Relaxed);
    }

    /// Whether a request's head was understood.
    pub fn was_asked(&self) -> bool {
        self.asked.load(Ordering::Relaxed)
    }

    /// The status by which the library refused an input that was no request; `None` if there was none.
    pub fn refused(&self) -> Option<StatusCode> {
        StatusCode::from_u16(self.refused.load(Ordering::Relaxed)).ok()
    }

    /// Writes a last message, as far as that is possible without waiting: the client may be gone, or not read.
    pub fn say(&self, text: &[u8]) {
        let _ = self.stream.try_write(text);
    }

    /// Waits until the client hangs up; its further bytes are dropped, at most `most` of them.
    pub async fn hung_up(&self, most: usize) {
        let mut dropped = [0; 4096];
        let mut read = 0;
        while read < most && self.stream.readable().await.is_ok() {
            match self.stream.try_read(&mut dropped) {
                Ok(0) => return,
                Ok(bytes) => read += bytes,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => return,
            }
        }
    }

    /// Keeps the status of the library's answer (the code in `HTTP/1.1 400 Bad Request`) instead of sending it.
    fn keep_back(&self, text: &[u8]) {
        let code = text
            .get(9..12)
            .and_then(|code| std::str::from_utf8(code).ok());
        if let Some(code) = code.and_then(|code| code.parse().ok()) {
            // Only the first line has one.
            let _ = self
                .refused
                .compare_exchange(0, code, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}

/// The reading and writing end of a [`Line`]; the connection of a client that reads nothing for `patience` is broken.
#[derive(Debug)]
pub struct Patient {
    line: Arc<Line>,
    patience: Duration,
    /// The timer of `patience`, which runs while the client reads nothing.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl Patient {
    /// The end over this connection.
    pub fn new(line: Arc<Line>, patience: Duration) -> Self {
        Self {
            line,
            patience,
            stalled: None,
        }
    }

    fn write(
        &mut self,
        cx: &mut Context<'_>,
        write: impl Fn(&UnixStream) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        while let Poll::Ready(ready) = self.line.stream.poll_write_ready(cx) {
            ready?;
            match write(&self.line.stream) {
                // Another attempt shows when there is room.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                done => {
                    self.stalled = None;
                    return Poll::Ready(done);
                }
            }
        }
        let patience = self.patience;
        let stalled = self
            .stalled
            .get_or_insert_with(|| Box::pin(sleep(patience)));
        ready!(stalled.as_mut().poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for Patient {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            ready!(self.line.stream.poll_read_ready(cx))?;
            match self.line.stream.try_read(buffer.initialize_unfilled()) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
                Ok(bytes) => {
                    buffer.advance(bytes);
                    return Poll::Ready(Ok(()));
                }
            }
        }
    }
}

impl AsyncWrite for Patient {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if !self.line.was_asked() {
            self.line.keep_back(bytes);
            return Poll::Ready(Ok(bytes.len()));
        }
        self.write(cx, |stream| stream.try_write(bytes))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if !self.line.was_asked() {
            parts.iter().for_each(|part| self.line.keep_back(part));
            return Poll::Ready(Ok(parts.iter().map(|part| part.len()).sum()));
        }
        self.write(cx, |stream| stream.try_write_vectored(parts))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // The connection ends when its last holder drops it.
        Poll::Ready(Ok(()))
    }
}
