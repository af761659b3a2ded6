//! A node's watermarks (mm/page_alloc.c, `__setup_per_zone_wmarks`).
//!
//! The marks are counted in 4 KiB pages of the full-size machine, and free memory is compared at that size: at no scale
//! do two marks coincide.

/// `watermark_scale_factor`: the step from one watermark to the next, in 10,000ths of the node.
const WATERMARK_SCALE_FACTOR: u64 = 10;

/// `demote_scale_factor` of TPP, in 10,000ths of the node.
const DEMOTE_SCALE_FACTOR: u64 = 200;

/// Bounds of the calculated `min_free_kbytes`, KiB.
const MIN_FREE_KBYTES: (u64, u64) = (128, 262_144);

/// A node's watermarks: 4 KiB pages of the full-size machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    /// Free pages below which allocations fail, unless they may reclaim.
    pub min: u64,
    /// Free pages below which allocations wake kswapd.
    pub low: u64,
    /// Free pages at which kswapd sleeps again without tiering, and which migrations leave.
    pub high: u64,
    /// Free pages at which kswapd sleeps again with `NUMA_BALANCING_MEMORY_TIERING`.
    pub promo: u64,
    /// Free pages of the first node around which kswapd wakes and sleeps with TPP.
    pub demote: u64,
}

impl Marks {
    /// Pages of a node in which the demotion watermark of TPP is one page.
    pub const DEMOTION_PARTS: u64 = 10_000 / DEMOTE_SCALE_FACTOR;

    /// The watermarks of a node of so many pages, if all nodes together have `all`.
    #[must_use]
    pub fn of(node: u64, all: u64) -> Self {
        let min = min_free(all) * node / all.max(1);
        let step = (min / 4).max(node * WATERMARK_SCALE_FACTOR / 10_000);
        let high = min + 2 * step;
        Self {
            min,
            low: min + step,
            high,
            promo: high + step,
            demote: (node * DEMOTE_SCALE_FACTOR / 10_000)
                .max(2 * high)
                .min(node),
        }
    }

    /// Pages of the smallest node that keeps a page free, if all nodes together have `all`.
    #[must_use]
    pub fn least_node(all: u64) -> u64 {
        all.div_ceil(min_free(all))
    }
}

/// Pages that all nodes together keep free (`calculate_min_free_kbytes`): the root of 16 times the memory in KiB,
/// shared by size.
fn min_free(all: u64) -> u64 {
    let kbytes = (all * 4 * 16).isqrt();
    kbytes.clamp(MIN_FREE_KBYTES.0, MIN_FREE_KBYTES.1) / 4
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watermarks_are_those_that_linux_prints() {
        // 8 GiB of 24: min_free_kbytes is 20,066 KiB, a third of which is the node's.
        let marks = Marks::of(2 << 20, 6 << 20);
        assert_eq!(marks.min, 1672);
        assert_eq!((marks.low, marks.high, marks.promo), (3769, 5866, 7963));
        assert_eq!(marks.demote, 41_943);
    }

    #[test]
    fn the_least_node_is_the_smallest_with_a_watermark() {
        for all in [1 << 16, 1 << 18, 6 << 20] {
            let least = Marks::least_node(all);
            assert_eq!(Marks::of(least, all).min, 1);
            assert_eq!(Marks::of(least - 1, all).min, 0);
        }
    }

    #[test]
    fn a_small_nodes_demotion_watermark_is_twice_its_high_one() {
        let marks = Marks::of(4096, 8192);
        assert_eq!(marks.demote, 2 * marks.high);
        assert_eq!(Marks::of(0, 0).demote, 0);
    }
}
