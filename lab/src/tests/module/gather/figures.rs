//! The cost of gathering, for people. Nothing of it is judged: the processor is emulated.

use anyhow::{Context as _, Result, ensure};
use terrace_lab_programs::native::HotSet;

use super::{FILE, LIST, configure, finish, list, sparse, start_with, undo};
use crate::control::lab::Lab;
use crate::machine::kernel::Kernel;
use crate::tests::test::Test;

/// Hot pages of 2 MiB: enough for several batches.
const EACH: usize = 32;
/// Pages of a batch.
const BATCH: u64 = 512;
/// Batches of a round that is compared with one of a single batch.
const MANY: u64 = 5;
const TRIES: u64 = 5;

pub const TESTS: &[Test] = &[Test::on_guest("gathering_tells_its_timings", timings)];

/// Rounds of one batch and of several, by both ways, beside plain moves of as many pages to the same node.
fn timings() -> Result<()> {
    let program = HotSet {
        sparse: EACH,
        ..sparse()
    };
    let mut guest = start_with(&program, &Kernel::get(false)?)?;
    guest.check(&format!("insmod /{}.ko", super::MODULE))?;
    let mut plain = Vec::new();
    for number in 0..TRIES {
        hot(&mut guest, number, BATCH)?;
        plain.push(moved(&mut guest, 1)?);
        moved(&mut guest, 0)?;
    }
    say("move_pages of 512 pages to the free node", &plain);
    for (way, keys) in [("node", "node = 1"), ("module", "")] {
        configure(&mut guest, keys)?;
        let (mut one, mut more) = (Vec::new(), Vec::new());
        for number in 0..TRIES {
            one.push(round(&mut guest, way, 100 + number, BATCH)?);
            let many = round(&mut guest, way, 200 + number, MANY * BATCH)?;
            more.push((many - one[one.len() - 1]) / (MANY - 1) as f64);
        }
        say(&format!("{way}: a round of 512 pages"), &one);
        say(&format!("{way}: each 512 pages more"), &more);
        println!(
            "{way}: that is {:.2} of move_pages",
            median(&more) / median(&plain)
        );
    }
    finish(&mut guest)
}

/// Other pages become hot, so many.
fn hot(guest: &mut Lab, seed: u64, pages: u64) -> Result<()> {
    guest.ask(&sparse().name, &format!("move {seed}"))?;
    guest.ask(&sparse().name, &format!("hot {pages}"))?;
    list(guest)
}

/// Milliseconds that it takes to move the hot pages to a node.
fn moved(guest: &mut Lab, node: u32) -> Result<f64> {
    let said = guest.check(&format!(
        "lab-native ask {} truth | lab-native move {node} 2>&1 >/dev/null",
        sparse().name
    ))?;
    let number = said.split_whitespace().next();
    number.and_then(|number| number.parse().ok()).context(said)
}

/// Milliseconds of a round that gathers so many pages, which are undone after it.
fn round(guest: &mut Lab, way: &str, seed: u64, pages: u64) -> Result<f64> {
    hot(guest, seed, pages)?;
    let said = guest.check(&format!(
        "terrace-agent gather --once --config {FILE} --pages {LIST} --json"
    ))?;
    let round: serde_json::Value = serde_json::from_str(&said).with_context(|| said.clone())?;
    ensure!(
        round["way"] == way && round["moved_pages"].as_u64() >= Some(pages * 95 / 100),
        "{said}"
    );
    if way == "node" {
        undo(guest)?;
    }
    round["milliseconds"].as_f64().context("no milliseconds")
}

fn say(what: &str, milliseconds: &[f64]) {
    let all: Vec<String> = milliseconds.iter().map(|ms| format!("{ms:.1}")).collect();
    println!(
        "{what}: {:.1} ms ({})",
        median(milliseconds),
        all.join(", ")
    );
}

fn median(numbers: &[f64]) -> f64 {
    let mut sorted = numbers.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}
