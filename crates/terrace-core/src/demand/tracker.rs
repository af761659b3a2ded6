//! The tracker of one VM: protection faults in, distances, curve and working sets out (HPMBS §2).
//!
//! Responsible for: which blocks are protected while it tracks, and what their faults say. It leaves to others: when to
//! track, taking permissions away, and what the figures are good for.

use super::{
    Curve, CurveSource, DemandConfig, Distances, Dynamic, HotSet, Observed, Stack, WorkingSet,
    WorkingSets, restored,
};

/// Bytes of a block.
const BLOCK_BYTES: u64 = 2 << 20;

/// A stretch of tracking, or what all stretches so far come to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Stretch {
    /// Accesses of the VM, or the number of them at its start.
    accesses: u64,
    /// Time, or the time of its start, ns.
    ns: u64,
}

/// The tracker of one VM.
#[derive(Clone, Debug)]
pub struct Tracker {
    blocks: u32,
    hot: HotSet,
    stack: Stack,
    sets: WorkingSets,
    tracked: Distances,
    /// A bit per block that was ever tracked.
    known: Vec<u64>,
    /// The start of the stretch under way, if one is.
    since: Option<Stretch>,
    /// All stretches that ended.
    ended: Stretch,
    faults: u64,
}

impl Tracker {
    /// A tracker of so many blocks, which does not track yet.
    #[must_use]
    pub fn new(config: &DemandConfig, blocks: u32) -> Self {
        let dynamic = config
            .resize_hot_set
            .then(|| Dynamic::paper(blocks, config.max_hot_set_percent));
        Self {
            blocks,
            hot: HotSet::new(config.hot_set_pages, dynamic),
            stack: Stack::new(),
            sets: WorkingSets::new(blocks),
            tracked: Distances::new(),
            known: vec![0; blocks.div_ceil(64) as usize],
            since: None,
            ended: Stretch::default(),
            faults: 0,
        }
    }

    /// Begins to track; all blocks must be protected now. Which block was accessed after which is not known from before
    /// this, so the next access to a block that is known has no distance.
    pub fn begin(&mut self, ns: u64, accesses: u64) {
        self.hot.drain(&mut Vec::new());
        self.stack = Stack::new();
        self.since = Some(Stretch { accesses, ns });
    }

    /// Ends tracking; no block is protected any more.
    pub fn end(&mut self, ns: u64, accesses: u64) {
        if self.since.is_some() {
            self.ended = self.passed(ns, accesses);
            self.since = None;
        }
    }

