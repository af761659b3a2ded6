//! The facts about a load before it runs: its context, and its end.

use std::path::Path;

/// Most 4 KiB pages of all VMs together after scaling: 1 TiB, about 8 GiB of the simulator's own state.
pub const MAX_PAGES: u64 = 1 << 28;

/// The facts that a load needs to make its accesses.
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
    /// Whether the machine has a last-level cache, and the accesses come before it.
    pub is_cached: bool,
    /// The scenario's folder.
    pub folder: &'a Path,
}

/// The end of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// After so many memory accesses over all vCPUs, of the full-size machine.
    Ops(u64),
    /// After so many ns of the full-size machine.
    Duration(u64),
    /// At the end of its trace.
    Trace,
}
