//! `terrace man FOLDER`.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::args::Args;

/// Writes a manual page for each command, made of the text of `--help`.
pub fn run(folder: &Path) -> Result<()> {
    let write = || {
        fs::create_dir_all(folder)?;
        clap_mangen::generate_to(Args::described(), folder)
    };
    write().with_context(|| format!("cannot write manual pages to {}", folder.display()))?;
    let pages = fs::read_dir(folder)?.count();
    eprintln!("{pages} files are in {}", folder.display());
    Ok(())
}
