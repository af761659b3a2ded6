//! A VM's limits in the first tier: 75 % and 125 % of its nominal size (vTMM §3.5), if no operator set
//! others.

use terrace_proto::TierLimit;

/// Least and most bytes of the first tier that the pool gives to a VM, and its nominal size between
/// them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct FastLimits {
    /// The pool takes nothing below this.
    pub lower_bytes: u64,
    /// Bytes that the VM is entitled to while it can use them.
    pub nominal_bytes: u64,
    /// The pool gives nothing above this.
    pub upper_bytes: u64,
}

impl FastLimits {
    /// Around a nominal size. A floor (above 0) and a ceiling (below all) that were set go before the
    /// percentages, and a percentage that contradicts one gives way.
    #[must_use]
    pub fn around(nominal: u64, set: TierLimit, lower_percent: u16, upper_percent: u16) -> Self {
        let (floor, ceiling) = (set.floor_bytes, set.ceiling_bytes);
        let lower = match floor {
            0 => percent(nominal, lower_percent).min(ceiling),
            floor => floor,
        };
        let upper = match ceiling {
            u64::MAX => percent(nominal, upper_percent).max(lower),
            ceiling => ceiling,
        };
        Self {
            lower_bytes: lower,
            nominal_bytes: nominal.clamp(lower, upper.max(lower)),
            upper_bytes: upper,
        }
    }

    /// Around what a VM without a nominal size has a right to: the pool leaves it so many percent of that, and
    /// gives more only while others leave it. `most` is its ceiling, or all of its memory.
    #[must_use]
    pub fn of_share(share: u64, set: TierLimit, lower_percent: u16, most: u64) -> Self {
        let around = Self::around(share, set, lower_percent, 100);
        Self {
            upper_bytes: most.max(around.lower_bytes),
            ..around
        }
    }
}

fn percent(bytes: u64, percent: u16) -> u64 {
    let part = u128::from(bytes) * u128::from(percent) / 100;
    u64::try_from(part).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn around(nominal: u64, floor_bytes: u64, ceiling_bytes: u64) -> [u64; 3] {
        let set = TierLimit {
            floor_bytes,
            ceiling_bytes,
        };
        let l = FastLimits::around(nominal, set, 75, 125);
        [l.lower_bytes, l.nominal_bytes, l.upper_bytes]
    }

    #[test]
    fn limits_are_three_and_five_quarters_unless_set() {
        assert_eq!(around(400, 0, u64::MAX), [300, 400, 500]);
        assert_eq!(around(400, 100, u64::MAX), [100, 400, 500]);
        assert_eq!(around(400, 0, 450), [300, 400, 450]);
    }

    #[test]
    fn what_was_set_goes_before_a_percentage_and_the_nominal_size() {
        assert_eq!(around(400, 0, 200), [200, 200, 200]);
        assert_eq!(around(400, 900, u64::MAX), [900, 900, 900]);
        assert_eq!(around(u64::MAX, 0, u64::MAX)[2], u64::MAX);
    }
}
