//! Subcommands that print the nodes of a guest's pages.

use std::io;

use anyhow::{Context, Result};
use terrace_lab_programs::move_pages;
use terrace_lab_programs::pages::{PageRange, Placement, coalesce};

use crate::guest_memory::GuestMemory;

/// Prints the nodes of the frames on standard input.
pub fn print_placement(guest: &str) -> Result<()> {
    let memory = GuestMemory::find(guest)?;
    let addresses = memory.addresses(&read_ranges()?)?;
    print(&move_pages::query(memory.pid, &addresses)?)
}

/// Prints the nodes of all pages of the guest's RAM.
pub fn print_residents(guest: &str) -> Result<()> {
    let memory = GuestMemory::find(guest)?;
    let addresses = memory.addresses(&[memory.all()])?;
    print(&move_pages::query(memory.pid, &addresses)?)
}

/// Prints the guest frames that are on `node`.
pub fn print_frames(guest: &str, node: i32) -> Result<()> {
    let memory = GuestMemory::find(guest)?;
    let all = memory.all();
    let statuses = move_pages::query(memory.pid, &memory.addresses(&[all])?)?;
    let there = all
        .frames()
        .zip(statuses)
        .filter_map(|(frame, status)| (status == node).then_some(frame));
    println!("{}", serde_json::to_string(&coalesce(there.collect()))?);
    Ok(())
}

/// Moves the frames on standard input, and prints their nodes afterwards.
pub fn print_move(guest: &str, node: i32, batch: usize) -> Result<()> {
    let memory = GuestMemory::find(guest)?;
    let addresses = memory.addresses(&read_ranges()?)?;
    print(&move_pages::move_to(memory.pid, &addresses, node, batch)?)
}

fn read_ranges() -> Result<Vec<PageRange>> {
    serde_json::from_reader(io::stdin()).context("frames on standard input: [[first, count], ...]")
}

fn print(statuses: &[i32]) -> Result<()> {
    let mut placement = Placement::default();
    for status in statuses {
        placement.count(*status);
    }
    println!("{}", serde_json::to_string(&placement)?);
    Ok(())
}
