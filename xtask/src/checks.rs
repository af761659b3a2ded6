//! `cargo xtask ci`, `test` and `demo`.

use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use terrace_lab::{TestArguments, host, modules, places};

use crate::messages;
use crate::mutations;
use crate::prose;
use crate::stages::{self, Stage};

/// Seeds of random cases that the long tests draw.
const SEEDS: usize = 3;

/// Everything a change must pass.
pub fn ci() -> Result<()> {
    let mut stages = vec![
        cargo_stage("format", &["fmt", "--all", "--check"]),
        cargo_stage(
            "lints",
            &[
                "clippy",
                "--workspace",
                "--all-targets",
                "--",
                "-D",
                "warnings",
            ],
        ),
        Stage::new("prose", || prose::run(&prose::Arguments::default())),
        Stage::new("messages", || {
            messages::run(&messages::Arguments { check: true })
        }),
        Stage::new("docs", docs),
        Stage::new("licences", licences),
    ];
    stages.extend(test_stages(false));
    stages::run(stages)
}

/// All tests; with `long`, also those that take minutes.
pub fn test(long: bool) -> Result<()> {
    stages::run(test_stages(long))
}

/// The product at work on a real host and guest.
pub fn demo() -> Result<()> {
    stages::run(vec![
        Stage::new("install", host::install_missing),
        Stage::new("lab demo", terrace_lab::demo),
    ])
}

fn test_stages(long: bool) -> Vec<Stage> {
    let mut stages = vec![
        Stage::new("install", host::install_missing),
        cargo_stage("build", &["build", "--workspace"]),
        Stage::new("modules", modules::check),
        cargo_stage("tests", &["test", "--workspace", "--quiet"]),
    ];
    if long {
        stages.push(Stage::new("long tests", long_tests));
        stages.push(Stage::new("new random cases", new_random_cases));
        stages.push(cargo_stage("figures of docs/repro.md", CHECK_FIGURES));
        stages.push(Stage::new("mutations", || {
            mutations::run(&mutations::Arguments::default())
        }));
    }
    stages.push(Stage::new("lab test", move || {
        terrace_lab::test(&TestArguments {
            long,
            ..TestArguments::default()
        })
    }));
    stages
}

/// Measures the figures in the reasons of docs/repro.md again.
const CHECK_FIGURES: &[&str] = &[
    "run",
    "--release",
    "--package",
    "terrace-cli",
    "--",
    "sim",
    "repro",
    "--check",
];

/// Runs the random cases of what faces a guest, a hundred times as many, with full optimisation.
fn long_tests() -> Result<()> {
    let mut cargo = places::cargo();
    cargo
        .args(["test", "--release", "--package", "terrace-pagetable"])
        .env("TERRACE_LONG", "100");
    succeed(&mut cargo)
}

/// Runs all tests with random cases that no run had before: others run the same ones each time (.cargo/config.toml).
fn new_random_cases() -> Result<()> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
    for seed in (now.as_secs()..).take(SEEDS) {
        println!("PROPTEST_RNG_SEED={seed}");
        let mut cargo = places::cargo();
        cargo
            .args(["test", "--workspace", "--quiet"])
            .env("PROPTEST_RNG_SEED", seed.to_string());
        succeed(&mut cargo)?;
    }
    Ok(())
}

fn cargo_stage(name: &'static str, arguments: &'static [&'static str]) -> Stage {
    Stage::new(name, move || succeed(places::cargo().args(arguments)))
}

fn docs() -> Result<()> {
    let mut cargo = places::cargo();
    cargo
        .args(["doc", "--workspace", "--no-deps", "--quiet"])
        .env("RUSTDOCFLAGS", "-Dwarnings");
    succeed(&mut cargo)
}

/// Checks licences, but no advisories: their database is fetched anew each time, so a run would depend on the network
/// and on the day.
fn licences() -> Result<()> {
    let is_there = places::cargo().args(["deny", "--version"]).output();
    if !is_there.is_ok_and(|output| output.status.success()) {
        succeed(places::cargo().args(["install", "cargo-deny", "--locked", "--quiet"]))?;
    }
    succeed(places::cargo().args(["deny", "check", "bans", "licenses", "sources"]))
}

fn succeed(command: &mut Command) -> Result<()> {
    let status = command
        .status()
        .with_context(|| format!("cannot start {command:?}"))?;
    if !status.success() {
        bail!("{command:?} failed ({status}); its output is above");
    }
    Ok(())
}
