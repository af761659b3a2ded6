//! The second stage: the map from guest frames to host memory, with A and D, one byte per page.

use terrace_proto::{Gfn, PageBitmap, PageSize};

use super::TIERS;
use super::permissions::Permissions;
use crate::base::number::{index, low, to_usize};

/// State bits of a page. The tier is in bits 0 and 1.
pub mod bits {
    /// Mask of the tier.
    pub const TIER: u8 = 3;
    /// A: set by the processor when it uses the mapping.
    pub const ACCESSED: u8 = 1 << 2;
    /// D: set by the processor at a write.
    pub const DIRTY: u8 = 1 << 3;
    /// Backed, but not mapped: the next access faults.
    pub const UNFILLED: u8 = 1 << 4;
    /// Unmapped while it is copied: an access waits.
    pub const UNMAPPED: u8 = 1 << 5;
    /// Write-protected while it is copied: a write waits.
    pub const PROTECTED: u8 = 1 << 6;
    /// Backed by no host memory.
    pub const ABSENT: u8 = 1 << 7;
    /// Any state in which an access does not just go on.
    pub const ODD: u8 = UNFILLED | UNMAPPED | PROTECTED | ABSENT;
}

/// The second stage of one VM: a map of units of 4 KiB or 2 MiB.
#[derive(Clone, Debug)]
pub struct SecondStage {
    units: Vec<u8>,
    shift: u32,
    held: [u64; TIERS],
    /// First unit of the load's memory: units before it are for the guest's page tables.
    first_data: u32,
    /// First unit that counts as the VM's: tables before it have a tier, but come on top of the VM's sizes.
    first_counted: u32,
    /// First unit behind those that page tables really use.
    tables: u32,
    /// The blocks of 2 MiB, if they can be split: units are of 4 KiB then, and the first unit of a whole block stands
    /// for all of it.
    blocks: Option<Blocks>,
    /// The permissions of level 2 entries, if they are taken away to see accesses.
    pub permissions: Option<Box<Permissions>>,
}

/// Blocks of 512 units.
#[derive(Clone, Debug)]
struct Blocks {
    whole: PageBitmap,
    /// Whether the host maps a split block by a table of 4 KiB entries; otherwise the guest split its own mapping,
    /// and the host's stays as it is.
    tables: bool,
}

impl SecondStage {
    /// A map of so many guest frames, none of them backed. The last unit may be cut short. Tables take the first
    /// `table_frames`; units below that of frame `first_data` are not counted in [`SecondStage::held`].
    #[must_use]
    pub fn new(frames: u64, unit: PageSize, table_frames: u32, first_data: u32) -> Self {
        let shift = match unit {
            PageSize::Base => 0,
            PageSize::Huge => 9,
        };
        let units = frames.div_ceil(1 << shift);
        Self {
            units: vec![bits::ABSENT; to_usize(units)],
            shift,
            held: [0; TIERS],
            first_data: first_data >> shift,
            first_counted: first_data >> shift,
            tables: table_frames.div_ceil(1 << shift),
            blocks: None,
            permissions: None,
        }
    }

    /// Counts the guest's page tables too.
    #[must_use]
    pub fn counting_tables(self) -> Self {
        Self {
            first_counted: 0,
            ..self
        }
    }

    /// Turns the map into one of 2 MiB blocks that can all be split, in units of 4 KiB. `by_host`: the host splits
    /// its own mappings.
    #[must_use]
    pub fn splittable(self, by_host: bool) -> Self {
        let count = self.units.len();
        let mut units = vec![bits::ABSENT; count << 9];
        for (block, state) in self.units.into_iter().enumerate() {
            units[block << 9] = state;
        }
        let mut whole = PageBitmap::new(count as u64);
        (0..count as u64).for_each(|block| whole.set(block));
        Self {
            units,
            shift: 0,
            held: self.held.map(|blocks| blocks << 9),
            first_data: self.first_data << 9,
            first_counted: self.first_counted << 9,
            tables: self.tables << 9,
            blocks: Some(Blocks {
                whole,
                tables: by_host,
            }),
            permissions: self.permissions,
        }
    }

    /// Units that a unit stands for: 512 if it is the first of a whole block that could be split.
    #[must_use]
    pub fn units_of(&self, unit: u32) -> u64 {
        match &self.blocks {
            Some(blocks) if blocks.whole.get(u64::from(unit >> 9)) => 512,
            _ => 1,
        }
    }

    /// 4 KiB pages that a unit stands for.
    #[must_use]
    pub fn pages_of(&self, unit: u32) -> u64 {
        self.units_of(unit) << self.shift
    }

    /// Splits the block that a unit stands for: each unit of the block gets the state of this one.
    pub fn split(&mut self, unit: u32) {
        if self.units_of(unit) == 1 {
            return;
        }
        let Some(blocks) = &mut self.blocks else {
            return;
        };
        blocks.whole.put(u64::from(unit >> 9), false);
        let first = index(unit);
        let state = self.units[first];
        self.units[first..first + 512].fill(state);
    }

