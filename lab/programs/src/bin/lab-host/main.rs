//! Runs in L1: carries out the orders of `terrace-lab`, keeps guests, and asks the kernel for the nodes of pages.

mod balanced;
mod bridge;
mod command;
mod events;
mod guest_memory;
mod placement;
mod poll;
mod serve;
mod store;
mod supervisor;

use std::process::ExitCode;

use anyhow::{Context, Result, bail};

const USAGE: &str = "usage: lab-host serve
       lab-host start-vm JSON               start a guest and keep its truth channel
       lab-host placement VM|PID            node counts of the frames on standard input
       lab-host residents VM|PID            node counts of all resident pages of the guest's RAM
       lab-host frames VM|PID NODE          the frames of the guest's RAM that are on a node
       lab-host move VM|PID NODE [BATCH]    move the frames on standard input to a node
Frames are given as JSON: [[first, count], ...]";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("lab-host: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[&str]) -> Result<()> {
    match arguments {
        ["serve"] => serve::serve(),
        ["start-vm", spec] => {
            supervisor::run(&serde_json::from_str(spec).context("start-vm JSON")?)
        }
        ["placement", guest] => placement::print_placement(guest),
        ["residents", guest] => placement::print_residents(guest),
        ["frames", guest, node] => placement::print_frames(guest, node.parse()?),
        ["move", guest, node] => placement::print_move(guest, node.parse()?, 512),
        ["move", guest, node, batch] => placement::print_move(guest, node.parse()?, batch.parse()?),
        _ => bail!("{USAGE}"),
    }
}
