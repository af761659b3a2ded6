//! Why a trace cannot be used.

use std::path::PathBuf;

use terrace_proto::log::LogError;

use super::Format;

/// A trace that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file could not be read; broken zstd data are said here too.
    #[error("{}: {why}", file.display())]
    Io {
        /// The file.
        file: PathBuf,
        /// What happened (no source: the message has it already).
        why: std::io::Error,
    },
    /// There is nothing in it.
    #[error("{}: the file is empty", file.display())]
    Empty {
        /// The file.
        file: PathBuf,
    },
    /// No format is recognised.
    #[error(
        "{}: not a trace that is known here: it starts with {start}; known are {}, each also under zstd \
         (--format, or the key format, says which where that is in doubt)",
        file.display(), Format::ALL.map(Format::name).join(", ")
    )]
    Unknown {
        /// The file.
        file: PathBuf,
        /// Its first bytes.
        start: String,
    },
    /// A line that is no record.
    #[error("{}:{line}: {text}: expected {expected}", file.display())]
    Line {
        /// The file.
        file: PathBuf,
        /// The line, from 1.
        line: u64,
        /// What stands there, shortened.
        text: String,
        /// What should.
        expected: String,
    },
    /// A binary record that cannot be used.
    #[error("{}: record {record} at byte {offset}: {what}", file.display())]
    Record {
        /// The file.
        file: PathBuf,
        /// Its number, from 1.
        record: u64,
        /// Where it starts in the (decompressed) file.
        offset: u64,
        /// What is wrong, and what was expected.
        what: String,
    },
    /// A log of Terrace that cannot be read.
    #[error("{}: {why}", file.display())]
    Log {
        /// The file.
        file: PathBuf,
        /// What is wrong.
        why: LogError,
    },
    /// A record of a log that cannot be used.
    #[error("{}: record {record}: {what}", file.display())]
    LogRecord {
        /// The file.
        file: PathBuf,
        /// Its number among the records that are known, from 1.
        record: u64,
        /// What is wrong.
        what: &'static str,
    },
    /// No record is in it.
    #[error(
        "{}: no memory access is in it ({format} text or records were expected; lines without an access: \
         {ignored}, broken ones that were skipped: {skipped})", file.display()
    )]
    NoAccess {
        /// The file.
        file: PathBuf,
        /// The format that it was read as.
        format: &'static str,
        /// Lines or records that tell of no access.
        ignored: u64,
        /// Broken ones that were skipped.
        skipped: u64,
    },
    /// It needs more memory than is given to traces.
    #[error("{}: {what}: more than the limit of {limit}; use a part of it (`terrace trace convert --first N` or `--every N`)", file.display())]
    TooLarge {
        /// The file.
        file: PathBuf,
        /// What there is too much of.
        what: &'static str,
        /// The most there may be.
        limit: u64,
    },
    /// A parameter with no meaning.
    #[error("trace: {key} = {value}: {expected}")]
    Parameter {
        /// Its key.
        key: &'static str,
        /// Its value.
        value: String,
        /// What it may be.
        expected: String,
    },
}

impl TraceError {
    /// Whether it is about one record, after which reading can go on.
    pub(super) fn is_broken_record(&self) -> bool {
        match self {
            Self::Line { .. } | Self::Record { .. } | Self::LogRecord { .. } => true,
            Self::Log { why, .. } => matches!(why, LogError::Body { .. }),
            _ => false,
        }
    }
}

/// Bytes as they are shown in an error: at most 40, in quotes, what does not print escaped.
pub(super) fn shortened(bytes: &[u8]) -> String {
    const MOST: usize = 40;
    let cut = &bytes[..bytes.len().min(MOST)];
    let more = if bytes.len() > MOST { "…" } else { "" };
    format!("\"{}{more}\"", cut.escape_ascii())
}
