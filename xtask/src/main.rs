//! The workspace's own tasks: `cargo xtask …`.

mod checks;
mod messages;
mod mutations;
mod prose;
mod sources;
mod stages;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Terrace's development tasks.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Install what is missing, then show Terrace at work in the lab
    Demo,
    /// Install what is missing, build, run all tests and then the lab's
    Test {
        /// Also run the tests that take minutes
        #[arg(long)]
        long: bool,
    },
    /// Everything a change must pass: format, lints, docs, licences, tests
    Ci,
    /// Build the guest's kernel modules for the lab's kernel, target/modules/NAME.ko, and check that they compile for
    /// the oldest and the newest one
    Modules,
    /// Count how comments are written, beside the limits that `ci` holds them to
    Prose(prose::Arguments),
    /// Write docs/messages.md: every message that Terrace shows
    Messages(messages::Arguments),
    /// Break each rule that protects a guest's data in a copy of the tree, and see its test fail
    Mutations(mutations::Arguments),
    /// A two-tier KVM host with a real guest in it, in an emulator on this machine
    #[command(subcommand)]
    Lab(terrace_lab::Task),
}

fn main() -> ExitCode {
    let task = Arguments::parse().task;
    let result = terrace_lab::children::end_with_this_process("xtask").and_then(|()| match task {
        Task::Demo => checks::demo(),
        Task::Test { long } => checks::test(long),
        Task::Ci => checks::ci(),
        Task::Modules => terrace_lab::modules::check(),
        Task::Prose(arguments) => prose::run(&arguments),
        Task::Messages(arguments) => messages::run(&arguments),
        Task::Mutations(arguments) => mutations::run(&arguments),
        Task::Lab(task) => terrace_lab::run(task),
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}
