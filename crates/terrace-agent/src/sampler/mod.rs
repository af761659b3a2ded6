//! Sources that say which virtual pages of a process are accessed.
//!
//! One trait, several sources. A source is asked once per epoch; it never blocks, and it counts what it lost. It
//! leaves to others: what the samples mean.

mod choice;
pub mod damon;
pub mod pmu;
mod scan;

use terrace_core::ranges::{Params, Range};

pub use choice::{Samplers, by_pmu};

/// A process that is to be sampled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The process's number.
    pub pid: u32,
    /// The virtual 4 KiB pages that matter, ascending, apart.
    pub ranges: Vec<Range>,
}

/// Accesses that were seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// The process's number.
    pub pid: u32,
    /// The pages: a single one, or as much as the source can distinguish.
    pub range: Range,
    /// The number of accesses, spread over the range.
    pub accesses: u32,
}

/// Losses that one drain reports beside its samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Drained {
    /// Records that the kernel dropped because a buffer was full.
    pub lost: u64,
    /// Records that were no samples of ours, or made no sense.
    pub malformed: u64,
}

/// An error that makes a source unusable, from the start or from now on.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct SamplerError(pub String);

/// A source of samples.
pub trait Sampler: Send {
    /// The source's name in `status`, such as `pebs`, `ibs`, `scan`, `damon`.
    fn name(&self) -> &'static str;

    /// The tree's parameters that fit this source's counts.
    fn params(&self, vcpus: u32) -> Params;

    /// Whether the source clears accessed bits.
    fn clears_accessed_bits(&self) -> bool {
        true
    }

    /// Replaces the processes that are watched; those that stay keep what was learned.
    ///
    /// # Errors
    /// If the source no longer works at all; a process that ended is no error.
    fn watch(&mut self, targets: &[Target]) -> Result<(), SamplerError>;

    /// Hands over the samples since the last call. Never blocks.
    ///
    /// # Errors
    /// If the source no longer works at all.
    fn drain(&mut self, sink: &mut dyn FnMut(Sample)) -> Result<Drained, SamplerError>;
}
