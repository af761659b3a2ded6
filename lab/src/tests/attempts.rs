//! A test in L1, and again in another lab if the emulator fails under it.

use std::time::Instant;

use anyhow::{Result, anyhow};

use super::refused;
use super::test::{InL1, Needs, Test, caught};
use crate::control::lab::Lab;
use crate::machine::blueprint::Blueprint;
use crate::machine::process::Lifetime;
use crate::machine::slow_node;
use crate::progress::say;

/// The folder of the machines that tests run in.
pub const MACHINE: &str = "test";

/// Labs that a test gets if the emulator ends under it.
const LABS: usize = 3;

/// A failure of the emulator under a test, not of the product.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Defect {
    /// L1's QEMU ended without a panic of L1's kernel: once in some fifty labs of QEMU 10, its cause
    /// unknown (`resets.log` in the machine's folder holds the registers).
    L1Ended,
    /// Nothing in L1 answers any more. Seen once, in CI: `khugepaged` did not leave one processor, and the other one was
    /// silent too. Cause unknown; registers of both are in the diagnosis.
    L1Hung,
    /// A nested guest reset itself without a word of its kernel. Seen without the product too, under
    /// plain `move_pages` (docs/lab.md); on guests that are not nested, never.
    GuestReset,
}

/// Runs a test in a lab, and again in another one, loudly, if the emulator fails under it: its result is lost then.
/// Any word of a kernel is a failure of the test, but for its watchdog's where L1 hangs. So is what happens twice, if it
/// is a guest's reset or a hang: the product could have caused it.
pub fn run(blueprint: &Blueprint, test: &Test, body: InL1) -> Result<()> {
    let mut before = None;
    for _ in 1..LABS {
        let (result, defect) = run_one(blueprint, test, body)?;
        let (Err(error), Some(defect)) = (&result, defect) else {
            return result;
        };
        if before == Some(defect) && defect != Defect::L1Ended {
            return result;
        }
        let what = match defect {
            Defect::L1Ended => "THE EMULATOR ENDED",
            Defect::L1Hung => "L1 HANGS",
            Defect::GuestReset => "THE NESTED GUEST RESET ITSELF",
        };
        println!("test {}: {what}, again in a new lab\n{error:#}", test.name);
        before = Some(defect);
    }
    run_one(blueprint, test, body)?.0
}

/// The test's result, and whether the emulator failed under it.
fn run_one(blueprint: &Blueprint, test: &Test, body: InL1) -> Result<(Result<()>, Option<Defect>)> {
    let begin = Instant::now();
    let mut lab = match test.needs {
        Needs::Counters => {
            let options = slow_node::options(slow_node::CACHE_KIB)?;
            Lab::start(
                &blueprint.clone().with_extra(options),
                MACHINE,
                Lifetime::Task,
            )?
        }
        _ => Lab::start(blueprint, MACHINE, Lifetime::Task)?,
    };
    say(&format!(
        "lab restored in {:.1} s",
        begin.elapsed().as_secs_f64()
    ));
    if test.needs.has_product() {
        lab.install_product()?;
    }
    let result = caught(|| body(&mut lab));
    let result = match refused::in_l1(&mut lab) {
        Ok(refused) => refused.judge(result),
        // L1's own end is the better error than a missing answer.
        Err(silent) => result.and(Err(silent)),
    };
    let Err(error) = result else {
        return Ok((result, None));
    };
    // Asked first: L1 closes its channels a moment before its QEMU is seen to have ended.
    let diagnosis = lab.diagnosis();
    let defect = if lab.emulator_ended() {
        Some(Defect::L1Ended)
    } else if lab.hangs() {
        Some(Defect::L1Hung)
    } else {
        lab.guest_reset_in_silence().then_some(Defect::GuestReset)
    };
    Ok((Err(anyhow!("{error:#}\n{diagnosis}")), defect))
}
