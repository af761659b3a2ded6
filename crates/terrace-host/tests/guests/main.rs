//! The rules that protect a guest's data (`docs/data-rules.md`), each as a test on real Linux guests.
//!
//! The guests run here under plain emulation, their RAM a file, and are scanned by the product: its
//! monitor, its memory map, its worker. What is in their memory, which pages are hot and whether any
//! byte is wrong they say themselves (`lab/programs/src/bin/lab-guest`).
//!
//! Needs QEMU, a kernel and an initrd: `cargo xtask lab test` makes them and runs this. Started with the
//! argument `worker`, this program is the product's worker.

#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "tests without the harness"
)]

mod claims;
mod forged;
mod guest;
mod heat;
mod high;
mod holes;
mod huge;
mod isolation;
mod lazyfree;
mod levels;
mod machine;
mod picture;
mod qmp;
mod spaces;
mod stale;
mod storm;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::Instant;

use guest::Guest;
use machine::{IMAGES, Machine};

type Test = (&'static str, fn(&mut Guest));

/// Tests that share a guest, in this order. One that fails leaves a new guest to the next.
struct Group {
    machine: Machine,
    tests: &'static [Test],
}

const GROUPS: [Group; 6] = [
    spaces::GROUP,
    isolation::GROUP,
    levels::FIVE,
    levels::FOUR,
    huge::GROUP,
    stale::GROUP,
];

/// The arguments of cargo's test harness.
struct Arguments {
    list: bool,
    /// Run the tests, all of which count as ignored.
    ignored: bool,
    filter: Option<String>,
}

fn main() -> ExitCode {
    let mut args: Vec<String> = std::env::args().skip(1).collect();
    if args.first().is_some_and(|word| word == "worker") {
        terrace_host::worker::run().expect("the daemon's messages make sense");
        return ExitCode::SUCCESS;
    }
    let has = |names: &[&str]| args.iter().any(|word| names.contains(&word.as_str()));
    let (list, ignored) = (has(&["--list"]), has(&["--ignored", "--include-ignored"]));
    args.retain(|word| !word.starts_with('-'));
    let arguments = Arguments {
        list,
        ignored,
        filter: args.pop(),
    };
    run(&arguments)
}

fn run(arguments: &Arguments) -> ExitCode {
    let wanted = |name: &str| arguments.filter.as_ref().is_none_or(|f| name.contains(f));
    let (mut ignored, mut failed) = (0, 0);
    for group in &GROUPS {
        let tests = || group.tests.iter().filter(|(name, _)| wanted(name));
        if arguments.list {
            tests().for_each(|(name, _)| println!("{name}: test"));
        } else if arguments.ignored {
            failed += run_group(&group.machine, tests());
        } else {
            ignored += tests().count();
        }
    }
    if ignored > 0 {
        println!("{ignored} tests need QEMU and images, ignored: `cargo xtask lab test` runs them");
    }
    ExitCode::from(u8::from(failed > 0))
}

fn run_group(machine: &Machine, tests: impl Iterator<Item = &'static Test>) -> usize {
    let Some(images) = std::env::var_os(IMAGES) else {
        panic!(
            "{IMAGES} names no folder with a kernel, an initrd and an emulator; `cargo xtask lab test` makes \
             one and runs these tests"
        );
    };
    let mut failed = 0;
    let mut guest = None;
    for (name, test) in tests {
        let begin = Instant::now();
        let result = catch_unwind(AssertUnwindSafe(|| {
            test(guest.get_or_insert_with(|| Guest::boot(machine, images.as_ref())));
        }));
        let word = if result.is_ok() { "ok" } else { "FAILED" };
        println!(
            "test {name} ... {word} ({:.1} s)",
            begin.elapsed().as_secs_f64()
        );
        if result.is_err() {
            failed += 1;
            if let Some(guest) = guest.take() {
                println!("{}", guest.console_tail());
            }
        }
    }
    failed
}
