//! Virtio-serial ports by name.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};

/// The port over which `terrace-lab` runs commands in L1.
pub const CONTROL: &str = "control";

/// The port of a guest over which it reports its true hot set.
pub const TRUTH: &str = "truth";

const CLASS: &str = "/sys/class/virtio-ports";

/// Opens the virtio-serial port called `name`. The kernel lets one process open a port at a time.
///
/// # Errors
/// If there is no such port or another program has it open.
pub fn open(name: &str, nonblocking: bool) -> Result<File> {
    let device = find(name)?;
    OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(if nonblocking { libc::O_NONBLOCK } else { 0 })
        .open(&device)
        .with_context(|| format!("cannot open port {name} at {}", device.display()))
}

fn find(name: &str) -> Result<PathBuf> {
    let entries = fs::read_dir(CLASS).with_context(|| format!("cannot list {CLASS}"))?;
    for entry in entries {
        let entry = entry?;
        let label = fs::read_to_string(entry.path().join("name")).unwrap_or_default();
        if label.trim_end() == name {
            return Ok(PathBuf::from("/dev").join(entry.file_name()));
        }
    }
    bail!("no virtio-serial port in {CLASS} is called {name}");
}
