//! `terrace bench`: the fast paths, each beside a baseline measured in the same run.

mod row;

use std::process::ExitCode;

use anyhow::{Result, bail};
use terrace_bench::{Classify, Measured, PAGES_OF_64_GIB, Simulated, simulate};
use terrace_core::PolicyName;

use super::print_json;
use crate::allocated;
use crate::args::Bench;
use crate::output;
use row::Row;

/// A function that measures the row of that name.
type Measure = fn(&'static str) -> Result<Row>;

/// The rows: each by its name and the function that measures it.
const ROWS: [(&str, Measure); 18] = [
    ("scan_leaf_ns", scan_leaf),
    ("scan_leaf_all_ns", scan_leaf_all),
    ("scan_pruned_ns_per_gib", scan_pruned),
    ("scan_sampled_ns_per_gib", scan_sampled),
    ("root_proof_ns", root_proof),
    ("classify_ns_per_page", classify),
    ("rates_ns_per_page", rates),
    ("state_bytes_per_page", state_bytes),
    ("range_tree_ns_per_sample", range_tree),
    ("range_tree_epoch_us", range_tree_epoch),
    ("filter_ns_per_page", filter),
    ("mrc_ns_per_access", distances),
    ("dp_ms", division),
    ("arbiter_500_ms", arbiter),
    ("hyperflex_inflate_pages_per_s", hyperflex_inflate),
    ("sim_accesses_per_s", sim_accesses),
    ("sim_full_accesses_per_s", sim_full_accesses),
    ("sim_state_bytes_per_page", sim_state_bytes),
];

/// The simulator's baseline, as work done for each access.
const SIM_BASELINE: &str = "generator, TLB look-up and one 16-byte record per page";

pub fn run(args: &Bench) -> Result<ExitCode> {
    if cfg!(debug_assertions) {
        bail!(
            "a debug build gives no meaningful figures: use `cargo run --release -p terrace-cli -- bench`"
        );
    }
    let wanted = wanted(args.only.as_deref())?;
    // First of all: a file that cannot be read must not cost the minutes of a run.
    let before = args.compare.as_deref().map(row::read).transpose()?;
    let mut rows = Vec::new();
    for (name, measure) in wanted {
        output::tell(format_args!("measuring {name} …"));
        rows.push(measure(name)?);
    }
    rows.iter()
        .filter_map(Row::warning)
        .for_each(|w| output::tell(format_args!("{w}")));
    match &before {
        Some(before) => output::print(row::compared(before, &rows))?,
        None if args.json => print_json(&rows)?,
        None => output::print(row::table(&rows))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// The rows to measure: all of them, or the one of that name.
fn wanted(only: Option<&str>) -> Result<Vec<(&'static str, Measure)>> {
    let rows = ROWS.into_iter();
    let wanted: Vec<_> = rows
        .filter(|(name, _)| only.is_none_or(|only| only == *name))
        .collect();
    if let (Some(only), true) = (only, wanted.is_empty()) {
        let names = ROWS.map(|(name, _)| name).join(", ");
        bail!("there is no row {only:?}; there are {names}");
    }
    Ok(wanted)
}

fn beside(
    name: &'static str,
    unit: &'static str,
    against: &'static str,
    m: Measured,
) -> Result<Row> {
    Ok(Row {
        baseline_name: Some(against.into()),
        baseline: Some(m.baseline()),
        ratio: Some(m.ratio()),
        runs: (&m).into(),
        ..Row::alone(name, unit, m.value())
    })
}

fn alone(name: &'static str, unit: &'static str, value: f64) -> Result<Row> {
    Ok(Row::alone(name, unit, value))
}

fn filter(name: &'static str) -> Result<Row> {
    let against = "copying the same counts";
    beside(name, "ns/page", against, terrace_bench::filter())
}

fn scan_leaf(name: &'static str) -> Result<Row> {
    beside(
        name,
        "ns/entry",
        "summing the same bytes",
        terrace_bench::scan_leaf(10),
    )
}

fn scan_leaf_all(name: &'static str) -> Result<Row> {
    let against = "one uncontended compare-exchange per entry";
    beside(name, "ns/entry", against, terrace_bench::scan_leaf_all())
}

fn scan_pruned(name: &'static str) -> Result<Row> {
    beside(
        name,
        "ns/GiB",
        "the unpruned scan",
        terrace_bench::scan_pruned(),
    )
}

fn scan_sampled(name: &'static str) -> Result<Row> {
    let against = "the scan of all leaf tables";
    beside(name, "ns/GiB", against, terrace_bench::scan_sampled())
}

fn root_proof(name: &'static str) -> Result<Row> {
    beside(
        name,
        "ns",
        "the scan that it guards",
        terrace_bench::root_proof(),
    )
}

fn classify(name: &'static str) -> Result<Row> {
    let measured = Classify::new(PAGES_OF_64_GIB).measure();
    beside(name, "ns/page", "copying exactly 8 bytes a page", measured)
}

/// A round's end under `terrace`: averages, ranking and plan.
fn rates(name: &'static str) -> Result<Row> {
    let measured = Classify::by_rates(PAGES_OF_64_GIB).measure();
    beside(name, "ns/page", "copying exactly 8 bytes a page", measured)
}

fn range_tree(name: &'static str) -> Result<Row> {
    let against = "binary search over the same ranges";
    beside(name, "ns/sample", against, terrace_bench::range_tree())
}

/// The time of the classifying thread's work at the end of an epoch.
fn range_tree_epoch(name: &'static str) -> Result<Row> {
    let against = "sorting the same 1,000 keys";
    beside(name, "us/epoch", against, terrace_bench::range_tree_epoch())
}

fn distances(name: &'static str) -> Result<Row> {
    let against = "a HashMap increment, default hasher";
    beside(name, "ns/access", against, terrace_bench::distances())
}

fn arbiter(name: &'static str) -> Result<Row> {
    alone(name, "ms", terrace_bench::arbiter())
}

fn division(name: &'static str) -> Result<Row> {
    let against = "the textbook loop on the same bounds";
    beside(name, "ms", against, terrace_bench::division())
}

fn hyperflex_inflate(name: &'static str) -> Result<Row> {
    let against = "fallocate on the same coalesced extents";
    beside(name, "pages/s", against, terrace_bench::inflate()?)
}

/// The engine's bytes per page at their peak, so that memory allocated and freed within one call counts too.
fn state_bytes(name: &'static str) -> Result<Row> {
    let before = allocated::restart_peak();
    terrace_bench::state_bytes_per_page(PolicyName::Vtmm, PAGES_OF_64_GIB, allocated::now);
    let held = allocated::peak().saturating_sub(before);
    alone(name, "bytes/page", held as f64 / PAGES_OF_64_GIB as f64)
}

/// The simulator's speed over a minute of the full-size machine.
fn sim_accesses(name: &'static str) -> Result<Row> {
    sim_row(name, simulate(64, "60s")?)
}

/// The full-size simulator's speed over the two seconds after the start: the round's clearing pass and its first
/// windows.
fn sim_full_accesses(name: &'static str) -> Result<Row> {
    sim_row(name, simulate(1, "2s")?)
}

fn sim_row(name: &'static str, m: Simulated) -> Result<Row> {
    beside(name, "accesses/s", SIM_BASELINE, m.accesses_per_s)
}

fn sim_state_bytes(name: &'static str) -> Result<Row> {
    // The whole of a round, so that its lists count.
    let m = simulate(64, "60s")?;
    alone(name, "bytes/page", m.state_bytes_per_page)
}