    /// Whether it tracks.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.since.is_some()
    }

    /// Takes in a fault on a block, when the VM had made so many accesses. Blocks to protect are added to `protect`.
    /// Returns whether it was one: the block exists, and was outside of the hot set.
    pub fn track(&mut self, block: u32, accesses: u64, protect: &mut Vec<u32>) -> bool {
        if self.since.is_none() || block >= self.blocks || !self.hot.track(block, accesses, protect)
        {
            return false;
        }
        self.faults += 1;
        let distance = self.stack.access(block);
        let (word, bit) = (block as usize / 64, 1 << (block % 64));
        let is_known = self.known[word] & bit != 0;
        self.known[word] |= bit;
        if distance.is_some() || !is_known {
            self.tracked.add(distance);
        }
        self.sets.track(block, distance);
        true
    }

    /// Ends a second; returns the memory that the VM used in it, blocks.
    pub fn end_second(&mut self) -> WorkingSet {
        self.sets.end_second(self.hot.iter())
    }

    /// The curve of all that was tracked, with the accesses that the hot set kept restored; `None` before anything was.
    #[must_use]
    pub fn curve(&self, ns: u64, accesses: u64) -> Option<Curve> {
        if self.tracked.total() == 0 {
            return None;
        }
        let all = self.passed(ns, accesses);
        let counted = all.accesses.max(self.tracked.total());
        let restored = restored(&self.tracked, counted, self.hot.largest());
        let observed = Observed {
            source: match restored {
                Some(_) => CurveSource::Restored,
                None => CurveSource::Tracked,
            },
            page_bytes: BLOCK_BYTES,
            accesses: counted,
            span_ns: all.ns,
            resolution_pages: self.hot.largest(),
            guess_below_pages: self.hot.largest().saturating_mul(2),
        };
        Some(Curve::new(
            observed,
            restored.as_ref().unwrap_or(&self.tracked),
        ))
    }

    /// Accesses and time of all stretches, with the one under way.
    fn passed(&self, ns: u64, accesses: u64) -> Stretch {
        let mut all = self.ended;
        if let Some(since) = self.since {
            all.accesses += accesses.saturating_sub(since.accesses);
            all.ns += ns.saturating_sub(since.ns);
        }
        all
    }

    /// The hot set.
    #[must_use]
    pub fn hot_set(&self) -> &HotSet {
        &self.hot
    }

    /// Number of tracked faults.
    #[must_use]
    pub fn faults(&self) -> u64 {
        self.faults
    }

    /// Number of blocks that were ever tracked.
    #[must_use]
    pub fn known_blocks(&self) -> u64 {
        let bits = self.known.iter().map(|word| u64::from(word.count_ones()));
        bits.sum()
    }

    /// Bytes on the heap.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        self.hot.heap_bytes()
            + self.stack.heap_bytes()
            + self.sets.heap_bytes()
            + self.tracked.heap_bytes()
            + self.known.capacity() * size_of::<u64>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const FIXED: DemandConfig = DemandConfig {
        track: super::super::Track::Always,
        hot_set_pages: 30,
        max_hot_set_percent: 50,
        resize_hot_set: false,
        max_tracking_percent: 100,
        least_walks: 1,
        phase_windows: 20,
        phase_lower_milli: 800,
        phase_upper_milli: 1250,
    };

    /// A tracker of 1,000 blocks and the blocks that are protected, driven by accesses as a machine would.
    struct Host {
        tracker: Tracker,
        protected: Vec<bool>,
        accesses: u64,
    }

    impl Host {
        fn new() -> Self {
            let mut tracker = Tracker::new(&FIXED, 1000);
            tracker.begin(0, 0);
            Self {
                tracker,
                protected: vec![true; 1000],
                accesses: 0,
            }
        }

        fn access(&mut self, block: u32) {
            self.accesses += 1;
            let mut protect = Vec::new();
            if std::mem::take(&mut self.protected[block as usize]) {
                assert!(self.tracker.track(block, self.accesses, &mut protect));
            }
            for block in protect {
                self.protected[block as usize] = true;
            }
        }
    }

    #[test]
    fn a_sweep_is_seen_whole_and_misses_below_its_size() {
        let mut host = Host::new();
        for _ in 0..20 {
            (0..300).for_each(|block| (0..10).for_each(|_| host.access(block)));
        }
        let tracker = &host.tracker;
        assert_eq!((tracker.faults(), tracker.known_blocks()), (6000, 300));
        let curve = tracker.curve(1_000_000_000, host.accesses).unwrap();
        assert_eq!(curve.source, CurveSource::Restored);
        // All 20 sweeps miss with less than the sweep, the first one alone with all of it.
        assert_eq!((curve.misses(299), curve.misses(300)), (6000, 300));
        assert_eq!(curve.accesses, 60_000);
    }

    #[test]
    fn an_access_after_a_rest_is_neither_cold_nor_at_a_distance() {
        let mut host = Host::new();
        (0..100).for_each(|block| host.access(block));
        host.tracker.end(50, host.accesses);
        assert!(!host.tracker.is_on() && !host.tracker.track(5, 999, &mut Vec::new()));
        host.tracker.begin(500, 1100);
        host.protected.fill(true);
        host.accesses = 1100;
        (0..101).for_each(|block| host.access(block));
        let curve = host.tracker.curve(550, host.accesses).unwrap();
        // 101 cold accesses in all; the rest's accesses and time count for nothing.
        assert_eq!(
            (curve.misses(1000), curve.accesses, curve.span_ns),
            (101, 201, 100)
        );
    }

    #[test]
    fn a_block_that_is_not_the_vms_or_did_not_fault_is_not_counted() {
        let mut host = Host::new();
        let mut protect = Vec::new();
        assert!(!host.tracker.track(1000, 1, &mut protect));
        assert!(host.tracker.track(7, 1, &mut protect));
        assert!(!host.tracker.track(7, 2, &mut protect));
        assert_eq!((host.tracker.faults(), protect.len()), (1, 0));
        assert!(Tracker::new(&FIXED, 10).curve(1, 1).is_none());
    }

    #[test]
    fn scaled_counts_go_with_sizes_and_never_vanish() {
        let scaled = DemandConfig::default().scaled(4);
        assert_eq!((scaled.hot_set_pages, scaled.least_walks), (62, 1250));
        assert_eq!(DemandConfig::default().scaled(1 << 40).hot_set_pages, 1);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]

        /// The oracle: a list of the tracked blocks, the last one first.
        #[test]
        fn distances_are_those_of_a_list_of_tracked_blocks(
            accesses in prop::collection::vec(0..60_u32, 1..600),
        ) {
            let mut host = Host::new();
            let mut list: Vec<u32> = Vec::new();
            let mut misses = [0_u64; 61];
            for block in accesses {
                if host.protected[block as usize] {
                    let depth = list.iter().position(|held| *held == block);
                    (0..=depth.unwrap_or(60)).for_each(|size| misses[size] += 1);
                    list.retain(|held| *held != block);
                    list.insert(0, block);
                }
                host.access(block);
            }
            let curve = host.tracker.curve(1, host.accesses).unwrap();
            // Below the hot set's size misses are restored, not tracked.
            for size in 30..=60 {
                prop_assert_eq!(curve.misses(size), misses[size as usize], "{} blocks", size);
            }
        }
    }
}
