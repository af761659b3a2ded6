//! The scale of rates: touches per second as a byte, or as two.
//!
//! Responsible for: the steps, and rounding between them. It leaves to others: what a rate follows from
//! ([`super::rates`]).
//!
//! The scale is logarithmic, 8 steps an octave, from one touch in 68 minutes on; 0 is none. A byte has the step; a second byte has
//! 256ths of the way to the next one, because what is rounded hundreds of times adds up. What lies between two numbers becomes one of them by a chance
//! that the caller draws, so that small changes are right in the mean and nothing drifts.

/// Steps of an octave on the scale, and the bounds of each within it, Q16.
const STEPS: [u64; 9] = [
    65_536, 71_468, 77_936, 84_990, 92_682, 101_070, 110_218, 120_194, 131_072,
];
/// A touch a second as a [`Rate`].
pub(crate) const PER_SECOND: u64 = 1 << 20;
/// The least rate but none: once in 68 minutes.
const LEAST: u64 = 1 << 8;

/// Touches per second, in units of 2^-20.
pub(crate) type Rate = u64;

/// The rate that a byte of the scale stands for.
pub(crate) fn rate_of(degree: u8) -> Rate {
    match degree.checked_sub(1) {
        None => 0,
        Some(step) => STEPS[usize::from(step % 8)] << (step / 8) >> 8,
    }
}

/// The rate that two bytes stand for: a step, and 256ths of the way to the next one.
pub(crate) fn rate_of_fine(fine: u16) -> Rate {
    let [part, degree] = fine.to_le_bytes();
    let (from, part) = (rate_of(degree), u64::from(part));
    let to = rate_of(degree.saturating_add(1));
    from + (((to - from) * part) >> 8)
}

/// A rate's place on the scale, in 65,536ths of a step; the last step's end at most.
pub(crate) fn position(rate: Rate) -> u32 {
    let position = match rate.checked_ilog2() {
        Some(log) if rate >= LEAST => {
            let octave = log - LEAST.ilog2();
            let within = rate << 8 >> octave;
            let step = (1..8).filter(|i| STEPS[*i] <= within).count();
            let (from, to) = (STEPS[step], STEPS[step + 1]);
            let part = ((within - from) << 16) / (to - from);
            (1 + 8 * u64::from(octave) + step as u64) << 16 | part.min(65_535)
        }
        _ => (rate << 16) / LEAST,
    };
    u32::try_from(position).map_or(MOST, |position| position.min(MOST))
}

/// The two bytes for a rate, rounded down.
pub(crate) fn fine_of(rate: Rate) -> u16 {
    rounded(position(rate), 0)
}

/// The last place on the scale.
const MOST: u32 = (1 << 24) - 1;

/// The two bytes for a place, rounded by a chance from 0 to 255.
#[inline]
pub(crate) fn rounded(position: u32, chance: u32) -> u16 {
    // The chance is below a whole one, so the last place stays within two bytes.
    u16::try_from((position + chance) >> 8).unwrap_or(u16::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_rate_between_two_numbers_is_right_in_the_mean(rate in 0_u64..1 << 39) {
            let of = |chance| rate_of_fine(rounded(position(rate), chance)) as f64;
            let mean = (0..256).map(of).sum::<f64>() / 256.0;
            let error = (mean - rate as f64).abs();
            prop_assert!(error <= rate as f64 / 500.0 + LEAST as f64 / 500.0, "{rate}: {mean}");
        }

        #[test]
        fn every_byte_is_found_again(degree in 0_u8..=255) {
            let place = position(rate_of(degree));
            prop_assert!(place.abs_diff(u32::from(degree) << 16) < 4096, "{place:x}");
        }

        #[test]
        fn hotter_pages_have_higher_places(rate in 0_u64..1 << 40, more in 0_u64..1 << 20) {
            prop_assert!(position(rate) <= position(rate + more));
        }
    }

    #[test]
    fn the_hottest_rate_has_the_last_place() {
        assert_eq!(rounded(position(u64::MAX >> 8), 255), u16::MAX);
    }
}
