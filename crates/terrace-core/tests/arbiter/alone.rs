//! The arbiter alone, beside VMs of which a test says all that is known: when it decides, and of whom it takes how much.

use std::collections::BTreeMap;

use terrace_core::arbiter::{Arbiter, ArbiterConfig, Known, KnownDemand, Rule, Sizes, TierSize};
use terrace_core::demand::{Curve, CurveSource, Observed, Point};
use terrace_proto::provision::{NotOrdered, Ordered, SizesAnswer, SizesWanted};
use terrace_proto::{
    GuestMemory, MemoryNeed, MemoryRights, MemoryStanding, ProviderId, SpeedRights, Tick, VmId,
};

use super::{GIB, MIB};

pub(super) const SECOND: u64 = 1_000_000_000;

/// A VM that does what it is ordered to, or nothing.
#[derive(Clone)]
pub(super) struct Vm {
    pub(super) size: u64,
    pub(super) need: MemoryNeed,
    pub(super) demand: Option<KnownDemand>,
    stalls: bool,
    /// Orders to more than this are refused, bytes.
    refuses_above: u64,
    pub(super) target: u64,
    /// Whether it takes no memory that it is given.
    pub(super) ignores_growth: bool,
    /// The files that its guest holds, if it is a live one.
    pub(super) files: Option<Files>,
}

/// A guest's files, and what it reads again of them.
#[derive(Clone, Copy)]
pub(super) struct Files {
    /// Memory of its programs, bytes.
    pub programs: u64,
    /// Bytes that it reads again and again.
    pub reads: u64,
    /// Bytes that came from disk so far.
    pub from_disk: u64,
    pub faults: Option<u64>,
    /// Whether QEMU does not answer what it read.
    pub is_uncounted: bool,
    /// Free memory beyond what Linux leaves.
    pub free: u64,
    /// Bytes that it ever swapped out; `None`: it does not say.
    pub swapped_out: Option<u64>,
}

impl Files {
    /// Free memory: as Linux leaves it.
    const FREE: u64 = 24 * MIB;

    /// Lets a second pass in a guest of this size. Files that do not fit are read from disk as fast as that can.
    fn second(&mut self, size: u64) {
        let cache = size.saturating_sub(self.programs + Self::FREE);
        if cache < self.reads {
            self.from_disk += 50 * MIB;
        }
    }

    fn said(&self, id: u32, size: u64) -> GuestMemory {
        let free = Self::FREE + self.free;
        let cache = size.saturating_sub(self.programs + free);
        GuestMemory {
            provider: ProviderId(id),
            age_ms: Some(0),
            free_bytes: Some(free),
            available_bytes: Some(cache + free),
            cache_bytes: Some(cache),
            major_faults: self.faults,
            swapped_in_bytes: self.swapped_out.map(|_| 0),
            swapped_out_bytes: self.swapped_out,
            disk_read_bytes: (!self.is_uncounted).then_some(self.from_disk),
            ..GuestMemory::default()
        }
    }
}

#[derive(Default)]
struct Vms(BTreeMap<u32, Vm>);

impl Known for Vms {
    fn sizes(&self, provider: ProviderId) -> Option<Sizes> {
        let vm = self.0.get(&provider.0)?;
        let tier = TierSize {
            size: vm.size,
            target: vm.target,
            most: vm.size.max(vm.target),
            least: 0,
            whole: 8 * GIB,
            block: 2 * MIB,
        };
        Some(Sizes {
            tiers: vec![tier],
            still: (vm.stalls || vm.size != vm.target).then_some("it does nothing"),
            unplugs: false,
        })
    }

    fn name(&self, provider: ProviderId) -> String {
        format!("vm{}", provider.0)
    }

    fn demand(&self, vm: VmId) -> Option<KnownDemand> {
        self.0.get(&vm.0)?.demand.clone()
    }
}

/// Orders, as (second, VM, size), and what was said.
pub(super) struct Alone {
    pub(super) arbiter: Arbiter,
    vms: Vms,
    pub(super) second: u64,
    pub(super) orders: Vec<(u64, u32, u64)>,
    pub(super) said: Vec<(u32, String)>,
}

