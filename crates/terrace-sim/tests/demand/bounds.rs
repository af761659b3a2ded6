//! The promise of each way to a curve, as a check of accesses by page number. The same for cuts, loads and whole traces.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use terrace_core::demand::{
    Ages, Curve, CurveSource, DEFAULT_SAMPLED_PAGES, Difference, Distances, HotSet, Observed,
    Sampled, Stack, Tracked,
};
use terrace_sim::trace::{OnBroken, Reader};

/// Fewer sizes than this show nothing.
const LEAST_SIZES: u32 = 20;
/// Points of a hundred, in parts of a billion.
const POINT: u64 = 10_000_000;
/// Bounds of sampled curves of programs, and of loads with hot pages: in the mean, at most.
pub const OF_PROGRAMS: [u64; 2] = [POINT, 2 * POINT];
/// Bounds of sampled curves of loads without hot pages: a sample's threshold is known to a part of the root of its size,
/// 1.1 %, and so are number and length of the distances. Three times that at most; where all misses end at one size, the
/// mean over sizes has the shift of that size, too.
pub const OF_LOADS: [u64; 2] = [6 * POINT, 33 * POINT / 10];

/// Accesses in pages numbered from 0.
pub struct Accesses {
    pub name: String,
    pub pages: Vec<u32>,
    pub footprint: u32,
    pub page_bytes: u64,
}

impl Accesses {
    pub fn new(name: &str, pages: Vec<u32>, page_bytes: u64) -> Self {
        let footprint = pages.iter().collect::<HashSet<_>>().len();
        let footprint = u32::try_from(footprint).expect("few pages");
        let name = name.to_owned();
        Self {
            name,
            pages,
            footprint,
            page_bytes,
        }
    }

    /// The first page of each record of a trace.
    pub fn read(file: &Path, name: &str, page_bytes: u64) -> Self {
        let mut reader = Reader::open(file, None, OnBroken::Stop).expect("a trace");
        let mut numbers = HashMap::new();
        let mut pages = Vec::new();
        while let Some(record) = reader.next_record().expect("a record") {
            let next = u32::try_from(numbers.len()).expect("few pages");
            pages.push(*numbers.entry(record.addr / page_bytes).or_insert(next));
        }
        Self::new(name, pages, page_bytes)
    }

    pub fn exact(&self) -> Curve {
        let (mut stack, mut distances) = (Stack::new(), Distances::new());
        for page in &self.pages {
            distances.add(stack.access(*page));
        }
        let observed = Observed {
            source: CurveSource::Exact,
            page_bytes: self.page_bytes,
            accesses: self.pages.len() as u64,
            span_ns: 0,
            resolution_pages: 0,
            guess_below_pages: 0,
        };
        Curve::new(observed, &distances)
    }
}

/// A difference in points of a hundred.
pub fn points(ppb: u64) -> f64 {
    ppb as f64 / POINT as f64
}

/// Restored: within 2 points at all sizes from twice the hot set. At the hot set itself it is printed, not bounded. The
/// worst difference.
pub fn restored(accesses: &Accesses, hot_set: u32) -> u64 {
    let name = &accesses.name;
    let mut tracked = Tracked::new(HotSet::new(hot_set, None));
    accesses.pages.iter().for_each(|page| tracked.access(*page));
    let (exact, curve) = (accesses.exact(), tracked.curve(accesses.page_bytes, 0));
    assert_eq!(curve.source, CurveSource::Restored, "{name}");
    assert_eq!(curve.guess_below_pages, 2 * hot_set, "{name}");
    let from = 2 * hot_set;
    let off = Difference::between(&exact, &curve, from..=accesses.footprint, 0);
    let at = Difference::between(&exact, &curve, hot_set..=hot_set, 0);
    println!(
        "{name}: hot set {hot_set}, {} of {} accesses tracked; off by {:.2} points at most (at {}) and {:.3} in the \
         mean at {} sizes; {:.2} at the hot set",
        tracked.tracked(),
        accesses.pages.len(),
        points(off.worst_ppb),
        off.worst_pages,
        points(off.mean_ppb),
        off.sizes,
        points(at.worst_ppb)
    );
    assert!(
        off.sizes >= LEAST_SIZES,
        "{name}: {} sizes compared",
        off.sizes
    );
    assert!(off.worst_ppb <= 2 * POINT, "{name}: {off:?}");
    off.worst_ppb
}

/// Sampled: from 5 % of the touched pages on within so many parts of a billion in the mean, and at most so many with 5 %
/// of the size to either side; for ten choices of pages. The worst mean.
pub fn sampled(accesses: &Accesses, [most_mean, most]: [u64; 2]) -> u64 {
    let name = &accesses.name;
    let exact = accesses.exact();
    let sizes = (accesses.footprint / 20).max(1)..=accesses.footprint;
    let (mut mean, mut worst) = (0, 0);
    for seed in 0..10 {
        let mut sampled = Sampled::new(DEFAULT_SAMPLED_PAGES, seed);
        accesses.pages.iter().for_each(|page| sampled.access(*page));
        let curve = sampled.curve(accesses.page_bytes, 0);
        let off = Difference::between(&exact, &curve, sizes.clone(), 0);
        let moved = Difference::between(&exact, &curve, sizes.clone(), 5);
        assert!(
            off.sizes >= LEAST_SIZES,
            "{name}: {} sizes compared",
            off.sizes
        );
        if accesses.footprint <= DEFAULT_SAMPLED_PAGES {
            assert!(sampled.is_whole() && off.worst_ppb == 0, "{name}: {off:?}");
        }
        mean = mean.max(off.mean_ppb);
        worst = worst.max(moved.worst_ppb);
    }
    println!(
        "{name}: sampled, {} pages: off by {:.3} points in the mean and {:.3} at most beyond ±5 % of the size",
        accesses.footprint,
        points(mean),
        points(worst)
    );
    assert!(
        mean <= most_mean,
        "{name}: {} points in the mean",
        points(mean)
    );
    assert!(worst <= most, "{name}: {} points", points(worst));
    mean
}

/// Ages, from a scan after so many accesses each: between the exact curve moved by a window's footprint to either side.
/// The window's footprint.
pub fn ages(accesses: &Accesses, window: usize) -> u32 {
    let name = &accesses.name;
    let mut ages = Ages::new();
    for window in accesses.pages.chunks(window) {
        let mut found: Vec<u32> = window.to_vec();
        found.sort_unstable();
        found.dedup();
        ages.scan(&found);
    }
    let curve = ages.curve(accesses.page_bytes, accesses.pages.len() as u64, 0);
    let exact = accesses.exact();
    let footprint = curve.resolution_pages;
    assert_eq!(ages.pages(), u64::from(accesses.footprint), "{name}");
    assert_eq!(curve.guess_below_pages, footprint, "{name}");
    let sizes = footprint..=accesses.footprint;
    assert!(
        sizes.clone().count() >= LEAST_SIZES as usize,
        "{name}: {sizes:?}"
    );
    for pages in sizes {
        let misses = curve.misses(pages);
        let (most, least) = (
            exact.misses(pages - footprint),
            exact.misses(pages + footprint),
        );
        assert!(
            least <= misses && misses <= most,
            "{name}: {least} {misses} {most} at {pages}"
        );
    }
    let off = Difference::between(&exact, &curve, footprint..=accesses.footprint, 0);
    println!(
        "{name}: ages, a window's footprint {footprint} of {} pages; off by {:.2} points in the mean",
        accesses.footprint,
        points(off.mean_ppb)
    );
    footprint
}
