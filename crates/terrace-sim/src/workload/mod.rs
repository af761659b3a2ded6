//! Loads: what a VM's program does with its memory.
//!
//! Responsible for: every `kind` of a scenario's `workload`, its parameters, and the accesses that they
//! stand for. It leaves to others: what an access costs ([`crate::machine`]), and files of recorded
//! accesses ([`crate::trace`]).

use std::path::Path;

use crate::access::Source;

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

/// A load: its kind and parameters, checked.
#[derive(Clone, Debug, PartialEq)]
pub enum Workload {}

/// A load that cannot be made.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct WorkloadError(pub String);

impl Workload {
    /// 4 KiB pages of its memory at that scale: its accesses are to pages below this.
    #[must_use]
    pub fn pages(&self, _scale: u64) -> u64 {
        match *self {}
    }

    /// One source for each vCPU.
    ///
    /// # Errors
    /// Where a file that it needs cannot be read.
    pub fn sources(&self, _context: &Context) -> Result<Vec<Box<dyn Source>>, WorkloadError> {
        match *self {}
    }
}
