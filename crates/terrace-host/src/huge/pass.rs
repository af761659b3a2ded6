//! Knowledge of a VM's memory for a pass through it.
//!
//! The kernel names the flags of mappings, and the share of huge pages, in `smaps` alone. To write it it walks all page
//! tables of the process under its lock, so it is read at the beginning of a pass and at its end. Between, the list of
//! mappings (`maps`) shows whether the flags may have changed: each call that sets one for a part of a mapping splits it.
//! A flag of a whole mapping that is set meanwhile is seen by the next pass; the kernel itself refuses memory that another
//! process serves the faults of.

use terrace_proto::provision::{HugeBacking, NotCollapsed};
use terrace_sys::ProcessId;

use super::settings::Thp;
use super::{HugeTarget, not_now};
use crate::HostRoot;
use crate::memory_map::{AnonymousMapping, MappingsFile, anonymous_mappings};

/// The knowledge that the steps of a pass share of the VM's memory.
#[derive(Debug, Default)]
pub struct HugePass {
    /// The process, and the setting, that the rest is about.
    of: Option<(ProcessId, Thp)>,
    /// Start and end of each mapping of RAM.
    bounds: Vec<(u64, u64)>,
    /// The mappings that may have huge pages.
    may: Vec<AnonymousMapping>,
    /// The memory at the beginning.
    pub(super) before: Option<HugeBacking>,
    /// Whether a block was tried since.
    pub(super) has_tried: bool,
}

impl HugePass {
    /// Enters a step: reads what is not known, or not any more. Returns the memory if it was to be measured.
    pub(super) fn enter(
        &mut self,
        target: &HugeTarget,
        root: &HostRoot,
        thp: Thp,
        measures: bool,
    ) -> Result<Option<HugeBacking>, NotCollapsed> {
        if !measures && self.is_still_true(target, root, thp)? {
            return Ok(None);
        }
        let backing = self.measure(target, root, thp)?;
        (self.before, self.has_tried) = (Some(backing), false);
        Ok(measures.then_some(backing))
    }

    /// Whether the mappings are those that the flags are known of.
    fn is_still_true(
        &self,
        target: &HugeTarget,
        root: &HostRoot,
        thp: Thp,
    ) -> Result<bool, NotCollapsed> {
        if self.of != Some((target.id(), thp)) {
            return Ok(false);
        }
        let now = mappings(target, root, MappingsFile::Maps)?;
        Ok(bounds(&now) == self.bounds)
    }

    /// Reads the mappings and their flags, and returns the memory behind those that may have huge pages.
    pub(super) fn measure(
        &mut self,
        target: &HugeTarget,
        root: &HostRoot,
        thp: Thp,
    ) -> Result<HugeBacking, NotCollapsed> {
        self.of = None;
        let of_ram = mappings(target, root, MappingsFile::Smaps)?;
        self.bounds = bounds(&of_ram);
        self.may = HugeTarget::that_may(of_ram, thp)?;
        self.of = Some((target.id(), thp));
        Ok(backing(&self.may))
    }

    /// The mappings that may have huge pages.
    pub(super) fn mappings(&self) -> &[AnonymousMapping] {
        &self.may
    }
}

fn mappings(
    target: &HugeTarget,
    root: &HostRoot,
    file: MappingsFile,
) -> Result<Vec<AnonymousMapping>, NotCollapsed> {
    let all = anonymous_mappings(root, target.id().pid, file).map_err(|error| not_now(&error))?;
    let of_ram = all.into_iter().filter(|mapping| target.has_ram_in(mapping));
    Ok(of_ram.collect())
}

fn bounds(mappings: &[AnonymousMapping]) -> Vec<(u64, u64)> {
    let all = mappings.iter();
    all.map(|mapping| (mapping.start, mapping.end)).collect()
}

fn backing(mappings: &[AnonymousMapping]) -> HugeBacking {
    let sum =
        |of: fn(&AnonymousMapping) -> u64| mappings.iter().map(of).fold(0, u64::saturating_add);
    HugeBacking {
        present_bytes: sum(|mapping| mapping.present_bytes),
        huge_bytes: sum(|mapping| mapping.huge_bytes),
    }
}
