//! A shuffled ranking: the control that a test of placement must fail.
//!
//! Responsible for: degrees that depend on seed, round and page number and on nothing that was
//! observed. It leaves to others: everything else.

/// Degrees 1 to 64, drawn by a hash (SplitMix64's finaliser).
#[inline]
pub(super) fn degrees(seed: u64, round: u64, first: u64, out: &mut [u8]) {
    let stream = hash(seed ^ hash(round));
    for (unit, out) in (first..).zip(out) {
        *out = 1 + (hash(stream ^ unit).to_le_bytes()[0] & 63);
    }
}

fn hash(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shuffle_depends_on_seed_round_and_page_alone() {
        let draw = |seed, round, first| {
            let mut out = [0; 100];
            degrees(seed, round, first, &mut out);
            out
        };
        assert_eq!(draw(1, 1, 0), draw(1, 1, 0));
        assert_eq!(draw(1, 1, 0)[50..], draw(1, 1, 50)[..50]);
        assert_ne!(draw(1, 1, 0), draw(2, 1, 0));
        assert_ne!(draw(1, 1, 0), draw(1, 2, 0));
    }
}
