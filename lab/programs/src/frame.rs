//! Frames on the control channel between `terrace-lab` and `lab-host serve`.
//!
//! A frame is one kind byte, the payload's length as a little-endian `u32`, and the payload. The
//! channel is a virtio-serial port, which has no connections of its own: a client that connects sends a
//! [`FrameKind::Hello`] with a fresh number and throws away everything up to the echo.

use std::io::{self, Write};

use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};

/// Longest payload that either side accepts.
pub const MAX_PAYLOAD: usize = 16 << 20;

const HEADER: usize = 5;

/// The meaning of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameKind {
    /// Starts a session; echoed with the same payload.
    Hello,
    /// Run a shell command: a [`Run`] as JSON.
    Run,
    /// Kill the running command and all that it started.
    Kill,
    /// Store a file: a [`Store`] as JSON, followed by `Data` frames.
    Store,
    /// A piece of the file being stored.
    Data,
    /// A piece of the command's standard output.
    Stdout,
    /// A piece of the command's standard error.
    Stderr,
    /// The command's exit code as a little-endian `i32`; also ends a `Store`.
    Exit,
}

const KINDS: [FrameKind; 8] = [
    FrameKind::Hello,
    FrameKind::Run,
    FrameKind::Kill,
    FrameKind::Store,
    FrameKind::Data,
    FrameKind::Stdout,
    FrameKind::Stderr,
    FrameKind::Exit,
];

/// One frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The frame's meaning.
    pub kind: FrameKind,
    /// The frame's content.
    pub payload: Vec<u8>,
}

/// Payload of [`FrameKind::Run`].
#[derive(Debug, Serialize, Deserialize)]
pub struct Run {
    /// The command for `sh -c`.
    pub command: String,
    /// The command's standard input.
    pub input: String,
}

/// Payload of [`FrameKind::Store`].
#[derive(Debug, Serialize, Deserialize)]
pub struct Store {
    /// Absolute path in L1.
    pub path: String,
    /// Permission bits.
    pub mode: u32,
    /// Number of bytes that follow.
    pub size: u64,
}

/// Writes one frame.
///
/// # Errors
/// If the channel fails or the payload is longer than [`MAX_PAYLOAD`].
pub fn write(channel: &mut impl Write, kind: FrameKind, payload: &[u8]) -> io::Result<()> {
    let length = u32::try_from(payload.len())
        .ok()
        .filter(|_| payload.len() <= MAX_PAYLOAD)
        .ok_or_else(|| io::Error::other("frame payload is too long"))?;
    let mut bytes = Vec::with_capacity(HEADER + payload.len());
    bytes.push(number(kind));
    bytes.extend_from_slice(&length.to_le_bytes());
    bytes.extend_from_slice(payload);
    channel.write_all(&bytes)
}

/// The bytes of a [`FrameKind::Hello`] frame, to search for in a stream of unknown alignment.
#[must_use]
pub fn hello(number_of_session: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    let payload = number_of_session.to_le_bytes();
    // A vector takes every byte it is given.
    let _ = write(&mut bytes, FrameKind::Hello, &payload);
    bytes
}

fn number(kind: FrameKind) -> u8 {
    match kind {
        FrameKind::Hello => 0,
        FrameKind::Run => 1,
        FrameKind::Kill => 2,
        FrameKind::Store => 3,
        FrameKind::Data => 4,
        FrameKind::Stdout => 5,
        FrameKind::Stderr => 6,
        FrameKind::Exit => 7,
    }
}

/// Cuts a stream of bytes into frames.
#[derive(Debug, Default)]
pub struct Decoder {
    pending: Vec<u8>,
}

impl Decoder {
    /// Takes bytes that were read from the channel.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.pending.extend_from_slice(bytes);
    }

    /// Forgets half a frame: the peer has gone away.
    pub fn reset(&mut self) {
        self.pending.clear();
    }

    /// Drops everything up to and including `marker`; false if it has not arrived yet.
    pub fn skip_past(&mut self, marker: &[u8]) -> bool {
        let found = self
            .pending
            .windows(marker.len())
            .position(|window| window == marker);
        if let Some(at) = found {
            self.pending.drain(..at + marker.len());
        }
        found.is_some()
    }

    /// The next complete frame, if there is one.
    ///
    /// # Errors
    /// If the bytes are no frame: the channel is out of step.
    pub fn next_frame(&mut self) -> Result<Option<Frame>> {
        let Some((header, rest)) = self.pending.split_first_chunk::<HEADER>() else {
            return Ok(None);
        };
        let [code, length @ ..] = *header;
        let Some(kind) = KINDS.get(usize::from(code)).copied() else {
            bail!("byte {code} starts no frame; the control channel is out of step");
        };
        let length = usize::try_from(u32::from_le_bytes(length))?;
        if length > MAX_PAYLOAD {
            bail!("a frame of {length} bytes; the control channel is out of step");
        }
        if rest.len() < length {
            return Ok(None);
        }
        let payload = rest[..length].to_vec();
        self.pending.drain(..HEADER + length);
        Ok(Some(Frame { kind, payload }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_survive_any_cut_of_the_stream() {
        let mut stream = Vec::new();
        for (index, kind) in KINDS.into_iter().enumerate() {
            assert_eq!(usize::from(number(kind)), index);
            write(&mut stream, kind, &vec![7; index * 3]).unwrap();
        }
        for step in 1..stream.len() {
            let mut decoder = Decoder::default();
            let mut kinds = Vec::new();
            for piece in stream.chunks(step) {
                decoder.feed(piece);
                while let Some(frame) = decoder.next_frame().unwrap() {
                    assert_eq!(frame.payload.len(), kinds.len() * 3);
                    kinds.push(frame.kind);
                }
            }
            assert_eq!(kinds, KINDS);
        }
    }

    #[test]
    fn hello_is_found_behind_the_rest_of_an_old_session() {
        let mut decoder = Decoder::default();
        decoder.feed(b"half a frame of somebody else");
        assert!(!decoder.skip_past(&hello(42)));
        decoder.feed(&hello(42));
        write(&mut Vec::new(), FrameKind::Exit, &[]).unwrap();
        assert!(decoder.skip_past(&hello(42)));
        assert_eq!(decoder.next_frame().unwrap(), None);
    }

    #[test]
    fn garbage_is_an_error_and_not_a_wait() {
        let mut decoder = Decoder::default();
        decoder.feed(&[200, 0, 0, 0, 0]);
        assert!(decoder.next_frame().is_err());
    }
}
