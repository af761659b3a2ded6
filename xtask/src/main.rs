//! The workspace's own tasks: `cargo xtask …`.

mod apt;
mod checks;
mod children;
mod host;
mod lab;
mod modules;
mod mutations;
mod places;
mod progress;
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
    /// Break each rule that protects a guest's data in a copy of the tree, and see its test fail
    Mutations(mutations::Arguments),
    /// A two-tier KVM host with a real guest in it, in an emulator on this machine
    #[command(subcommand)]
    Lab(lab::Task),
}

fn main() -> ExitCode {
    let task = Arguments::parse().task;
    let result = children::end_with_this_process().and_then(|()| match task {
        Task::Demo => checks::demo(),
        Task::Test { long } => checks::test(long),
        Task::Ci => checks::ci(),
        Task::Modules => modules::check(),
        Task::Mutations(arguments) => mutations::run(&arguments),
        Task::Lab(task) => lab::run(task),
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}