    /// Whether one entry of the second stage maps the 2 MiB around a frame. `PLAIN`: units are of 4 KiB, and always were.
    #[must_use]
    #[inline]
    pub fn maps_huge<const PLAIN: bool>(&self, frame: u32) -> bool {
        match &self.blocks {
            _ if PLAIN => false,
            None => self.shift != 0,
            Some(blocks) => !blocks.tables || blocks.whole.get(u64::from(frame >> 9)),
        }
    }

    /// The unit of a frame.
    #[must_use]
    #[inline]
    pub fn unit_of(&self, frame: u32) -> u32 {
        self.unit_as::<false>(frame)
    }

    /// The unit of a frame. `PLAIN`: units are of 4 KiB, and always were.
    #[must_use]
    #[inline]
    pub fn unit_as<const PLAIN: bool>(&self, frame: u32) -> u32 {
        match &self.blocks {
            _ if PLAIN => frame,
            Some(blocks) if blocks.whole.get(u64::from(frame >> 9)) => frame & !511,
            _ => frame >> self.shift,
        }
    }

    /// First frame of a unit.
    #[must_use]
    pub fn first_frame(&self, unit: u32) -> Gfn {
        Gfn(u64::from(unit) << self.shift)
    }

    /// Units that hold the guest's page tables: all before this one.
    #[must_use]
    pub fn tables(&self) -> u32 {
        self.tables
    }

    /// The first unit of the load's memory; between the tables and this unit there is nothing.
    #[must_use]
    pub fn first_data(&self) -> u32 {
        self.first_data
    }

    /// The first unit that counts as the VM's.
    #[must_use]
    pub fn first_counted(&self) -> u32 {
        self.first_counted
    }

    /// Number of units.
    #[must_use]
    pub fn len(&self) -> u32 {
        low(self.units.len() as u64)
    }

    /// 4 KiB pages of a unit (but see [`SecondStage::units_of`]).
    #[must_use]
    pub fn pages_per_unit(&self) -> u64 {
        1 << self.shift
    }

    /// Whether units are of 2 MiB, or were before any block was split.
    #[must_use]
    pub fn huge(&self) -> bool {
        self.shift != 0 || self.can_split()
    }

    /// Whether blocks can be split.
    #[must_use]
    pub fn can_split(&self) -> bool {
        self.blocks.is_some()
    }

    /// Whether a unit is of a block that was split: it takes a TLB entry per page; a whole one has one in all.
    #[must_use]
    #[inline]
    pub fn is_split(&self, unit: u32) -> bool {
        self.can_split() && self.units_of(unit) == 1
    }

    /// The state of a unit.
    #[must_use]
    #[inline]
    pub fn get(&self, unit: u32) -> u8 {
        self.units[index(unit)]
    }

    /// The state of the unit of a frame as if no block could be split; 0 for a frame beyond the last one.
    #[must_use]
    #[inline]
    pub fn peek(&self, frame: u32) -> u8 {
        let state = self.units.get(index(frame >> self.shift));
        state.copied().unwrap_or(0)
    }

    /// Sets state bits of a unit; neither its tier nor whether it is backed.
    #[inline]
    pub fn raise(&mut self, unit: u32, bits: u8) {
        self.units[index(unit)] |= bits & !(bits::TIER | bits::ABSENT);
    }

    /// Clears state bits of a unit; neither its tier nor whether it is backed.
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

    /// Backs a unit by a tier; `None`: by no memory.
    pub fn put(&mut self, unit: u32, tier: Option<u8>) {
        let counted = if unit >= self.first_counted {
            self.units_of(unit)
        } else {
            0
        };
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

    /// Backs the leaf of so many 4 KiB pages that begins at a frame, whole or split.
    pub fn put_leaf(&mut self, frame: u32, pages: u64, tier: Option<u8>) {
        let first = self.unit_of(frame);
        let units = if self.pages_of(first) < pages {
            low(pages >> self.shift)
        } else {
            1
        };
        (first..first + units).for_each(|unit| self.put(unit, tier));
    }

    /// Sets state bits of all units of the leaf of so many 4 KiB pages that begins at a frame.
    pub fn raise_leaf(&mut self, frame: u32, pages: u64, bits: u8) {
        let first = self.unit_of(frame);
        let units = low((pages >> self.shift).max(1));
        (first..first + units).for_each(|unit| self.raise(unit, bits));
    }

    /// Units per tier, those of tables only if they are counted.
    #[must_use]
    pub fn held(&self) -> &[u64; TIERS] {
        &self.held
    }

    /// Bytes on the heap.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        let whole = self.blocks.as_ref().map_or(0, |b| b.whole.heap_bytes());
        let permissions = self.permissions.as_ref().map_or(0, |p| p.heap_bytes());
        self.units.capacity() + whole + permissions
    }
}
