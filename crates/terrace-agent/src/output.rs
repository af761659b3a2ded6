//! Standard output of commands: an error where it cannot be written (`println!` would panic).

use std::fmt::Display;
use std::io::{self, Write};

use anyhow::{Context as _, Result};

/// Writes text.
///
/// # Errors
/// If it cannot be written, as on a full device.
pub fn print(text: impl Display) -> Result<()> {
    put(io::stdout().lock(), text)
}

/// Writes text and the end of its line.
///
/// # Errors
/// If it cannot be written, as on a full device.
pub fn print_line(text: impl Display) -> Result<()> {
    print(format_args!("{text}\n"))
}

/// Flushes: what is written when the program ends could fail unseen.
fn put(mut to: impl Write, text: impl Display) -> Result<()> {
    let written = write!(to, "{text}").and_then(|()| to.flush());
    written.context("standard output cannot be written, send it to a place with room")
}
