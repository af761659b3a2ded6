//! VMs whose accesses the engine observes: too little memory goes where it saves most time, and the record replays.

use std::collections::BTreeMap;

use terrace_core::arbiter::{ArbiterConfig, Rule};
use terrace_core::demand::{DemandConfig, Track};
use terrace_core::session::replay::replay;
use terrace_core::{EngineConfig, PolicyName};
use terrace_proto::{
    Event, FaultReport, Gfn, MemoryNeed, MemoryRights, PageSize, ProviderId, RamRange, TierLimit,
    VmId, VmSpec, VmStatistics,
};
use terrace_testkit::log::written;
use terrace_testkit::providers::{Provided, Providers};

use super::{GIB, MIB};

/// Blocks of 2 MiB in a VM's RAM.
const BLOCKS: u32 = 1024;

/// A VM that walks around a part of its memory.
struct Walker {
    blocks: u32,
    faults_per_s: u32,
    at: u32,
}

struct Host {
    providers: Providers,
    walkers: BTreeMap<u32, Walker>,
    second: u64,
}

impl Host {
    fn new() -> Self {
        let config = EngineConfig {
            policy: PolicyName::Hpmbs.into(),
            demand: DemandConfig {
                track: Track::Always,
                hot_set_pages: 3,
                resize_hot_set: false,
                max_tracking_percent: 100,
                ..DemandConfig::default()
            },
            arbiter: ArbiterConfig {
                rule: Rule::Dp,
                ..ArbiterConfig::default()
            },
            ..EngineConfig::default()
        };
        Self {
            providers: Providers::new(config, &[1 << 50]),
            walkers: BTreeMap::new(),
            second: 0,
        }
    }

    /// Adds a VM of 2 GiB that may have so much; `walker`: the engine observes it.
    fn arrive(&mut self, id: u32, ceiling_bytes: u64, walker: Option<Walker>) {
        let vm = walker.is_some().then_some(VmId(id));
        if let Some(walker) = walker {
            self.walkers.insert(id, walker);
            let limit = TierLimit {
                floor_bytes: 0,
                ceiling_bytes: u64::MAX,
            };
            self.providers.hear(Event::VmArrived(VmSpec {
                vm: VmId(id),
                name: format!("vm{id}"),
                ram: vec![RamRange {
                    start: Gfn(0),
                    pages: u64::from(BLOCKS) * 512,
                }],
                unit: PageSize::Huge,
                limits: vec![limit; 2],
                weight: 1000,
                moves: true,
            }));
        }
        self.providers.arrive(id, Provided::settled(&[2 * GIB]));
        self.providers.hear(Event::MemoryRights(MemoryRights {
            provider: ProviderId(id),
            vm,
            floor_bytes: 256 * MIB,
            ceiling_bytes,
            weight: 1000,
        }));
    }

    fn size(&self, id: u32) -> u64 {
        self.providers.vms[&id].status.as_ref().unwrap().tiers[0].size_bytes
    }

    /// Lets a second pass; the VM without a walker swaps.
    fn second(&mut self) {
        self.second += 1;
        for (id, walker) in &mut self.walkers {
            let next = |_| {
                walker.at = (walker.at + 1) % walker.blocks;
                walker.at
            };
            let faults = FaultReport {
                vm: VmId(*id),
                accesses: self.second * 10_000_000,
                blocks: (0..walker.faults_per_s).map(next).collect(),
            };
            self.providers.hear(Event::Faulted(faults));
            for tenth in 1..=10 {
                let tenths = self.second * 10 + tenth;
                self.providers.hear(Event::Statistics(VmStatistics {
                    vm: VmId(*id),
                    accesses: tenths * 1_000_000,
                    walks: tenths * 20_000,
                    tracking_ns: 0,
                    cpu_ns: tenths * 100_000_000,
                    total_bytes: 2 * GIB,
                    free_bytes: GIB,
                    used_swap_bytes: 0,
                }));
            }
        }
        for id in self.providers.vms.keys().copied().collect::<Vec<_>>() {
            let swaps = !self.walkers.contains_key(&id);
            self.providers.hear(Event::MemoryNeed(MemoryNeed {
                provider: ProviderId(id),
                free_bytes: 0,
                used_swap_bytes: if swaps { GIB + self.second * MIB } else { 0 },
                major_faults: 0,
                lost_ns: 0,
                huge_percent: 100,
            }));
        }
        for vm in self.providers.vms.values_mut() {
            vm.obey();
        }
        self.providers.run_for(1);
    }
}

#[test]
fn too_little_goes_where_curves_lose_least_and_replays() {
    let mut host = Host::new();
    let walker = |blocks, faults_per_s| Walker {
        blocks,
        faults_per_s,
        at: 0,
    };
    // 1.4 GiB often, 1.8 GiB seldom; the third one swaps, and may have 3.5 of 6 GiB.
    host.arrive(1, u64::MAX, Some(walker(700, 7000)));
    host.arrive(2, u64::MAX, Some(walker(900, 1800)));
    host.arrive(3, 7 * GIB / 2, None);
    (0..150).for_each(|_| host.second());
    let sizes = [1, 2, 3].map(|id| host.size(id) / MIB);
    assert!((1396..1560).contains(&sizes[0]), "{sizes:?}");
    assert!(sizes[1] < 1200, "{sizes:?}");
    // It swaps for long, so the reserve is not for it.
    assert!(sizes[2] > 3100, "{sizes:?}");
    for id in [1, 2] {
        let said = host.providers.said(id);
        let why = |said: &String| said.contains("its working set is 1.") && said.contains("vm3");
        assert!(said.iter().any(why), "{said:?}");
    }
    let replayed = replay(written(host.providers.log()).as_slice()).unwrap();
    assert!(
        replayed.actions > 0 && replayed.unrecorded_actions == 0,
        "{replayed:?}"
    );
}