impl Alone {
    pub(super) fn new(config: ArbiterConfig, sizes: &[u64]) -> Self {
        let mut arbiter = Arbiter::new(config);
        let mut vms = Vms::default();
        for (id, size) in (1..).zip(sizes) {
            arbiter.rights(
                Tick(0),
                MemoryRights {
                    provider: ProviderId(id),
                    vm: Some(VmId(id)),
                    floor_bytes: 256 * MIB,
                    ceiling_bytes: u64::MAX,
                    weight: 1000,
                },
            );
            let need = MemoryNeed {
                provider: ProviderId(id),
                free_bytes: 0,
                used_swap_bytes: 0,
                major_faults: 0,
                lost_ns: 0,
                huge_percent: 100,
            };
            let vm = Vm {
                size: *size,
                need,
                demand: None,
                stalls: false,
                refuses_above: u64::MAX,
                target: *size,
                ignores_growth: false,
                files: None,
            };
            vms.0.insert(id, vm);
        }
        Self {
            arbiter,
            vms,
            second: 0,
            orders: Vec::new(),
            said: Vec::new(),
        }
    }

    pub(super) fn dp(sizes: &[u64]) -> Self {
        let config = ArbiterConfig {
            rule: Rule::Dp,
            ..ArbiterConfig::default()
        };
        Self::new(config, sizes)
    }

    pub(super) fn vm(&mut self, id: u32) -> &mut Vm {
        self.vms.0.get_mut(&id).unwrap()
    }

    /// Lets a VM have so much free.
    pub(super) fn frees(&mut self, id: u32, bytes: u64) {
        self.vm(id).need.free_bytes = bytes;
    }

    /// Lets a second pass.
    pub(super) fn second(&mut self) {
        self.second += 1;
        let now = Tick(self.second * SECOND);
        for vm in self.vms.0.values_mut() {
            if let Some(files) = &mut vm.files {
                files.second(vm.size);
            }
        }
        for (id, vm) in &self.vms.0 {
            let sizes = self.vms.sizes(ProviderId(*id));
            match &vm.files {
                Some(files) => self.arbiter.guest(now, &files.said(*id, vm.size), sizes),
                None => self.arbiter.need(now, vm.need, sizes),
            }
        }
        loop {
            let decisions = self.arbiter.advance(now, &self.vms);
            let mut ordered = false;
            for decision in decisions {
                self.said.push((decision.provider.0, decision.why));
                if let Some(wanted) = decision.wanted {
                    ordered = true;
                    self.obey(now, &wanted);
                }
            }
            if !ordered {
                break;
            }
        }
    }

    fn obey(&mut self, now: Tick, wanted: &SizesWanted) {
        let id = wanted.provider.0;
        let size = wanted.size_bytes[0].unwrap();
        self.orders.push((self.second, id, size));
        let vm = self.vm(id);
        let is_refused = size > vm.refuses_above;
        if !vm.stalls && !is_refused {
            vm.target = size;
        }
        let is_ignored = vm.ignores_growth && size > vm.size;
        if !(vm.stalls || is_refused || is_ignored) {
            let taken = vm.size.saturating_sub(size);
            vm.need.free_bytes = vm.need.free_bytes.saturating_sub(taken);
            vm.size = size;
        }
        let ordered = Ordered {
            done: String::new(),
            number: 1,
            by: String::new(),
            by_name: String::new(),
            size_bytes: wanted.size_bytes.clone(),
        };
        let answer = SizesAnswer {
            id: wanted.id,
            result: match is_refused {
                true => Err(NotOrdered::NotNow("the host has less".into())),
                false => Ok(ordered),
            },
        };
        self.arbiter.answered(now, &answer);
        self.arbiter.changed(now, wanted.provider);
    }

    pub(super) fn seconds(&mut self, seconds: u64) {
        (0..seconds).for_each(|_| self.second());
    }

