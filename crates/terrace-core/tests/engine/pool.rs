//! Several VMs share the first tier: the pool shifts fast memory to who can use it, inside the limits.

#![allow(clippy::unwrap_used, reason = "test helpers outside of test functions")]

use std::cell::Cell;
use std::rc::Rc;

use terrace_core::session::replay::replay;
use terrace_core::{EngineConfig, PolicyChoice, PolicyName, PoolRelease, Share};
use terrace_proto::{Command, Event, PAGE_SIZE, PageSize, Tick, VmId, snapshot};
use terrace_testkit::engine::{Host, SECOND, draw, spec};
use terrace_testkit::log::written;

use crate::in_rounds::config;

const HUGE: u64 = 512;

/// A VM of the tests. Numbers are in units.
struct Guest {
    unit: PageSize,
    units: u64,
    nominal: u64,
    /// Units in the first tier at the start.
    fast: u64,
    weight: u32,
}

/// 1,000 pages of 4 KiB with a nominal size of 200.
const SMALL: Guest = Guest {
    unit: PageSize::Base,
    units: 1000,
    nominal: 200,
    fast: 200,
    weight: 1000,
};

/// 40 pages of 2 MiB with a nominal size of 12.
const LARGE: Guest = Guest {
    unit: PageSize::Huge,
    units: 40,
    nominal: 12,
    fast: 12,
    weight: 1000,
};

/// Number of a VM's units that are busy now, spread over it.
type Busy = Rc<Cell<u64>>;

struct World {
    host: Host,
    busy: Vec<Busy>,
    end: u64,
}

impl World {
    /// A host whose first tier has so many 4 KiB pages.
    fn new(config: EngineConfig, fast: u64) -> Self {
        Self {
            host: Host::new(config, &[fast, 1 << 20]),
            busy: Vec::new(),
            end: 0,
        }
    }

    fn arrive(&mut self, guest: &Guest, busy: u64) -> u32 {
        let id = u32::try_from(self.busy.len()).unwrap() + 1;
        let busy = Rc::new(Cell::new(busy));
        self.busy.push(Rc::clone(&busy));
        let (size, units) = (guest.unit.base_pages(), guest.units);
        let heat = move |page: u64, scan| {
            // The last units are the busy ones, the first ones are in the first tier.
            let hot = units - page / size <= busy.get();
            (hot && draw(page / size, scan) < 230, false)
        };
        let mut vm = spec(id, units * size, guest.fast * size);
        vm.unit = guest.unit;
        vm.weight = guest.weight;
        vm.limits[0].ceiling_bytes = guest.fast * size * PAGE_SIZE;
        let limits = vm.limits.clone();
        self.host.arrive(vm, Box::new(heat));
        if guest.unit == PageSize::Huge {
            let guest = self.host.guests.get_mut(&VmId(id)).unwrap();
            guest.huge = (0..units).collect();
        }
        // The ceiling only determines where the test's pages are at first.
        let open = limits.iter().map(|l| terrace_proto::TierLimit {
            ceiling_bytes: u64::MAX,
            ..*l
        });
        self.command(Command::Limits(VmId(id), open.collect()));
        let nominal = guest.nominal * guest.unit.bytes();
        self.command(Command::FastSize(VmId(id), nominal));
        id
    }

    fn command(&mut self, command: Command) {
        self.host.after(0, Event::Command(command));
    }

    fn set_busy(&self, vm: u32, units: u64) {
        self.busy[vm as usize - 1].set(units);
    }

    /// Lets time pass; the tiers are read now and then.
    fn run(&mut self, seconds: u64) {
        for _ in 0..seconds / 10 {
            self.host.memory();
            self.end += 10;
            self.host.run_until(Tick(self.end * SECOND));
            let used = self.host.used(0);
            assert!(used <= self.host.capacity[0], "{used} in the first tier");
        }
    }

    fn fast(&self, vm: u32) -> u64 {
        self.host.on_fast(vm, |_| true)
    }

    fn share(&self, vm: u32) -> snapshot::Share {
        self.host.engine().vm(VmId(vm)).unwrap().share.unwrap()
    }

    fn set_policy(config: &mut EngineConfig, vm: u32, share: Share) {
        let policy = PolicyChoice::from(PolicyName::Vtmm).with_share(share);
        config.vm_policies.insert(format!("vm{vm}"), policy);
    }
}

/// Two alike, the first idle and the second busy, then the other way round, then both busy.
fn shifts(policy: PolicyName, guest: &Guest) {
    let (n, size) = (guest.nominal, guest.unit.base_pages());
    let mut w = World::new(config(policy), 2 * n * size);
    let (a, b) = (w.arrive(guest, 0), w.arrive(guest, 3 * n));
    w.run(1200);
    let (least, most) = (n * 3 / 4 * size, n * 5 / 4 * size);
    assert_eq!((w.fast(a), w.fast(b)), (least, most), "b is busy");
    w.set_busy(a, 3 * n);
    w.set_busy(b, 0);
    w.run(1800);
    assert_eq!((w.fast(a), w.fast(b)), (most, least), "a is busy");
    w.set_busy(b, 3 * n);
    w.run(1800);
    assert_eq!((w.fast(a), w.fast(b)), (n * size, n * size), "both are");
}

