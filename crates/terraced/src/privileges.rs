//! What the daemon may do: it gives up all capabilities but the few that its job takes.

use anyhow::{Context as _, Result};
use terrace_sys::{Capability, keep_only};

/// Moving pages of other processes; looking at them; connecting to monitors that another user owns.
const KEPT: [Capability; 3] = [
    Capability::CAP_SYS_NICE,
    Capability::CAP_SYS_PTRACE,
    Capability::CAP_DAC_OVERRIDE,
];

/// Gives up everything else, for good. Called while there is one thread.
pub fn give_up() -> Result<()> {
    keep_only(&KEPT).context("giving up capabilities")
}

/// The calling thread gives up all but what connecting to another user's socket and looking at its process takes.
pub fn keep_what_looking_takes() -> Result<()> {
    let kept = [Capability::CAP_DAC_OVERRIDE, Capability::CAP_SYS_PTRACE];
    keep_only(&kept).context("giving up capabilities")
}

/// The calling thread gives up all but what connecting to another user's socket takes.
pub fn keep_what_connecting_takes() -> Result<()> {
    keep_only(&[Capability::CAP_DAC_OVERRIDE]).context("giving up capabilities")
}
