//! The histogram of pages by hotness (`get_idx`, `hotness_hg`), and the threshold that follows from it.

use crate::base::number::index;

/// Bins of the histogram.
pub(super) const BINS: usize = 16;

/// The lowest hot threshold (`htmm_thres_hot`).
pub(super) const MIN_HOT: usize = 1;

/// The bin of a count (`get_idx`).
pub(super) fn bin(count: u32) -> usize {
    index(count.saturating_add(1).ilog2()).min(BINS - 1)
}

/// Units per bin; each bin stands for twice the count of the one before.
#[derive(Clone, Debug)]
pub(super) struct Histogram {
    bins: [u64; BINS],
}

impl Histogram {
    /// A histogram with all units in the lowest bin.
    pub(super) fn new(units: u32) -> Self {
        let mut bins = [0; BINS];
        bins[0] = u64::from(units);
        Self { bins }
    }

    /// Forgets all units: each is counted again when it is cooled.
    pub(super) fn clear(&mut self) {
        self.bins = [0; BINS];
    }

    pub(super) fn add(&mut self, bin: usize, units: u64) {
        self.bins[bin] += units;
    }

    /// Takes units off a bin, also those of a page that is not counted yet.
    pub(super) fn remove(&mut self, bin: usize, units: u64) {
        self.bins[bin] = self.bins[bin].saturating_sub(units);
    }

    /// Moves a page from a bin to another.
    pub(super) fn shift(&mut self, before: usize, now: usize, units: u64) {
        if before != now {
            self.remove(before, units);
            self.add(now, units);
        }
    }

    /// The lowest bin for which the pages in it and above all fit into the room, and the number of these units.
    pub(super) fn threshold(&self, room: u64) -> (usize, u64) {
        let (mut fits, mut active) = (BINS, 0);
        while fits > 0 && active + self.bins[fits - 1] <= room {
            fits -= 1;
            active += self.bins[fits];
        }
        (fits.clamp(MIN_HOT, BINS - 1), active)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hot_threshold_is_the_lowest_from_which_all_pages_fit() {
        let mut histogram = Histogram::new(1000);
        for (bin, units) in [(9, 300), (10, 100), (12, 50)] {
            histogram.add(bin, units);
        }
        assert_eq!(histogram.threshold(40), (13, 0));
        assert_eq!(histogram.threshold(150), (10, 150));
        assert_eq!(histogram.threshold(450), (MIN_HOT, 450));
        histogram.add(15, 2000);
        assert_eq!(histogram.threshold(1500), (15, 0));
    }
}
