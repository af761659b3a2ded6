//! Messages between the daemon and the worker that holds one VM's memory.
//!
//! The worker faces the guest: it maps the guest's RAM, walks the guest's tables, and holds nothing
//! else. Frames are a little-endian `u32` length and a postcard body; the descriptors of
//! [`Request::Attach`] travel beside its first byte (`SCM_RIGHTS`), in the order of `files`.

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{Gpa, Pass, Passed, Readings, ScanFailure, TableFrame, Tick};

/// Longest frame either side accepts: bitmaps of a 16 TiB VM with room to spare.
pub const MAX_FRAME: usize = 2 << 30;

/// A run of guest RAM and its location in the file that backs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileRange {
    /// First guest physical address.
    pub gpa: Gpa,
    /// Length, bytes.
    pub len: u64,
    /// Index into the descriptors that came with the message.
    pub file: u32,
    /// Offset in that file, bytes.
    pub offset: u64,
}

/// To the worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// Map this VM's RAM; the first message, sent once.
    Attach {
        /// The location of each run of RAM.
        ranges: Vec<FileRange>,
        /// Number of descriptors that come with this message.
        files: u32,
    },
    /// Look for top-level tables over all allocated memory. This takes seconds, so the scan that follows
    /// comes with readings of its own.
    Search {
        /// The monitor's readings right before.
        readings: Readings,
    },
    /// Scan, starting from the current values of the virtual CPUs' registers, and from the tables that searches found.
    Scan {
        /// The request. Its `discover` is the caller's: it has sent a [`Request::Search`] before.
        pass: Pass,
        /// The monitor's readings right before.
        readings: Readings,
        /// The time when the readings are too old to write by, on `CLOCK_MONOTONIC`: the guest may have started anew
        /// since.
        until: Tick,
        /// The guest runs Linux 6.6 or later, by the operator's word: report writes, by moving D aside.
        writes: bool,
        /// Number of threads that a pass over all may use; the same one in each request.
        threads: u8,
        /// Name the page tables below which accessed leaves are found.
        tables: bool,
    },
}

/// The reason why top-level tables are not searched for in RAM: only those that registers name are walked then, and of
/// processes that sleep nothing is seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Withheld {
    /// The guest's kernel runs without KASLR. Old tables equal new ones, and any process in it can forge one.
    DefaultBase,
    /// The kernel's tables are those of before the VM's last reset: old ones equal new ones.
    SeenBeforeReset,
}

/// From the worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Response {
    /// The RAM is mapped and the worker has locked itself in.
    Attached {
        /// The parts of the sandbox that this kernel lacks, for `doctor`; empty when all is in force.
        sandbox_gaps: Vec<String>,
    },
    /// The worker cannot serve this VM.
    Refused {
        /// The reason, for people.
        reason: String,
    },
    /// The search is over; the tables that it found are stored for the scans that follow.
    Searched {
        /// The reason why tables were not searched for, if they were not.
        withheld: Option<Withheld>,
    },
    /// The search could not be done now.
    SearchFailed {
        /// The reason, for people.
        reason: String,
    },
    /// A pass is done; with the page tables that it names.
    Scanned(Passed, Vec<TableFrame>),
    /// A pass could not be done.
    ScanFailed(ScanFailure),
}

/// A frame that is no message.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// Longer than [`MAX_FRAME`].
    #[error("a frame of {0} bytes is over the limit of {MAX_FRAME}")]
    TooLong(usize),
    /// The body does not decode.
    #[error("the frame's body is malformed: {0}")]
    Malformed(#[from] postcard::Error),
}

/// Encodes a message with its length before it.
///
/// # Errors
/// If the message is longer than [`MAX_FRAME`].
pub fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, FrameError> {
    let mut frame = postcard::to_extend(message, vec![0_u8; 4])?;
    let len = frame.len() - 4;
    let header = u32::try_from(len).ok().filter(|_| len <= MAX_FRAME);
    frame[..4].copy_from_slice(&header.ok_or(FrameError::TooLong(len))?.to_le_bytes());
    Ok(frame)
}

/// Length of the body that follows a header.
///
/// # Errors
/// If it is over [`MAX_FRAME`].
pub fn body_len(header: [u8; 4]) -> Result<usize, FrameError> {
    let len = u32::from_le_bytes(header) as usize;
    if len > MAX_FRAME {
        Err(FrameError::TooLong(len))
    } else {
        Ok(len)
    }
}

/// Decodes a frame's body.
///
/// # Errors
/// If it is no message of this kind.
pub fn decode<T: DeserializeOwned>(body: &[u8]) -> Result<T, FrameError> {
    Ok(postcard::from_bytes(body)?)
}
