//! The balloon of a VM, which has one size and knows no tiers.

use terrace_proto::PAGE_SIZE;

use super::{Bytes, ResizeError};
use crate::memory_map::{MemoryMapError, resident_ram};
use crate::qemu::Monitor;
use crate::{HostRoot, process_memory};

/// The least that a balloon may leave to a guest: below it no Linux lives, and a number so small is more likely
/// a wrong unit.
const MIN: u64 = 1 << 20;

/// A VM's balloon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Balloon {
    /// The memory that the balloon leaves to the guest, bytes.
    pub size: u64,
    /// The VM's RAM, bytes: an empty balloon leaves all of it.
    pub ram: u64,
}

impl Balloon {
    /// Bytes of host memory behind the VM's RAM, or an upper bound of them if that is no more than its size. `None` if they
    /// cannot be measured.
    ///
    /// # Errors
    /// If QEMU or the kernel does not report where RAM is.
    pub fn present(
        &self,
        root: &HostRoot,
        pid: u32,
        monitor: &mut Monitor,
    ) -> Result<Option<u64>, MemoryMapError> {
        let Some(resident) = process_memory::resident(root, pid) else {
            return Ok(None);
        };
        // Private RAM is no more than all that is private; to measure it alone takes longer. Files may have memory that the
        // process does not map.
        let given = self.ram.saturating_sub(self.size);
        if resident.shared_bytes <= given / 100 && resident.bytes() <= self.size {
            return Ok(Some(resident.bytes()));
        }
        resident_ram(root, pid, monitor)
    }

    /// The VM's total size if tiers are to have that many bytes: their sum.
    ///
    /// # Errors
    /// If a tier's size is not said, or the sum is none that the VM can have.
    pub fn total(&self, wanted: &[Option<u64>]) -> Result<u64, ResizeError> {
        if wanted.iter().all(Option::is_none) {
            return Err(ResizeError::NothingAsked);
        }
        let sizes: Option<Vec<u64>> = wanted.iter().copied().collect();
        let sizes = sizes.ok_or(ResizeError::OneTierByBalloon)?;
        let total = sizes.into_iter().fold(0, u64::saturating_add);
        if (MIN..=self.ram).contains(&total) {
            // A balloon holds whole pages: no other size is ever reached.
            return Ok(total / PAGE_SIZE * PAGE_SIZE);
        }
        let [asked, ram] = [total, self.ram].map(Bytes);
        Err(ResizeError::BalloonRange { asked, ram })
    }

    /// Sends the balloon the size to leave to the guest.
    ///
    /// # Errors
    /// If QEMU refuses.
    pub fn order(monitor: &mut Monitor, total: u64) -> Result<(), ResizeError> {
        Ok(monitor.set_balloon(total)?)
    }
}
