//! The observation log, version 1.
//!
//! A file is a header (`MAGIC`, then the version as little-endian `u16`) and records: kind `u16`,
//! body length `u32`, tick `u64` (ns), body. Bodies are postcard. Kinds: 1 the start record, 2 the end of a log that
//! was given up, with the reason, 0x100 + n an event, 0x200 + n an action, with n the variant's position. A log of the
//! controller of a guest's ranges has kinds of its own: 3 its start record, 0x300 + n its events, 0x400 + n its
//! actions; to a reader that does not know them it is a log without a start record. Readers skip kinds that they do not
//! know by their length, so later versions may add kinds without breaking earlier readers. A record that is cut off at
//! the end (the daemon was killed) ends the log without an error, but is reported.

use std::io::{self, Read, Write};

use serde::{Deserialize, Serialize};

use crate::printable::{MAX_TEXT_CHARS, excerpt};
use crate::ranges::{RangesAction, RangesEvent};
use crate::{Action, Event, Tick};

/// First bytes of a log.
pub const MAGIC: [u8; 8] = *b"TERRALOG";
/// The version that this code writes.
pub const VERSION: u16 = 1;
/// Longest body that a reader accepts.
pub const MAX_BODY: u32 = 512 << 20;

const START: u16 = 1;
const END: u16 = 2;
const EVENT: u16 = 0x100;
const ACTION: u16 = 0x200;
const RANGES_START: u16 = 3;
const RANGES_EVENT: u16 = 0x300;
const RANGES_ACTION: u16 = 0x400;

/// The origin of a log: program and configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Start {
    /// Program version.
    pub version: String,
    /// The engine's, or the controller's, whole configuration as JSON.
    pub config: String,
}

/// One record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// The first record.
    Start(Start),
    /// An event of the engine.
    Event(Event),
    /// An action of the engine.
    Action(Action),
    /// A record of a guest's controller of ranges.
    Ranges(RangesRecord),
}

/// One record of a log of a guest's ranges.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RangesRecord {
    /// The first record.
    Start(Start),
    /// An event of the controller.
    Event(RangesEvent),
    /// An action of the controller.
    Action(RangesAction),
}

impl RangesRecord {
    fn encode(&self) -> Result<(u16, Vec<u8>), postcard::Error> {
        match self {
            Self::Start(start) => body(RANGES_START, start),
            Self::Event(event) => match event {
                RangesEvent::Mapped(e) => body(RANGES_EVENT, e),
                RangesEvent::Gone(e) => body(RANGES_EVENT + 1, e),
                RangesEvent::Restarted(e) => body(RANGES_EVENT + 2, e),
                RangesEvent::Budget(e) => body(RANGES_EVENT + 3, e),
                RangesEvent::Sampled(e) => body(RANGES_EVENT + 4, e),
                RangesEvent::EpochEnded => body(RANGES_EVENT + 5, &()),
                RangesEvent::Free(e) => body(RANGES_EVENT + 6, e),
                RangesEvent::Surveyed(e) => body(RANGES_EVENT + 7, e),
                RangesEvent::Migrated(e) => body(RANGES_EVENT + 8, e),
                RangesEvent::Named(e) => body(RANGES_EVENT + 9, e),
            },
            Self::Action(action) => match action {
                RangesAction::ReadFree => body(RANGES_ACTION, &()),
                RangesAction::Survey(a) => body(RANGES_ACTION + 1, a),
                RangesAction::Migrate(a) => body(RANGES_ACTION + 2, a),
                RangesAction::EpochOver(a) => body(RANGES_ACTION + 3, a),
                RangesAction::Swap(a) => body(RANGES_ACTION + 4, a),
            },
        }
    }

