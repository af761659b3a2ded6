//! Statistics of a trace: counts, footprint, popularity of pages.

use std::path::PathBuf;

use serde::Serialize;

use super::footprint::{MAX_REGIONS, Pages};
use super::{Format, Op, Reader, Record, TraceError};

/// Number of the hottest pages that are left out in [`Summary::without_16`]: stack and allocator state, which no
/// cache has filtered.
const LEFT_OUT: usize = 16;

/// A counter of a trace's records.
#[derive(Debug)]
pub struct Tally {
    file: PathBuf,
    loads: u64,
    stores: u64,
    modifies: u64,
    crossing: u64,
    first_ns: Option<u64>,
    last_ns: Option<u64>,
    pages: Pages<Page>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Page {
    records: u64,
    written: bool,
}

/// The share that some of the pages have of all records.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Share {
    /// Percentage of the touched pages, the hottest first.
    pub percent: u64,
    /// Number of these pages.
    pub pages: u64,
    /// Records on these pages / records on all pages.
    pub share: f64,
}

/// Statistics of a trace. A record counts on its first page, as it does for `terrace mrc`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// The file.
    pub file: String,
    /// The format in which the file was read.
    pub format: Format,
    /// Number of records.
    pub records: u64,
    /// Number of records that read.
    pub loads: u64,
    /// Number of records that write.
    pub stores: u64,
    /// Number of records that read and then write.
    pub modifies: u64,
    /// Number of records that reach beyond their first page; they count on that one alone.
    pub crossing: u64,
    /// Number of lines or records without an access.
    pub ignored: u64,
    /// Number of broken records that were left out.
    pub skipped: u64,
    /// Time from the first record to the last, s, if the trace has times.
    pub duration_s: Option<f64>,
    /// Number of 4 KiB pages with a record.
    pub touched_pages: u64,
    /// Bytes of 4 KiB pages with a record.
    pub touched_bytes: u64,
    /// Number of aligned 2 MiB regions with a record.
    pub touched_regions: u64,
    /// Number of pages with a record that writes.
    pub written_pages: u64,
    /// Number of pages with exactly one record.
    pub single_pages: u64,
    /// Share of the single hottest page.
    pub hottest_page: f64,
    /// Shares of the hottest 1, 2, 5, 10, 20, 50 and 100 % of the pages.
    pub hottest: Vec<Share>,
    /// Share of the records that are not on the 16 hottest pages.
    pub without_16_share: f64,
    /// Shares of the hottest pages among the others, of the records on the others.
    pub without_16: Vec<Share>,
    /// Distinct pages in each tenth of the records; empty if they were not counted.
    pub tenths: Vec<u64>,
}

impl Tally {
    /// A tally with nothing counted yet; `file` is named in errors.
    #[must_use]
    pub fn new(file: PathBuf) -> Self {
        Self {
            file,
            loads: 0,
            stores: 0,
            modifies: 0,
            crossing: 0,
            first_ns: None,
            last_ns: None,
            pages: Pages::new(),
        }
    }

    /// Counts a record.
    ///
    /// # Errors
    /// If more memory was touched than is counted.
    pub fn add(&mut self, record: &Record) -> Result<(), TraceError> {
        match record.op {
            Op::Load => self.loads += 1,
            Op::Store => self.stores += 1,
            Op::Modify => self.modifies += 1,
        }
        self.first_ns = self.first_ns.or(record.time_ns);
        self.last_ns = record.time_ns.or(self.last_ns);
        self.crossing += u64::from(record.addr >> 12 != record.last() >> 12);
        let page = self.pages.of(record.addr >> 12);
        let page = page.map_err(|_| too_much_memory(&self.file))?;
        page.records += 1;
        page.written |= record.writes();
        Ok(())
    }

    /// The statistics of a trace that was read to its end; `tenths` from [`Tenths`], or empty.
    #[must_use]
    pub fn summary(&self, reader: &Reader, tenths: Vec<u64>) -> Summary {
        let touched = || self.pages.values().filter(|page| page.records > 0);
        let mut counts: Vec<u64> = touched().map(|page| page.records).collect();
        counts.sort_unstable_by_key(|count| std::cmp::Reverse(*count));
        let all: u64 = counts.iter().sum();
        let rest = counts.get(LEFT_OUT..).unwrap_or(&[]);
        let seconds = |ns: u64| ns as f64 / 1e9;
        let duration = self.last_ns.zip(self.first_ns);
        Summary {
            file: self.file.display().to_string(),
            format: reader.format(),
            records: self.loads + self.stores + self.modifies,
            loads: self.loads,
            stores: self.stores,
            modifies: self.modifies,
            crossing: self.crossing,
            ignored: reader.ignored(),
            skipped: reader.skipped(),
            duration_s: duration.map(|(last, first)| seconds(last.saturating_sub(first))),
            touched_pages: counts.len() as u64,
            touched_bytes: counts.len() as u64 * 4096,
            touched_regions: self.pages.regions(),
            written_pages: touched().filter(|page| page.written).count() as u64,
            single_pages: counts.iter().filter(|count| **count == 1).count() as u64,
            hottest_page: part(counts.first().copied().unwrap_or(0), all),
            hottest: shares(&counts),
            without_16_share: part(rest.iter().sum(), all),
            without_16: shares(rest),
            tenths,
        }
    }
}

/// Shares of the hottest pages; `counts` must be in descending order.
fn shares(counts: &[u64]) -> Vec<Share> {
    let all: u64 = counts.iter().sum();
    let mut shares = Vec::new();
    for percent in [1, 2, 5, 10, 20, 50, 100] {
        let pages = (counts.len() * percent / 100).max(1).min(counts.len());
        shares.push(Share {
            percent: percent as u64,
            pages: pages as u64,
            share: part(counts[..pages].iter().sum(), all),
        });
    }
    shares
}

fn part(part: u64, whole: u64) -> f64 {
    part as f64 / whole.max(1) as f64
}

fn too_much_memory(file: &std::path::Path) -> TraceError {
    TraceError::TooLarge {
        file: file.to_owned(),
        what: "touched 2 MiB regions",
        limit: MAX_REGIONS,
    }
}

/// A counter of the distinct pages of each tenth of a trace whose number of records is known (a second pass).
#[derive(Debug)]
pub struct Tenths {
    file: PathBuf,
    records: u64,
    seen: u64,
    /// The last tenth, from 1, that touched each page.
    pages: Pages<u8>,
    distinct: Vec<u64>,
}

impl Tenths {
    /// A counter for a trace of so many records; `file` is named in errors.
    #[must_use]
    pub fn new(file: PathBuf, records: u64) -> Self {
        Self {
            file,
            records,
            seen: 0,
            pages: Pages::new(),
            distinct: vec![0; 10],
        }
    }

    /// Counts a record; those beyond the known number count to the last tenth.
    ///
    /// # Errors
    /// If more memory was touched than is counted.
    pub fn add(&mut self, record: &Record) -> Result<(), TraceError> {
        let tenth = u128::from(self.seen) * 10 / u128::from(self.records.max(1));
        let tenth = u8::try_from(tenth).unwrap_or(9).min(9);
        self.seen += 1;
        let last = self.pages.of(record.addr >> 12);
        let last = last.map_err(|_| too_much_memory(&self.file))?;
        if *last != tenth + 1 {
            *last = tenth + 1;
            self.distinct[usize::from(tenth)] += 1;
        }
        Ok(())
    }

    /// The numbers of distinct pages.
    #[must_use]
    pub fn finish(self) -> Vec<u64> {
        self.distinct
    }
}