#[test]
fn the_pool_shifts_base_pages_from_idle_to_busy_and_back() {
    shifts(PolicyName::Vtmm, &SMALL);
}

#[test]
fn the_pool_shifts_huge_pages_from_idle_to_busy_and_back() {
    shifts(PolicyName::Vtmm, &LARGE);
}

#[test]
fn the_pool_shifts_by_rates() {
    shifts(PolicyName::Terrace, &SMALL);
    shifts(PolicyName::Terrace, &LARGE);
}

#[test]
fn a_hot_set_by_rates_is_told_in_touches_a_second() {
    let mut w = World::new(config(PolicyName::Terrace), 400);
    let (_, b) = (w.arrive(&SMALL, 0), w.arrive(&SMALL, 600));
    w.run(60);
    let why = w.share(b).why;
    let part = "top 80 % of 600 pages touched more than 0.096 times a second";
    assert!(why.contains(part), "{why}");
}

#[test]
fn vms_of_different_units_share_one_pool() {
    let small = Guest {
        units: 10 * HUGE,
        nominal: 2 * HUGE,
        fast: 2 * HUGE,
        ..SMALL
    };
    let mut w = World::new(EngineConfig::default(), 14 * HUGE);
    let (a, b) = (w.arrive(&small, 0), w.arrive(&LARGE, 30));
    w.run(1200);
    let released = HUGE / 2;
    assert_eq!(w.fast(a), 2 * HUGE - released);
    assert_eq!(w.fast(b), 12 * HUGE, "half a unit is of no use to it");
    w.set_busy(a, 8 * HUGE);
    w.set_busy(b, 0);
    w.run(1800);
    assert_eq!(w.fast(a), 5 * HUGE / 2);
    assert_eq!(w.fast(b), 11 * HUGE, "it gave whole units");
}

#[test]
fn busy_vms_share_an_idle_vms_loan_by_weight() {
    let mut w = World::new(EngineConfig::default(), 600);
    let heavy = Guest {
        weight: 3000,
        ..SMALL
    };
    let idle = w.arrive(&SMALL, 0);
    let (a, b) = (w.arrive(&heavy, 600), w.arrive(&SMALL, 600));
    w.run(1200);
    assert_eq!(w.fast(idle), 150);
    assert_eq!((w.fast(a), w.fast(b)), (237, 212), "50 more, 3 to 1");
    w.command(Command::Weight(VmId(a), 1000));
    w.run(1200);
    assert_eq!((w.fast(a), w.fast(b)), (225, 225), "now 1 to 1");
    assert_eq!(w.share(a).weight, 1000);
}

#[test]
fn memory_nobody_wants_stays_or_returns_as_configured() {
    for (release, left) in [(PoolRelease::OnDemand, 200), (PoolRelease::Always, 150)] {
        let config = EngineConfig {
            pool_release: release,
            ..EngineConfig::default()
        };
        let mut w = World::new(config, 400);
        let vm = w.arrive(&SMALL, 10);
        w.run(600);
        assert_eq!(w.fast(vm), left, "{release:?}");
    }
}

#[test]
fn a_fixed_size_vm_lends_nothing_and_its_size_is_reserved() {
    let mut config = EngineConfig::default();
    World::set_policy(&mut config, 1, Share::Island);
    let mut w = World::new(config, 400);
    let starved = Guest { fast: 20, ..SMALL };
    let (a, b) = (w.arrive(&starved, 0), w.arrive(&SMALL, 600));
    w.run(1200);
    assert_eq!((w.fast(a), w.fast(b)), (20, 200), "180 are kept for a");
    w.set_busy(a, 600);
    w.run(1200);
    assert_eq!((w.fast(a), w.fast(b)), (200, 200), "a may have no more");
    assert!(!w.share(a).pooled && w.share(a).why.contains("fixed size"));
}

#[test]
fn reserved_memory_is_not_taken_by_vms_without_nominal_size() {
    let mut config = EngineConfig::default();
    World::set_policy(&mut config, 1, Share::Island);
    let mut w = World::new(config, 400);
    let starved = Guest { fast: 20, ..SMALL };
    let (a, b) = (w.arrive(&starved, 0), w.arrive(&SMALL, 600));
    w.command(Command::FastSize(VmId(b), 0));
    w.run(600);
    assert_eq!((w.fast(a), w.fast(b)), (20, 200), "180 are kept for a");
    w.set_busy(a, 600);
    w.run(600);
    assert_eq!((w.fast(a), w.fast(b)), (200, 200));
}

