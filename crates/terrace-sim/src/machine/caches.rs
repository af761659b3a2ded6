//! The caches that all VMs of the machine share. They are in the space of the VM whose vCPUs run.

use super::last_level::LastLevel;
use super::memory_mode::MemoryMode;

/// The machine's caches.
#[derive(Clone, Debug, Default)]
pub struct Caches {
    /// The processor's last-level cache; `None` if every access reaches memory.
    pub last_level: Option<Box<LastLevel>>,
    /// The DRAM cache, under memory mode.
    pub memory_mode: Option<Box<MemoryMode>>,
}

impl Caches {
    /// Switches to the VM (by its place) whose vCPUs run from now on.
    pub fn serve(&mut self, vm: usize) {
        if let Some(cache) = &mut self.last_level {
            cache.serve(vm);
        }
        if let Some(cache) = &mut self.memory_mode {
            cache.serve(vm);
        }
    }

    /// Bytes on the heap.
    #[must_use]
    pub fn heap_bytes(&self) -> u64 {
        let last_level = self.last_level.as_ref().map_or(0, |c| c.heap_bytes());
        last_level + self.memory_mode.as_ref().map_or(0, |c| c.heap_bytes())
    }
}
