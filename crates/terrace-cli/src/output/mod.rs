//! Output of commands: text and JSON on standard output, and files.
//!
//! Responsible for: an error where output cannot be written (`println!` would panic), and files that are whole or not
//! there ([`files`]). It leaves to others: the text, and a closed pipe, which ends the program quietly.

pub mod files;

use std::fmt::Display;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use anyhow::{Context as _, Result};
use serde::Serialize;

/// Whether the name stands for standard output.
pub fn is_standard(out: &Path) -> bool {
    out.as_os_str() == "-"
}

/// Writes text to standard output.
pub fn print(text: impl Display) -> Result<()> {
    to_standard(|to| write!(to, "{text}"))
}

/// Writes text and the end of its line to standard output.
pub fn print_line(text: impl Display) -> Result<()> {
    to_standard(|to| writeln!(to, "{text}"))
}

/// Writes a line to standard error, for people. One that cannot be written is lost: it must not end a run (`eprintln!` would).
pub fn tell(text: impl Display) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// Writes a value as JSON to standard output, piece by piece.
pub fn print_json<T: Serialize>(value: &T) -> Result<()> {
    to_standard(|to| write_json(to, value))
}

/// Writes a value as JSON, and the end of its last line.
pub fn write_json<T: Serialize>(to: &mut dyn Write, value: &T) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut *to, value)?;
    to.write_all(b"\n")
}

/// Flushes at the end: what is written when the program ends could fail unseen.
fn to_standard(write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<()> {
    let mut to = BufWriter::new(io::stdout().lock());
    let written = write(&mut to).and_then(|()| to.flush());
    written.context("standard output cannot be written, send it to a place with room")
}
