//! The nodes of a process's pages, by the kernel's word.

use std::io;
use std::time::Instant;

use anyhow::{Context, Result};
use serde::Deserialize;
use terrace_lab_programs::move_pages;
use terrace_lab_programs::pages::{PAGE_SIZE, PageRange, Placement};

/// Pages per call, when moving.
const BATCH: usize = 512;

/// A workload's answer to `truth`: its process, and the virtual page numbers.
#[derive(Deserialize)]
struct Truth {
    pid: i32,
    ranges: Vec<PageRange>,
}

/// Prints the nodes of the pages on standard input; first moves them if there is a node to move them to, and says on standard
/// error how long that took.
pub fn print(node: Option<i32>) -> Result<()> {
    let truth: Truth = serde_json::from_reader(io::stdin())
        .context("standard input: {\"pid\": N, \"ranges\": [[first, count], ...]}")?;
    let pages = truth.ranges.iter().flat_map(|range| range.frames());
    let addresses: Vec<usize> = pages
        .map(|page| Ok(usize::try_from(page)? * PAGE_SIZE))
        .collect::<Result<_>>()?;
    let begun = Instant::now();
    let statuses = match node {
        Some(node) => move_pages::move_to(truth.pid, &addresses, node, BATCH)?,
        None => move_pages::query(truth.pid, &addresses)?,
    };
    if node.is_some() {
        eprintln!("{:.3} ms", begun.elapsed().as_secs_f64() * 1000.0);
    }
    let mut placement = Placement::default();
    for status in statuses {
        placement.count(status);
    }
    println!("{}", serde_json::to_string(&placement)?);
    Ok(())
}
