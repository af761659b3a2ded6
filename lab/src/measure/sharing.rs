//! `cargo xtask lab bench sharing`: what balancing is worth beside what there is without it.
//!
//! Two guests of 512 MiB share 704 MiB. One idles, with a small program and page cache of files that it read once; the other one
//! starts a program that does not fit into its part. Each way to share gets the same two guests, started anew.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::json;

use crate::control::lab::Lab;
use crate::guests::balanced::{
    BUSY, Balanced, By, CAPACITY_MIB, CEILING_MIB, FILES, FLOOR_MIB, IDLE, RAM_MIB, program, vmstat,
};
use crate::guests::tiered::{self, MIB};
use crate::progress::say;

/// Time for which each way is measured.
const TIME: Duration = Duration::from_secs(180);
/// Time between two looks.
const LOOK: Duration = Duration::from_secs(2);
/// Memory of the program that does not fit, MiB.
const LOAD_MIB: usize = 330;

/// Part of the host's memory that the rule by host use aims at, percent; the most of a step; and the time between two steps
/// (the automatic allocation of Proxmox VE).
const AIM_PERCENT: u64 = 80;
const STEP_MIB: u64 = 100;
const STEP_EVERY: Duration = Duration::from_secs(10);
/// A guest with less of its memory free is short, percent.
const SHORT_PERCENT: u64 = 10;
/// A difference that moves nothing, MiB.
const NEAR_MIB: i64 = 10;

/// A way to share memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Fixed,
    Reporting,
    ByUse,
    Balancing,
}

impl Way {
    const ALL: [Self; 4] = [Self::Fixed, Self::Reporting, Self::ByUse, Self::Balancing];

    fn text(self) -> &'static str {
        match self {
            Self::Fixed => "fixed sizes",
            Self::Reporting => "free page reporting alone",
            Self::ByUse => "80 % of the host, steps of 100 MiB",
            Self::Balancing => "balancing",
        }
    }

    fn start(self) -> Result<Balanced> {
        match self {
            Self::Fixed | Self::ByUse => Balanced::start_alone(By::Balloon),
            Self::Reporting => Balanced::start_alone(By::Reporting),
            Self::Balancing => Balanced::start(By::Balloon),
        }
    }
}

/// What one way gave.
#[derive(Default)]
struct Figures {
    /// Passes of both programs.
    passes: [u64; 2],
    /// Major faults of both guests.
    faults: [u64; 2],
    /// The last time at which the busy guest faulted, s.
    faulted_until: u64,
    /// The most memory of this machine that both had, MiB.
    held_mib: u64,
}

/// Measures and prints a table.
pub fn run() -> Result<()> {
    let load = fs::read_to_string("/proc/loadavg")?;
    let mut table = String::from(
        "| two guests, one swaps | passes of the busy one | of the idle one | major faults of the busy one | of the idle one | \
         last fault, s | most memory held, MiB |\n|---|--:|--:|--:|--:|--:|--:|\n",
    );
    let mut fixed = None;
    for way in Way::ALL {
        let of = measure(way).with_context(|| way.text())?;
        let [busy, idle] = of.passes;
        let base = *fixed.get_or_insert(busy.max(1));
        table.push_str(&format!(
            "| {} | {busy} ({}.{} times) | {idle} | {} | {} | {} | {} |\n",
            way.text(),
            busy / base,
            busy % base * 10 / base,
            of.faults[0],
            of.faults[1],
            of.faulted_until,
            of.held_mib
        ));
        println!("{table}");
    }
    println!(
        "{} s each; {CAPACITY_MIB} MiB are to be enough for both. Load of this machine before: {}",
        TIME.as_secs(),
        load.trim()
    );
    Ok(())
}