#[test]
fn a_vm_squeezed_below_one_unit_still_follows_its_hot_set() {
    let guest = Guest {
        nominal: 10,
        fast: 10,
        ..LARGE
    };
    let mut w = World::new(EngineConfig::default(), 20 * HUGE);
    // 75 % of ten units are seven and a half.
    let (a, b) = (w.arrive(&guest, 0), w.arrive(&guest, 40));
    w.run(2400);
    assert_eq!((w.fast(a), w.fast(b)), (8 * HUGE, 12 * HUGE));
    w.set_busy(a, 4);
    w.run(1200);
    let round = w.host.engine().last_round(VmId(a)).unwrap();
    let seen = (round.hot_pages, round.hot_on_fast_after);
    assert_eq!(seen, (4 * HUGE, 4 * HUGE), "b still presses");
}

#[test]
fn a_vm_without_nominal_size_is_left_to_its_limits() {
    let mut w = World::new(EngineConfig::default(), 400);
    let a = w.arrive(&SMALL, 600);
    w.command(Command::FastSize(VmId(a), 0));
    w.run(600);
    assert_eq!(w.fast(a), 400, "no limit but the tier");
    assert!(w.host.engine().vm(VmId(a)).unwrap().share.is_none());
}

#[test]
fn floor_and_ceiling_go_before_the_percentages() {
    let mut w = World::new(EngineConfig::default(), 400);
    let (a, b) = (w.arrive(&SMALL, 0), w.arrive(&SMALL, 900));
    let limits = |floor: u64, ceiling: u64| {
        let limit = |floor, ceiling| terrace_proto::TierLimit {
            floor_bytes: floor * PAGE_SIZE,
            ceiling_bytes: ceiling,
        };
        vec![limit(floor, ceiling * PAGE_SIZE), limit(0, u64::MAX)]
    };
    w.command(Command::Limits(VmId(a), limits(40, 200)));
    w.command(Command::Limits(VmId(b), limits(0, 330)));
    w.run(1200);
    assert_eq!((w.fast(a), w.fast(b)), (70, 330));
    let view = w.share(b);
    assert_eq!(view.upper_bytes, 330 * PAGE_SIZE);
    assert_eq!(view.lower_bytes, 150 * PAGE_SIZE);
}

#[test]
fn a_paused_vm_keeps_its_memory_and_a_departed_one_frees_it() {
    let mut w = World::new(EngineConfig::default(), 400);
    let (a, b) = (w.arrive(&SMALL, 0), w.arrive(&SMALL, 0));
    w.run(100);
    w.command(Command::Pause(Some(VmId(a))));
    w.set_busy(b, 900);
    w.run(900);
    assert_eq!((w.fast(a), w.fast(b)), (200, 200));
    assert_eq!(w.share(a).target_bytes, None);
    w.host.guests.remove(&VmId(a));
    w.host.after(0, Event::VmDeparted(VmId(a)));
    w.run(900);
    assert_eq!(w.fast(b), 250);
}

#[test]
fn a_rarely_scanned_idle_vm_lends_within_two_periods() {
    let mut w = World::new(config(PolicyName::Vtmm), 400);
    let (a, b) = (w.arrive(&SMALL, 0), w.arrive(&SMALL, 0));
    w.run(550);
    assert_eq!(
        w.host.engine().vm(VmId(a)).unwrap().counter,
        3,
        "it is quiet"
    );
    w.set_busy(b, 900);
    w.command(Command::RoundNow(VmId(b)));
    w.run(120);
    assert_eq!((w.fast(a), w.fast(b)), (150, 250));
}

#[test]
fn a_log_of_a_pool_replays_to_the_same_actions() {
    let mut w = World::new(EngineConfig::default(), 400);
    let (a, b) = (w.arrive(&SMALL, 0), w.arrive(&SMALL, 600));
    w.run(300);
    w.command(Command::Weight(VmId(a), 500));
    w.set_busy(a, 600);
    w.set_busy(b, 0);
    w.run(300);
    let replayed = replay(&written(w.host.log())[..]).unwrap();
    assert!(replayed.actions > 50, "{replayed:?}");
}

#[test]
fn the_decision_says_what_is_wanted_had_allowed_and_free() {
    let mut w = World::new(config(PolicyName::Vtmm), 400);
    let (_, b) = (w.arrive(&SMALL, 0), w.arrive(&SMALL, 600));
    w.run(60);
    let view = w.host.engine().vm(VmId(b)).unwrap();
    let message = view.share.as_ref().unwrap().why.clone();
    let want = "wants 1000 KiB of fast memory (hot set 1916 KiB: top 80 % of 599 pages above degree 3), \
                has 800 KiB, nominal 800 KiB, limits 600 KiB to 1000 KiB, pool free 0 KiB: target 1000 KiB";
    assert_eq!(message, want);
    assert!(
        view.reasons.iter().any(|r| r.text == want),
        "{:?}",
        view.reasons
    );
    assert!(view.mechanism.share.starts_with("memory pool"));
}
