//! Two neighbouring entries in one exchange.
//!
//! **As safe as one by one.** `lock cmpxchg16b` on an aligned pair compares both entries whole and writes both or none, at one
//! moment, and it locks the cache line as the exchange of a single entry does: a processor that sets A or D of one of them, or a guest
//! that replaces one, does so before (the exchange fails, and each entry is tried by itself) or after. So its outcome is one that
//! two single exchanges at that moment would have had. Longer runs of a line cannot be exchanged at once: no instruction compares
//! more than 16 bytes.

use std::sync::atomic::AtomicU64;

use crate::entry::ACCESSED;

/// Whether this machine has the instruction.
#[inline]
pub(crate) fn are_exchanged() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        std::arch::is_x86_feature_detected!("cmpxchg16b")
    }
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// Clears A of both entries if both are still what was read; otherwise nothing is written, and false is returned. Callers ask
/// [`are_exchanged`] before.
#[inline]
pub(crate) fn clear_accessed(slots: &[AtomicU64; 2], seen: [u64; 2]) -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        let to = slots.as_ptr();
        // The instruction faults at any other address; tables are aligned to 4 KiB, whatever their type says.
        if !to.addr().is_multiple_of(16) {
            return false;
        }
        let [low, high] = seen.map(|entry| entry & !ACCESSED);
        let equal: u64;
        // SAFETY: 16 bytes that are there, aligned, and shared by atomics; the caller found the instruction. RBX is saved, as
        // the compiler may use it and does not lend it. It may still choose RBX for whatever operand it is free to place: so the
        // address and the outcome, which RBX's new value would spoil, are in registers that are named.
        unsafe {
            std::arch::asm!(
                "xchg {low}, rbx",
                "lock cmpxchg16b [rdi]",
                "sete al",
                "mov rbx, {low}",
                in("rdi") to,
                low = inout(reg) low => _,
                in("rcx") high,
                inout("rax") seen[0] => equal,
                inout("rdx") seen[1] => _,
                options(nostack),
            );
        }
        // The rest of the register is what was read.
        equal & 0xff != 0
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = (slots, seen);
        false
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use proptest::prelude::*;

    use super::*;

    #[repr(align(16))]
    struct Pairs([AtomicU64; 4]);

    proptest! {
        #[test]
        fn a_pair_is_cleared_if_both_are_as_they_were_read(
            now in any::<[u64; 2]>(),
            flip in prop::option::of((0..2_usize, 0..64_u32)),
        ) {
            prop_assert!(are_exchanged(), "any x86-64 of this century has it");
            let pairs = Pairs([5, now[0], now[1], 6].map(AtomicU64::new));
            let seen = {
                let mut seen = now;
                if let Some((at, bit)) = flip {
                    seen[at] ^= 1 << bit;
                }
                seen
            };
            // The middle pair is not aligned, so nothing is done.
            let slots = pairs.0.as_slice();
            prop_assert!(!clear_accessed(slots[1..3].try_into().unwrap(), seen));
            let aligned = Pairs([now[0], now[1], 5, 6].map(AtomicU64::new));
            let done = clear_accessed(aligned.0[..2].try_into().unwrap(), seen);
            prop_assert_eq!(done, flip.is_none());
            let wanted = if done { now.map(|e| e & !ACCESSED) } else { now };
            let now: Vec<u64> = aligned.0.iter().map(|entry| entry.load(Relaxed)).collect();
            prop_assert_eq!(now, vec![wanted[0], wanted[1], 5, 6]);
        }
    }

    #[test]
    fn no_access_is_lost_beside_exchanges_of_pairs() {
        let pairs = Pairs([0, 0, 0, 0].map(AtomicU64::new));
        let rounds = 100_000_u64;
        let cleared = std::thread::scope(|scope| {
            for slot in &pairs.0[..2] {
                scope.spawn(move || {
                    // Counts in the upper bits as it accesses: a lost update would lose a count.
                    for _ in 0..rounds {
                        slot.fetch_add(1 << 12, Relaxed);
                        slot.fetch_or(ACCESSED, Relaxed);
                    }
                });
            }
            let mut cleared = 0;
            for _ in 0..rounds {
                let slots: &[AtomicU64; 2] = pairs.0[..2].try_into().unwrap();
                let seen = [slots[0].load(Relaxed), slots[1].load(Relaxed)];
                cleared += u64::from(clear_accessed(slots, seen));
            }
            cleared
        });
        assert!(cleared > 0);
        for slot in &pairs.0[..2] {
            assert_eq!(slot.load(Relaxed) >> 12, rounds);
        }
    }

    /// A function that exchanges a pair again and again while it keeps these numbers in registers; it returns whether all were
    /// exchanged, and a sum of the numbers. With no pairs there is the sum alone.
    macro_rules! among_numbers {
        ($name:ident, $first:ident $($number:ident)+) => {
            #[inline(never)]
            fn $name(pairs: &[Pairs], seen: [u64; 2], turns: u64) -> (bool, u64) {
                let mut $first = turns;
                $(let mut $number = $first.wrapping_add(turns);)+
                let mut all = true;
                for turn in 0..turns {
                    for pair in pairs {
                        if let Some(slots) = pair.0.first_chunk() {
                            all &= clear_accessed(slots, seen);
                        }
                    }
                    $first = $first.rotate_left(3) ^ turn;
                    $($number = $number.rotate_left(5).wrapping_add($first); $first ^= $number;)+
                }
                (all, $first $(^ $number)+)
            }
        };
    }

    among_numbers!(four, a b c d);
    among_numbers!(five, a b c d e);
    among_numbers!(six, a b c d e f);
    among_numbers!(seven, a b c d e f g);
    among_numbers!(eight, a b c d e f g h);
    among_numbers!(nine, a b c d e f g h i);
    among_numbers!(ten, a b c d e f g h i j);
    among_numbers!(eleven, a b c d e f g h i j k);
    among_numbers!(twelve, a b c d e f g h i j k l);

    /// The compiler keeps its numbers in all registers that there are, RBX too, and then places operands there that may be anywhere.
    #[test]
    fn an_exchange_takes_no_register_that_it_needs_itself() {
        const TURNS: u64 = 10;
        // An entry without A: whoever takes it for an address has nothing there.
        let seen = [7 << 12 | 5, 8 << 12 | 5];
        let pairs: [Pairs; 3] =
            std::array::from_fn(|_| Pairs([seen[0], seen[1], 0, 0].map(AtomicU64::new)));
        for among in [four, five, six, seven, eight, nine, ten, eleven, twelve] {
            let (_, sum) = among(&[], seen, TURNS);
            assert_eq!(among(&pairs, seen, TURNS), (true, sum));
            assert_eq!(among(&pairs, [seen[1], seen[0]], TURNS), (false, sum));
        }
    }
}