    /// `None` if the kind is unknown.
    fn decode(kind: u16, b: &[u8]) -> Option<Result<Self, postcard::Error>> {
        use postcard::from_bytes as of;
        let event = |result: Result<RangesEvent, _>| result.map(Self::Event);
        let action = |result: Result<RangesAction, _>| result.map(Self::Action);
        Some(match kind {
            RANGES_START => of(b).map(Self::Start),
            RANGES_EVENT => event(of(b).map(RangesEvent::Mapped)),
            0x301 => event(of(b).map(RangesEvent::Gone)),
            0x302 => event(of(b).map(RangesEvent::Restarted)),
            0x303 => event(of(b).map(RangesEvent::Budget)),
            0x304 => event(of(b).map(RangesEvent::Sampled)),
            0x305 => event(of(b).map(|()| RangesEvent::EpochEnded)),
            0x306 => event(of(b).map(RangesEvent::Free)),
            0x307 => event(of(b).map(RangesEvent::Surveyed)),
            0x308 => event(of(b).map(RangesEvent::Migrated)),
            0x309 => event(of(b).map(RangesEvent::Named)),
            RANGES_ACTION => action(of(b).map(|()| RangesAction::ReadFree)),
            0x401 => action(of(b).map(RangesAction::Survey)),
            0x402 => action(of(b).map(RangesAction::Migrate)),
            0x403 => action(of(b).map(RangesAction::EpochOver)),
            0x404 => action(of(b).map(RangesAction::Swap)),
            _ => return None,
        })
    }
}

/// A log that cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The file could not be read or written.
    #[error("log i/o: {0}")]
    Io(#[from] io::Error),
    /// Not a log.
    #[error(
        "not a Terrace log: it does not begin with TERRALOG; was it written by terraced ([log] file) or by \
         terrace-agent run --record?"
    )]
    Magic([u8; 8]),
    /// Made by a later version whose records this one cannot skip.
    #[error("log version {0} is newer than {VERSION}, the newest that this program reads")]
    Version(u16),
    /// A record is too long to be true.
    #[error(
        "record {record} at byte {offset}: a body of {len} bytes is over the limit of {MAX_BODY}"
    )]
    TooLong {
        /// The record's number, from 0.
        record: u64,
        /// The record's offset in the log, bytes.
        offset: u64,
        /// Announced length.
        len: u32,
    },
    /// A record of a known kind does not decode.
    #[error("record {record} at byte {offset} (kind {kind:#x}): {source}")]
    Body {
        /// The record's number, from 0.
        record: u64,
        /// The record's offset in the log, bytes.
        offset: u64,
        /// The record's kind.
        kind: u16,
        /// The error of the decoder.
        source: postcard::Error,
    },
}

fn body<T: Serialize>(n: u16, value: &T) -> Result<(u16, Vec<u8>), postcard::Error> {
    Ok((n, postcard::to_allocvec(value)?))
}

impl Record {
    fn encode(&self) -> Result<(u16, Vec<u8>), postcard::Error> {
        match self {
            Self::Start(start) => body(START, start),
            Self::Event(event) => match event {
                Event::VmArrived(e) => body(EVENT, e),
                Event::VmDeparted(e) => body(EVENT + 1, e),
                Event::Placement(e) => body(EVENT + 2, e),
                Event::Memory(e) => body(EVENT + 3, e),
                Event::Scanned(e) => body(EVENT + 4, e),
                Event::ScanFailed(e) => body(EVENT + 5, e),
                Event::Moved(e) => body(EVENT + 6, e),
                Event::BackingChanged(e) => body(EVENT + 7, e),
                Event::Command(e) => body(EVENT + 8, e),
                Event::Timer => body(EVENT + 9, &()),
                Event::ScanSpent(e) => body(EVENT + 10, e),
                Event::RamChanged(e) => body(EVENT + 11, e),
                Event::ProviderArrived(e) => body(EVENT + 12, e),
                Event::ProviderDeparted(e) => body(EVENT + 13, e),
                Event::ProviderSeen(e) => body(EVENT + 14, e),
                Event::SizesWanted(e) => body(EVENT + 15, e),
                Event::OrderOutcome(e) => body(EVENT + 16, e),
                Event::OrderWithdrawal(e) => body(EVENT + 17, e),
                Event::ProviderChanged(e) => body(EVENT + 18, e),
                Event::Faulted(e) => body(EVENT + 19, e),
                Event::Statistics(e) => body(EVENT + 20, e),
                Event::MemoryRights(e) => body(EVENT + 21, e),
                Event::MemoryNeed(e) => body(EVENT + 22, e),
                Event::MemoryTraffic(e) => body(EVENT + 23, e),
                Event::MemoryTiers(e) => body(EVENT + 24, e),
                Event::SpeedRights(e) => body(EVENT + 25, e),
                Event::MemoryStanding(e) => body(EVENT + 26, e),
                Event::MemoryBalance(e) => body(EVENT + 27, e),
                Event::GuestMemory(e) => body(EVENT + 28, e),
                Event::HostMemory(e) => body(EVENT + 29, e),
                Event::AgentMemory(e) => body(EVENT + 30, e),
                Event::Collapsed(e) => body(EVENT + 31, e),
                Event::GuestWalks(e) => body(EVENT + 32, e),
                Event::GuestMoves(e) => body(EVENT + 33, e),
                Event::GuestNodes(e) => body(EVENT + 34, e),
                Event::ScannedPart(e) => body(EVENT + 35, e),
                Event::Tables(e) => body(EVENT + 36, e),
                Event::Samples(e) => body(EVENT + 37, e),
                Event::Processors(e) => body(EVENT + 38, e),
            },
            Self::Action(action) => match action {
                Action::Scan(a) => body(ACTION, a),
                Action::QueryPlacement(a) => body(ACTION + 1, a),
                Action::Move(a) => body(ACTION + 2, a),
                Action::QueryProvider(a) => body(ACTION + 3, a),
                Action::Resize(a) => body(ACTION + 4, a),
                Action::Withdraw(provider, order) => body(ACTION + 5, &(provider, order)),
                Action::Answer(a) => body(ACTION + 6, a),
                Action::LetGo(a) => body(ACTION + 7, a),
                Action::Protect(a) => body(ACTION + 8, a),
                Action::Unprotect(a) => body(ACTION + 9, a),
                Action::Collapse(a) => body(ACTION + 10, a),
                Action::ScanPart(a) => body(ACTION + 11, a),
                Action::NameTables(a) => body(ACTION + 12, a),
            },
            Self::Ranges(record) => record.encode(),
        }
    }

