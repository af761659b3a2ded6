//! The recorder of the observation log: all that goes into the engine and all that comes out.
//!
//! A thread of its own writes, so that no decision waits for a disk. The bytes that wait for it are bounded. A log
//! that cannot be written (the disk is full or too slow, the limit is reached) ends with one event, and with a record
//! of the reason as far as the disk takes that; the daemon continues without it.

use std::fs::File;
use std::io::{self, Seek as _, SeekFrom, Write};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use terrace_core::Log;
use terrace_proto::Tick;
use terrace_proto::log::{Record, Start, end_frame, frame, header};
use terrace_sys::new_log_file;

/// Most bytes that may wait to be written; a single record that is larger may, too.
const MAX_WAITING: u64 = 64 << 20;
/// Bytes from which on no further record joins a write.
const AT_ONCE: usize = 256 << 10;
/// Time that the daemon waits at its end for the rest to be written.
const PATIENCE: Duration = Duration::from_secs(5);

/// The target of a log.
trait LogSink: Write + Send + 'static {
    /// Takes half a record away again; `whole` is the size of all whole records, bytes.
    fn cut(&mut self, whole: u64);
    /// Whether further records are lost, because the file was removed.
    fn is_gone(&self) -> bool {
        false
    }
}

impl LogSink for File {
    fn cut(&mut self, whole: u64) {
        // A rest that cannot be cut stays: readers stop at it, and report it.
        let _ = self.set_len(whole);
        let _ = self.seek(SeekFrom::Start(whole));
    }

    fn is_gone(&self) -> bool {
        self.metadata().is_ok_and(|meta| meta.nlink() == 0)
    }
}

/// The recorder of a log.
#[derive(Debug)]
pub struct Recorder {
    state: State,
    /// Bytes so far, and the most of them (`limit`).
    written: u64,
    limit: u64,
    most_waiting: u64,
}

#[derive(Debug)]
enum State {
    Off,
    On(Writer),
    Ended(String),
}

/// The recorder's end of the thread that writes.
#[derive(Debug)]
struct Writer {
    to: Sender<Item>,
    shared: Arc<Shared>,
    /// A channel that closes when all is written.
    over: Receiver<()>,
}

/// Bytes that wait to be written, and the error that ended the writing.
#[derive(Debug, Default)]
struct Shared {
    waiting: AtomicU64,
    failed: OnceLock<String>,
}

/// An item for the thread that writes.
#[derive(Debug)]
enum Item {
    Record(Vec<u8>),
    /// The log is given up; the record has the reason.
    GivenUp(Vec<u8>),
}

impl Recorder {
    /// A recorder that records nothing.
    pub fn off() -> Self {
        Self {
            state: State::Off,
            written: 0,
            limit: 0,
            most_waiting: 0,
        }
    }

    /// Starts a log of at most `limit` bytes; `config` is the engine's as JSON. A log that exists already stays
    /// beside it, with `previous` as its ending.
    ///
    /// # Errors
    /// If others can change the folder's files, or a file that is no log of ours is in the way.
    pub fn start(path: &Path, limit: u64, config: String) -> Result<Self> {
        let file = new_log_file(path);
        let file =
            file.map_err(|why| anyhow!("cannot create the log {}: {why}", path.display()))?;
        Self::to(file, limit, MAX_WAITING, config)
            .with_context(|| format!("cannot start the log {}", path.display()))
    }

    fn to(sink: impl LogSink, limit: u64, most_waiting: u64, config: String) -> Result<Self> {
        let start = Start {
            version: env!("CARGO_PKG_VERSION").into(),
            config,
        };
        let mut first = header();
        first.extend(frame(Tick(0), &Record::Start(start))?);
        let (to, items) = channel();
        let (ended, over) = channel();
        let shared = Arc::new(Shared::default());
        let of_thread = Arc::clone(&shared);
        std::thread::Builder::new()
            .name("record".into())
            .spawn(move || {
                write(sink, &items, &of_thread);
                drop(ended);
            })?;
        let mut recorder = Self {
            state: State::On(Writer { to, shared, over }),
            written: 0,
            limit: u64::MAX,
            most_waiting,
        };
        if let Some(why) = recorder.send(first) {
            bail!(why);
        }
        recorder.limit = limit;
        Ok(recorder)
    }

    /// The reason why the log ended early; `None` if it did not.
    pub fn ended(&self) -> Option<&str> {
        match &self.state {
            State::Ended(why) => Some(why),
            State::Off | State::On(_) => None,
        }
    }

    /// Appends a record, and waits for nothing. Returns the reason if this was the end of the log.
    pub fn record(&mut self, now: Tick, record: &Record) -> Option<String> {
        if !self.is_on() {
            return None;
        }
        let why = match frame(now, record) {
            Ok(record) => self.send(record)?,
            Err(error) => format!("a record could not be written: {error}"),
        };
        let why = format!("the log ended: {why}");
        if let State::On(writer) = &self.state
            && let Ok(last) = end_frame(now, &why)
        {
            // The thread may have ended by its own fault already.
            let _ = writer.to.send(Item::GivenUp(last));
        }
        self.state = State::Ended(why.clone());
        Some(why)
    }

