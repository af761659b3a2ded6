//! Exchanges of one tier for another, by an arbiter alone: heat is known here without an engine.

use std::collections::BTreeMap;

use terrace_core::arbiter::{
    Arbiter, ArbiterConfig, Decision, Known, KnownDemand, Rule, Sizes, TierSize,
};
use terrace_core::share::Heat;
use terrace_proto::provision::{Ordered, SizesAnswer};
use terrace_proto::{MemoryNeed, MemoryRights, MemoryTiers, ProviderId, Tick, TierId, VmId};

use crate::world::{MIB, SECOND};

/// The way of a guest and its provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// The engine moves hot pages up into what is free, and pages of what goes down.
    Honest,
    /// A guest that fills all that comes with page cache.
    Fills,
    /// The same, and says that it loses time.
    Complains,
    /// An engine that moves nothing up.
    Holds,
}

/// A VM.
#[derive(Clone, Debug)]
struct Vm {
    sizes: Vec<u64>,
    whole: u64,
    block: u64,
    used: Vec<u64>,
    swap: u64,
    lost: u64,
    heat: Vec<Heat>,
    way: Way,
    orders: u32,
}

impl Vm {
    fn new(sizes: &[u64], used: &[u64], heat: &[(u64, u64)]) -> Self {
        let mib = |of: &[u64]| of.iter().map(|mib| mib * MIB).collect::<Vec<u64>>();
        let heat = heat.iter().map(|(mib, accesses_per_s)| Heat {
            bytes: mib * MIB,
            accesses_per_s: *accesses_per_s,
        });
        Self {
            sizes: mib(sizes),
            whole: 16384 * MIB,
            block: 2 * MIB,
            used: mib(used),
            swap: 0,
            lost: 0,
            heat: heat.collect(),
            way: Way::Honest,
            orders: 0,
        }
    }

    fn size(&self) -> u64 {
        self.sizes.iter().sum()
    }

    fn free(&self, tier: usize) -> u64 {
        self.sizes[tier].saturating_sub(self.used[tier])
    }

    /// Moves pages of memory that went down, or into swap, then hot ones up.
    fn work(&mut self) {
        let tiers = self.sizes.len();
        for tier in 0..tiers {
            let mut over = self.used[tier].saturating_sub(self.sizes[tier]);
            self.used[tier] -= over;
            for to in (tier + 1..tiers).chain(0..tier) {
                let moved = over.min(self.free(to));
                self.used[to] += moved;
                over -= moved;
            }
            // Page cache is dropped.
            if !matches!(self.way, Way::Fills | Way::Complains) {
                self.swap += over;
            }
        }
        for tier in 0..tiers {
            let back = self.swap.min(self.free(tier));
            self.swap -= back;
            self.used[tier] += back;
            for from in tier + 1..tiers {
                let keep = self.sizes[tier] / 50;
                let up = self.used[from].min(self.free(tier).saturating_sub(keep));
                if self.way == Way::Honest {
                    self.used[from] -= up;
                    self.used[tier] += up;
                }
            }
        }
        if matches!(self.way, Way::Fills | Way::Complains) {
            self.used.clone_from(&self.sizes);
        }
        if self.way == Way::Complains {
            self.lost += 20_000_000;
        }
    }
}

/// The VMs, and what is known of them.
#[derive(Default)]
struct Host {
    vms: BTreeMap<u32, Vm>,
}

impl Known for Host {
    fn sizes(&self, provider: ProviderId) -> Option<Sizes> {
        let vm = self.vms.get(&provider.0)?;
        let tier = |size: &u64| TierSize {
            size: *size,
            target: *size,
            most: *size,
            least: 0,
            whole: vm.whole,
            block: vm.block,
        };
        Some(Sizes {
            tiers: vm.sizes.iter().map(tier).collect(),
            still: None,
            unplugs: false,
        })
    }

    fn name(&self, provider: ProviderId) -> String {
        provider.0.to_string()
    }

    fn demand(&self, vm: VmId) -> Option<KnownDemand> {
        Some(KnownDemand {
            heat: self.vms.get(&vm.0)?.heat.clone().into(),
            ..KnownDemand::default()
        })
    }
}

/// A host with its arbiter.
struct Rig {
    arbiter: Arbiter,
    host: Host,
    second: u64,
    capacity: Vec<u64>,
}

impl Rig {
    fn new(config: ArbiterConfig, vms: Vec<Vm>) -> Self {
        let mut rig = Self {
            arbiter: Arbiter::new(config),
            host: Host::default(),
            second: 1,
            capacity: vec![0; 4],
        };
        for (id, vm) in (1..).zip(vms) {
            rig.arrive(id, vm);
        }
        rig
    }

    fn arrive(&mut self, id: u32, vm: Vm) {
        for (all, size) in self.capacity.iter_mut().zip(&vm.sizes) {
            *all += size;
        }
        let rights = MemoryRights {
            provider: ProviderId(id),
            vm: Some(VmId(id)),
            floor_bytes: 0,
            ceiling_bytes: u64::MAX,
            weight: 1000,
        };
        self.host.vms.insert(id, vm);
        self.arbiter.rights(self.now(), rights);
    }

    fn now(&self) -> Tick {
        Tick(self.second * SECOND)
    }

