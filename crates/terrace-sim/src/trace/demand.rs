//! The miss-ratio curves of a trace: exact, through a hot set, and sampled.
//!
//! One access per record, at its first page; no processor cache in front. Pages are numbered as they come, because
//! addresses are sparse.

use std::path::PathBuf;

use terrace_core::demand::{
    Curve, CurveSource, Distances, HotSet, Observed, Sampled, Stack, Tracked,
};

use super::footprint::{MAX_REGIONS, Pages};
use super::{Record, TraceError};

/// The curves that are wanted of a trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// The exact one.
    pub exact: bool,
    /// The one restored behind a hot set of so many pages.
    pub hot_set: Option<u32>,
    /// The one from a sample: most pages, and the seed of their choice.
    pub sampled: Option<(u32, u64)>,
}

/// The demand of a trace, record by record.
#[derive(Debug)]
pub struct TraceDemand {
    file: PathBuf,
    page_bytes: u64,
    /// Number of each page, from 1.
    numbers: Pages<u32>,
    pages: u32,
    accesses: u64,
    times_ns: Option<(u64, u64)>,
    exact: Option<(Stack, Distances)>,
    tracked: Option<Tracked>,
    sampled: Option<Sampled>,
}

impl TraceDemand {
    /// Nothing seen yet. `file` is named in errors; `page_bytes` is 1 or more.
    #[must_use]
    pub fn new(file: PathBuf, page_bytes: u64, wanted: Wanted) -> Self {
        let hot_set = wanted.hot_set.map(|pages| HotSet::new(pages, None));
        Self {
            file,
            page_bytes: page_bytes.max(1),
            numbers: Pages::new(),
            pages: 0,
            accesses: 0,
            times_ns: None,
            exact: wanted.exact.then(|| (Stack::new(), Distances::new())),
            tracked: hot_set.map(Tracked::new),
            sampled: wanted
                .sampled
                .map(|(pages, seed)| Sampled::new(pages, seed)),
        }
    }

    /// Adds a record.
    ///
    /// # Errors
    /// If more memory was touched than is counted.
    pub fn add(&mut self, record: &Record) -> Result<(), TraceError> {
        let page = self.number(record.addr / self.page_bytes)?;
        self.accesses += 1;
        if let Some(now) = record.time_ns {
            let (first, last) = self.times_ns.unwrap_or((now, now));
            self.times_ns = Some((first.min(now), last.max(now)));
        }
        if let Some((stack, distances)) = &mut self.exact {
            distances.add(stack.access(page));
        }
        if let Some(tracked) = &mut self.tracked {
            tracked.access(page);
        }
        if let Some(sampled) = &mut self.sampled {
            sampled.access(page);
        }
        Ok(())
    }

    /// Number of pages touched so far, each a cold miss.
    #[must_use]
    pub fn pages(&self) -> u32 {
        self.pages
    }

    /// Number of accesses so far.
    #[must_use]
    pub fn accesses(&self) -> u64 {
        self.accesses
    }

    /// Number of accesses that the hot set let through; `None` without one.
    #[must_use]
    pub fn tracked(&self) -> Option<u64> {
        self.tracked.as_ref().map(Tracked::tracked)
    }

    /// The curves that were wanted, in the order of [`Wanted`].
    #[must_use]
    pub fn curves(&self) -> Vec<Curve> {
        let span_ns = self.times_ns.map_or(0, |(first, last)| last - first);
        let exact = self.exact.as_ref().map(|(_, distances)| {
            let observed = Observed {
                source: CurveSource::Exact,
                page_bytes: self.page_bytes,
                accesses: self.accesses,
                span_ns,
                resolution_pages: 0,
                guess_below_pages: 0,
            };
            Curve::new(observed, distances)
        });
        let tracked = self.tracked.as_ref();
        let tracked = tracked.map(|tracked| tracked.curve(self.page_bytes, span_ns));
        let sampled = self.sampled.as_ref();
        let sampled = sampled.map(|sampled| sampled.curve(self.page_bytes, span_ns));
        [exact, tracked, sampled].into_iter().flatten().collect()
    }

    /// The number of a page, from 0.
    fn number(&mut self, page: u64) -> Result<u32, TraceError> {
        let number = self.numbers.of(page).map_err(|_| TraceError::TooLarge {
            file: self.file.clone(),
            what: "touched regions of 512 pages",
            limit: MAX_REGIONS,
        })?;
        if *number == 0 {
            self.pages += 1;
            *number = self.pages;
        }
        Ok(*number - 1)
    }
}