    /// Sends a record to the thread that writes; returns the reason if it was not sent.
    fn send(&mut self, record: Vec<u8>) -> Option<String> {
        let State::On(writer) = &self.state else {
            return None;
        };
        if let Some(why) = writer.shared.failed.get() {
            return Some(why.clone());
        }
        let bytes = record.len() as u64;
        if self.written.saturating_add(bytes) > self.limit {
            return Some(format!("it reached its size limit of {} bytes", self.limit));
        }
        let waiting = writer.shared.waiting.load(Ordering::Acquire);
        if waiting > 0 && waiting.saturating_add(bytes) > self.most_waiting {
            return Some(format!(
                "the disk is too slow: {waiting} bytes wait to be written, and {} is the most",
                self.most_waiting
            ));
        }
        writer.shared.waiting.fetch_add(bytes, Ordering::AcqRel);
        self.written += bytes;
        match writer.to.send(Item::Record(record)) {
            Ok(()) => None,
            // The thread stores the reason before it ends.
            Err(_) => Some(match writer.shared.failed.get() {
                Some(why) => why.clone(),
                None => "the thread that writes it is gone".into(),
            }),
        }
    }

    /// Writes the records that still wait, within a few seconds.
    ///
    /// # Errors
    /// If not all could be written.
    pub fn finish(&mut self) -> Result<()> {
        let State::On(writer) = std::mem::replace(&mut self.state, State::Off) else {
            return Ok(());
        };
        let Writer { to, shared, over } = writer;
        drop(to);
        if over.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
            bail!("the disk is too slow: the end of the log is lost");
        }
        match shared.failed.get() {
            Some(why) => bail!("the end of the log is lost: {why}"),
            None => Ok(()),
        }
    }
}

impl Log for Recorder {
    fn is_on(&self) -> bool {
        matches!(self.state, State::On(_))
    }

    fn append(&mut self, at: Tick, record: Record) {
        // The reason stays, for `ended`.
        let _ = self.record(at, &record);
    }
}

/// The body of the thread that writes: whole records go out, many at once if many wait.
fn write(mut sink: impl LogSink, items: &Receiver<Item>, shared: &Shared) {
    let mut whole = 0;
    while let Ok(first) = items.recv() {
        let batch = Batch::of(first, items);
        let (done, put) = batch.put(&mut sink);
        whole += done;
        shared.waiting.fetch_sub(done, Ordering::AcqRel);
        if let Err(error) = put {
            let why = format!("it could not be written: {error}");
            // On a full disk there may be room for these few bytes in the place of half a record.
            let end = end_frame(Tick(0), &format!("the log ended: {why}")).unwrap_or_default();
            sink.cut(whole);
            put_last(&mut sink, whole, &end);
            // Told when the next record comes.
            let _ = shared.failed.set(why);
            return;
        }
        if sink.is_gone() {
            let _ = shared.failed.set("its file was removed".into());
            return;
        }
        if let Some(end) = batch.last {
            return put_last(&mut sink, whole, &end);
        }
    }
}

/// Writes the log's last record, all of it or nothing.
fn put_last(sink: &mut impl LogSink, whole: u64, end: &[u8]) {
    if sink.write_all(end).is_err() {
        sink.cut(whole);
    }
}

/// Records that are written at once.
struct Batch {
    bytes: Vec<u8>,
    /// The position at which each record ends.
    ends: Vec<usize>,
    /// The log's last record, with the reason why the log was given up; `None` if it continues.
    last: Option<Vec<u8>>,
}

impl Batch {
    /// Takes the items that wait, up to a limit.
    fn of(first: Item, items: &Receiver<Item>) -> Self {
        let mut batch = Self {
            bytes: Vec::new(),
            ends: Vec::new(),
            last: None,
        };
        for item in std::iter::once(first).chain(items.try_iter()) {
            match item {
                Item::Record(record) => {
                    batch.bytes.extend(record);
                    batch.ends.push(batch.bytes.len());
                }
                Item::GivenUp(end) => batch.last = Some(end),
            }
            if batch.last.is_some() || batch.bytes.len() >= AT_ONCE {
                break;
            }
        }
        batch
    }

    /// Writes the batch; returns the bytes of whole records that were written, even if not all were.
    fn put(&self, sink: &mut impl LogSink) -> (u64, io::Result<()>) {
        let mut written = 0;
        let put = loop {
            let Some(rest) = self.bytes.get(written..).filter(|rest| !rest.is_empty()) else {
                break sink.flush();
            };
            match sink.write(rest) {
                Ok(0) => break Err(io::ErrorKind::WriteZero.into()),
                Ok(bytes) => written += bytes,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => break Err(error),
            }
        };
        let whole = self.ends.iter().rev().find(|end| **end <= written);
        (whole.map_or(0, |end| *end as u64), put)
    }
}

#[cfg(test)]
mod tests;
