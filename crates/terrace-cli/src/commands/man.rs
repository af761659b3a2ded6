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
    eprintln!("wrote the manual pages of terrace to {}", folder.display());
    Ok(())
}
