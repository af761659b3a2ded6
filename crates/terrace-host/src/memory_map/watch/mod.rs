//! Whether a VM's RAM is still where its map has it.
//!
//! Responsible for: the check before anything is done by a map and again before the result is believed, and for
//! remembering that a map does not hold any more. It leaves to others: what happens then.
//!
//! A check of the whole asks QEMU for its memory tree and takes some dozen questions. A short one asks nothing: it
//! takes in the events that QEMU sent, compares what the process maps, and checks the whole only if either shows
//! a change.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use terrace_sys::Process;

use super::build::MemoryTree;
use super::layout::Layout;
use super::procfs::mappings;
use super::{GuestMemory, MemoryMapError};
use crate::HostRoot;
use crate::qemu::Monitor;

/// The reason why a map is not used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MapDoubt {
    /// The map is another one for good: nothing is done by the old one any more.
    #[error("the VM's memory map changed: {0}")]
    Changed(String),
    /// Whether it still holds is not known now.
    #[error("the VM's memory map could not be checked for changes: {0}")]
    Unknown(String),
}

/// The questions about a VM that a watch asks.
pub(super) trait Witness: MemoryTree + Send {
    /// Rises with each thing that QEMU reported after which its RAM may be another one; asks nothing.
    fn memory_events(&self) -> u64;
}

impl Witness for Monitor {
    fn memory_events(&self) -> u64 {
        Self::memory_events(self)
    }
}

/// Checks of one VM's map; shared by all that go by it.
#[derive(Debug)]
pub struct MapWatch {
    root: HostRoot,
    process: Arc<Process>,
    state: Mutex<State<Monitor>>,
}

#[derive(Debug)]
pub(super) struct State<W> {
    witness: W,
    pid: u32,
    layout: Layout,
    /// Events before the last check of the whole that found the map as it was.
    seen: Option<u64>,
    /// Once it is another one, it stays so.
    changed: Option<String>,
}

impl MapWatch {
    /// Checks of a map by this monitor. Of one that was not read from a VM but given by its parts, nothing is checked.
    #[must_use]
    pub fn new(
        root: HostRoot,
        process: Arc<Process>,
        monitor: Monitor,
        memory: &GuestMemory,
    ) -> Self {
        let layout = memory.layout().cloned().unwrap_or_default();
        let state = Mutex::new(State::new(monitor, process.pid(), layout));
        Self {
            root,
            process,
            state,
        }
    }

    /// Compares the whole map; before a round.
    ///
    /// # Errors
    /// If it changed, or cannot be determined.
    pub fn check(&self) -> Result<(), MapDoubt> {
        self.checked(State::check)
    }

    /// Compares what can be compared without a question to QEMU, and the whole if that shows a change; before
    /// anything is done by the map, and before the result is believed.
    ///
    /// # Errors
    /// As [`MapWatch::check`].
    pub fn glance(&self) -> Result<(), MapDoubt> {
        self.checked(State::glance)
    }

    /// Rises with each thing that QEMU reported after which the RAM may be another one; asks QEMU nothing.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.state().witness.memory_events()
    }

    fn checked(
        &self,
        check: impl FnOnce(&mut State<Monitor>, &HostRoot) -> Result<(), MapDoubt>,
    ) -> Result<(), MapDoubt> {
        let mut state = self.state();
        let outcome = check(&mut state, &self.root);
        // Figures of /proc may have been of another process.
        if !self.process.is_alive() {
            let ended = format!("process {} has ended", self.process.pid());
            return Err(MapDoubt::Unknown(ended));
        }
        outcome
    }

    fn state(&self) -> MutexGuard<'_, State<Monitor>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<W: Witness> State<W> {
    pub(super) fn new(witness: W, pid: u32, layout: Layout) -> Self {
        Self {
            witness,
            pid,
            layout,
            seen: None,
            changed: None,
        }
    }

    pub(super) fn glance(&mut self, root: &HostRoot) -> Result<(), MapDoubt> {
        if self.is_settled()? {
            return Ok(());
        }
        if self.seen != Some(self.witness.memory_events()) {
            return self.check(root);
        }
        let mappings = mappings(root, self.pid);
        let mappings = mappings.map_err(|error| MapDoubt::Unknown(error.to_string()))?;
        let is_mapped = self.layout.is_mapped(&mappings);
        is_mapped.map_err(|text| self.change_to(text))
    }

    pub(super) fn check(&mut self, root: &HostRoot) -> Result<(), MapDoubt> {
        if self.is_settled()? {
            return Ok(());
        }
        // Events that come while the map is read are handled by the next check.
        let events = self.witness.memory_events();
        let now = match Layout::read(root, self.pid, &mut self.witness) {
            Ok((now, _)) => now,
            Err(MemoryMapError::Qemu(error)) => return Err(MapDoubt::Unknown(error.to_string())),
            Err(MemoryMapError::Read(error)) => return Err(MapDoubt::Unknown(error.to_string())),
            Err(error @ (MemoryMapError::Inconsistent(_) | MemoryMapError::Unscannable(_))) => {
                return Err(self.change_to(error.to_string()));
            }
        };
        if let Some(text) = self.layout.change(&now) {
            return Err(self.change_to(text));
        }
        self.seen = Some(events);
        Ok(())
    }

    /// Whether there is nothing to compare.
    fn is_settled(&self) -> Result<bool, MapDoubt> {
        match &self.changed {
            Some(text) => Err(MapDoubt::Changed(text.clone())),
            None => Ok(self.layout.pieces.is_empty()),
        }
    }

    fn change_to(&mut self, text: String) -> MapDoubt {
        self.changed = Some(text.clone());
        MapDoubt::Changed(text)
    }
}

#[cfg(test)]
mod tests;
