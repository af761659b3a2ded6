//! Loads: the memory accesses of a VM's program.
//!
//! Responsible for: every `kind` of a scenario's `workload`, its parameters, and the accesses that they stand for
//! (`docs/workloads.md`). It leaves to others: the cost of an access, and files of recorded accesses
//! ([`crate::trace`]).
//!
//! An access is one of the program to a 64-byte line, before the last-level cache unless the load says otherwise: there
//! are no caches here. Sizes are divided by the scale,
//! shares are not; times by the clock are those of the full-size machine.

mod btree;
mod csr;
mod draw;
mod graph;
mod gups;
mod head;
mod hot_cold;
mod hotset;
mod keys;
mod linear;
mod load;
mod masim;
mod multigrid;
mod phases;
mod presets;
mod ranked;
mod sequential;
mod source;
mod stencil;
mod store;
mod swapmix;
mod values;
mod xsbench;

#[cfg(test)]
mod tests;

use std::path::Path;

use crate::base::access::{Pace, Source};
use crate::base::load::{Context, Stop};
use crate::trace::{TraceError, TraceSpec};
use source::{Endless, Generate};

pub use load::Load;

/// A load's kind and parameters, checked. A scenario has them as part of a [`Load`].
#[derive(Clone, Debug, PartialEq)]
pub struct Workload {
    kind: WorkloadKind,
    pace: Pace,
}

#[derive(Clone, Debug, PartialEq)]
enum WorkloadKind {
    Hotset(hotset::Hotset),
    Sequential(sequential::Sequential),
    Gups(gups::Gups),
    Zipf(ranked::Zipf),
    Gauss(ranked::Gauss),
    Kv(store::Kv),
    Ycsb(store::Ycsb),
    Graph(graph::Graph),
    Btree(btree::Btree),
    Xsbench(xsbench::Xsbench),
    Stencil(stencil::Stencil),
    Multigrid(multigrid::Multigrid),
    Linear(linear::Linear),
    Swapmix(swapmix::Swapmix),
    Masim(masim::Masim),
    Phases(phases::Phases),
    Trace(TraceSpec),
}

/// Names of all kinds.
pub fn kinds() -> impl Iterator<Item = &'static str> {
    load::KINDS.iter().map(|(name, ..)| *name)
}

/// The error of a load that cannot be made.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct WorkloadError(pub String);

/// A kind whose vCPUs all do the same, without end.
trait Endlessly {
    type Generator: Generate;

    /// Number of 4 KiB pages of the load's memory.
    fn pages(&self, scale: u64) -> Result<u64, WorkloadError>;

    /// The accesses of one vCPU.
    fn generator(&self, context: &Context, vcpu: u32) -> Result<Self::Generator, WorkloadError>;

    fn sources(
        &self,
        context: &Context,
        pace: Pace,
    ) -> Result<Vec<Box<dyn Source>>, WorkloadError> {
        let source = |vcpu| {
            let generator = self.generator(context, vcpu)?;
            Ok(Box::new(Endless { generator, pace }) as Box<dyn Source>)
        };
        (0..context.vcpus).map(source).collect()
    }
}

/// Calls a method of the value in a [`WorkloadKind`].
macro_rules! of_kind {
    ($kind:expr, $endless:ident => $then:expr, $($other:tt)*) => {
        match $kind {
            WorkloadKind::Hotset($endless) => $then,
            WorkloadKind::Sequential($endless) => $then,
            WorkloadKind::Gups($endless) => $then,
            WorkloadKind::Zipf($endless) => $then,
            WorkloadKind::Gauss($endless) => $then,
            WorkloadKind::Kv($endless) => $then,
            WorkloadKind::Ycsb($endless) => $then,
            WorkloadKind::Graph($endless) => $then,
            WorkloadKind::Btree($endless) => $then,
            WorkloadKind::Xsbench($endless) => $then,
            WorkloadKind::Stencil($endless) => $then,
            WorkloadKind::Multigrid($endless) => $then,
            WorkloadKind::Linear($endless) => $then,
            WorkloadKind::Swapmix($endless) => $then,
            $($other)*
        }
    };
}

fn broken_trace(error: TraceError) -> WorkloadError {
    WorkloadError(error.to_string())
}

impl Workload {
    /// The pace of the load's accesses beside memory; `phases` and `trace` have their own.
    #[must_use]
    pub fn pace(&self) -> Pace {
        self.pace
    }

