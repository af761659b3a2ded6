//! `terrace man FOLDER`.

use std::fs::{self, Permissions};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use anyhow::{Context, Result};
use clap_mangen::Man;
use terrace_config::shown;

use crate::args::Args;
use crate::output;

/// Writes a manual page for each command, made of the text of `--help`.
pub fn run(folder: &Path) -> Result<()> {
    let mut all = Args::described().disable_help_subcommand(true);
    all.build();
    fs::create_dir_all(folder)
        .map_err(anyhow::Error::from)
        .and_then(|()| write(all, folder))
        .with_context(|| format!("cannot write manual pages to {}", shown(folder)))?;
    output::tell(format_args!(
        "wrote the manual pages of terrace to {}",
        shown(folder)
    ));
    Ok(())
}

fn write(command: clap::Command, folder: &Path) -> Result<()> {
    for inner in command.get_subcommands().filter(|c| !c.is_hide_set()) {
        write(inner.clone(), folder)?;
    }
    let page = Man::new(command);
    // A new file that takes the name's place: what stood under it, a link or a pipe say, is not written to.
    let mut file = tempfile::Builder::new()
        .permissions(Permissions::from_mode(0o644))
        .tempfile_in(folder)?;
    page.render(&mut file)?;
    file.flush()?;
    let name = page.get_filename();
    let placed = file
        .persist(folder.join(&name))
        .map_err(|error| error.error);
    placed.with_context(|| format!("the page {name}"))?;
    Ok(())
}
