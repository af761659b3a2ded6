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

/// Instructions that may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Vectors {
    /// 512 bits, with masks.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// 256 bits.
    #[cfg(target_arch = "x86_64")]
    Avx2,
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
            Self::Any => read_any(copies, table),
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

    /// What [`Chunk::of`] finds, by masks of eight entries.
    #[target_feature(enable = "avx512f")]
    pub(super) fn chunk_512(entries: &[u64; CHUNK], writes: bool) -> Chunk {
        let user_bits = all(PRESENT | USER);
        let written_bits = all(WRITABLE | DIRTY);
        let (accessed_bit, address, step) = (all(ACCESSED), all(ADDRESS), all(STEP));
        let (mut user, mut accessed, mut written, mut starts) = (0, 0, 0, 0);
        let mut row_before = all(0);
        for (row, now) in entries.as_chunks::<8>().0.iter().enumerate() {
            let now = eight(now);
            // Each entry's neighbour: the last one of the row before, and seven of this one.
            let before = _mm512_alignr_epi64::<7>(now, row_before);
            row_before = now;
            let put = |mask: u8| u64::from(mask) << (8 * row);
            user |= put(_mm512_cmpeq_epi64_mask(
                _mm512_and_si512(now, user_bits),
                user_bits,
            ));
            accessed |= put(_mm512_test_epi64_mask(now, accessed_bit));
            if writes {
                written |= put(_mm512_cmpeq_epi64_mask(
                    _mm512_and_si512(now, written_bits),
                    written_bits,
                ));
            }
            let differs = _mm512_xor_si512(_mm512_add_epi64(before, step), now);
            starts |= put(_mm512_test_epi64_mask(differs, address));
        }
        Chunk {
            user,
            accessed: user & accessed,
            written: user & written,
            starts: starts | 1,
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

    /// Those that this machine has, the widest first.
    fn present() -> Vec<Vectors> {
        let mut all = vec![Vectors::of_this_machine(), Vectors::Any];
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("avx2") {
            all.insert(1, Vectors::Avx2);
        }
        all
    }

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
            for vectors in present() {
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
