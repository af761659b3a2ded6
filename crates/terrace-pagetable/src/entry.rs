//! One page-table entry: its bits, and the only ways in which a scan writes one.
//!
//! Follows the Intel SDM, volume 3A, section 4.5 (tables 4-14 to 4-20).
//!
//! **Writes** are told by D, which may only be cleared if the guest keeps the fact elsewhere: Linux
//! from 6.6 on counts a leaf as dirty if D *or* [`SAVED_DIRTY`] is set (`pte_dirty`, `pmd_dirty`), and
//! clears both if it clears one. So D moves there in the same exchange that clears A, and the next
//! write sets D anew. Before 6.6 bit 58 means `DEVMAP`, and a D that moved there would be lost: whether a
//! guest takes part is the operator's word ([`Scanner::tell_writes`](crate::Scanner::tell_writes)).
//! D stays where W is clear (such an entry with D is a shadow stack, and Linux itself moves the D of
//! entries that it write-protects), in non-leaf entries (bit 58 of a top-level entry is Linux's
//! `NOPTISHADOW`), and in leaves of 1 GiB. The kernel's other bits (soft-dirty 11, uffd-wp 10, the
//! protection key 59-62) stay as they are.

use std::sync::atomic::{AtomicU64, Ordering};

use terrace_proto::Gfn;

/// The entry maps something.
pub const PRESENT: u64 = 1 << 0;
/// Writes are allowed.
pub const WRITABLE: u64 = 1 << 1;
/// User mode may use it.
pub const USER: u64 = 1 << 2;
/// Set by the processor when it uses the entry for a translation.
pub const ACCESSED: u64 = 1 << 5;
/// Set by the processor in a leaf at the first write. Meaningless, and not ours, elsewhere.
pub const DIRTY: u64 = 1 << 6;
/// At level 2 and 3: the entry is a leaf. (At level 1 the bit selects a memory type.)
pub const LARGE: u64 = 1 << 7;
/// A bit of a leaf of Linux 6.6 or later: as good as [`DIRTY`], and no processor looks at it.
pub const SAVED_DIRTY: u64 = 1 << 58;
/// A bit of a large leaf: selects a memory type; not part of the address.
pub const LARGE_PAT: u64 = 1 << 12;
/// Bits that may hold an address.
pub const ADDRESS: u64 = 0x000f_ffff_ffff_f000;

/// The bits that must stay the same for an entry that changed under a scan to count as the same mapping.
const IDENTITY: u64 = ADDRESS | PRESENT | USER | LARGE;

/// Compare-exchanges tried on one entry before it is left to the guest. The guest's processors only
/// ever add A and D to an entry that stays the same mapping, so two are enough without malice.
const ATTEMPTS: u32 = 4;

/// The outcome of a write to an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Written {
    /// The entry was changed.
    Changed,
    /// The entry had the wanted value already.
    Unneeded,
    /// The entry is another one now, or never stood still.
    Lost,
}

/// A value read from a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry(pub u64);

impl Entry {
    pub(crate) fn load(slot: &AtomicU64) -> Self {
        Self(slot.load(Ordering::Relaxed))
    }

    /// Whether the slot that this was read from still holds the same mapping.
    #[inline]
    pub(crate) fn is_still_in(self, slot: &AtomicU64) -> bool {
        (Self::load(slot).0 ^ self.0) & IDENTITY == 0
    }

    pub(crate) fn is_present(self) -> bool {
        self.0 & PRESENT != 0
    }

    /// Whether Linux makes such an entry in a table of `level` 2 or more for users: nothing at all, a link that
    /// restricts nothing, or a leaf for users.
    pub(crate) fn is_linux_upper(self, level: u8) -> bool {
        const LINK: u64 = PRESENT | WRITABLE | USER;
        if self.0 & PRESENT == 0 {
            return true;
        }
        if self.is_large() {
            self.is_user() && level < 4
        } else {
            self.0 & !(ADDRESS | ACCESSED | DIRTY) == LINK
        }
    }

    pub(crate) fn is_user(self) -> bool {
        self.0 & (PRESENT | USER) == PRESENT | USER
    }

    pub(crate) fn is_accessed(self) -> bool {
        self.0 & ACCESSED != 0
    }

    /// Whether the entry's D may move: a user leaf that may be written, and was.
    pub(crate) fn is_written(self) -> bool {
        const ALL: u64 = PRESENT | WRITABLE | USER | DIRTY;
        self.0 & ALL == ALL
    }

    pub(crate) fn is_large(self) -> bool {
        self.0 & LARGE != 0
    }

    /// The frame that the entry points to, all address bits included.
    pub(crate) fn frame(self) -> Gfn {
        Gfn((self.0 & ADDRESS) >> 12)
    }

