//! The mean latency of each tier in an interval, as the uncore's counters give it: the time that reads were in flight
//! over the number of reads.

use crate::mechanisms::Context;

/// Divisor of the higher latency that gives the difference at which two tiers count as equally fast: an estimate, above
/// what an interval's mean varies by.
const TOLERANCE: u64 = 20;

/// The time that accesses of the VM waited for each tier, and their number.
#[derive(Debug)]
pub(super) struct Latencies {
    /// Time of the accesses of this interval, ps, and their number.
    sums: Vec<(u64, u64)>,
    /// Accesses of the whole run when they were last read.
    seen: Vec<u64>,
}

impl Latencies {
    pub(super) fn new(tiers: usize) -> Self {
        Self {
            sums: vec![(0, 0); tiers],
            seen: vec![0; tiers],
        }
    }

    /// Adds the accesses since the last call, each at the latency of the moment.
    pub(super) fn measure(&mut self, context: &Context) {
        for ((tier, sum), seen) in (0_u8..).zip(&mut self.sums).zip(&mut self.seen) {
            let all = context.accesses(tier);
            let accesses = all - std::mem::replace(seen, all);
            sum.0 += accesses * context.read_ps(tier);
            sum.1 += accesses;
        }
    }

    /// Begins an interval.
    pub(super) fn reset(&mut self) {
        self.sums.fill((0, 0));
    }

    /// The tier with the highest latency of those that were accessed, and the tier with the lowest of all; `None` if
    /// they differ by too little. A tier without accesses has the latency of the moment.
    pub(super) fn unequal(&self, context: &Context) -> Option<(u8, u8)> {
        let means: Vec<u64> = (0_u8..)
            .zip(&self.sums)
            .map(|(tier, sum)| mean(*sum).unwrap_or_else(|| context.read_ps(tier)))
            .collect();
        let is_used: Vec<bool> = self.sums.iter().map(|sum| sum.1 > 0).collect();
        ends(&means, &is_used)
    }
}

fn mean((ps, accesses): (u64, u64)) -> Option<u64> {
    ps.checked_div(accesses)
}

/// The slowest tier in use and the fastest tier, unless they are equally fast.
fn ends(means: &[u64], is_used: &[bool]) -> Option<(u8, u8)> {
    let tiers = (0_u8..).zip(means);
    let slowest = tiers
        .clone()
        .filter(|(tier, _)| is_used[usize::from(*tier)]);
    let (from, high) = slowest.max_by_key(|(tier, ps)| (**ps, *tier))?;
    let (to, low) = tiers.min_by_key(|(tier, ps)| (**ps, *tier))?;
    (high - low > high / TOLERANCE).then_some((from, to))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accesses_go_from_the_slowest_tier_in_use_to_the_fastest() {
        assert_eq!(ends(&[80, 300], &[true, true]), Some((1, 0)));
        assert_eq!(ends(&[400, 300], &[true, true]), Some((0, 1)));
        assert_eq!(ends(&[400, 150, 300], &[true, true, true]), Some((0, 1)));
        // Nothing can leave a tier that is not accessed.
        assert_eq!(ends(&[80, 300], &[true, false]), None);
    }

    #[test]
    fn tiers_within_a_twentieth_are_equally_fast() {
        assert_eq!(ends(&[100, 105], &[true, true]), None);
        assert_eq!(ends(&[100, 106], &[true, true]), Some((1, 0)));
        assert_eq!(ends(&[100, 100], &[true, true]), None);
    }
}
