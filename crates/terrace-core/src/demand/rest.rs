//! The rest between two times of tracking, where even the largest hot set costs too much.

/// Share of a VM's time that tracking may take, percent, unless another one is given.
pub const DEFAULT_TRACKING_PERCENT: u32 = 5;

/// Time to rest, after `elapsed_ns` of tracking of which faults took `spent_ns`, so that over both together they took
/// no more than `percent` of the time. 0 if they did not exceed it; `u64::MAX` with no percent left, for ever.
#[must_use]
pub fn rest_ns(spent_ns: u64, elapsed_ns: u64, percent: u32) -> u64 {
    let Some(whole) = (u128::from(spent_ns) * 100).checked_div(u128::from(percent)) else {
        return if spent_ns == 0 { 0 } else { u64::MAX };
    };
    u64::try_from(whole.saturating_sub(u128::from(elapsed_ns))).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rest_brings_the_share_down_to_its_limit() {
        assert_eq!(rest_ns(50, 1000, 5), 0);
        assert_eq!(rest_ns(100, 1000, 5), 1000);
        // Faults that take nine tenths of the time: 17 times as much rest.
        assert_eq!(rest_ns(900, 1000, 5), 17_000);
        assert_eq!(rest_ns(0, 0, 0), 0);
        assert_eq!(rest_ns(1, 1000, 0), u64::MAX);
        assert_eq!(rest_ns(u64::MAX, 0, 1), u64::MAX);
    }
}
