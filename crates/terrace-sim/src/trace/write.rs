//! The formats in which traces are written.
//!
//! Responsible for: text of lackey, plain or as zstd (frames of some 4 MiB of text each, so that memory is bounded),
//! and oracleGeneral with pages as objects. It leaves to others: the choice of the records that are written.

use std::collections::HashMap;
use std::io::{self, Write};

use ruzstd::encoding::{CompressionLevel, compress_to_vec};

use super::load::MAX_ACCESSES;
use super::{Op, Record};

/// Bytes of text written, or compressed into one frame, at a time.
const CHUNK: usize = 4 << 20;
/// Longest record of lackey text that is written, bytes; longer ones are split.
const MAX_BYTES: u64 = 64 << 10;

/// The format to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// Text of lackey.
    Lackey,
    /// Text of lackey, compressed as zstd.
    LackeyZst,
    /// oracleGeneral: each 4 KiB page is an object of 4096 bytes with its number as id; no writes.
    OracleGeneral,
}

impl Target {
    /// All formats.
    pub const ALL: [Self; 3] = [Self::Lackey, Self::LackeyZst, Self::OracleGeneral];

    /// The name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Lackey => "lackey",
            Self::LackeyZst => "lackey-zst",
            Self::OracleGeneral => "oraclegeneral",
        }
    }
}

impl std::str::FromStr for Target {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|target| target.name() == name)
            .ok_or_else(|| {
                let names = Self::ALL.map(Self::name).join(", ");
                format!("no such format to write; these are {names}")
            })
    }
}

/// A writer of a trace.
#[derive(Debug)]
pub struct Writer<W> {
    out: W,
    target: Target,
    text: Vec<u8>,
    /// Time (s) and page of each request: the number of the next request is known only at the end.
    requests: Vec<(u32, u64)>,
    written: u64,
}

impl<W: Write> Writer<W> {
    /// Starts a trace.
    pub fn new(out: W, target: Target) -> Self {
        Self {
            out,
            target,
            text: Vec::new(),
            requests: Vec::new(),
            written: 0,
        }
    }

    /// Appends a record.
    ///
    /// # Errors
    /// If writing fails, or the record cannot be expressed in the format.
    pub fn write(&mut self, record: &Record) -> io::Result<()> {
        if self.target == Target::OracleGeneral {
            return self.request(record);
        }
        let letter = match record.op {
            Op::Load => 'L',
            Op::Store => 'S',
            Op::Modify => 'M',
        };
        let mut addr = record.addr;
        let mut left = u64::from(record.bytes);
        while left > 0 {
            let bytes = left.min(MAX_BYTES);
            writeln!(self.text, " {letter} {addr:x},{bytes}")?;
            self.written += 1;
            left -= bytes;
            addr = addr.wrapping_add(bytes);
        }
        if self.text.len() >= CHUNK {
            self.flush_text()?;
        }
        Ok(())
    }

    fn request(&mut self, record: &Record) -> io::Result<()> {
        let seconds = u32::try_from(record.time_ns.unwrap_or(0) / 1_000_000_000);
        let seconds = seconds.map_err(|_| {
            io::Error::other("oracleGeneral holds times below 2^32 s; this is later")
        })?;
        for page in record.addr >> 12..=record.last() >> 12 {
            if self.requests.len() as u64 == MAX_ACCESSES {
                return Err(io::Error::other(format!(
                    "more than the limit of {MAX_ACCESSES} requests; use --first or --every"
                )));
            }
            self.requests.push((seconds, page));
        }
        Ok(())
    }

    fn flush_text(&mut self) -> io::Result<()> {
        match self.target {
            Target::LackeyZst => {
                let frame = compress_to_vec(self.text.as_slice(), CompressionLevel::Fastest);
                self.out.write_all(&frame)?;
            }
            _ => self.out.write_all(&self.text)?,
        }
        self.text.clear();
        Ok(())
    }

    /// Ends the trace; returns the output, flushed, and the number of records in it.
    ///
    /// # Errors
    /// If writing fails.
    pub fn finish(mut self) -> io::Result<(W, u64)> {
        if !self.text.is_empty() {
            self.flush_text()?;
        }
        let nexts = next_requests(&self.requests);
        for ((seconds, page), next) in self.requests.iter().zip(&nexts) {
            self.out.write_all(&seconds.to_le_bytes())?;
            self.out.write_all(&page.to_le_bytes())?;
            self.out.write_all(&4096_u32.to_le_bytes())?;
            self.out.write_all(&next.to_le_bytes())?;
        }
        self.written += self.requests.len() as u64;
        self.out.flush()?;
        Ok((self.out, self.written))
    }
}

/// For each request, the number (from 1) of the next one for the same page; -1: there is none.
fn next_requests(requests: &[(u32, u64)]) -> Vec<i64> {
    let mut next_of: HashMap<u64, i64> = HashMap::new();
    let mut nexts = vec![-1; requests.len()];
    let mut number = requests.len() as u64;
    for ((_, page), next) in requests.iter().zip(&mut nexts).rev() {
        let here = i64::try_from(number).unwrap_or(i64::MAX);
        *next = next_of.insert(*page, here).unwrap_or(-1);
        number -= 1;
    }
    nexts
}
