//! `cargo xtask lab proof`: what a guest's work misses in slow memory, by who places its pages.
//!
//! Each row is a lab of its own, restored from the same snapshot. The emulator's plugin counts the misses of a modelled cache by node, and lets those of
//! the slow node wait. Counts are the measure: they repeat, whatever else the machine does; rates do not.

mod calibrate;
mod row;
mod table;
mod way;

use std::fs;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::control::daemon::VM;
use crate::control::lab::Lab;
use crate::machine::process::Lifetime;
use crate::machine::slow_node::{self, SlowNode};
use crate::programs;
use crate::progress::say;
use anyhow::{Context, Result, bail};
use clap::Args;
use way::Way;

pub use row::{Moment, Row};

/// L1's node of slow memory.
const SLOW: usize = 1;

/// Longest time for hot pages to come to fast memory.
const SETTLE: Duration = Duration::from_secs(120);
/// Time from one round of the lab's daemon to the next.
const ROUND: Duration = Duration::from_secs(8);
/// Time between two looks at where they are.
const LOOK_INTERVAL: Duration = Duration::from_secs(4);

#[derive(Args)]
pub struct Arguments {
    /// Also write the figures to this file, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Run only rows whose names contain this
    #[arg(long, value_name = "NAME")]
    only: Option<String>,
    /// How long misses are counted in each row, s; the lab's rounds are 8 s apart
    #[arg(long, value_name = "S", default_value_t = 24, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    /// Additional time of a miss in slow memory, ns
    #[arg(long, value_name = "NS", default_value_t = 220, value_parser = clap::value_parser!(u64).range(0..=1_000_000))]
    delay_ns: u64,
    /// The modelled cache of each processor, KiB, a power of two
    #[arg(long, value_name = "KIB", default_value_t = slow_node::CACHE_KIB, value_parser = clap::value_parser!(u64).range(1..=65_536))]
    cache_kib: u64,
}

/// Measures what the arguments ask for and prints the table.
pub fn run(arguments: &Arguments) -> Result<()> {
    let wanted = |way: &Way| match &arguments.only {
        Some(part) => way.name().contains(part.as_str()),
        None => true,
    };
    let ways: Vec<Way> = Way::ALL.into_iter().filter(wanted).collect();
    if ways.is_empty() {
        bail!(
            "no such row; there are: {}",
            Way::ALL.map(Way::name).join("; ")
        );
    }
    programs::build_product()?;
    calibrate::run(arguments)?;
    let mut rows = Vec::new();
    for way in ways {
        say(&format!("== {}", way.name()));
        let row = measure(way, arguments).with_context(|| way.name())?;
        say(&table::line(&row));
        rows.push(row);
        if let Some(path) = &arguments.json {
            let json = serde_json::to_string_pretty(&rows)? + "\n";
            fs::write(path, json).with_context(|| format!("cannot write {}", path.display()))?;
        }
    }
    println!("{}", table::markdown(&rows));
    Ok(())
}

/// A lab with the plugin, and no delay yet.
fn start(way: Way, arguments: &Arguments) -> Result<Lab> {
    let blueprint = way
        .blueprint()?
        .with_extra(slow_node::options(arguments.cache_kib)?);
    Lab::start(&blueprint, "proof", Lifetime::Task)
}

fn measure(way: Way, arguments: &Arguments) -> Result<Row> {
    let mut lab = start(way, arguments)?;
    let row = measure_in(&mut lab, way, arguments);
    row.map_err(|error| error.context(lab.diagnosis()))
}

fn measure_in(lab: &mut Lab, way: Way, arguments: &Arguments) -> Result<Row> {
    let node = lab.slow_node()?;
    lab.install_product()?;
    node.delay(SLOW, arguments.delay_ns)?;
    let start = Moment::now(lab, &node)?;
    way.begin(lab)?;
    settle(lab, way)?;
    let row = count(lab, &node, &start, Duration::from_secs(arguments.seconds))?;
    // A guest on a slow node takes long to check all that it wrote.
    node.delay(SLOW, 0)?;
    lab.expect_intact(VM)?;
    Ok(Row {
        name: way.name(),
        ..row
    })
}

/// Waits until hot pages are where they come to under a method.
fn settle(lab: &mut Lab, way: Way) -> Result<()> {
    let begin = Instant::now();
    while way.places() && begin.elapsed() < SETTLE {
        sleep(LOOK_INTERVAL);
        let there = lab.hot_on_fast(VM)?;
        say(&format!("{:.0} s: {there}", begin.elapsed().as_secs_f64()));
        if there.is_placed() {
            // The rest of them come with the next round.
            sleep(ROUND);
            break;
        }
    }
    Ok(())
}

fn count(lab: &mut Lab, node: &SlowNode, start: &Moment, time: Duration) -> Result<Row> {
    let begin = Moment::now(lab, node)?;
    sleep(time);
    let end = Moment::now(lab, node)?;
    let placed = lab.hot_on_fast(VM)?;
    Row::between(start, &begin, &end, placed)
}
