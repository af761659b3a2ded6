//! The one runner of the lab's tests.

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use terrace_lab_programs::vm::VmSpec;

use super::attempts::{self, MACHINE};
use super::halves::OnGuests;
use super::outcome::Outcome;
use super::refused::Here;
use super::test::{Boot, Needs, OnGuest, Test, caught};
use super::{plain, registry};
use crate::alone::seeing_all_processes;
use crate::control::lab::Lab;
use crate::machine::blueprint::Blueprint;
use crate::machine::process::Lifetime;
use crate::programs;

/// Run the tests that need a real host and guest, each in a freshly restored lab
#[derive(Args, Default)]
pub struct TestArguments {
    /// Run only tests whose names contain this
    #[arg(long, value_name = "NAME")]
    pub only: Option<String>,
    /// Also run the tests that take minutes
    #[arg(long)]
    pub long: bool,
    /// Run only tests in L1, or only those on guests of this machine; both at the same time by default
    #[arg(long, value_name = "WHERE")]
    pub on: Option<On>,
    /// Name the tests and run none
    #[arg(long)]
    pub list: bool,
}

/// The machines that tests run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum On {
    /// A two-tier host, L1, with guests in it
    L1,
    /// Guests of this machine
    Guests,
}

/// Runs the tests that the arguments ask for; the last line has how many passed and failed.
///
/// # Errors
/// If one fails or cannot be run.
pub fn run(arguments: &TestArguments) -> Result<()> {
    let only = arguments.only.as_deref();
    let mut chosen = registry::chosen(only, arguments.long);
    chosen.retain(|test| arguments.on.is_none_or(|on| on == test.on()));
    let on_plain_guests = match arguments.on {
        Some(On::L1) => Vec::new(),
        _ => plain::names(only)?,
    };
    if chosen.is_empty() && on_plain_guests.is_empty() {
        bail!("no such test; `cargo xtask lab test --list` names them");
    }
    if arguments.list {
        let names = listed(&chosen, &on_plain_guests);
        names.iter().for_each(|name| println!("{name}"));
        return Ok(());
    }
    let (in_l1, on_guests): (Vec<&Test>, Vec<&Test>) =
        chosen.iter().partition(|test| test.on() == On::L1);
    let has_guests = !on_guests.is_empty() || !on_plain_guests.is_empty();
    let mut outcome = Outcome::default();
    if has_guests && !in_l1.is_empty() {
        let blueprint = prepare_l1(&in_l1)?;
        let others = OnGuests::start(arguments)?;
        run_in_l1(&blueprint, &in_l1, &mut outcome);
        outcome.add(others.join()?);
    } else if has_guests {
        if !on_plain_guests.is_empty() {
            outcome = plain::run(only, arguments.long)?;
        }
        run_on_guests(&on_guests, &mut outcome);
    } else {
        run_in_l1(&prepare_l1(&in_l1)?, &in_l1, &mut outcome);
    }
    outcome.conclude()
}

fn run_in_l1(blueprint: &Blueprint, chosen: &[&Test], outcome: &mut Outcome) {
    for test in chosen {
        if let Boot::L1(body) = test.boot {
            if let Err(lack) = test.needs.check() {
                println!("test {} skipped: {lack:#}", test.name);
                continue;
            }
            outcome.run(test.name, || attempts::run(blueprint, test, body));
        }
    }
}

fn run_on_guests(chosen: &[&Test], outcome: &mut Outcome) {
    for test in chosen {
        if let Boot::Guest(body) = test.boot {
            outcome.run(test.name, || on_guest(test, body));
        }
    }
}

/// Names in the order in which they are listed.
fn listed<'a>(chosen: &[&'a Test], on_plain_guests: &'a [String]) -> Vec<&'a str> {
    let (in_l1, on_guests): (Vec<&Test>, Vec<&Test>) =
        chosen.iter().partition(|test| test.on() == On::L1);
    let name = |test: &&'a Test| test.name;
    in_l1
        .iter()
        .map(name)
        .chain(on_plain_guests.iter().map(String::as_str))
        .chain(on_guests.iter().map(name))
        .collect()
}

/// The blueprint of the labs in which the tests run, with a snapshot.
fn prepare_l1(chosen: &[&Test]) -> Result<Blueprint> {
    let blueprint = Blueprint::prepare(&VmSpec::default(), false)?;
    if chosen.iter().any(|test| test.needs.has_product()) {
        programs::build_product()?;
    }
    if !blueprint.has_snapshot()? {
        drop(Lab::start(&blueprint, MACHINE, Lifetime::Task)?);
    }
    Ok(blueprint)
}

/// Runs a test that starts a guest of its own, and reads what this machine's kernel refused meanwhile.
fn on_guest(test: &Test, body: OnGuest) -> Result<()> {
    let log = Here::now();
    let result = match test.needs {
        Needs::EveryProcess => {
            let alone = ["lab", "test", "--only", test.name];
            seeing_all_processes(&alone, || caught(body))
        }
        Needs::Nothing | Needs::Product | Needs::Counters => caught(body),
    };
    log.since().and_then(|refused| refused.judge(result))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The names are fixed: documents, CI and people select tests by them.
    #[test]
    fn the_tests_are_those_of_the_list() {
        let plain = ["(of terrace-host)".to_owned()];
        let names = |long| listed(&registry::chosen(None, long), &plain);
        let mut wanted: Vec<&str> = include_str!("names.txt").lines().collect();
        let all = wanted.iter().map(|line| line.trim_end_matches(" (long)"));
        assert_eq!(names(true), all.collect::<Vec<_>>());
        wanted.retain(|line| !line.ends_with(" (long)"));
        assert_eq!(names(false), wanted);
    }
}
