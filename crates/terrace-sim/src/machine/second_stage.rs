//! The second stage: guest frame to host memory, with A and D, a byte per page.

use terrace_proto::{Gfn, PageSize};

use super::TIERS;
use crate::number::{index, low, place};

/// State bits of a page. Tier in bits 0 and 1.
pub mod bits {
    /// Which tier.
    pub const TIER: u8 = 3;
    /// Set by the processor when it uses the mapping.
    pub const ACCESSED: u8 = 1 << 2;
    /// Set by the processor at a write.
    pub const DIRTY: u8 = 1 << 3;
    /// The host has the page, but no mapping is filled: the next access faults.
    pub const UNFILLED: u8 = 1 << 4;
    /// Being copied, unmapped: an access waits.
    pub const UNMAPPED: u8 = 1 << 5;
    /// Being copied, write-protected: a write waits.
    pub const PROTECTED: u8 = 1 << 6;
    /// No host memory backs it.
    pub const ABSENT: u8 = 1 << 7;
}

/// The second stage of one VM. What it maps is a unit: 4 KiB or 2 MiB.
#[derive(Clone, Debug)]
pub struct SecondStage {
    units: Vec<u8>,
    shift: u32,
    held: [u64; TIERS],
    /// Units before this one hold the guest's page tables, which come on top of the VM's sizes: they
    /// have a tier, and are not counted.
    first_counted: u32,
    /// Of these, units before this one are used.
    tables: u32,
}

impl SecondStage {
    /// Maps so many guest frames, none of them backed. The last unit may be cut short. Tables take
    /// the first `table_frames`; units below that of frame `first_data` are not counted in
    /// [`SecondStage::held`].
    #[must_use]
    pub fn new(frames: u64, unit: PageSize, table_frames: u32, first_data: u32) -> Self {
        let shift = match unit {
            PageSize::Base => 0,
            PageSize::Huge => 9,
        };
        let units = frames.div_ceil(1 << shift);
        Self {
            units: vec![bits::ABSENT; place(units)],
            shift,
            held: [0; TIERS],
            first_counted: first_data >> shift,
            tables: table_frames.div_ceil(1 << shift),
        }
    }

    /// The unit of a frame.
    #[must_use]
    #[inline]
    pub fn unit_of(&self, frame: u32) -> u32 {
        frame >> self.shift
    }

    /// First frame of a unit.
    #[must_use]
    pub fn first_frame(&self, unit: u32) -> Gfn {
        Gfn(u64::from(unit) << self.shift)
    }

    /// Units that hold the guest's page tables: those before this one.
    #[must_use]
    pub fn tables(&self) -> u32 {
        self.tables
    }

    /// The first unit of the load's memory; between tables and it nothing is.
    #[must_use]
    pub fn first_data(&self) -> u32 {
        self.first_counted
    }

    /// Units there are.
    #[must_use]
    pub fn len(&self) -> u32 {
        low(self.units.len() as u64)
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.units.is_empty()
    }

    /// 4 KiB pages of a unit.
    #[must_use]
    pub fn pages_per_unit(&self) -> u64 {
        1 << self.shift
    }

    /// Whether units are of 2 MiB.
    #[must_use]
    pub fn huge(&self) -> bool {
        self.shift != 0
    }

    /// State of a unit.
    #[must_use]
    #[inline]
    pub fn get(&self, unit: u32) -> u8 {
        self.units[index(unit)]
    }

    /// Sets state bits of a unit; not its tier, nor whether it is backed.
    #[inline]
    pub fn raise(&mut self, unit: u32, bits: u8) {
        self.units[index(unit)] |= bits & !(bits::TIER | bits::ABSENT);
    }

    /// Clears state bits of a unit; not its tier, nor whether it is backed.
    #[inline]
    pub fn lower(&mut self, unit: u32, bits: u8) {
        self.units[index(unit)] &= !(bits & !(bits::TIER | bits::ABSENT));
    }

    /// The tier of a unit, if it is backed.
    #[must_use]
    #[inline]
    pub fn tier(&self, unit: u32) -> Option<u8> {
        let state = self.get(unit);
        (state & bits::ABSENT == 0).then_some(state & bits::TIER)
    }

    /// Backs a unit by a tier, or by none.
    pub fn put(&mut self, unit: u32, tier: Option<u8>) {
        let counted = u64::from(unit >= self.first_counted);
        if let Some(old) = self.tier(unit) {
            self.held[usize::from(old)] -= counted;
        }
        let state = &mut self.units[index(unit)];
        *state &= !(bits::TIER | bits::ABSENT);
        match tier {
            Some(tier) => {
                *state |= tier & bits::TIER;
                self.held[usize::from(tier & bits::TIER)] += counted;
            }
            None => *state = bits::ABSENT,
        }
    }

    /// Units per tier, without those of tables.
    #[must_use]
    pub fn held(&self) -> &[u64; TIERS] {
        &self.held
    }

    /// All units' states, to be looked at.
    #[must_use]
    pub fn states(&self) -> &[u8] {
        &self.units
    }

    /// Bytes on the heap.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        self.units.capacity()
    }
}
