//! The errors of a trace that cannot be used.

use std::path::PathBuf;

use terrace_proto::log::LogError;

use super::Format;

/// An error that makes a trace unusable.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file could not be read; broken zstd data are reported here too.
    #[error("{}: {why}", file.display())]
    Io {
        /// The file.
        file: PathBuf,
        /// The I/O error (not marked as source: the message has it already).
        why: std::io::Error,
    },
    /// The file is empty.
    #[error("{}: the file is empty", file.display())]
    Empty {
        /// The file.
        file: PathBuf,
    },
    /// The format is not recognised.
    #[error(
        "{}: not a trace that is known here: it starts with {start}; known are {}, each also under zstd (if \
         in doubt, give --format, or the key format)",
        file.display(), Format::ALL.map(Format::name).join(", ")
    )]
    Unknown {
        /// The file.
        file: PathBuf,
        /// The file's first bytes.
        start: String,
    },
    /// A line that is not a record.
    #[error("{}:{line}: {text}: expected {expected}", file.display())]
    Line {
        /// The file.
        file: PathBuf,
        /// The line, from 1.
        line: u64,
        /// The line's text, shortened.
        text: String,
        /// The expected form.
        expected: String,
    },
    /// A line that is too long, so that what follows cannot be a trace's text; the rest is not read.
    #[error(
        "{}:{line}: {text}: the line has no end within {limit} bytes, so this is no trace in text: give its \
         format with --format (or the key format), or another file", file.display()
    )]
    EndlessLine {
        /// The file.
        file: PathBuf,
        /// The line, from 1.
        line: u64,
        /// The line's first bytes, shortened.
        text: String,
        /// The most bytes of a line.
        limit: usize,
    },
    /// A binary record that cannot be used.
    #[error("{}: record {record} at byte {offset}: {what}", file.display())]
    Record {
        /// The file.
        file: PathBuf,
        /// The record's number, from 1.
        record: u64,
        /// The record's offset in the (decompressed) file.
        offset: u64,
        /// The problem, and what was expected.
        what: String,
    },
    /// A log of Terrace that cannot be read.
    #[error("{}: {why}", file.display())]
    Log {
        /// The file.
        file: PathBuf,
        /// The error.
        why: LogError,
    },
    /// A record of a log that cannot be used.
    #[error("{}: record {record}: {what}", file.display())]
    LogRecord {
        /// The file.
        file: PathBuf,
        /// The record's number among those that are known, from 1.
        record: u64,
        /// The problem.
        what: &'static str,
    },
    /// The trace has no record of an access.
    #[error(
        "{}: no memory access is in it ({format} text or records were expected; lines without an access: \
         {ignored}, broken ones that were skipped: {skipped})", file.display()
    )]
    NoAccess {
        /// The file.
        file: PathBuf,
        /// The format in which the file was read.
        format: &'static str,
        /// Number of lines or records without an access.
        ignored: u64,
        /// Number of broken records that were skipped.
        skipped: u64,
    },
    /// The trace needs more memory than is given to traces.
    #[error("{}: {what}: more than the limit of {limit}; use a part of it (`terrace trace convert --first N` \
    or `--every N`)", file.display())]
    TooLarge {
        /// The file.
        file: PathBuf,
        /// The kind of thing of which there is too much.
        what: &'static str,
        /// The limit.
        limit: u64,
    },
    /// A parameter whose value has no meaning.
    #[error("trace: {key} = {value}: {expected}")]
    Parameter {
        /// The key.
        key: &'static str,
        /// The key's value.
        value: String,
        /// The allowed values.
        expected: String,
    },
}

impl TraceError {
    /// Whether the error is about one record, after which reading can continue.
    pub(super) fn is_broken_record(&self) -> bool {
        match self {
            Self::Line { .. } | Self::Record { .. } | Self::LogRecord { .. } => true,
            Self::Log { why, .. } => matches!(why, LogError::Body { .. }),
            _ => false,
        }
    }
}

/// Bytes as an error shows them: at most 40, in quotes, with unprintable ones escaped.
pub(super) fn shortened(bytes: &[u8]) -> String {
    const MAX: usize = 40;
    let cut = &bytes[..bytes.len().min(MAX)];
    let more = if bytes.len() > MAX { "…" } else { "" };
    format!("\"{}{more}\"", cut.escape_ascii())
}
