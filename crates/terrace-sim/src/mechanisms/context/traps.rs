//! Traps: the accesses that are reported to a mechanism.

use terrace_proto::PageBitmap;

use crate::mechanisms::Unit;

/// Pages whose next access faults, and pages whose next write faults.
#[derive(Debug)]
pub(super) struct Traps {
    hinted: PageBitmap,
    guarded: PageBitmap,
}

impl Traps {
    /// Traps over so many units, none of which faults.
    pub(super) fn new(units: u32) -> Self {
        let bits = || PageBitmap::new(u64::from(units));
        Self {
            hinted: bits(),
            guarded: bits(),
        }
    }

    pub(super) fn hint(&mut self, unit: Unit) {
        self.hinted.set(u64::from(unit));
    }

    pub(super) fn is_hinted(&self, unit: Unit) -> bool {
        self.hinted.get(u64::from(unit))
    }

    /// Takes a hint away; returns whether there was one.
    pub(super) fn take_hint(&mut self, unit: Unit) -> bool {
        take(&mut self.hinted, unit)
    }

    pub(super) fn guard(&mut self, unit: Unit) {
        self.guarded.set(u64::from(unit));
    }

    /// Takes a guard away; returns whether there was one.
    pub(super) fn take_guard(&mut self, unit: Unit) -> bool {
        take(&mut self.guarded, unit)
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.hinted.heap_bytes() + self.guarded.heap_bytes()
    }
}

/// Clears a unit's bit; returns whether it was set.
pub(super) fn take(bits: &mut PageBitmap, unit: Unit) -> bool {
    let unit = u64::from(unit);
    let was = bits.get(unit);
    bits.put(unit, false);
    was
}