    /// This load at another pace.
    #[must_use]
    pub fn with_pace(&self, pace: Pace) -> Self {
        Self {
            kind: self.kind.clone(),
            pace,
        }
    }

    /// Number of 4 KiB pages of the load's memory at that scale: all accesses are to pages below this.
    ///
    /// # Errors
    /// If the memory is not a whole number of pages at that scale, or the load's file in `folder` cannot be read.
    pub fn pages(&self, scale: u64, folder: &Path) -> Result<u64, WorkloadError> {
        self.check_scale(scale)?;
        of_kind!(&self.kind, kind => kind.pages(scale),
            WorkloadKind::Masim(masim) => masim.pages(folder),
            WorkloadKind::Phases(phases) => phases.pages(scale, folder),
            WorkloadKind::Trace(trace) => trace.pages(folder).map_err(broken_trace),
        )
    }

    /// Number of pages of the load's first program, if the load is one of programs that end and free their memory.
    ///
    /// # Errors
    /// As [`Workload::pages`].
    pub fn first_program(&self, scale: u64, folder: &Path) -> Result<Option<u64>, WorkloadError> {
        match &self.kind {
            WorkloadKind::Phases(phases) => phases.first_program(scale, folder),
            _ => Ok(None),
        }
    }

    /// Whether the load is one of programs that end and free their memory.
    #[must_use]
    pub fn frees_memory(&self) -> bool {
        matches!(&self.kind, WorkloadKind::Phases(phases) if phases.frees_memory())
    }

    /// Whether the load has phases of which one or more end by the clock.
    #[must_use]
    pub fn has_timed_phases(&self) -> bool {
        matches!(&self.kind, WorkloadKind::Phases(phases) if phases.is_timed())
    }

    /// The file that the load is read from, relative to the scenario's folder, if there is one.
    #[must_use]
    pub fn file(&self) -> Option<&Path> {
        match &self.kind {
            WorkloadKind::Masim(masim) => Some(&masim.file),
            WorkloadKind::Trace(trace) => Some(&trace.file),
            _ => None,
        }
    }

    /// Reads the file that the load is read from in another folder, by its name.
    pub(crate) fn read_from(&mut self, folder: &Path) {
        let file = match &mut self.kind {
            WorkloadKind::Masim(masim) => &mut masim.file,
            WorkloadKind::Trace(trace) => &mut trace.file,
            _ => return,
        };
        if let Some(name) = file.file_name() {
            *file = folder.join(name);
        }
    }

    /// The ends of the load's phases, in order; none of a load without phases.
    pub(crate) fn phase_ends(&self) -> Vec<Stop> {
        match &self.kind {
            WorkloadKind::Phases(phases) => phases.ends().collect(),
            _ => Vec::new(),
        }
    }

    /// One source for each vCPU.
    ///
    /// # Errors
    /// As [`Workload::pages`], and if a part of the load has no room.
    pub fn sources(&self, context: &Context) -> Result<Vec<Box<dyn Source>>, WorkloadError> {
        self.check_scale(context.scale)?;
        let context = &Context {
            is_cached: context.is_cached && self.pace.before_cache,
            ..*context
        };
        of_kind!(&self.kind, kind => kind.sources(context, self.pace),
            WorkloadKind::Masim(masim) => masim.sources(context, self.pace),
            WorkloadKind::Phases(phases) => phases.sources(context),
            WorkloadKind::Trace(trace) => trace.sources(context).map_err(broken_trace),
        )
    }

    /// Checks that a VM with so many vCPUs can run the load.
    ///
    /// # Errors
    /// If the load asks for more.
    pub fn check_vcpus(&self, vcpus: u32) -> Result<(), WorkloadError> {
        match &self.kind {
            WorkloadKind::Trace(trace) => trace.check_players(vcpus).map_err(broken_trace),
            _ => Ok(()),
        }
    }

    /// Checks the scale: recorded and hand-written accesses cannot be divided.
    fn check_scale(&self, scale: u64) -> Result<(), WorkloadError> {
        let kind = match self.kind {
            WorkloadKind::Masim(_) => "masim",
            WorkloadKind::Trace(_) => "trace",
            _ if scale == 0 => {
                return Err(WorkloadError("scale = 0: allowed is 1 or more".into()));
            }
            _ => return Ok(()),
        };
        if scale == 1 {
            return Ok(());
        }
        Err(WorkloadError(format!(
            "workload of kind {kind:?}: it needs scale = 1, not {scale}"
        )))
    }
}
