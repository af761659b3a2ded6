//! Hot or cold by a fixed number of visits: what vTMM's §4.5 compares with, after HeMem.
//!
//! Responsible for: the comparison. It leaves to others: the threshold, which is to be profiled.

/// 1 if a unit's visits reach the threshold, reads and writes alike.
#[inline]
pub(super) fn degrees(visits: u8, reads: &[u8], writes: &[u8], out: &mut [u8]) {
    for ((out, r), w) in out.iter_mut().zip(reads).zip(writes) {
        *out = u8::from(r.saturating_add(*w) >= visits);
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn visits_at_the_threshold_are_hot() {
        let mut out = [0; 3];
        super::degrees(4, &[3, 2, 4], &[0, 2, 0], &mut out);
        assert_eq!(out, [0, 1, 1]);
    }
}
