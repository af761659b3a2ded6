//! The cadence of cooling counts and adapting thresholds: both go by the number of samples.

/// Samples between two coolings (`htmm_cooling_period`), and between two adaptations (`htmm_adaptation_period`).
const COOLING: u64 = 2_000_000;
const ADAPTATION: u64 = 100_000;

/// The step that is due with a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Due {
    Cooling,
    Adaptation,
}

/// The number of samples so far, between two coolings, and between two adaptations.
#[derive(Debug)]
pub(super) struct Cadence {
    samples: u64,
    cooling_every: u64,
    adapt_every: u64,
}

impl Cadence {
    /// The cadence of a machine that is smaller by `scale` than that of the periods.
    pub(super) fn new(scale: u64) -> Self {
        Self {
            samples: 0,
            cooling_every: (COOLING / scale).max(1),
            adapt_every: (ADAPTATION / scale).max(1),
        }
    }

    pub(super) fn cooling_every(&self) -> u64 {
        self.cooling_every
    }

    /// Counts a sample; returns the step that is due with it. A cooling takes the place of an adaptation.
    pub(super) fn sample(&mut self) -> Option<Due> {
        self.samples += 1;
        if self.samples.is_multiple_of(self.cooling_every) {
            Some(Due::Cooling)
        } else if self.samples.is_multiple_of(self.adapt_every) {
            Some(Due::Adaptation)
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_twentieth_adaptation_is_a_cooling() {
        let mut cadence = Cadence::new(100_000);
        let due: Vec<Option<Due>> = (0..20).map(|_| cadence.sample()).collect();
        assert!(due[..19].iter().all(|due| *due == Some(Due::Adaptation)));
        assert_eq!(due[19], Some(Due::Cooling));
    }
}