    /// Lets a VM swap for so many seconds.
    pub(super) fn swaps(&mut self, id: u32, seconds: u64) {
        for _ in 0..seconds {
            self.vm(id).need.used_swap_bytes += 100 * MIB;
            self.second();
        }
    }
}

/// The demand of a VM in a stable phase: each byte less costs more than the one before.
fn tracked(working_set: u64) -> KnownDemand {
    let pages = u32::try_from(working_set / (2 * MIB)).unwrap();
    let misses = |lacks: u32| u64::from(lacks) * u64::from(lacks);
    let points = (1..=pages).map(|at| Point {
        pages: at,
        misses: misses(pages - at),
    });
    let observed = Observed {
        source: CurveSource::Tracked,
        page_bytes: 2 * MIB,
        accesses: misses(pages),
        span_ns: SECOND,
        resolution_pages: 1,
        guess_below_pages: 0,
    };
    KnownDemand {
        working_set: Some(working_set),
        is_stable: true,
        curve: Some(Curve::of(observed, points)),
        ..KnownDemand::default()
    }
}

/// Sizes of two VMs with the same curve where there is too little for both; the first one says that a fault takes so long.
fn with_faults_of(rule: Rule, fault_ns: u64) -> [u64; 2] {
    let config = ArbiterConfig {
        rule,
        capacity_bytes: 3 * GIB,
        ..ArbiterConfig::default()
    };
    let mut alone = Alone::new(config, &[2 * GIB, 2 * GIB]);
    for id in [1, 2] {
        alone.vm(id).demand = Some(tracked(2 * GIB));
        alone.arbiter.speed(
            Tick(0),
            SpeedRights {
                provider: ProviderId(id),
                vcpus: 1,
                max_slowdown_milli: None,
            },
        );
    }
    for second in 0..130 {
        // It counts for some seconds before anything is taken: a rate that rises then would be a complaint.
        for id in [1, 2] {
            alone.vm(id).stalls = second < 10;
        }
        for (id, fault_ns) in [(1, fault_ns), (2, 100_000)] {
            alone.vm(id).need.major_faults += 1;
            alone.vm(id).need.lost_ns += fault_ns;
        }
        alone.second();
    }
    [1, 2].map(|id| alone.vm(id).size)
}

#[test]
fn no_guest_says_that_its_faults_are_dearer() {
    for rule in [Rule::Dp, Rule::Fair] {
        let honest = with_faults_of(rule, 100_000);
        assert!(honest[1] < 1600 * MIB, "{rule:?}: nothing is scarce");
        for fault_ns in [SECOND, u64::MAX >> 8] {
            let lies = with_faults_of(rule, fault_ns);
            assert!(
                lies[0] <= honest[0] + 64 * MIB && lies[1] + 64 * MIB >= honest[1],
                "{rule:?}: {lies:?} beside {honest:?}"
            );
        }
    }
}

#[test]
fn a_call_for_lent_memory_takes_nothing_else() {
    let mut alone = Alone::dp(&[2 * GIB; 3]);
    alone.frees(1, 1800 * MIB);
    alone.swaps(2, 30);
    assert!(alone.vm(1).size < GIB, "it lent nothing");
    // The borrower gives nothing back; the lender swaps, and a third one could do with less.
    alone.vm(2).stalls = true;
    alone.vm(3).demand = Some(tracked(GIB));
    alone.frees(1, 0);
    let before = alone.vm(3).size;
    alone.swaps(1, 20);
    let taken = alone.orders.iter().filter(|(_, vm, _)| *vm == 3).count();
    assert!((1..=5).contains(&taken), "{taken} of 20 s");
    let least = before - 5 * (before / 20 + 2 * MIB);
    assert!(alone.vm(3).size >= least, "{}", alone.vm(3).size / MIB);
}

