//! How much slower the slow node is: a chase of pointers in L1, by node.

use std::time::Duration;

use anyhow::{Context, Result};

use super::way::Way;
use super::{Arguments, SLOW, start};
use crate::control::lab::Lab;
use crate::progress::say;

/// MiB of the chase, many times the modelled cache, and its steps.
const MIB: u64 = 32;
const STEPS: u64 = 500_000;
/// Times that each node is tried, in turns; the least counts, since whatever else runs only adds.
const TURNS: usize = 3;
/// Least and most ratio of the two nodes with the default delay of 220 ns: an emulated step takes 250 to 500 ns by itself.
const RATIO: (f64, f64) = (1.3, 5.0);

/// Prints the ratio, and a warning if it lies where no ratio should.
///
/// # Errors
/// If the lab does not start, or the chase fails in it.
pub fn run(arguments: &Arguments) -> Result<()> {
    let mut lab = start(Way::AllSlow, arguments)?;
    let [fast, slow] =
        measure(&mut lab, arguments.delay_ns).map_err(|error| error.context(lab.diagnosis()))?;
    let ratio = slow / fast;
    say(&format!(
        "a chase of pointers in L1: {fast:.0} ns a step on the fast node, {slow:.0} on the slow one, {ratio:.2} times"
    ));
    if arguments.delay_ns > 0 && !(RATIO.0..=RATIO.1).contains(&ratio) {
        say(&format!(
            "WARNING: not between {} and {}: the delay has not the effect that it should, so rates below prove nothing (counts do)",
            RATIO.0, RATIO.1
        ));
    }
    Ok(())
}

/// Least ns a step on each node.
fn measure(lab: &mut Lab, delay_ns: u64) -> Result<[f64; 2]> {
    let node = lab.slow_node()?;
    lab.guest("idle")?;
    lab.install_native()?;
    node.delay(SLOW, delay_ns)?;
    let mut least = [f64::INFINITY; 2];
    for _ in 0..TURNS {
        for (node, least) in least.iter_mut().enumerate() {
            let chase = format!("lab-native chase {node} {MIB} {STEPS}");
            let output = lab.run(&chase, Duration::from_secs(300))?;
            let ns: f64 = output.stdout.trim().parse().with_context(|| {
                format!("`{chase}` printed {:?}, {}", output.stdout, output.stderr)
            })?;
            *least = least.min(ns);
        }
    }
    Ok(least)
}
