//! Starts a program whose memory comes from a given node.

use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Context, Result};
use terrace_lab_programs::numa;

/// Replaces this process by the program. It prefers the node for as long as it lives; `move_pages` may move its
/// pages.
pub fn start(node: u32, processor: usize, program: &str, arguments: &[&str]) -> Result<()> {
    numa::pin(processor).with_context(|| format!("cannot keep to processor {processor}"))?;
    numa::prefer(node).with_context(|| format!("cannot prefer node {node}"))?;
    let error = Command::new(program).args(arguments).exec();
    Err(error).with_context(|| format!("cannot start {program}"))
}