    fn say(&mut self) {
        let now = self.now();
        for (id, vm) in &self.host.vms {
            let provider = ProviderId(*id);
            let mut free_bytes = [0; TierId::MAX];
            for (tier, free) in (0..vm.sizes.len()).zip(&mut free_bytes) {
                *free = vm.free(tier);
            }
            self.arbiter.tiers(MemoryTiers {
                provider,
                free_bytes,
                waiting_hot_bytes: 0,
            });
            let need = MemoryNeed {
                provider,
                free_bytes: (0..vm.sizes.len()).map(|tier| vm.free(tier)).sum(),
                used_swap_bytes: vm.swap,
                major_faults: vm.lost / 100_000,
                lost_ns: vm.lost,
                huge_percent: 0,
            };
            self.arbiter.need(now, need, self.host.sizes(provider));
        }
    }

    fn carry_out(&mut self, decision: Decision) {
        let Some(wanted) = decision.wanted else {
            return;
        };
        let now = self.now();
        let vm = self.host.vms.get_mut(&wanted.provider.0).unwrap();
        let from = vm.sizes.clone();
        let to: Vec<u64> = from
            .iter()
            .zip(&wanted.size_bytes)
            .map(|(is, to)| to.unwrap_or(*is))
            .collect();
        vm.orders += 1;
        vm.sizes = to;
        vm.work();
        self.arbiter.answered(
            now,
            &SizesAnswer {
                id: wanted.id,
                result: Ok(Ordered {
                    done: String::new(),
                    number: 0,
                    by: String::new(),
                    by_name: String::new(),
                    size_bytes: Vec::new(),
                }),
            },
        );
        self.arbiter.changed(now, wanted.provider);
        for tier in 0..4 {
            let held = self.held(tier);
            assert!(
                held <= self.capacity[tier],
                "tier {tier}: {held} of {}",
                self.capacity[tier]
            );
        }
    }

    fn step(&mut self) {
        self.second += 1;
        self.say();
        for _ in 0..10 {
            let decisions = self.arbiter.advance(self.now(), &self.host);
            decisions.into_iter().for_each(|of| self.carry_out(of));
        }
        self.host.vms.values_mut().for_each(Vm::work);
    }

    fn seconds(&mut self, seconds: u64) {
        (0..seconds).for_each(|_| self.step());
    }

    fn held(&self, tier: usize) -> u64 {
        let vms = self.host.vms.values();
        vms.filter_map(|vm| vm.sizes.get(tier)).sum()
    }

    fn free(&self, tier: usize) -> u64 {
        (self.capacity[tier] - self.held(tier)) / MIB
    }
}

fn rules() -> [ArbiterConfig; 2] {
    [Rule::Dp, Rule::Fair].map(|rule| ArbiterConfig {
        rule,
        ..ArbiterConfig::default()
    })
}

fn hot() -> Vm {
    Vm::new(&[1000, 1000], &[950, 900], &[(1850, 100_000)])
}

fn calm() -> Vm {
    Vm::new(&[1000, 1000], &[950, 900], &[(1850, 1000)])
}

/// Half an hour in which all settle, and the orders of the half after that.
fn settled(config: ArbiterConfig, way: Way) -> (Rig, [u32; 4]) {
    let bad = Vm { way, ..hot() };
    let mut rig = Rig::new(config, vec![bad, calm(), calm(), hot()]);
    let orders = |rig: &Rig| [1, 2, 3, 4].map(|id| rig.host.vms[&id].orders);
    rig.seconds(1800);
    let before = orders(&rig);
    rig.seconds(1800);
    let after = orders(&rig);
    let more = std::array::from_fn(|vm| after[vm] - before[vm]);
    (rig, more)
}

#[test]
fn constant_demand_comes_to_rest() {
    for config in rules() {
        let (rig, orders) = settled(config, Way::Honest);
        assert_eq!(orders, [0; 4]);
        assert!(rig.host.vms[&4].sizes[0] > 1500 * MIB);
    }
}

/// A guest that uses what came held an exchange of 64 MiB or more for 60 s, and then began the next one.
#[test]
fn page_cache_keeps_none_of_what_came() {
    for config in rules() {
        for way in [Way::Fills, Way::Complains] {
            let (rig, orders) = settled(config.clone(), way);
            let has = rig.host.vms[&1].size();
            assert!(has <= 2020 * MIB, "{way:?}: {} MiB", has / MIB);
            assert!(rig.free(0) > 170, "{way:?}: {} MiB", rig.free(0));
            assert!(orders[0] <= 14, "{orders:?}");
        }
    }
}

/// Memory that came and went again came anew 10 s later, without end.
#[test]
fn what_was_undone_is_not_begun_anew_at_once() {
    for config in rules() {
        let (_, orders) = settled(config, Way::Holds);
        assert!(orders.iter().all(|orders| *orders <= 14), "{orders:?}");
    }
}

/// Heat varies from round to round: memory that went to and fro by that would gain nobody anything.
#[test]
fn noise_in_the_heat_moves_little_memory() {
    for config in rules() {
        // `fair` has all equally slow, so it follows what is observed by a fiftieth of a VM at a time.
        let most = if config.rule == Rule::Fair { 30 } else { 0 };
        let mut rig = Rig::new(config, vec![hot(), hot(), hot()]);
        let mut random = 1_u64;
        let mut orders = [0; 2];
        for second in 0..3600_usize {
            if second.is_multiple_of(5) {
                for vm in rig.host.vms.values_mut() {
                    random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                    // 5 % more or less.
                    vm.heat[0].accesses_per_s = 95_000 + (random >> 33) % 10_001;
                }
            }
            rig.step();
            orders[second / 1800] = rig.host.vms.values().map(|vm| vm.orders).sum();
        }
        let second = orders[1] - orders[0];
        assert!(second <= most, "{second} orders in the second half hour");
    }
}
