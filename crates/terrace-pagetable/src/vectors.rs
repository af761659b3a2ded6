//! The processor's vectors: copies of tables and masks of entries, as wide as this machine can.
//!
//! All that is `unsafe` in it is that these instructions must exist, and reads of tables that the guest writes meanwhile.
//!
//! **A vector read of a table is a hint.** The guest's processors and other threads write entries at any time. A read of eight
//! entries at once sees each as it was at some moment, and not all at the same one; no manual promises even that. It does not
//! have to be promised: what was read marks pages in bitmaps, each checked against the VM's memory, and what is written to a table is
//! a compare-exchange of the whole entry against what was read (`entry.rs`), which fails if the table never held that.

use crate::chunk::{CHUNK, Chunk};
use crate::memory::Table;

/// Instructions that may be used. All of them find the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(hidden)]
pub enum Vectors {
    /// 512 bits, with masks.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// 256 bits.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// 512 bits, lane by lane in plain code: for tests on machines that lack them.
    Emulated512,
    /// Those of any processor.
    Any,
}

impl Vectors {
    /// The widest of this machine.
    #[inline]
    pub(crate) fn of_this_machine() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            if std::arch::is_x86_feature_detected!("avx512f") {
                return Self::Avx512;
            }
            if std::arch::is_x86_feature_detected!("avx2") {
                return Self::Avx2;
            }
        }
        Self::Any
    }

    /// All that can be tried on this machine, the widest first.
    #[must_use]
    pub fn all() -> Vec<Self> {
        let mut all = vec![Self::Emulated512, Self::Any];
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("avx2") {
            all.insert(0, Self::Avx2);
        }
        if !all.contains(&Self::of_this_machine()) {
            all.insert(0, Self::of_this_machine());
        }
        all
    }

    /// Reads all entries of a table, each once.
    #[inline]
    pub(crate) fn read(self, copies: &mut [u64; 512], table: &Table) {
        match self {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: of_this_machine() found these instructions.
            Self::Avx512 => unsafe { x86::read_512(copies, table) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Self::Avx2 => unsafe { x86::read_256(copies, table) },
            Self::Emulated512 | Self::Any => read_any(copies, table),
        }
    }

    /// The properties of 64 entries.
    #[inline]
    pub(crate) fn chunk(self, entries: &[u64; CHUNK], writes: bool) -> Chunk {
        match self {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: of_this_machine() found these instructions.
            Self::Avx512 => unsafe { x86::chunk_512(entries, writes) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Self::Avx2 => unsafe { x86::chunk_256(entries, writes) },
            Self::Emulated512 => emulated::chunk_512(entries, writes),
            Self::Any => Chunk::of(entries, writes),
        }
    }
}

/// Asks the processor for the cache line in which a value begins, ahead of its use.
#[inline]
pub(crate) fn fetch<T>(value: &T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch has no effect but on caches, and the address is a valid one.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(value).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = value;
}

fn read_any(copies: &mut [u64; 512], table: &Table) {
    for (copy, slot) in copies.iter_mut().zip(table) {
        *copy = slot.load(std::sync::atomic::Ordering::Relaxed);
    }
}

/// [`Chunk::of`] by masks of eight entries, of operations that are in scope: `all` lanes with the same bits, `eight` entries, `and`,
/// `add`, `xor` by lane, `shifted` by one lane with the last one of the row before, and the masks of lanes that are `equal` or have bits in `common`.
macro_rules! eight_at_a_time {
    ($(#[$feature:meta])? $name:ident) => {
        $(#[$feature])?
        pub(super) fn $name(entries: &[u64; CHUNK], writes: bool) -> Chunk {
            let user_bits = all(PRESENT | USER);
            let written_bits = all(WRITABLE | DIRTY);
            let (accessed_bit, address, step) = (all(ACCESSED), all(ADDRESS), all(STEP));
            let (mut user, mut accessed, mut written, mut starts) = (0, 0, 0, 0);
            let mut row_before = all(0);
            for (row, now) in entries.as_chunks::<8>().0.iter().enumerate() {
                let now = eight(now);
                // Each entry's neighbour: the last one of the row before, and seven of this one.
                let before = shifted(row_before, now);
                row_before = now;
                let put = |mask: u8| u64::from(mask) << (8 * row);
                user |= put(equal(and(now, user_bits), user_bits));
                accessed |= put(common(now, accessed_bit));
                if writes {
                    written |= put(equal(and(now, written_bits), written_bits));
                }
                starts |= put(common(xor(add(before, step), now), address));
            }
            Chunk {
                user,
                accessed: user & accessed,
                written: user & written,
                starts: starts | 1,
            }
        }
    };
}

/// The operations of 512 bits in plain code.
mod emulated {
    use crate::chunk::{CHUNK, Chunk, STEP};
    use crate::entry::{ACCESSED, ADDRESS, DIRTY, PRESENT, USER, WRITABLE};

    type Eight = [u64; 8];

    fn all(bits: u64) -> Eight {
        [bits; 8]
    }

    fn eight(entries: &Eight) -> Eight {
        *entries
    }

    fn by_lane(a: Eight, b: Eight, of: impl Fn(u64, u64) -> u64) -> Eight {
        std::array::from_fn(|i| of(a[i], b[i]))
    }

    fn and(a: Eight, b: Eight) -> Eight {
        by_lane(a, b, |a, b| a & b)
    }

    fn add(a: Eight, b: Eight) -> Eight {
        by_lane(a, b, u64::wrapping_add)
    }

    fn xor(a: Eight, b: Eight) -> Eight {
        by_lane(a, b, |a, b| a ^ b)
    }

    fn shifted(before: Eight, now: Eight) -> Eight {
        std::array::from_fn(|i| if i == 0 { before[7] } else { now[i - 1] })
    }

    fn mask(a: Eight, b: Eight, of: impl Fn(u64, u64) -> bool) -> u8 {
        (0..8).fold(0, |mask, i| mask | u8::from(of(a[i], b[i])) << i)
    }

    fn equal(a: Eight, b: Eight) -> u8 {
        mask(a, b, |a, b| a == b)
    }

    fn common(a: Eight, b: Eight) -> u8 {
        mask(a, b, |a, b| a & b != 0)
    }

    eight_at_a_time!(chunk_512);
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::asm;
    use std::arch::x86_64::{
        __m512i, _mm512_add_epi64, _mm512_alignr_epi64, _mm512_and_si512, _mm512_cmpeq_epi64_mask,
        _mm512_loadu_si512, _mm512_set1_epi64, _mm512_test_epi64_mask, _mm512_xor_si512,
    };

    use crate::chunk::{CHUNK, Chunk, STEP};
    use crate::entry::{ACCESSED, ADDRESS, DIRTY, PRESENT, USER, WRITABLE};
    use crate::memory::Table;

    /// Copies a table by 64 bytes. By instructions of our own, since the compiler may assume that memory behind a plain read does
    /// not change meanwhile.
    #[target_feature(enable = "avx512f")]
    pub(super) fn read_512(copies: &mut [u64; 512], table: &Table) {
        let (from, to) = (
            table.as_ptr().cast::<u8>(),
            copies.as_mut_ptr().cast::<u8>(),
        );
        for at in (0..4096).step_by(256) {
            // SAFETY: both are 4096 bytes, `at` ends 256 before that, and nothing but `to` is written.
            unsafe {
                asm!(
                    "vmovdqu64 {a}, [{from}]",
                    "vmovdqu64 {b}, [{from} + 64]",
                    "vmovdqu64 {c}, [{from} + 128]",
                    "vmovdqu64 {d}, [{from} + 192]",
                    "vmovdqu64 [{to}], {a}",
                    "vmovdqu64 [{to} + 64], {b}",
                    "vmovdqu64 [{to} + 128], {c}",
                    "vmovdqu64 [{to} + 192], {d}",
                    from = in(reg) from.add(at),
                    to = in(reg) to.add(at),
                    a = out(zmm_reg) _, b = out(zmm_reg) _, c = out(zmm_reg) _, d = out(zmm_reg) _,
                    options(nostack, preserves_flags),
                );
            }
        }
    }

    /// The same by 32 bytes.
    #[target_feature(enable = "avx2")]
    pub(super) fn read_256(copies: &mut [u64; 512], table: &Table) {
        let (from, to) = (
            table.as_ptr().cast::<u8>(),
            copies.as_mut_ptr().cast::<u8>(),
        );
        for at in (0..4096).step_by(128) {
            // SAFETY: both are 4096 bytes, `at` ends 128 before that, and nothing but `to` is written.
            unsafe {
                asm!(
                    "vmovdqu {a}, [{from}]",
                    "vmovdqu {b}, [{from} + 32]",
                    "vmovdqu {c}, [{from} + 64]",
                    "vmovdqu {d}, [{from} + 96]",
                    "vmovdqu [{to}], {a}",
                    "vmovdqu [{to} + 32], {b}",
                    "vmovdqu [{to} + 64], {c}",
                    "vmovdqu [{to} + 96], {d}",
                    from = in(reg) from.add(at),
                    to = in(reg) to.add(at),
                    a = out(ymm_reg) _, b = out(ymm_reg) _, c = out(ymm_reg) _, d = out(ymm_reg) _,
                    options(nostack, preserves_flags),
                );
            }
        }
    }

    #[target_feature(enable = "avx512f")]
    fn all(bits: u64) -> __m512i {
        _mm512_set1_epi64(bits.cast_signed())
    }

    #[target_feature(enable = "avx512f")]
    fn eight(entries: &[u64; 8]) -> __m512i {
        // SAFETY: 64 bytes that are there, at any alignment.
        unsafe { _mm512_loadu_si512(entries.as_ptr().cast()) }
    }

    #[target_feature(enable = "avx512f")]
    fn and(a: __m512i, b: __m512i) -> __m512i {
        _mm512_and_si512(a, b)
    }

    #[target_feature(enable = "avx512f")]
    fn add(a: __m512i, b: __m512i) -> __m512i {
        _mm512_add_epi64(a, b)
    }

    #[target_feature(enable = "avx512f")]
    fn xor(a: __m512i, b: __m512i) -> __m512i {
        _mm512_xor_si512(a, b)
    }

    #[target_feature(enable = "avx512f")]
    fn shifted(before: __m512i, now: __m512i) -> __m512i {
        _mm512_alignr_epi64::<7>(now, before)
    }

    #[target_feature(enable = "avx512f")]
    fn equal(a: __m512i, b: __m512i) -> u8 {
        _mm512_cmpeq_epi64_mask(a, b)
    }

    #[target_feature(enable = "avx512f")]
    fn common(a: __m512i, b: __m512i) -> u8 {
        _mm512_test_epi64_mask(a, b)
    }

    eight_at_a_time!(
        #[target_feature(enable = "avx512f")]
        chunk_512
    );

    /// [`Chunk::of`], compiled for wider vectors.
    #[target_feature(enable = "avx2")]
    pub(super) fn chunk_256(entries: &[u64; CHUNK], writes: bool) -> Chunk {
        Chunk::of(entries, writes)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use proptest::prelude::*;

    use super::*;
    use crate::chunk::tests::entry;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]
        #[test]
        fn every_width_finds_what_the_narrowest_does(
            random in prop::collection::vec(entry(), CHUNK),
            run_from in 0_u64..1 << 40,
            in_run in any::<u64>(),
            writes in any::<bool>(),
        ) {
            let entries: [u64; CHUNK] = std::array::from_fn(|i| {
                let in_order = (run_from + i as u64) << 12 | random[i] & 0xfff;
                if in_run >> i & 1 == 1 { in_order } else { random[i] }
            });
            let wanted = Chunk::of(&entries, writes);
            let table: Table = std::array::from_fn(|i| AtomicU64::new(random[i % CHUNK] ^ i as u64));
            for vectors in Vectors::all() {
                prop_assert_eq!(&vectors.chunk(&entries, writes), &wanted, "{:?}", vectors);
                let mut copies = [0; 512];
                vectors.read(&mut copies, &table);
                for (copy, slot) in copies.iter().zip(&table) {
                    prop_assert_eq!(*copy, slot.load(std::sync::atomic::Ordering::Relaxed));
                }
            }
        }
    }
}