#[test]
fn the_same_said_again_decides_nothing() {
    for rule in [Rule::Dp, Rule::Fair] {
        let config = ArbiterConfig {
            rule,
            ..ArbiterConfig::default()
        };
        let mut alone = Alone::new(config, &[2 * GIB; 3]);
        alone.frees(1, GIB);
        alone.frees(2, 512 * MIB);
        alone.vm(3).demand = Some(tracked(1900 * MIB));
        alone.seconds(240);
        let (decisions, orders) = (alone.arbiter.decisions(), alone.orders.len());
        assert!(orders > 0 && decisions > 2, "{rule:?}: nothing was decided");
        for second in 0..600 {
            let free = alone.vm(2).size / 4;
            alone.frees(2, free - second % 3 * 4 * MIB);
            alone.second();
        }
        let more = alone.arbiter.decisions() - decisions;
        assert!(more <= 2, "{rule:?}: {more} decisions in ten minutes");
        assert_eq!(alone.orders.len(), orders);
        // A demand that is observed changes though its guest says the same.
        alone.vm(3).demand = Some(tracked(GIB));
        alone.seconds(10);
        assert!(alone.arbiter.decisions() > decisions + more);
    }
}

#[test]
fn a_decision_is_taken_at_once_when_little_happened_before() {
    let mut alone = Alone::dp(&[2 * GIB, 2 * GIB]);
    alone.frees(2, GIB);
    alone.seconds(200);
    let decisions = alone.arbiter.decisions();
    alone.swaps(1, 1);
    assert_eq!(alone.arbiter.decisions(), decisions + 1);
}

#[test]
fn relief_does_not_wait_for_the_cycle() {
    for rule in [Rule::Dp, Rule::Fair] {
        let config = ArbiterConfig {
            rule,
            cycle_ms: 60_000,
            ..ArbiterConfig::default()
        };
        let mut alone = Alone::new(config, &[2 * GIB, 2 * GIB]);
        alone.frees(2, GIB);
        alone.seconds(300);
        let reserve = 4 * GIB - alone.vm(1).size - alone.vm(2).size;
        assert!(reserve >= 140 * MIB, "{rule:?}: there is no reserve");
        // A decision is taken: the next one is a minute away.
        let decisions = alone.arbiter.decisions();
        alone.frees(2, 256 * MIB);
        while alone.arbiter.decisions() == decisions {
            alone.second();
            assert!(alone.second < 500, "{rule:?}: nothing is decided");
        }
        let (began, orders) = (alone.second, alone.orders.len());
        let decisions = alone.arbiter.decisions();
        let giver = alone.vm(2).size;
        alone.swaps(1, 2);
        let order = alone.orders.get(orders).copied();
        let is_relief =
            |(at, vm, size): (u64, u32, u64)| at <= began + 2 && vm == 1 && size > 2 * GIB;
        assert!(order.is_some_and(is_relief), "{rule:?}: {order:?}");
        // Nothing was decided anew, and the other one gave nothing for it.
        assert_eq!(alone.arbiter.decisions(), decisions, "{rule:?}");
        assert_eq!(alone.vm(2).size, giver, "{rule:?}");
    }
}

#[test]
fn a_swapping_vm_is_relieved_by_one_that_came_just_now() {
    for rule in [Rule::Dp, Rule::Fair] {
        let config = ArbiterConfig {
            rule,
            ..ArbiterConfig::default()
        };
        let mut alone = Alone::new(config, &[2 * GIB, 2 * GIB]);
        alone.frees(2, GIB);
        alone.seconds(10);
        alone.swaps(1, 2);
        let size = alone.vm(1).size;
        assert!(size > 2 * GIB, "{rule:?}: {:?}", alone.orders);
    }
}

#[test]
fn what_the_reserve_took_is_judged_by_the_giver_alone() {
    let mut alone = Alone::dp(&[2 * GIB, 2 * GIB]);
    alone.frees(1, GIB);
    while alone.vm(1).size == 2 * GIB {
        alone.second();
        assert!(alone.second < 100, "nothing was taken");
    }
    alone.frees(1, 0);
    for _ in 0..50 {
        alone.vm(1).need.lost_ns += SECOND / 5;
        alone.vm(1).need.major_faults += 2000;
        alone.second();
    }
    let said = alone.said.iter();
    let back = |(vm, said): &(u32, String)| *vm == 1 && said.contains("later it loses 200 ms");
    assert!(said.clone().any(back), "{:?}", alone.said);
    let size = alone.vm(1).size;
    assert_eq!(size, 2 * GIB, "{:?}", alone.orders);
}