    /// `None` if the kind is unknown.
    fn decode(kind: u16, b: &[u8]) -> Option<Result<Self, postcard::Error>> {
        fn of<'a, T: Deserialize<'a>>(
            b: &'a [u8],
            wrap: impl FnOnce(T) -> Record,
        ) -> Option<Result<Record, postcard::Error>> {
            Some(postcard::from_bytes(b).map(wrap))
        }
        const EVENT_LAST: u16 = EVENT + 38;
        match kind {
            START => of(b, Self::Start),
            EVENT..=EVENT_LAST => match kind - EVENT {
                0 => of(b, |e| Self::Event(Event::VmArrived(e))),
                1 => of(b, |e| Self::Event(Event::VmDeparted(e))),
                2 => of(b, |e| Self::Event(Event::Placement(e))),
                3 => of(b, |e| Self::Event(Event::Memory(e))),
                4 => of(b, |e| Self::Event(Event::Scanned(e))),
                5 => of(b, |e| Self::Event(Event::ScanFailed(e))),
                6 => of(b, |e| Self::Event(Event::Moved(e))),
                7 => of(b, |e| Self::Event(Event::BackingChanged(e))),
                8 => of(b, |e| Self::Event(Event::Command(e))),
                9 => of(b, |()| Self::Event(Event::Timer)),
                10 => of(b, |e| Self::Event(Event::ScanSpent(e))),
                11 => of(b, |e| Self::Event(Event::RamChanged(e))),
                12 => of(b, |e| Self::Event(Event::ProviderArrived(e))),
                13 => of(b, |e| Self::Event(Event::ProviderDeparted(e))),
                14 => of(b, |e| Self::Event(Event::ProviderSeen(e))),
                15 => of(b, |e| Self::Event(Event::SizesWanted(e))),
                16 => of(b, |e| Self::Event(Event::OrderOutcome(e))),
                17 => of(b, |e| Self::Event(Event::OrderWithdrawal(e))),
                18 => of(b, |e| Self::Event(Event::ProviderChanged(e))),
                19 => of(b, |e| Self::Event(Event::Faulted(e))),
                20 => of(b, |e| Self::Event(Event::Statistics(e))),
                21 => of(b, |e| Self::Event(Event::MemoryRights(e))),
                22 => of(b, |e| Self::Event(Event::MemoryNeed(e))),
                23 => of(b, |e| Self::Event(Event::MemoryTraffic(e))),
                24 => of(b, |e| Self::Event(Event::MemoryTiers(e))),
                25 => of(b, |e| Self::Event(Event::SpeedRights(e))),
                26 => of(b, |e| Self::Event(Event::MemoryStanding(e))),
                27 => of(b, |e| Self::Event(Event::MemoryBalance(e))),
                28 => of(b, |e| Self::Event(Event::GuestMemory(e))),
                29 => of(b, |e| Self::Event(Event::HostMemory(e))),
                30 => of(b, |e| Self::Event(Event::AgentMemory(e))),
                31 => of(b, |e| Self::Event(Event::Collapsed(e))),
                32 => of(b, |e| Self::Event(Event::GuestWalks(e))),
                33 => of(b, |e| Self::Event(Event::GuestMoves(e))),
                34 => of(b, |e| Self::Event(Event::GuestNodes(e))),
                35 => of(b, |e| Self::Event(Event::ScannedPart(e))),
                36 => of(b, |e| Self::Event(Event::Tables(e))),
                37 => of(b, |e| Self::Event(Event::Samples(e))),
                _ => of(b, |e| Self::Event(Event::Processors(e))),
            },
            ACTION => of(b, |a| Self::Action(Action::Scan(a))),
            0x201 => of(b, |a| Self::Action(Action::QueryPlacement(a))),
            0x202 => of(b, |a| Self::Action(Action::Move(a))),
            0x203 => of(b, |a| Self::Action(Action::QueryProvider(a))),
            0x204 => of(b, |a| Self::Action(Action::Resize(a))),
            0x205 => of(b, |(p, o)| Self::Action(Action::Withdraw(p, o))),
            0x206 => of(b, |a| Self::Action(Action::Answer(a))),
            0x207 => of(b, |a| Self::Action(Action::LetGo(a))),
            0x208 => of(b, |a| Self::Action(Action::Protect(a))),
            0x209 => of(b, |a| Self::Action(Action::Unprotect(a))),
            0x20a => of(b, |a| Self::Action(Action::Collapse(a))),
            0x20b => of(b, |a| Self::Action(Action::ScanPart(a))),
            0x20c => of(b, |a| Self::Action(Action::NameTables(a))),
            _ => RangesRecord::decode(kind, b).map(|record| record.map(Self::Ranges)),
        }
    }
}

