//! The period of samples: how many misses one stands for, so that all cost no more than they may.
//!
//! Responsible for: the next period. It leaves to others: setting it, and what a sample costs.

/// Bounds of the period, misses.
const PERIODS: (u64, u64) = (31, 1 << 24);
/// Time that samples may take of the processors that are sampled: one in so many.
const ONE_IN: u64 = 200;

/// The period of one VM's samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SamplePeriod(u64);

impl Default for SamplePeriod {
    fn default() -> Self {
        Self(1009)
    }
}

impl SamplePeriod {
    /// Misses for a sample. Odd, so that it keeps step with few loops.
    #[must_use]
    pub fn misses(self) -> u64 {
        self.0
    }

    /// Adapts the period after processors ran for `ran_ns` in all, of which samples took `took_ns`: by a factor of two at most.
    /// Their time is halved `halvings` times ([`crate::Engine::sample_halvings`]). Returns whether the period changed; a difference of a
    /// quarter is let pass.
    pub fn adapt(&mut self, took_ns: u64, ran_ns: u64, halvings: u32) -> bool {
        let may = ((ran_ns / ONE_IN) >> halvings.min(63)).max(1);
        if took_ns <= may && took_ns * 4 > may * 3 {
            return false;
        }
        // Aimed at seven eighths of it.
        let wanted = u128::from(self.0) * u128::from(took_ns) * 8 / (u128::from(may) * 7);
        let wanted = u64::try_from(wanted).unwrap_or(u64::MAX);
        let next = wanted
            .clamp(self.0 / 2, self.0 * 2)
            .clamp(PERIODS.0, PERIODS.1)
            | 1;
        let changed = next != self.0;
        self.0 = next;
        changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_end_within_their_share_whatever_a_program_misses() {
        // Misses a second, and ns a sample.
        for (misses, ns) in [(3_000_000, 300), (50_000_000, 1000), (1000, 300)] {
            let mut period = SamplePeriod::default();
            for _ in 0..40 {
                period.adapt(misses / period.misses() * ns, 1_000_000_000, 0);
            }
            let took = misses / period.misses() * ns;
            assert!(took <= 5_000_000, "{misses}: {took}");
            assert!(
                took >= 2_000_000 || period.misses() < 32,
                "{misses}: {took}"
            );
        }
    }

    #[test]
    fn samples_that_are_halved_twice_take_a_fourth_of_the_time() {
        let mut period = SamplePeriod::default();
        for _ in 0..40 {
            period.adapt(50_000_000 / period.misses() * 1000, 1_000_000_000, 2);
        }
        let took = 50_000_000 / period.misses() * 1000;
        assert!((500_000..=1_250_000).contains(&took), "{took}");
    }

    #[test]
    fn an_idle_processor_changes_no_period_beyond_its_bounds() {
        let mut period = SamplePeriod::default();
        for _ in 0..40 {
            period.adapt(0, 0, 0);
        }
        assert_eq!(period.misses(), PERIODS.0);
    }
}
