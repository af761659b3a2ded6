//! The hotness at which a page goes up, and at which it stays (`__adjust_active_threshold`).

use super::histogram::MIN_HOT;

/// Percent of fast memory below which hot pages leave room for warm ones (α, §4.2.1).
const WARM_BELOW: u64 = 90;

/// Bins from which pages are hot and warm.
#[derive(Debug)]
pub(super) struct Thresholds {
    hot: usize,
    warm: usize,
    /// Whether counts were halved since the last adaptation.
    cooled: bool,
}

impl Thresholds {
    pub(super) fn new() -> Self {
        Self {
            hot: MIN_HOT,
            warm: MIN_HOT,
            cooled: false,
        }
    }

    pub(super) fn hot(&self) -> usize {
        self.hot
    }

    pub(super) fn is_hot(&self, bin: usize) -> bool {
        bin >= self.hot
    }

    /// Whether a page stays in its tier.
    pub(super) fn is_warm(&self, bin: usize) -> bool {
        bin >= self.warm
    }

    /// Spares no page for being warm, until the next adaptation.
    pub(super) fn spare_none(&mut self) {
        self.warm = self.hot;
    }

    /// Records that counts are halved from now on.
    pub(super) fn cool(&mut self) {
        self.cooled = true;
    }

    /// Whether counts were halved since the last adaptation.
    pub(super) fn is_cooled(&self) -> bool {
        self.cooled
    }

    /// Adapts the thresholds to `fits`, the lowest bin from which all pages fit into the room, and to their `units`;
    /// returns whether the hot threshold changed.
    pub(super) fn adapt(
        &mut self,
        (fits, units): (usize, u64),
        room: u64,
        were_split: bool,
    ) -> bool {
        let before = self.hot;
        if std::mem::take(&mut self.cooled) {
            // Not all pages are counted yet: it goes down by one at most.
            if fits < self.hot {
                self.hot = (self.hot - 1).max(MIN_HOT);
            }
        } else if were_split {
            self.hot = fits;
        } else {
            self.hot = self.hot.max(fits);
        }
        let leaves_room = units < room * WARM_BELOW / 100;
        self.warm = self.hot - usize::from(leaves_room);
        self.hot != before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_threshold_rises_at_once_and_falls_by_one_after_cooling() {
        let mut thresholds = Thresholds::new();
        assert!(thresholds.adapt((5, 100), 100, false));
        assert!(!thresholds.adapt((3, 100), 100, false));
        thresholds.cool();
        assert!(thresholds.adapt((3, 50), 100, false));
        assert!(thresholds.is_warm(3) && !thresholds.is_hot(3) && thresholds.is_hot(4));
        thresholds.spare_none();
        assert!(!thresholds.is_warm(3));
        assert!(thresholds.adapt((2, 100), 100, true));
        assert_eq!(thresholds.hot(), 2);
    }
}
