//! `cargo xtask lab proof`: what a guest's work misses in slow memory, by who places its pages.
//!
//! Each row is a lab of its own, restored from the same snapshot. The emulator's plugin counts the misses of a modelled cache by node, and lets those of
//! the slow node wait. Counts are the measure: they repeat, whatever else the machine does; rates do not.

mod calibrate;
mod page;
mod picture;
mod row;
mod runs;
mod table;
mod way;

use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::control::daemon::VM;
use crate::control::lab::Lab;
use crate::machine::process::Lifetime;
use crate::machine::slow_node::{self, SlowNode};
use crate::measure::compare::cpu_time;
use crate::progress::say;
use crate::{places, programs};
use anyhow::{Context, Result, bail};
use clap::Args;
use runs::{Runs, Settings};
use way::Way;

pub use row::{Moment, Row};

/// L1's node of slow memory.
const SLOW: usize = 1;

/// Longest time for hot pages to come to fast memory.
const SETTLE: Duration = Duration::from_secs(120);
/// Time from one round of the lab's daemon to the next.
const ROUND: Duration = Duration::from_secs(8);
/// Labs that a row gets if the emulator fails under it.
const LABS: u32 = 3;
/// Time between two looks at where they are.
const LOOK_INTERVAL: Duration = Duration::from_secs(4);

#[derive(Args)]
pub struct Arguments {
    /// The file of all runs so far, as JSON; written after each of them. target/proof.json, if none is given
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Go on with the runs in that file: those that it has are not made again
    #[arg(long)]
    resume: bool,
    /// Run only rows whose names contain this
    #[arg(long, value_name = "NAME")]
    only: Option<String>,
    /// Runs of each row
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    runs: u32,
    /// Seed of the order in which rows come
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// How long misses are counted in each row, s; the lab's rounds are 8 s apart
    #[arg(long, value_name = "S", default_value_t = 24, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    /// Additional time of a miss in slow memory, ns
    #[arg(long, value_name = "NS", default_value_t = 220, value_parser = clap::value_parser!(u64).range(0..=1_000_000))]
    delay_ns: u64,
    /// The modelled cache of each processor, KiB, a power of two
    #[arg(long, value_name = "KIB", default_value_t = slow_node::CACHE_KIB, value_parser = clap::value_parser!(u64).range(1..=65_536))]
    cache_kib: u64,
    /// Put the table, the picture and the runs into docs/
    #[arg(long, conflicts_with = "only")]
    write: bool,
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
    let path = match &arguments.json {
        Some(path) => path.clone(),
        None => places::target()?.join("proof.json"),
    };
    let settings = Settings {
        seconds: arguments.seconds,
        delay_ns: arguments.delay_ns,
        cache_kib: arguments.cache_kib,
        seed: arguments.seed,
    };
    let mut runs = match arguments.resume {
        true => Runs::resume(&path, &settings)?,
        false => Runs::anew(&path, settings)?,
    };
    programs::build_product()?;
    calibrate::run(arguments)?;
    let mut order = runs::drawn(&ways, arguments.runs, arguments.seed);
    order.retain(|(run, way)| !runs.has(*way, *run));
    for (number, (run, way)) in order.iter().enumerate() {
        let left = order.len() - number;
        say(&format!("== {}, run {run}; {left} to go", way.name()));
        let row = measure(*way, arguments).with_context(|| way.name())?;
        let row = Row { run: *run, ..row };
        say(&table::line(*way, std::slice::from_ref(&row)).unwrap_or_default());
        runs.rows.push(row);
        runs.write(&path)?;
    }
    println!("{}", table::markdown(&runs.rows));
    println!("Runs: {}", path.display());
    if arguments.write {
        page::write(&runs)?;
    }
    Ok(())
}

/// A lab with the plugin, and no delay yet.
fn start(way: Way, arguments: &Arguments) -> Result<Lab> {
    let blueprint = way
        .blueprint()?
        .with_extra(slow_node::options(arguments.cache_kib)?);
    Lab::start(&blueprint, "proof", Lifetime::Task)
}

