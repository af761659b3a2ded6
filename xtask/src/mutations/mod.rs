//! The mutations, which show that the tests of the rules that protect a guest's data can fail (`docs/data-rules.md`):
//! each rule is broken in a copy of the tree, and its test has to fail there by its own assertion.

mod judge;
mod table;
mod tree;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;

use judge::Verdict;
use table::{MUTATIONS, Mutation, Proof, TestTarget};
use terrace_lab::children::Guarded;
use terrace_lab::guest_images;
use terrace_lab::places;
use terrace_lab::progress::{Wait, say};
use tree::Tree;

/// Environment variable that names the folder for tests on guests.
const IMAGES: &str = "TERRACE_GUEST_IMAGES";

/// Most time for one build and test; a mutation that makes a test hang is not noticed by it.
const TIMEOUT: Duration = Duration::from_secs(20 * 60);

/// Time between two looks at whether a test has ended.
const MOMENT: Duration = Duration::from_millis(50);

#[derive(Args, Default)]
pub struct Arguments {
    /// Only mutations of this rule (a number), or whose names contain this
    #[arg(long, value_name = "RULE")]
    only: Option<String>,
    /// Name the mutations and run none
    #[arg(long)]
    list: bool,
}

/// A mutation and its outcome.
struct Row<'a> {
    mutation: &'a Mutation,
    verdict: Verdict,
}

/// Tries the mutations, prints a table, and fails if any of them was not noticed.
///
/// # Errors
/// If a mutation survives or does not apply, or its test fails without it.
pub fn run(arguments: &Arguments) -> Result<()> {
    let wanted = |m: &&Mutation| arguments.only.as_ref().is_none_or(|only| m.is_called(only));
    let chosen: Vec<&Mutation> = MUTATIONS.iter().filter(wanted).collect();
    if chosen.is_empty() {
        bail!("no such mutation; `cargo xtask mutations --list` names them");
    }
    if arguments.list {
        chosen
            .iter()
            .for_each(|m| println!("rule {:2}  {:32} {}", m.rule, m.name, m.what));
        return Ok(());
    }
    let workshop = Workshop::new(&chosen)?;
    let clean = workshop.without(&chosen)?;
    let mut rows = Vec::new();
    for mutation in chosen {
        let verdict = if clean.contains(&mutation.proof) {
            workshop.with(mutation)?
        } else {
            Verdict::FailsAnyway
        };
        say(&format!("{}: {}", mutation.name, verdict.text()));
        rows.push(Row { mutation, verdict });
    }
    print_table(&rows);
    let unnoticed = rows.iter().filter(|row| row.verdict != Verdict::Noticed);
    match unnoticed.count() {
        0 => Ok(()),
        n => bail!(
            "{n} of {} mutations were not noticed; {}",
            rows.len(),
            workshop.logs()?
        ),
    }
}

/// A copy of the tree, and the images with which its tests run.
struct Workshop {
    tree: Tree,
    /// Folder of images for tests on guests. `None` if there are no such tests.
    images: Option<PathBuf>,
}

impl Workshop {
    fn new(chosen: &[&Mutation]) -> Result<Self> {
        let on_guests = chosen
            .iter()
            .any(|m| matches!(m.proof.test_target, TestTarget::Guests));
        Ok(Self {
            images: on_guests.then(guest_images).transpose()?,
            tree: Tree::copied(&places::mutations("tree")?)?,
        })
    }

    /// The proofs whose tests pass in the tree as it is.
    fn without(&self, chosen: &[&Mutation]) -> Result<Vec<Proof>> {
        let mut tried: Vec<Proof> = Vec::new();
        let mut pass = Vec::new();
        for Mutation { proof, .. } in chosen {
            if !tried.contains(proof) {
                tried.push(*proof);
                match self.test(proof, "unchanged")? {
                    Verdict::Survived => pass.push(*proof),
                    other => say(&format!("unchanged, {}: {other:?}", proof.test)),
                }
            }
        }
        Ok(pass)
    }

    fn with(&self, mutation: &Mutation) -> Result<Verdict> {
        let _broken = self.tree.broken_by(mutation)?;
        self.test(&mutation.proof, mutation.name)
    }

    /// Builds and runs a test in the copy; the output is kept under `name`.
    fn test(&self, proof: &Proof, name: &str) -> Result<Verdict> {
        let log = places::mutations("logs")?.join(format!("{name}-{}.log", proof.test));
        let output =
            File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
        let mut cargo = self.command(proof)?;
        cargo.stdout(output.try_clone()?).stderr(output);
        let child = Guarded::spawn(&mut cargo)?;
        let mut wait = Wait::begin(&format!("{} ({name})", proof.test), TIMEOUT);
        let status = loop {
            if let Some(status) = child.ended()? {
                break status;
            }
            if wait.go_on().is_err() {
                return Ok(Verdict::Hung);
            }
            std::thread::sleep(MOMENT);
        };
        Ok(judge::judge(&said(&log)?, proof.test, status.success()))
    }

    fn command(&self, proof: &Proof) -> Result<Command> {
        let mut cargo = places::cargo();
        cargo
            .current_dir(self.tree.path())
            .env("CARGO_TARGET_DIR", places::mutations("build")?)
            .env("RUST_BACKTRACE", "0")
            .args(["test", "--package", proof.package])
            .args(proof.test_target.cargo_args())
            .arg("--");
        match (&proof.test_target, &self.images) {
            (TestTarget::Guests, Some(images)) => cargo.arg("--ignored").env(IMAGES, images),
            _ => &mut cargo,
        };
        cargo.arg(proof.test);
        Ok(cargo)
    }

    fn logs(&self) -> Result<String> {
        Ok(format!(
            "what their tests said is in {}",
            places::mutations("logs")?.display()
        ))
    }
}

fn said(log: &Path) -> Result<String> {
    let bytes = fs::read(log).with_context(|| format!("cannot read {}", log.display()))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn print_table(rows: &[Row]) {
    let width = |column: fn(&Mutation) -> &str| {
        rows.iter()
            .map(|row| column(row.mutation).len())
            .max()
            .unwrap_or(0)
    };
    let (what, test) = (width(|m| m.what), width(|m| m.proof.test));
    println!("rule  {:what$}  {:test$}  outcome", "mutation", "test");
    for Row { mutation, verdict } in rows {
        println!(
            "{:4}  {:what$}  {:test$}  {}",
            mutation.rule,
            mutation.what,
            mutation.proof.test,
            verdict.text()
        );
    }
}
