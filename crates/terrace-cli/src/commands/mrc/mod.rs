//! `terrace mrc`: the miss-ratio curve of a recorded trace, exact, restored or sampled.

mod picture;
mod text;

use std::process::ExitCode;

use anyhow::{Context as _, Result};
use serde::Serialize;
use terrace_core::demand::{Curve, CurveSource, DEFAULT_SAMPLED_PAGES, PAPER_HOT_SET};
use terrace_sim::trace::{TraceDemand, Wanted};

use crate::args::mrc::Mrc;

/// Touched pages of 4 KiB per page of the hot set that is compared: 5 %.
const TOUCHED_PER_HOT: u32 = 20;
/// The choice of sampled pages: the same each time.
const SAMPLE_SEED: u64 = 0;

/// The curves of a trace and what they were made of.
struct Found {
    file: String,
    format: &'static str,
    skipped: u64,
    page_bytes: u64,
    accesses: u64,
    /// Pages touched, each once a cold miss.
    footprint: u32,
    hot_set: Option<u32>,
    /// Accesses that the hot set let through.
    tracked: Option<u64>,
    curves: Vec<Curve>,
}

/// Runs the command.
pub fn run(args: &Mrc) -> Result<ExitCode> {
    let found = found(args)?;
    if let Some(out) = &args.svg {
        std::fs::write(out, picture::svg(&found)?)
            .with_context(|| format!("cannot write {}", out.display()))?;
    }
    match &args.json {
        Some(out) if out.as_os_str() == "-" => super::print_json(&json(&found))?,
        Some(out) => {
            let json = serde_json::to_string_pretty(&json(&found))? + "\n";
            std::fs::write(out, json).with_context(|| format!("cannot write {}", out.display()))?;
            print!("{}", text::text(&found));
        }
        None => print!("{}", text::text(&found)),
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
        format: reader.format().name(),
        skipped: reader.skipped(),
        page_bytes: args.page,
        accesses: demand.accesses(),
        footprint: demand.pages(),
        hot_set,
        tracked: demand.tracked(),
        curves: demand.curves(),
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
    curve: JsonCurve,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    compared: Vec<JsonCurve>,
}

#[derive(Serialize)]
struct JsonCurve {
    source: CurveSource,
    resolution_pages: u32,
    guess_below_pages: u32,
    points: Vec<JsonPoint>,
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
    let mut curves: Vec<JsonCurve> = found.curves.iter().map(|c| json_curve(c, found)).collect();
    Json {
        file: &found.file,
        format: found.format,
        page_bytes: found.page_bytes,
        accesses: found.accesses,
        footprint_pages: found.footprint,
        skipped_records: found.skipped,
        hot_set_pages: found.hot_set,
        tracked_accesses: found.tracked,
        curve: curves.remove(0),
        compared: curves,
    }
}

/// A point per page up to the footprint; of a sample only those that it has.
fn json_curve(curve: &Curve, found: &Found) -> JsonCurve {
    let sizes: Vec<u32> = if curve.source == CurveSource::Sampled {
        curve.points().iter().map(|point| point.pages).collect()
    } else {
        (1..=found.footprint).collect()
    };
    let point = |pages| JsonPoint {
        pages,
        bytes: u64::from(pages) * curve.page_bytes,
        miss_ratio: ratio(curve, pages),
        misses_per_s: curve.misses_per_s(pages),
    };
    JsonCurve {
        source: curve.source,
        resolution_pages: curve.resolution_pages,
        guess_below_pages: curve.guess_below_pages,
        points: sizes.into_iter().map(point).collect(),
    }
}

/// Share of the accesses that miss, from 0 to 1.
fn ratio(curve: &Curve, pages: u32) -> f64 {
    curve.misses(pages) as f64 / curve.accesses.max(1) as f64
}