    /// The frame that a large leaf points to, whose lowest address bit is no address.
    pub(crate) fn large_frame(self) -> Gfn {
        Gfn((self.0 & ADDRESS & !LARGE_PAT) >> 12)
    }
}

/// Clears A of the entry that was read as `seen`.
///
/// The whole entry is compared, so that a table page which was freed and reused since keeps its data.
/// An entry that only gained or lost flags is tried again.
#[inline]
pub(crate) fn clear_accessed(slot: &AtomicU64, seen: u64) -> Written {
    match slot.compare_exchange(seen, seen & !ACCESSED, Ordering::AcqRel, Ordering::Relaxed) {
        Ok(_) => Written::Changed,
        Err(now) => retry(slot, seen, now, |e| e & !ACCESSED),
    }
}

/// Clears A, as [`clear_accessed`] does, of a leaf that was read as [written](Entry::is_written), and moves D to
/// [`SAVED_DIRTY`]. (If it was not read as written, a D that came since then is left for the next pass, as nobody was
/// told of it.)
pub(crate) fn rearm_written(slot: &AtomicU64, seen: u64) -> Written {
    let change = |e: u64| {
        let moved = if Entry(e).is_written() {
            e & !DIRTY | SAVED_DIRTY
        } else {
            e
        };
        moved & !ACCESSED
    };
    match slot.compare_exchange(seen, change(seen), Ordering::AcqRel, Ordering::Relaxed) {
        Ok(_) => Written::Changed,
        Err(now) => retry(slot, seen, now, change),
    }
}

/// Sets A of the non-leaf entry that was read as `seen`, under the same conditions.
pub(crate) fn set_accessed(slot: &AtomicU64, seen: u64) -> Written {
    retry(slot, seen, slot.load(Ordering::Relaxed), |e| e | ACCESSED)
}

#[cold]
fn retry(slot: &AtomicU64, seen: u64, now: u64, change: impl Fn(u64) -> u64) -> Written {
    let mut now = now;
    for _ in 1..ATTEMPTS {
        if (now ^ seen) & IDENTITY != 0 {
            return Written::Lost;
        }
        if change(now) == now {
            return Written::Unneeded;
        }
        match slot.compare_exchange(now, change(now), Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => return Written::Changed,
            Err(other) => now = other,
        }
    }
    Written::Lost
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAF: u64 = 7 << 12 | PRESENT | USER | ACCESSED;

    #[test]
    fn a_dirty_bit_that_came_meanwhile_is_kept() {
        let slot = AtomicU64::new(LEAF | DIRTY);
        assert_eq!(clear_accessed(&slot, LEAF), Written::Changed);
        assert_eq!(slot.into_inner(), (LEAF | DIRTY) & !ACCESSED);
    }

    #[test]
    fn a_dirty_bit_moves_in_the_exchange_that_clears_a() {
        let key = 5 << 59 | 1 << 10 | 1 << 11;
        let seen = LEAF | WRITABLE | DIRTY | key;
        for now in [seen, seen | SAVED_DIRTY, seen & !ACCESSED] {
            let slot = AtomicU64::new(now);
            assert_eq!(rearm_written(&slot, seen), Written::Changed);
            let want = LEAF & !ACCESSED | WRITABLE | SAVED_DIRTY | key;
            assert_eq!(slot.into_inner(), want);
        }
    }

    #[test]
    fn the_dirty_bit_of_an_entry_that_may_not_be_written_stays() {
        // A shadow stack; and an entry that the guest write-protects between the look and the exchange.
        for seen in [LEAF | DIRTY, LEAF | WRITABLE | DIRTY] {
            let slot = AtomicU64::new(LEAF | DIRTY);
            assert_eq!(rearm_written(&slot, seen), Written::Changed);
            assert_eq!(slot.into_inner(), (LEAF | DIRTY) & !ACCESSED);
        }
    }

    #[test]
    fn an_entry_that_is_another_mapping_now_is_left_alone() {
        for other in [LEAF ^ 1 << 12, LEAF & !PRESENT, LEAF & !USER, LEAF | LARGE] {
            let slot = AtomicU64::new(other);
            assert_eq!(clear_accessed(&slot, LEAF), Written::Lost);
            assert_eq!(rearm_written(&slot, LEAF | WRITABLE | DIRTY), Written::Lost);
            assert_eq!(set_accessed(&slot, LEAF & !ACCESSED), Written::Lost);
            assert_eq!(slot.into_inner(), other);
        }
    }

    #[test]
    fn a_bit_that_the_guest_cleared_itself_needs_no_write() {
        let slot = AtomicU64::new(LEAF & !ACCESSED | WRITABLE);
        assert_eq!(clear_accessed(&slot, LEAF), Written::Unneeded);
        assert_eq!(set_accessed(&AtomicU64::new(LEAF), LEAF), Written::Unneeded);
    }
}
