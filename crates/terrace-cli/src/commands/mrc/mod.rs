//! `terrace mrc`: the miss-ratio curve of a recorded trace, exact, restored or sampled.

mod at;
mod picture;
mod text;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use serde::{Serialize, Serializer};
use terrace_core::demand::{Curve, CurveSource, DEFAULT_SAMPLED_PAGES, PAPER_HOT_SET};
use terrace_sim::trace::{Format, TraceDemand, Wanted};

use crate::args::mrc::Mrc;
use crate::output::files::{Files, check_apart};
use crate::output::{is_standard, print, print_json, write_json};

/// Touched pages of 4 KiB per page of the hot set that is compared: 5 %.
const TOUCHED_PER_HOT: u32 = 20;
/// The choice of sampled pages: the same each time.
const SAMPLE_SEED: u64 = 0;

/// The curves of a trace and what they were made of.
struct Found {
    file: String,
    format: Format,
    skipped: u64,
    page_bytes: u64,
    accesses: u64,
    /// Pages touched, each once a cold miss.
    footprint: u32,
    hot_set: Option<u32>,
    /// Accesses that the hot set let through.
    tracked: Option<u64>,
    curves: Vec<Curve>,
    /// Sizes of memory that were asked for, bytes.
    at: Vec<u64>,
}

/// Runs the command.
pub fn run(args: &Mrc) -> Result<ExitCode> {
    let outputs = args.json.iter().chain(&args.svg).map(PathBuf::as_path);
    check_apart([args.input.file.as_path()], outputs.clone())?;
    let found = found(args)?;
    let to_standard = outputs.clone().find(|out| is_standard(out));
    let mut files = Files::default();
    for out in args.svg.iter().filter(|out| !is_standard(out)) {
        let picture = picture::svg(&found)?;
        files.write(out, |to| to.write_all(picture.as_bytes()))?;
    }
    for out in args.json.iter().filter(|out| !is_standard(out)) {
        files.write(out, |to| write_json(to, &json(&found)))?;
    }
    // Before anything is printed: a closed pipe ends the program.
    files.keep()?;
    match to_standard {
        None => print(text::text(&found))?,
        Some(out) if args.svg.as_deref() == Some(out) => print(picture::svg(&found)?)?,
        Some(_) => print_json(&json(&found))?,
    }
    Ok(ExitCode::SUCCESS)
}

fn found(args: &Mrc) -> Result<Found> {
    let hot_set = match args.hot_set {
        Some(pages) => Some(pages),
        None if args.compare => Some(default_hot_set(args)?),
        None => None,
    };
    let wanted = Wanted {
        exact: args.compare || (!args.sampled && hot_set.is_none()),
        hot_set,
        sampled: (args.compare || args.sampled).then_some((DEFAULT_SAMPLED_PAGES, SAMPLE_SEED)),
    };
    let file = &args.input.file;
    let mut demand = TraceDemand::new(file.clone(), args.page, wanted);
    let reader = args.input.each("reading", |record| {
        demand.add(record)?;
        Ok(true)
    })?;
    Ok(Found {
        file: file.display().to_string(),
        format: reader.format(),
        skipped: reader.skipped(),
        page_bytes: args.page,
        accesses: demand.accesses(),
        footprint: demand.pages(),
        hot_set,
        tracked: demand.tracked(),
        curves: demand.curves(),
        at: args.at.iter().map(|size| size.0).collect(),
    })
}

/// The hot set of a comparison: the paper's for huge pages, a share of the touched ones for small pages, for which the
/// trace is read once more.
fn default_hot_set(args: &Mrc) -> Result<u32> {
    if args.page != 4 << 10 {
        return Ok(PAPER_HOT_SET);
    }
    let mut demand = TraceDemand::new(args.input.file.clone(), args.page, Wanted::default());
    args.input.each("counting pages", |record| {
        demand.add(record)?;
        Ok(true)
    })?;
    Ok((demand.pages() / TOUCHED_PER_HOT).max(1))
}

/// The JSON of a trace: the first curve, and the others of a comparison beside it.
#[derive(Serialize)]
struct Json<'a> {
    file: &'a str,
    format: &'static str,
    page_bytes: u64,
    accesses: u64,
    footprint_pages: u32,
    skipped_records: u64,
    hot_set_pages: Option<u32>,
    tracked_accesses: Option<u64>,
    #[serde(flatten)]
    curve: Option<JsonCurve<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    compared: Vec<JsonCurve<'a>>,
}

