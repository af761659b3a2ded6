//! The 8-bit access counters of HMvisor (§3.2.1).
//!
//! Responsible for: the count of an epoch. It leaves to others: the threshold ([`super::threshold`]). Reads and
//! writes are stored apart, so that both can be shown; their saturated sum is what one counter would have reached.

/// `reads + write · writes` of each unit, at most 255.
#[inline]
pub(super) fn degrees(write: u8, reads: &[u8], writes: &[u8], out: &mut [u8]) {
    for ((out, r), w) in out.iter_mut().zip(reads).zip(writes) {
        *out = r.saturating_add(w.saturating_mul(write));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1_000))]
        #[test]
        fn a_count_is_that_of_one_counter_that_saturates(
            visits in prop::collection::vec(any::<bool>(), 0..250),
            weight in 1_u8..=20,
        ) {
            let mut naive = 0_u8;
            let (mut reads, mut writes) = ([0_u8], [0_u8]);
            for written in visits {
                let (slot, adds) = match written {
                    true => (&mut writes, weight),
                    false => (&mut reads, 1),
                };
                slot[0] += 1;
                naive = naive.saturating_add(adds);
            }
            let mut out = [0];
            degrees(weight, &reads, &writes, &mut out);
            prop_assert_eq!(out, [naive]);
        }
    }
}
