//! The lab's tests and their runner.

mod agent;
mod agent_faults;
mod agent_nested;
mod compare;
mod damon;
mod fairness;
mod faults;
mod fork_storm;
mod host_nodes;
mod huge_pages;
mod infrastructure;
mod native;
mod placement;
mod several_vms;
mod simulator;
mod soak;
mod writes;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use anyhow::{Result, anyhow, bail};
use terrace_lab::vm::VmSpec;

use super::blueprint::Blueprint;
use super::flex;
use super::guests::{self, Outcome};
use super::process::Lifetime;
use super::programs;
use super::refused;
use super::running::Lab;
use super::stock;
use super::tasks::TestArguments;
use crate::progress::say;

/// A test, named as a behaviour. It gets a lab that nobody has used before.
pub struct LabTest {
    pub name: &'static str,
    /// Whether the product's programs must be in L1.
    pub needs_product: bool,
    pub run: fn(&mut Lab) -> Result<()>,
}

/// Every test there is.
const TESTS: &[&[LabTest]] = &[
    infrastructure::TESTS,
    native::TESTS,
    placement::TESTS,
    fork_storm::TESTS,
    faults::TESTS,
    several_vms::TESTS,
    huge_pages::TESTS,
    damon::TESTS,
    writes::TESTS,
    agent::TESTS,
    agent_faults::TESTS,
    agent_nested::TESTS,
    host_nodes::TESTS,
    simulator::TESTS,
];

/// Those that take minutes.
const LONG_TESTS: &[&[LabTest]] = &[soak::TESTS, compare::TESTS, fairness::TESTS];

/// Runs the tests that the arguments ask for; the last line says how many passed and failed.
pub fn run(arguments: &TestArguments) -> Result<()> {
    let wanted = |test: &&LabTest| match &arguments.only {
        Some(part) => test.name.contains(part.as_str()),
        None => true,
    };
    let long = if arguments.long { LONG_TESTS } else { &[] };
    let all = TESTS.iter().chain(long).copied().flatten();
    let chosen: Vec<&LabTest> = all.filter(wanted).collect();
    let on_guests = guests::names(arguments.only.as_deref())?;
    let on_flex = flex::names(arguments.only.as_deref());
    let on_stock = stock::names(arguments.only.as_deref());
    let elsewhere = on_guests.len() + on_flex.len() + on_stock.len();
    if chosen.is_empty() && elsewhere == 0 {
        bail!("no such test; `cargo xtask lab test --list` names them");
    }
    if arguments.list {
        let names = chosen.iter().map(|test| test.name);
        names
            .chain(on_guests.iter().map(String::as_str))
            .chain(on_flex)
            .chain(on_stock)
            .for_each(|name| println!("{name}"));
        return Ok(());
    }
    let mut all = Outcome::default();
    if !on_guests.is_empty() {
        let plain = guests::run(arguments.only.as_deref(), arguments.long)?;
        all = all.and(plain);
    }
    all = all.and(flex::run(arguments.only.as_deref()));
    all = all.and(stock::run(arguments.only.as_deref()));
    if !chosen.is_empty() {
        all = all.and(run_in_labs(&chosen)?);
    }
    conclude(&all)
}

/// Lines of a failure that are shown again at the end.
const LINES: usize = 12;

/// Says again at the end what failed and why: of a long log, the end is what is kept.
fn conclude(outcome: &Outcome) -> Result<()> {
    for failure in &outcome.failed {
        println!("failed: {}", failure.name);
        for line in failure.why.lines().take(LINES) {
            println!("    {line}");
        }
    }
    let failed = outcome.failed.len();
    println!("{} passed, {failed} failed", outcome.passed);
    if failed > 0 {
        let names: Vec<&str> = outcome.failed.iter().map(|f| f.name.as_str()).collect();
        bail!("{failed} of the lab's tests failed: {}", names.join(", "));
    }
    Ok(())
}

fn run_in_labs(tests: &[&LabTest]) -> Result<Outcome> {
    let blueprint = Blueprint::prepare(&VmSpec::default(), false)?;
    if tests.iter().any(|test| test.needs_product) {
        programs::build_product()?;
    }
    if !blueprint.has_snapshot()? {
        drop(Lab::start(&blueprint, "test", Lifetime::Task)?);
    }
    let mut outcome = Outcome::default();
    for test in tests {
        println!("test {} …", test.name);
        let begin = Instant::now();
        let result = run_again_if_the_emulator_failed(&blueprint, test);
        let seconds = begin.elapsed().as_secs_f64();
        outcome.count(test.name, seconds, result);
    }
    Ok(outcome)
}

/// Labs that a test gets if the emulator ends under it.
const LABS: usize = 3;

/// How the emulator failed under a test, not the product.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Defect {
    /// L1's QEMU ended without a panic of L1's kernel: once in some fifty labs of QEMU 10, its cause
    /// unknown (`resets.log` in the machine's folder holds the registers).
    L1Ended,
    /// A nested guest reset itself without a word of its kernel. Seen without the product too, under
    /// plain `move_pages` (docs/lab.md); on guests that are not nested, never.
    GuestReset,
}

/// What a test shows is lost when the emulator fails under it, so it gets another lab, loudly. Any
/// word of a kernel is a failure of the test, and so is a guest that resets itself twice.
fn run_again_if_the_emulator_failed(blueprint: &Blueprint, test: &LabTest) -> Result<()> {
    let mut before = None;
    for _ in 1..LABS {
        let (result, defect) = run_one(blueprint, test)?;
        let (Err(error), Some(defect)) = (&result, defect) else {
            return result;
        };
        if before == Some(Defect::GuestReset) && defect == Defect::GuestReset {
            return result;
        }
        let what = match defect {
            Defect::L1Ended => "THE EMULATOR ENDED",
            Defect::GuestReset => "THE NESTED GUEST RESET ITSELF",
        };
        println!("test {}: {what}, again in a new lab\n{error:#}", test.name);
        before = Some(defect);
    }
    run_one(blueprint, test)?.0
}

/// The test's result, and whether the emulator failed under it.
fn run_one(blueprint: &Blueprint, test: &LabTest) -> Result<(Result<()>, Option<Defect>)> {
    let begin = Instant::now();
    let mut lab = Lab::start(blueprint, "test", Lifetime::Task)?;
    say(&format!(
        "lab restored in {:.1} s",
        begin.elapsed().as_secs_f64()
    ));
    if test.needs_product {
        lab.install_product()?;
    }
    // An assertion in a test fails this test, not the run.
    let result = catch_unwind(AssertUnwindSafe(|| (test.run)(&mut lab)))
        .unwrap_or_else(|panic| Err(anyhow!("panic: {}", message(panic.as_ref()))));
    let result = match refused::in_l1(&mut lab) {
        Ok(refused) => refused.judge(result),
        // What ended L1 says more than that it does not answer.
        Err(silent) => result.and(Err(silent)),
    };
    let Err(error) = result else {
        return Ok((result, None));
    };
    // Asked first: L1 closes its channels a moment before its QEMU is seen to have ended.
    let diagnosis = lab.diagnosis();
    let defect = if lab.emulator_ended() {
        Some(Defect::L1Ended)
    } else {
        lab.guest_reset_in_silence().then_some(Defect::GuestReset)
    };
    Ok((Err(anyhow!("{error:#}\n{diagnosis}")), defect))
}

fn message(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("(no message)")
}
