//! The shape of the guest's tables, from a virtual CPU's registers.
//!
//! The registers are read, nothing is guessed: a 5-level table walked as a 4-level one has its table pages taken for
//! leaves, which corrupted every guest it was tried on.

use terrace_proto::{Gfn, PagingRegisters};

use crate::entry::ADDRESS;

const CR0_PG: u64 = 1 << 31;
const CR4_PAE: u64 = 1 << 5;
const CR4_LA57: u64 = 1 << 12;
const EFER_LMA: u64 = 1 << 10;

/// Widest physical address that the architecture knows, bits.
const MAX_PHYSICAL_BITS: u8 = 52;

/// The reason why a guest's tables cannot be walked now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unsupported {
    /// CR0.PG is clear.
    #[error(
        "the virtual CPU has paging off (firmware or early boot); try again once the guest runs"
    )]
    PagingOff,
    /// Long mode is not active.
    #[error(
        "the virtual CPU is in {} mode; only 64-bit guests (long mode) can be scanned",
        if *pae { "32-bit PAE" } else { "32-bit" }
    )]
    NotLongMode {
        /// CR4.PAE is set.
        pae: bool,
    },
    /// A width of physical addresses that no processor has.
    #[error("a physical address has 32 to 52 bits, not {0}")]
    PhysicalBits(u8),
}

/// The shape of a guest's tables, and the top-level table that one virtual CPU uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Paging {
    levels: u8,
    physical_bits: u8,
    root: Gfn,
}

impl Paging {
    /// Reads the registers of one virtual CPU; physical addresses are taken to be 52 bits wide.
    ///
    /// # Errors
    /// If the virtual CPU does not run in long mode with paging on.
    pub fn from_registers(registers: PagingRegisters) -> Result<Self, Unsupported> {
        if registers.cr0 & CR0_PG == 0 {
            return Err(Unsupported::PagingOff);
        }
        let pae = registers.cr4 & CR4_PAE != 0;
        if registers.efer & EFER_LMA == 0 || !pae {
            return Err(Unsupported::NotLongMode { pae });
        }
        Ok(Self {
            levels: if registers.cr4 & CR4_LA57 == 0 { 4 } else { 5 },
            physical_bits: MAX_PHYSICAL_BITS,
            root: Gfn((registers.cr3 & ADDRESS) >> 12),
        })
    }

    /// The same guest with physical addresses of `bits` (CPUID's MAXPHYADDR); address bits from there
    /// up are reserved.
    ///
    /// # Errors
    /// If `bits` is not 32 to 52.
    pub fn with_physical_bits(self, bits: u8) -> Result<Self, Unsupported> {
        if (32..=MAX_PHYSICAL_BITS).contains(&bits) {
            Ok(Self {
                physical_bits: bits,
                ..self
            })
        } else {
            Err(Unsupported::PhysicalBits(bits))
        }
    }

    /// The same shape with another top-level table.
    #[must_use]
    pub fn with_root(self, root: Gfn) -> Self {
        Self { root, ..self }
    }

    /// Levels of tables: 4 or 5. Level 1 holds the 4 KiB leaves.
    #[must_use]
    pub fn levels(&self) -> u8 {
        self.levels
    }

    /// The top-level table of this virtual CPU.
    #[must_use]
    pub fn root(&self) -> Gfn {
        self.root
    }

    /// Frames that an address without reserved bits can name.
    #[must_use]
    pub fn addressable_frames(&self) -> u64 {
        1 << (self.physical_bits - 12)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: PagingRegisters = PagingRegisters {
        cr0: 0x8005_0033,
        cr3: 0x8000_0000_1234_5fff,
        cr4: 0x20,
        efer: 0xd01,
    };

    #[test]
    fn the_root_is_the_address_in_cr3_without_pcid_and_flags() {
        let paging = Paging::from_registers(LONG).unwrap();
        assert_eq!((paging.root(), paging.levels()), (Gfn(0x12345), 4));
    }

    #[test]
    fn la57_means_five_levels() {
        let paging = Paging::from_registers(PagingRegisters {
            cr4: LONG.cr4 | CR4_LA57,
            ..LONG
        });
        assert_eq!(paging.unwrap().levels(), 5);
    }

    #[test]
    fn paging_off_is_refused() {
        let off = PagingRegisters { cr0: 0x11, ..LONG };
        assert_eq!(Paging::from_registers(off), Err(Unsupported::PagingOff));
    }

    #[test]
    fn thirty_two_bit_guests_are_refused_and_named() {
        let pae = PagingRegisters { efer: 0, ..LONG };
        let plain = PagingRegisters { cr4: 0, ..pae };
        let message = |r| Paging::from_registers(r).unwrap_err().to_string();
        assert!(message(pae).contains("32-bit PAE mode"));
        assert!(message(plain).contains("32-bit mode"));
    }

    #[test]
    fn impossible_address_widths_are_refused() {
        let paging = Paging::from_registers(LONG).unwrap();
        assert!(paging.with_physical_bits(31).is_err());
        assert!(paging.with_physical_bits(53).is_err());
        let narrow = paging.with_physical_bits(46).unwrap();
        assert_eq!(narrow.addressable_frames(), 1 << 34);
    }
}
