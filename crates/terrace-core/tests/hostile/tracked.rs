//! Faults and statistics of any kind, and a world whose VMs are tracked by them.

use terrace_core::demand::{DemandConfig, Track};
use terrace_core::policy::PolicyStages;
use terrace_core::{Engine, EngineConfig, PolicyChoice, TrackingView};
use terrace_proto::{Event, FaultReport, PAGES_PER_HUGE, Protection, VmId, VmStatistics};

use crate::world::World;

impl World {
    /// A world of VMs of 2 MiB pages that are tracked, as `hpmbs` does.
    pub fn with_tracking(seed: u64, track: Track) -> Self {
        let config = EngineConfig {
            answer_timeout_ms: 500,
            policy: PolicyChoice::Composed(PolicyStages {
                base: "hpmbs".into(),
                share: Some("pool".into()),
                ..PolicyStages::default()
            }),
            demand: DemandConfig {
                track,
                hot_set_pages: 1 + u32::try_from(seed % 4).unwrap(),
                resize_hot_set: seed.is_multiple_of(2),
                phase_windows: 1 + seed % 3,
                ..DemandConfig::default()
            },
            ..EngineConfig::default()
        };
        Self::of(4 * seed, config, false, |config| {
            Engine::new(config).unwrap()
        })
    }

    /// Faults on blocks of which some are not the VM's, some did not fault, and some come twice.
    pub fn some_faults(&mut self, vm: VmId) -> Event {
        let number = self.dice.below(12);
        let blocks = (0..number).map(|_| match self.dice.below(20) {
            0 => u32::MAX,
            _ => u32::try_from(self.dice.below(13)).unwrap(),
        });
        let blocks = blocks.collect();
        Event::Faulted(FaultReport {
            vm,
            accesses: self.some_count(),
            blocks,
        })
    }

    /// Statistics whose counters may go back, and of which none fits another.
    pub fn some_statistics(&mut self, vm: VmId) -> Event {
        Event::Statistics(VmStatistics {
            vm,
            accesses: self.some_count(),
            walks: self.some_count(),
            tracking_ns: self.some_count(),
            cpu_ns: self.some_count(),
            total_bytes: self.some_count(),
            free_bytes: self.some_count(),
            used_swap_bytes: self.some_count(),
        })
    }

    /// A counter: mostly one that grows with time.
    fn some_count(&mut self) -> u64 {
        match self.dice.below(30) {
            0 => u64::MAX,
            1 => 0,
            2 => self.dice.below(u64::MAX),
            _ => self.now + self.dice.below(1_000_000),
        }
    }

    /// Checks that what is protected are blocks of a VM that is tracked. One that left the hot set twice within a report is
    /// named twice.
    pub fn check_protection(&self, protection: &Protection) {
        let vm = protection.vm;
        let span = self.guests[&vm].spec.span_pages().div_ceil(PAGES_PER_HUGE);
        let mut blocks = protection.blocks.iter();
        assert!(blocks.all(|block| u64::from(*block) < span));
        let demand = self.engine.demand(vm).expect("it is tracked");
        assert_eq!(demand.tracking, TrackingView::On);
    }

    /// Checks that what is known of each VM's demand is no more than the VM has.
    pub fn check_demand(&self) {
        for (vm, guest) in &self.guests {
            let Some(demand) = self.engine.demand(*vm) else {
                continue;
            };
            let span = guest.spec.span_pages().div_ceil(PAGES_PER_HUGE);
            assert!(demand.known_blocks <= span);
            if let Some(curve) = demand.curve {
                assert!(curve.misses(u32::MAX) <= curve.misses(0));
                assert!(curve.misses(0) <= curve.accesses);
            }
        }
    }
}
