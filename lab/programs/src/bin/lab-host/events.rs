//! Writes down what a guest's QEMU says by QMP unasked: whether the machine ever stopped.
//!
//! The monitor has no path, so that only its reader can find it: the daemon under test has its own.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::thread;

use anyhow::{Context, Result};
use terrace_lab_programs::vm;

/// Both ends of such a monitor.
pub struct Events {
    ours: UnixStream,
    theirs: OwnedFd,
}

impl Events {
    /// A monitor that nobody reads yet.
    pub fn new() -> Result<Self> {
        let (ours, theirs) = UnixStream::pair().context("socketpair")?;
        let theirs = theirs.into();
        Ok(Self { ours, theirs })
    }

    /// QEMU's end.
    pub fn descriptor(&self) -> i32 {
        self.theirs.as_raw_fd()
    }

    /// Writes down all that comes until QEMU ends, beside the caller.
    pub fn write_down(self, name: &str) -> Result<()> {
        let path = vm::events_path(name);
        let mut file = File::create(&path).with_context(|| format!("cannot create {path}"))?;
        let mut monitor = self.ours;
        monitor
            .write_all(b"{\"execute\": \"qmp_capabilities\"}\n")
            .context("writing to the monitor")?;
        thread::spawn(move || io::copy(&mut monitor, &mut file));
        Ok(())
    }
}
