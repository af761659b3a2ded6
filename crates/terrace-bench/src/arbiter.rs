//! The benchmark of one decision about the memory of 500 VMs.

use terrace_core::arbiter::{Arbiter, ArbiterConfig, Known, KnownDemand, Rule, Sizes, TierSize};
use terrace_core::demand::{Curve, CurveSource, Observed, Point};
use terrace_proto::{MemoryNeed, MemoryRights, ProviderId, Tick, VmId};

use crate::measured::{RUNS, median, timed};

/// Number of VMs.
const VMS: u32 = 500;
/// Memory of each, bytes.
const SIZE: u64 = 16 << 30;
/// Blocks of 2 MiB of what a VM may have.
const BLOCKS: u32 = 1 << 14;
/// One VM in so many swaps.
const SWAPS: u32 = 25;
const NS_PER_MS: f64 = 1e6;

/// A host of VMs of which half are tracked, in a stable phase.
struct Host {
    curve: Curve,
}

impl Known for Host {
    fn sizes(&self, _: ProviderId) -> Option<Sizes> {
        let tier = TierSize {
            size: SIZE,
            target: SIZE,
            most: SIZE,
            least: 0,
            whole: 2 * SIZE,
            block: 4096,
        };
        Some(Sizes {
            tiers: vec![tier],
            still: None,
            unplugs: false,
        })
    }

    fn name(&self, provider: ProviderId) -> String {
        format!("vm{}", provider.0)
    }

    fn demand(&self, vm: VmId) -> Option<KnownDemand> {
        vm.0.is_multiple_of(2).then(|| KnownDemand {
            // Together they want more than there is.
            working_set: Some(SIZE + SIZE / 8),
            is_stable: true,
            curve: Some(self.curve.clone()),
            ..KnownDemand::default()
        })
    }
}

/// `arbiter_500_ms`: a whole decision for 500 VMs of 16 GiB that may have 32 and want more than there is: 20 swap, half
/// of the others are tracked, with a curve of a point per 2 MiB. ms.
///
/// # Panics
/// Nothing is decided.
#[must_use]
pub fn arbiter() -> f64 {
    let observed = Observed {
        source: CurveSource::Ages,
        page_bytes: 2 << 20,
        accesses: u64::from(BLOCKS) * 100,
        span_ns: 1_000_000_000,
        resolution_pages: 0,
        guess_below_pages: 0,
    };
    let points = (1..=BLOCKS).map(|pages| Point {
        pages,
        misses: u64::from(BLOCKS - pages) * 100,
    });
    let host = Host {
        curve: Curve::of(observed, points),
    };
    let runs = (0..RUNS).map(|_| {
        let mut arbiter = new();
        let mut orders = 0;
        let ns = timed(|| orders = arbiter.advance(Tick(2_000_000_000), &host).len()).ns;
        assert!(orders > 0);
        ns
    });
    median(runs.collect()) / NS_PER_MS
}

fn new() -> Arbiter {
    let mut arbiter = Arbiter::new(ArbiterConfig {
        rule: Rule::Dp,
        ..ArbiterConfig::default()
    });
    for id in 1..=VMS {
        let provider = ProviderId(id);
        arbiter.rights(
            Tick(0),
            MemoryRights {
                provider,
                vm: Some(VmId(id)),
                floor_bytes: SIZE / 4,
                ceiling_bytes: u64::MAX,
                weight: 1000,
            },
        );
        for second in 0..2 {
            let need = MemoryNeed {
                provider,
                free_bytes: SIZE / 16,
                used_swap_bytes: (u64::from(id.is_multiple_of(SWAPS)) * second) << 30,
                major_faults: 0,
                lost_ns: 0,
                huge_percent: 100,
            };
            arbiter.need(Tick(second * 1_000_000_000), need, None);
        }
    }
    arbiter
}
