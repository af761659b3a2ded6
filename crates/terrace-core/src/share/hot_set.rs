//! How much fast memory a VM could use (vTMM §3.5).
//!
//! The paper's hot set is the hottest 80 % of the pages whose degree is above 3. Beside it counts
//! what the VM has in the first tier of pages that no guest table shows: their heat is unknown, they
//! are not moved, and so the hot set fits only into what they leave.

use crate::estimate::{DEGREES, Estimator, Histogram};

/// The fast memory that a VM could use, by its ranking, in units.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct HotSet {
    /// The degree that units have to exceed.
    pub base: u8,
    /// Known units whose degree is above the base degree.
    pub above: u64,
    /// So many of them, the hottest, are the hot set.
    pub hot: u64,
    /// Units in the first tier that no guest table shows.
    pub unseen: u64,
}

impl HotSet {
    /// Of a VM that holds `held` units of the first tier.
    #[must_use]
    pub fn find(histogram: &Histogram, held: u64, base_degree: u8, percent: u8) -> Self {
        let from = usize::from(base_degree) + 1;
        let above: u64 = (from..DEGREES).map(|d| histogram.known_with(d)).sum();
        let known: u64 = (0..DEGREES).map(|d| histogram.known_in(0, d)).sum();
        Self {
            base: base_degree,
            above,
            hot: above * u64::from(percent) / 100,
            unseen: held.saturating_sub(known),
        }
    }
}

impl Estimator {
    /// The degree that a page of the hot set exceeds: the configured one, or 0 if degrees only show
    /// hot (1) or not.
    #[must_use]
    pub fn base_degree(self, configured: u8) -> u8 {
        match self {
            Self::FixedThreshold { .. } => 0,
            // A touch in ten seconds.
            Self::Rates => 70,
            Self::PageDegree { .. }
            | Self::Counter { .. }
            | Self::Random { .. }
            | Self::Uniform => configured,
        }
    }
}

#[cfg(test)]
mod tests {
    use terrace_proto::{Gfn, PageCode, PageSize, RamRange, TierId, VmId, VmSpec};

    use super::*;
    use crate::pages::Pages;
    use crate::ram::Ram;

    #[test]
    fn the_hot_set_is_the_hottest_part_above_the_base_degree() {
        let spec = VmSpec {
            vm: VmId(1),
            name: "vm".into(),
            ram: vec![RamRange {
                start: Gfn(0),
                pages: 200,
            }],
            unit: PageSize::Base,
            limits: Vec::new(),
            weight: 1000,
            moves: true,
        };
        let mut pages = Pages::new(Ram::new(&spec).unwrap(), 2);
        pages.place_run(Gfn(0), &[PageCode::new(TierId::FAST, false); 60]);
        pages.place_run(Gfn(60), &[PageCode::new(TierId::SLOW, false); 140]);
        let mut known = terrace_proto::PageBitmap::full(200);
        (0..7).for_each(|page| known.put(page, false));
        pages.set_known(&known);
        pages.reads[..110].fill(4);
        pages.reads[110..].fill(3);
        let estimator = Estimator::PageDegree { read: 1, write: 1 };
        let histogram = Histogram::tally(&pages, estimator, 1);
        let found = HotSet::find(&histogram, 60, 3, 80);
        let want = HotSet {
            base: 3,
            above: 103,
            hot: 82,
            unseen: 7,
        };
        assert_eq!(found, want);
        assert_eq!(HotSet::find(&histogram, 60, 4, 80).hot, 0);
    }
}
