//! The nodes of a process's pages, by the kernel's word.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
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

impl Truth {
    fn read() -> Result<Self> {
        serde_json::from_reader(io::stdin())
            .context("standard input: {\"pid\": N, \"ranges\": [[first, count], ...]}")
    }

    fn pages(&self) -> impl Iterator<Item = u64> {
        self.ranges.iter().flat_map(|range| range.frames())
    }
}

/// Bits of a page's frame in its entry of `/proc/PID/pagemap`.
const FRAME: u64 = (1 << 55) - 1;

/// Prints the frames of the pages on standard input, by the kernel's table of the process; 0 for one that has none.
pub fn print_frames() -> Result<()> {
    let truth = Truth::read()?;
    let path = format!("/proc/{}/pagemap", truth.pid);
    let table = File::open(&path).with_context(|| path.clone())?;
    let mut frames = Vec::new();
    for page in truth.pages() {
        let mut entry = [0; 8];
        let read = table.read_exact_at(&mut entry, page * 8);
        read.with_context(|| format!("{path}, page {page:#x}"))?;
        let entry = u64::from_ne_bytes(entry);
        frames.push(if entry >> 63 == 1 { entry & FRAME } else { 0 });
    }
    println!("{}", serde_json::to_string(&frames)?);
    Ok(())
}

/// Prints the nodes of the pages on standard input; first moves them if there is a node to move them to, and says on standard
/// error how long that took.
pub fn print(node: Option<i32>) -> Result<()> {
    let truth = Truth::read()?;
    let addresses: Vec<usize> = truth
        .pages()
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