/// The header of a log.
#[must_use]
pub fn header() -> Vec<u8> {
    [&MAGIC[..], &VERSION.to_le_bytes()].concat()
}

/// A record as it stands in a log.
///
/// # Errors
/// If it is over the body limit.
pub fn frame(now: Tick, record: &Record) -> Result<Vec<u8>, LogError> {
    let encoded = record.encode();
    framed(now, encoded.map_err(|e| io::Error::other(e.to_string()))?)
}

/// The last record of a log that was given up, with the reason.
///
/// # Errors
/// As [`frame`].
pub fn end_frame(now: Tick, why: &str) -> Result<Vec<u8>, LogError> {
    let encoded = body(END, &why);
    framed(now, encoded.map_err(|e| io::Error::other(e.to_string()))?)
}

fn framed(now: Tick, (kind, body): (u16, Vec<u8>)) -> Result<Vec<u8>, LogError> {
    let len = u32::try_from(body.len())
        .ok()
        .filter(|len| *len <= MAX_BODY)
        .ok_or_else(|| io::Error::other("a record is over the body limit"))?;
    let mut framed = Vec::with_capacity(14 + body.len());
    framed.extend(kind.to_le_bytes());
    framed.extend(len.to_le_bytes());
    framed.extend(now.0.to_le_bytes());
    framed.extend(body);
    Ok(framed)
}

/// Writes a log, stopping at a size limit.
#[derive(Debug)]
pub struct LogWriter<W> {
    out: W,
    written: u64,
    limit: u64,
}

impl<W: Write> LogWriter<W> {
    /// Starts a log of at most `limit` bytes.
    ///
    /// # Errors
    /// If the header cannot be written.
    pub fn new(mut out: W, limit: u64) -> Result<Self, LogError> {
        let header = header();
        out.write_all(&header)?;
        Ok(Self {
            out,
            written: header.len() as u64,
            limit,
        })
    }