/// Measures a row, and again in another lab if the emulator fails under it, as it does under moves now and then (docs/lab.md).
fn measure(way: Way, arguments: &Arguments) -> Result<Row> {
    let mut left = LABS;
    loop {
        let mut lab = start(way, arguments)?;
        let error = match measure_in(&mut lab, way, arguments) {
            Ok(row) => return Ok(row),
            Err(error) => error.context(lab.diagnosis()),
        };
        left -= 1;
        if left == 0 || !(lab.emulator_ended() || lab.guest_reset_in_silence()) {
            return Err(error);
        }
        say(&format!(
            "THE EMULATOR FAILED under this row, again in a new lab: {error:#}"
        ));
    }
}

fn measure_in(lab: &mut Lab, way: Way, arguments: &Arguments) -> Result<Row> {
    let node = lab.slow_node()?;
    lab.install_product()?;
    node.delay(SLOW, arguments.delay_ns)?;
    let (start, cpu) = (Moment::now(lab, &node)?, cpu_time(lab)?);
    let begun = Instant::now();
    way.begin(lab)?;
    let looks = settle(lab, way, begun)?;
    let row = count(lab, &node, &start, Duration::from_secs(arguments.seconds))?;
    let cpu = cpu_time(lab)?.since(cpu);
    let daemon_kib = daemon_kib(lab)?;
    // A guest on a slow node takes long to check all that it wrote.
    node.delay(SLOW, 0)?;
    lab.expect_intact(VM)?;
    Ok(Row {
        name: way.name().into(),
        settled_s: settled(&looks, row.hot_on_fast),
        cpu,
        daemon_kib,
        ..row
    })
}

/// The time of the first look that found 90 % of the pages that are in fast memory in the end; none if none are.
fn settled(looks: &[(f64, u64)], end: u64) -> Option<f64> {
    let mut looks = looks.iter();
    let there = looks.find(|(_, there)| end > 0 && there * 10 >= end * 9);
    there.map(|(at_s, _)| *at_s)
}

/// Memory of the daemon and its workers, KiB.
fn daemon_kib(lab: &mut Lab) -> Result<u64> {
    // Processes come and go while the shell reads.
    let lines = lab.check("grep -hE '^(Name|VmRSS):' /proc/[0-9]*/status 2>/dev/null; true")?;
    let (mut is_daemon, mut kib) = (false, 0);
    for line in lines.lines() {
        let mut fields = line.split_whitespace();
        match (fields.next(), fields.next()) {
            (Some("Name:"), name) => is_daemon = name.is_some_and(|n| n.starts_with("terraced")),
            (Some("VmRSS:"), Some(size)) if is_daemon => kib += size.parse().unwrap_or(0),
            _ => {}
        }
    }
    Ok(kib)
}

/// Waits until hot pages are where they come to under a method. Gives how many were found in fast memory, by time since the row began, s.
fn settle(lab: &mut Lab, way: Way, begun: Instant) -> Result<Vec<(f64, u64)>> {
    let mut looks = Vec::new();
    let begin = Instant::now();
    while way.places() && begin.elapsed() < SETTLE {
        sleep(LOOK_INTERVAL);
        let there = lab.hot_on_fast(VM)?;
        let at_s = begun.elapsed().as_secs_f64();
        looks.push((at_s, there.fast));
        say(&format!("{at_s:.0} s: {there}"));
        if there.is_placed() {
            // The rest of them come with the next round.
            sleep(ROUND);
            break;
        }
    }
    Ok(looks)
}

fn count(lab: &mut Lab, node: &SlowNode, start: &Moment, time: Duration) -> Result<Row> {
    let begin = Moment::now(lab, node)?;
    sleep(time);
    let end = Moment::now(lab, node)?;
    let placed = lab.hot_on_fast(VM)?;
    Row::between(start, &begin, &end, placed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_settled_once_nine_tenths_of_the_end_are_there() {
        let looks = [(4.0, 0), (8.0, 89), (12.0, 90), (16.0, 100)];
        assert_eq!(settled(&looks, 100), Some(12.0));
        assert_eq!(settled(&looks, 500), None);
        assert_eq!(settled(&looks, 0), None);
    }
}
