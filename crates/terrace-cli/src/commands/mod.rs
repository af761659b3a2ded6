//! One function per command that talks to the daemon; long ones have files of their own.

pub mod bench;
pub mod config;
pub mod demo;
mod doctor;
mod doctor_alone;
mod events;
mod explain;
pub mod man;
mod map;
pub mod mrc;
mod neighbours;
mod plan;
pub mod provisioning;
mod replay;
mod resize;
mod show;
pub mod sim;
mod size_plan;
mod top;
pub mod trace;
mod vms;

use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use terrace_api::client::{Client, segment};
use terrace_api::types::{Done, Setting};

use crate::args::Command;
use crate::output::{self, print_json};

/// Runs a command that needs the daemon.
pub async fn online(socket: &Path, command: Command) -> Result<ExitCode> {
    let client = Client::new(socket);
    match command {
        Command::Doctor { json, config } => {
            return doctor::run(&client, socket, config.as_deref(), json).await;
        }
        Command::Vms { json } => vms::run(&client, json).await?,
        Command::Show { vm, json, map, svg } => {
            show::run(&client, &vm, json, map, svg.as_deref()).await?;
        }
        Command::Top(args) => top::run(&client, socket, args).await?,
        Command::Plan { vm, json, .. } => match vm {
            Some(vm) => plan::run(&client, &vm, json).await?,
            None => size_plan::run(&client, json).await?,
        },
        Command::Explain { vm, page, json } => explain::run(&client, &vm, page, json).await?,
        Command::Events { follow, json } => events::run(&client, follow, json).await?,
        Command::Set { vm, settings, json } => set(&client, &vm, settings, json).await?,
        Command::Resize(args) => return resize::run(&client, args).await,
        Command::Pause { vm, json } => send(&client, vm.as_deref(), "pause", json).await?,
        Command::Resume { vm, json } => send(&client, vm.as_deref(), "resume", json).await?,
        Command::Round { vm, json } => send(&client, Some(&vm), "round", json).await?,
        Command::Bench(_)
        | Command::Completions { .. }
        | Command::Config(_)
        | Command::Demo(_)
        | Command::Man { .. }
        | Command::Mrc(_)
        | Command::Sim(_)
        | Command::Trace(_) => unreachable!("runs without the daemon"),
    }
    Ok(ExitCode::SUCCESS)
}

/// Sends a `POST` without a body, about one VM or all.
async fn send(client: &Client, vm: Option<&str>, what: &str, json: bool) -> Result<()> {
    let path = match vm {
        Some(vm) => format!("/v1/vms/{}/{what}", segment(vm)),
        None => format!("/v1/{what}"),
    };
    say(&client.post(&path, &()).await?, json)
}

async fn set(client: &Client, vm: &str, settings: Vec<(String, String)>, json: bool) -> Result<()> {
    let path = format!("/v1/vms/{}/set", segment(vm));
    for (key, value) in settings {
        say(&client.post(&path, &Setting { key, value }).await?, json)?;
    }
    Ok(())
}

/// Prints the answer to a command, on a line.
fn say(done: &Done, json: bool) -> Result<()> {
    if json {
        output::print_line(serde_json::to_string(done)?)
    } else {
        output::print_line(&done.done)
    }
}