    /// Appends a record; `false` if it would pass the limit (nothing is written then).
    ///
    /// # Errors
    /// If writing fails.
    pub fn append(&mut self, now: Tick, record: &Record) -> Result<bool, LogError> {
        let framed = frame(now, record)?;
        let written = self.written.saturating_add(framed.len() as u64);
        if written > self.limit {
            return Ok(false);
        }
        self.out.write_all(&framed)?;
        self.written = written;
        Ok(true)
    }

    /// Hands the output back, flushed.
    ///
    /// # Errors
    /// If flushing fails.
    pub fn finish(mut self) -> Result<W, LogError> {
        self.out.flush()?;
        Ok(self.out)
    }
}

/// Reads a log record by record.
#[derive(Debug)]
pub struct LogReader<R> {
    input: R,
    record: u64,
    offset: u64,
    skipped: u64,
    cut_off: bool,
    given_up: Option<String>,
}

impl<R: Read> LogReader<R> {
    /// Reads the header.
    ///
    /// # Errors
    /// If it is not a log, or one of a later version.
    pub fn new(mut input: R) -> Result<Self, LogError> {
        let mut magic = [0; 8];
        input.read_exact(&mut magic)?;
        if magic != MAGIC {
            return Err(LogError::Magic(magic));
        }
        let mut version = [0; 2];
        input.read_exact(&mut version)?;
        match u16::from_le_bytes(version) {
            VERSION => Ok(Self {
                input,
                record: 0,
                offset: 10,
                skipped: 0,
                cut_off: false,
                given_up: None,
            }),
            other => Err(LogError::Version(other)),
        }
    }

    /// Records of unknown kinds that were skipped so far.
    #[must_use]
    pub fn skipped(&self) -> u64 {
        self.skipped
    }

    /// The log ended in the middle of a record.
    #[must_use]
    pub fn cut_off(&self) -> bool {
        self.cut_off
    }

    /// The reason why the log was given up, if its last record has one.
    #[must_use]
    pub fn given_up(&self) -> Option<&str> {
        self.given_up.as_deref()
    }

    /// The next record that is known, or `None` at the end.
    ///
    /// # Errors
    /// If reading fails, a record is too long, or one of a known kind is malformed.
    pub fn next_record(&mut self) -> Result<Option<(Tick, Record)>, LogError> {
        while let Some((kind, tick, body)) = self.next_raw()? {
            let (record, offset) = (self.record, self.offset);
            self.record += 1;
            self.offset += 14 + body.len() as u64;
            if kind == END {
                let why = postcard::from_bytes::<&str>(&body).unwrap_or("its end says no reason");
                self.given_up = Some(excerpt(why, MAX_TEXT_CHARS));
                continue;
            }
            match Record::decode(kind, &body) {
                Some(Ok(value)) => return Ok(Some((tick, value))),
                Some(Err(source)) => {
                    return Err(LogError::Body {
                        record,
                        offset,
                        kind,
                        source,
                    });
                }
                None => self.skipped += 1,
            }
        }
        Ok(None)
    }

    fn next_raw(&mut self) -> Result<Option<(u16, Tick, Vec<u8>)>, LogError> {
        let mut header = Vec::with_capacity(14);
        self.input.by_ref().take(14).read_to_end(&mut header)?;
        let Ok(h) = <[u8; 14]>::try_from(header.as_slice()) else {
            self.cut_off = !header.is_empty();
            return Ok(None);
        };
        let kind = u16::from_le_bytes([h[0], h[1]]);
        let len = u32::from_le_bytes([h[2], h[3], h[4], h[5]]);
        if len > MAX_BODY {
            return Err(LogError::TooLong {
                record: self.record,
                offset: self.offset,
                len,
            });
        }
        let tick = u64::from_le_bytes([h[6], h[7], h[8], h[9], h[10], h[11], h[12], h[13]]);
        let mut body = Vec::new();
        self.input
            .by_ref()
            .take(u64::from(len))
            .read_to_end(&mut body)?;
        if body.len() as u64 != u64::from(len) {
            self.cut_off = true;
            return Ok(None);
        }
        Ok(Some((kind, Tick(tick), body)))
    }
}

#[cfg(test)]
mod tests;