fn measure(way: Way) -> Result<Figures> {
    say(&format!("two guests: {}", way.text()));
    let mut guests = way.start()?;
    if matches!(way, Way::Fixed | Way::ByUse) {
        set_size(&guests.busy, CEILING_MIB)?;
        set_size(&guests.idle, CAPACITY_MIB - CEILING_MIB)?;
    }
    let (own, load) = (program("own", 64, 16), program("load", LOAD_MIB, LOAD_MIB));
    guests.idle.start_hot_set(&own)?;
    guests.idle.check(&format!("cat /dev/{FILES} >/dev/null"))?;
    if way == Way::Balancing {
        guests.until("both are within what there is", |guests| {
            let both = guests.size_mib(BUSY)?.zip(guests.size_mib(IDLE)?);
            Ok(both.is_some_and(|(busy, idle)| busy + idle <= CAPACITY_MIB))
        })?;
        guests.daemon.set(&format!("memory_ceiling={RAM_MIB}MiB"))?;
    }
    let before = [faults(&mut guests.busy)?, faults(&mut guests.idle)?];
    let idle_before = passes(&mut guests.idle, &own.name)?;
    guests.busy.begin_hot_set(&load)?;
    let mut of = Figures::default();
    let (begin, mut stepped, mut last) = (Instant::now(), Instant::now(), before[0]);
    while begin.elapsed() < TIME {
        std::thread::sleep(LOOK);
        let now = faults(&mut guests.busy)?;
        if now > last {
            of.faulted_until = begin.elapsed().as_secs();
        }
        last = now;
        of.held_mib = of.held_mib.max(held_mib()?);
        if way == Way::ByUse && stepped.elapsed() >= STEP_EVERY {
            step_by_use(&mut guests)?;
            stepped = Instant::now();
        }
    }
    of.faults = [last - before[0], faults(&mut guests.idle)? - before[1]];
    of.passes = [
        passes(&mut guests.busy, &load.name).unwrap_or(0),
        passes(&mut guests.idle, &own.name)? - idle_before,
    ];
    Ok(of)
}

fn faults(guest: &mut Lab) -> Result<u64> {
    vmstat(guest, "pgmajfault")
}

fn passes(guest: &mut Lab, name: &str) -> Result<u64> {
    let stats = guest.ask(name, "stats")?;
    stats["passes"].as_u64().context("no passes")
}

/// Memory of this machine behind both guests.
fn held_mib() -> Result<u64> {
    let each = [BUSY, IDLE].map(tiered::host_bytes);
    let mut sum = 0;
    for bytes in each {
        sum += bytes?.iter().sum::<u64>();
    }
    Ok(sum / MIB)
}

fn set_size(guest: &Lab, mib: u64) -> Result<()> {
    let value = json!({"value": mib * MIB});
    guest.qmp()?.execute("balloon", &value).map(drop)
}

fn size_mib(guest: &Lab) -> Result<u64> {
    let answer = guest.qmp()?.execute("query-balloon", &json!({}))?;
    let actual = answer["actual"].as_u64();
    Ok(actual.context("no size of the balloon")? / MIB)
}

/// Whether little of a guest's memory is free.
fn is_short(guest: &mut Lab, size_mib: u64) -> Result<bool> {
    let text = guest.check("grep ^MemFree: /proc/meminfo")?;
    let kib = text.split_whitespace().nth(1).context("no MemFree")?;
    Ok(kib.parse::<u64>()? >> 10 < size_mib * SHORT_PERCENT / 100)
}

/// One step of the rule by host use: above the aim all shrink, below it those grow that are short.
fn step_by_use(guests: &mut Balanced) -> Result<()> {
    let aim = CAPACITY_MIB * AIM_PERCENT / 100;
    let goal = i64::try_from(aim)? - i64::try_from(held_mib()?)?;
    let sizes = [size_mib(&guests.busy)?, size_mib(&guests.idle)?];
    let short = [
        is_short(&mut guests.busy, sizes[0])?,
        is_short(&mut guests.idle, sizes[1])?,
    ];
    let step = goal.unsigned_abs().min(STEP_MIB);
    for (i, guest) in [&guests.busy, &guests.idle].into_iter().enumerate() {
        let new = match goal {
            goal if goal > NEAR_MIB && short[i] => (sizes[i] + step).min(RAM_MIB),
            goal if goal < -NEAR_MIB && !short[i] => sizes[i].saturating_sub(step).max(FLOOR_MIB),
            _ => continue,
        };
        set_size(guest, new)?;
    }
    Ok(())
}
