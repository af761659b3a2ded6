//! `cargo xtask lab bench hyperflex`: how long a resize takes, beside the stock balloon of the same guest.
//!
//! Both take 256 MiB of memory that the guest has used before and give it back, in turns. A time is from the order
//! until the device (for the balloon: QEMU) reports that all of it is there, which is after the host has the memory.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::median::median;
use crate::guests::flex::device::Device;
use crate::guests::flex::guest::{FlexGuest, PATIENCE};
use crate::guests::flex::product::Hyperflex;
use crate::guests::flex::shape::{NODE_BYTES, PAGE, Shape};
use crate::guests::tiered::{MIB, TIERS};
use crate::machine::kernel::Kernel;
use crate::places;
use crate::progress::{Wait, say};

const ROUNDS: usize = 5;
const BYTES: u64 = 256 << 20;

/// The node from which HyperFlex takes; the balloon has no say in it.
const NODE: usize = 0;

/// Time between two questions whether a resize is done.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

const BALLOON: &str = "virtio_balloon";

/// The times of one way to resize: seconds of each round.
#[derive(Default)]
struct Times {
    inflate: Vec<f64>,
    deflate: Vec<f64>,
}

/// Measures and prints a table.
pub fn run() -> Result<()> {
    let load = fs::read_to_string("/proc/loadavg")?;
    let mut table = String::from(
        "| 256 MiB | HyperFlex, s | stock balloon, s | HyperFlex / balloon |\n|---|--:|--:|--:|\n",
    );
    for (name, orders) in [("4 KiB", 1), ("4 KiB and 2 MiB", 1 | 1 << 9)] {
        let (flex, balloon) = measure(orders)?;
        for (way, flex, balloon) in [
            ("inflate", flex.inflate, balloon.inflate),
            ("deflate", flex.deflate, balloon.deflate),
        ] {
            let [flex, balloon] = [flex, balloon].map(median);
            table.push_str(&format!(
                "| {way}, pages of {name} | {flex:.3} | {balloon:.3} | {:.2} |\n",
                flex / balloon
            ));
        }
    }
    println!(
        "{table}\nMedian of {ROUNDS}; the balloon's pages are always of 4 KiB. Load of this machine before: {}",
        load.trim()
    );
    Ok(())
}

fn measure(orders: u32) -> Result<(Times, Times)> {
    let mut guest = FlexGuest::<Hyperflex>::start_as(Shape {
        has_balloon: true,
        ..Shape::of_orders(orders)
    })?;
    guest.insert()?;
    guest.insert_balloon()?;
    let (mut flex, mut balloon) = (Times::default(), Times::default());
    for round in 1..=ROUNDS {
        let held = guest.touch()?;
        let mut target = [0; TIERS];
        target[NODE] = BYTES / PAGE;
        flex.inflate.push(guest.time_hyperflex(target)?);
        let released = guest.released(held)?;
        let huge: u64 = guest.driver()?.iter().map(|tier| tier.huge).sum();
        flex.deflate.push(guest.time_hyperflex([0; TIERS])?);
        let held = guest.touch()?;
        balloon.inflate.push(guest.time_balloon(BYTES)?);
        let by_balloon = guest.released(held)?;
        balloon.deflate.push(guest.time_balloon(0)?);
        say(&format!(
            "round {round}: HyperFlex {:.3} and {:.3} s ({huge} pages by 2 MiB, {released} MiB to the host), \
             balloon {:.3} and {:.3} s ({by_balloon} MiB)",
            flex.inflate[round - 1],
            flex.deflate[round - 1],
            balloon.inflate[round - 1],
            balloon.deflate[round - 1]
        ));
    }
    guest.device.expect_no_wrong_request()?;
    guest.expect_a_quiet_kernel()?;
    Ok((flex, balloon))
}

impl FlexGuest<Hyperflex> {
    /// Loads the kernel's own driver of the stock balloon.
    fn insert_balloon(&mut self) -> Result<()> {
        let file = places::lab("flex")?.join(format!("{BALLOON}.ko"));
        fs::write(&file, Kernel::get(false)?.module(BALLOON)?)?;
        let path = format!("/{BALLOON}.ko");
        self.lab.push(&file, &path)?;
        self.lab.check(&format!("insmod {path}")).map(drop)
    }

    /// MiB that the host got back of a balloon: all of it but what was not used since it was last in one.
    fn released(&self, before: u64) -> Result<u64> {
        let now: u64 = self.host_bytes()?.iter().sum();
        let mib = before.saturating_sub(now) / MIB;
        ensure!(mib > 128, "the host got {mib} MiB");
        Ok(mib)
    }

    fn time_hyperflex(&mut self, target: [u64; TIERS]) -> Result<f64> {
        let begin = Instant::now();
        self.device.set_targets(target)?;
        let mut wait = Wait::begin_silently("HyperFlex", PATIENCE);
        while self.device.actual()? != target {
            wait.go_on()?;
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(begin.elapsed().as_secs_f64())
    }

    fn time_balloon(&mut self, inside: u64) -> Result<f64> {
        let value = TIERS as u64 * NODE_BYTES - inside;
        let mut qmp = self.lab.qmp()?;
        let begin = Instant::now();
        qmp.execute("balloon", &json!({"value": value}))?;
        let mut wait = Wait::begin_silently("the balloon", PATIENCE);
        loop {
            let answer = qmp.execute("query-balloon", &json!({}))?;
            let actual = answer["actual"].as_u64();
            if actual.with_context(|| format!("query-balloon: {answer}"))? == value {
                return Ok(begin.elapsed().as_secs_f64());
            }
            wait.go_on()?;
            std::thread::sleep(POLL_INTERVAL);
        }
    }
}
