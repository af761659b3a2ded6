//! What is known of a load before it runs: where it runs, and when it ends.

use std::path::Path;

/// What a load needs to know to make its accesses.
#[derive(Clone, Copy, Debug)]
pub struct Context<'a> {
    /// Divisor of sizes.
    pub scale: u64,
    /// Seed of the run.
    pub seed: u64,
    /// Name of the VM.
    pub vm: &'a str,
    /// The VM's vCPUs.
    pub vcpus: u32,
    /// The scenario's folder.
    pub folder: &'a Path,
}

/// When a load ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// After so many memory accesses over all vCPUs, of the full-size machine.
    Ops(u64),
    /// After so many ns of the full-size machine.
    Duration(u64),
    /// When its trace ends.
    Trace,
}