/// The host has less for it than was known: half of it is better than nothing.
#[test]
fn a_refusal_is_a_bound_and_less_is_asked_for() {
    let mut host = Alone::dp(&[GIB, 4 * GIB]);
    host.frees(2, 3 * GIB);
    host.seconds(90);
    host.vm(1).refuses_above = GIB + 300 * MIB;
    host.vm(1).need.used_swap_bytes = GIB;
    host.swaps(1, 120);
    let has = host.vm(1).size;
    assert!(has > GIB + 100 * MIB, "{:?}", host.orders);
    // In five minutes all is tried again.
    host.vm(1).refuses_above = u64::MAX;
    host.swaps(1, 240);
    host.frees(2, GIB);
    host.swaps(1, 120);
    assert!(host.vm(1).size > GIB + 300 * MIB, "{:?}", host.orders);
}

/// Each restart of the daemon would take another part of what VMs have then.
#[test]
fn a_live_host_without_a_capacity_takes_nothing_for_a_reserve() {
    for (capacity_bytes, takes) in [(0, false), (2 * GIB, true)] {
        let config = ArbiterConfig {
            rule: Rule::Dp,
            live: true,
            capacity_bytes,
            ..ArbiterConfig::default()
        };
        let mut host = Alone::new(config, &[GIB, GIB]);
        host.frees(2, 800 * MIB);
        host.seconds(120);
        assert_eq!(!host.orders.is_empty(), takes, "{:?}", host.orders);
        host.swaps(1, 30);
        assert!(host.vm(1).size > GIB, "it was not relieved");
    }
}

/// VMs of 2 GiB, of 2.25 GiB that are there, one of which is left alone for this reason.
fn floors_beside(is_new: bool) -> Vec<(u32, String)> {
    let config = ArbiterConfig {
        rule: Rule::Dp,
        live: true,
        capacity_bytes: 2 * GIB + 200 * MIB,
        ..ArbiterConfig::default()
    };
    let mut host = Alone::new(config, &[2 * GIB, 2 * GIB]);
    let provider = ProviderId(2);
    let seen = MemoryStanding {
        provider,
        has_floor: true,
        is_paused: Some(!is_new),
        is_migrating: None,
        is_hugetlb: false,
        up_ms: None,
    };
    // It is new, or stopped for long.
    let at = if is_new { Tick(0) } else { Tick(SECOND) };
    host.arbiter.standing(at, seen);
    host.seconds(20);
    host.said
        .into_iter()
        .filter(|(_, said)| said.contains("not shared"))
        .collect()
}

#[test]
fn floors_beside_one_that_is_left_alone_have_their_own_words() {
    let said = floors_beside(false);
    let why = "not shared: with what VMs that are left alone have, the floors of the VMs are 256 MiB together, but the host has 200 MiB";
    assert!(said.iter().any(|(_, said)| said.contains(why)), "{said:?}");
    // It settles soon: that is no news.
    assert_eq!(floors_beside(true), []);
}

/// Memory beyond the capacity goes of all alike; it was said to be for the reserve, and page cache.
#[test]
fn what_vms_have_too_much_says_so_and_is_no_page_cache() {
    let config = ArbiterConfig {
        rule: Rule::Dp,
        live: true,
        capacity_bytes: 3 * GIB,
        ..ArbiterConfig::default()
    };
    let mut host = Alone::new(config, &[2 * GIB, 2 * GIB]);
    host.seconds(6);
    let (_, said) = host.said.first().unwrap();
    let why = "its guest calls 0 B free; all VMs together have 1 GiB more than they may";
    assert_eq!(said, why);
}
