//! `cargo xtask messages`: the page of every message that Terrace shows to people.
//!
//! Messages are string literals in the sources, so they are collected from the sources' tokens: the texts of log lines,
//! errors, findings and metrics, and each other text of two words or more. Texts of panics are left out, as is what
//! only tests have.

mod collector;
mod page;
mod products;
mod tokens;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use terrace_lab::places;

use crate::sources::read;

/// Options of the task.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Arguments {
    /// Only fail if the page differs from the sources
    #[arg(long)]
    pub check: bool,
}

/// Writes the page, or checks it.
///
/// # Errors
/// If a source or the page cannot be read, the page cannot be written, or it fails the check.
pub fn run(arguments: &Arguments) -> Result<()> {
    let root = places::repository();
    let file = file(root);
    let page = page::page(&products::sections(root)?);
    if !arguments.check {
        return std::fs::write(&file, page)
            .with_context(|| format!("cannot write {}", file.display()));
    }
    if read(&file)? != page {
        bail!(
            "{} is out of date; run `cargo xtask messages`",
            file.display()
        );
    }
    Ok(())
}

/// The page's file.
fn file(root: &Path) -> PathBuf {
    root.join("docs/messages.md")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_every_message_as_the_sources_have_it() {
        run(&Arguments { check: true }).unwrap();
    }
}