#[derive(Serialize)]
struct JsonCurve<'a> {
    source: CurveSource,
    resolution_pages: u32,
    guess_below_pages: u32,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    at: Vec<at::At>,
    points: JsonPoints<'a>,
}

/// The points of a curve, each made when it is written: there may be millions.
struct JsonPoints<'a> {
    curve: &'a Curve,
    footprint: u32,
}

impl JsonPoints<'_> {
    fn point(&self, pages: u32) -> JsonPoint {
        JsonPoint {
            pages,
            bytes: u64::from(pages) * self.curve.page_bytes,
            miss_ratio: ratio(self.curve, pages),
            misses_per_s: self.curve.misses_per_s(pages),
        }
    }
}

impl Serialize for JsonPoints<'_> {
    /// A point per page up to the footprint; of a sample only those that it has.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.curve.source == CurveSource::Sampled {
            let sizes = self.curve.points().iter().map(|point| point.pages);
            return serializer.collect_seq(sizes.map(|pages| self.point(pages)));
        }
        serializer.collect_seq((1..=self.footprint).map(|pages| self.point(pages)))
    }
}

#[derive(Serialize)]
struct JsonPoint {
    pages: u32,
    bytes: u64,
    miss_ratio: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    misses_per_s: Option<u64>,
}

fn json(found: &Found) -> Json<'_> {
    let mut curves = found.curves.iter().map(|curve| JsonCurve {
        source: curve.source,
        resolution_pages: curve.resolution_pages,
        guess_below_pages: curve.guess_below_pages,
        at: at::of(curve, found),
        points: JsonPoints {
            curve,
            footprint: found.footprint,
        },
    });
    Json {
        file: &found.file,
        format: found.format.name(),
        page_bytes: found.page_bytes,
        accesses: found.accesses,
        footprint_pages: found.footprint,
        skipped_records: found.skipped,
        hot_set_pages: found.hot_set,
        tracked_accesses: found.tracked,
        curve: curves.next(),
        compared: curves.collect(),
    }
}

/// Share of the accesses that miss, from 0 to 1.
fn ratio(curve: &Curve, pages: u32) -> f64 {
    curve.misses(pages) as f64 / curve.accesses.max(1) as f64
}

#[cfg(test)]
mod tests {
    use terrace_core::demand::{Observed, Point};

    use super::*;

    /// Points that would take 36 MiB as a vector, and some 120 MiB as text.
    const POINTS: u32 = 1 << 20;

    #[derive(Default)]
    struct Counted {
        bytes: usize,
        largest: usize,
    }

    impl std::io::Write for Counted {
        fn write(&mut self, text: &[u8]) -> std::io::Result<usize> {
            self.bytes += text.len();
            self.largest = self.largest.max(text.len());
            Ok(text.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn json_of_a_million_points_is_written_piece_by_piece() {
        let observed = Observed {
            source: CurveSource::Exact,
            page_bytes: 4 << 10,
            accesses: 1 << 30,
            span_ns: 0,
            resolution_pages: 0,
            guess_below_pages: 0,
        };
        let only = Point {
            pages: POINTS,
            misses: POINTS.into(),
        };
        let found = Found {
            file: "t".into(),
            format: Format::Lackey,
            skipped: 0,
            page_bytes: 4 << 10,
            accesses: 1 << 30,
            footprint: POINTS,
            hot_set: None,
            tracked: None,
            curves: vec![Curve::of(observed, [only])],
            at: Vec::new(),
        };
        // The least of some: other tests allocate meanwhile.
        let held = (0..5).map(|_| {
            let before = crate::allocated::now();
            let _json = json(&found);
            crate::allocated::now().saturating_sub(before)
        });
        let held = held.min().expect("some");
        assert!(held < 1 << 20, "{held} bytes before the first is written");
        let mut to = Counted::default();
        write_json(&mut to, &json(&found)).expect("written");
        assert!(to.bytes > 50 << 20, "{}", to.bytes);
        assert!(to.largest < 1 << 10, "{} bytes at once", to.largest);
    }
}
