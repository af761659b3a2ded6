//! No VM's heat takes what is the others': fast memory, the move budget, CPU time for scans.

#![allow(clippy::unwrap_used, reason = "test helpers outside of test functions")]

use std::cell::Cell;
use std::rc::Rc;

use terrace_core::session::replay::replay;
use terrace_core::{EngineConfig, PolicyName};
use terrace_proto::log::Record;
use terrace_proto::snapshot::Neighbours;
use terrace_proto::{Action, Command, Event, PAGE_SIZE, ScanSpent, Tick, TierLimit, VmId};

use terrace_testkit::engine::{Host, SECOND, spec};
use terrace_testkit::log::written;

use crate::in_rounds::config;

/// Pages of each VM, and of the first tier.
const PAGES: u64 = 1000;
const FAST: u64 = 400;

/// A VM that sets all of its accessed bits, and its neighbour.
const GREEDY: u32 = 1;
const OTHER: u32 = 2;

struct World {
    host: Host,
    /// Pages of the neighbour that are hot, from its last one down.
    hot: Rc<Cell<u64>>,
    end: u64,
}

impl World {
    /// Neither VM has a nominal size or a ceiling. All of the first tier is the greedy one's at first.
    fn new(config: EngineConfig) -> Self {
        let mut host = Host::new(config, &[FAST, 1 << 20]);
        host.arrive(spec(GREEDY, PAGES, FAST), Box::new(|_, _| (true, true)));
        let hot = Rc::new(Cell::new(0));
        let shown = Rc::clone(&hot);
        let heat = move |page, _| (PAGES - page <= shown.get(), false);
        host.arrive(spec(OTHER, PAGES, 0), Box::new(heat));
        let open = TierLimit {
            floor_bytes: 0,
            ceiling_bytes: u64::MAX,
        };
        for vm in [GREEDY, OTHER] {
            let limits = Command::Limits(VmId(vm), vec![open; 2]);
            host.after(0, Event::Command(limits));
        }
        Self { host, hot, end: 0 }
    }

    fn run(&mut self, seconds: u64) {
        for _ in 0..seconds / 10 {
            self.host.memory();
            self.end += 10;
            self.host.run_until(Tick(self.end * SECOND));
        }
    }

    /// Pages of fast memory of each VM, and how many of the neighbour's hot ones are there.
    fn fast(&self) -> [u64; 3] {
        let hot = self.hot.get();
        [
            self.host.on_fast(GREEDY, |_| true),
            self.host.on_fast(OTHER, |_| true),
            self.host.on_fast(OTHER, |page| PAGES - page <= hot),
        ]
    }

    fn costs(&self, vm: u32) -> Neighbours {
        self.host.engine().vm(VmId(vm)).unwrap().neighbours
    }
}

/// As before there were shares by weight.
fn unfair() -> EngineConfig {
    EngineConfig {
        fair_shares: false,
        ..EngineConfig::default()
    }
}

#[test]
fn a_vm_with_all_accessed_bits_set_holds_only_its_share() {
    let mut before = World::new(unfair());
    before.hot.set(150);
    before.run(1200);
    assert_eq!(before.fast(), [400, 0, 0], "who came first has all");

    for policy in [PolicyName::Vtmm, PolicyName::Terrace] {
        holds_only_its_share(policy);
    }
}

fn holds_only_its_share(policy: PolicyName) {
    let mut w = World::new(config(policy));
    w.hot.set(150);
    w.run(1200);
    assert_eq!(
        w.fast(),
        [250, 150, 150],
        "what is unused of a share is lent"
    );
    let costs = w.costs(GREEDY);
    assert_eq!(costs.right_bytes, Some(200 * PAGE_SIZE));
    assert_eq!(costs.above_right_bytes, 50 * PAGE_SIZE);
    assert_eq!(costs.refused_bytes, 750 * PAGE_SIZE);

    w.hot.set(900);
    w.run(1200);
    assert_eq!(w.fast(), [200, 200, 200], "and taken back");
    assert_eq!(w.costs(GREEDY).above_right_bytes, 0);

    w.host
        .after(0, Event::Command(Command::Weight(VmId(OTHER), 3000)));
    w.run(1200);
    assert_eq!(w.fast(), [100, 300, 300], "by weight");

    w.hot.set(0);
    w.run(2400);
    assert_eq!(
        w.fast()[..2],
        [175, 225],
        "three quarters of a share are not lent"
    );

    w.host.guests.remove(&VmId(OTHER));
    w.host.after(0, Event::VmDeparted(VmId(OTHER)));
    w.run(1200);
    assert_eq!(
        w.host.on_fast(GREEDY, |_| true),
        400,
        "alone it may use all"
    );
    assert_eq!(w.costs(GREEDY).right_bytes, None);
}

#[test]
fn nominal_sizes_and_floors_go_before_shares_by_weight() {
    let mut w = World::new(EngineConfig::default());
    w.hot.set(900);
    let nominal = Command::FastSize(VmId(OTHER), 240 * PAGE_SIZE);
    w.host.after(0, Event::Command(nominal));
    w.run(1200);
    // The greedy one has a right to what the other's nominal size leaves; above that nothing is free.
    assert_eq!(w.fast()[..2], [160, 240]);
    assert_eq!(w.costs(GREEDY).right_bytes, Some(160 * PAGE_SIZE));
    let floor = TierLimit {
        floor_bytes: 300 * PAGE_SIZE,
        ceiling_bytes: u64::MAX,
    };
    let open = TierLimit {
        floor_bytes: 0,
        ..floor
    };
    let limits = Command::Limits(VmId(OTHER), vec![floor, open]);
    w.host
        .after(0, Event::Command(Command::FastSize(VmId(OTHER), 0)));
    w.host.after(0, Event::Command(limits));
    w.run(1200);
    assert_eq!(w.fast()[..2], [50, 350], "a floor, and half of the rest");
}

#[test]
fn a_flapping_neighbour_costs_a_borrower_only_what_it_borrowed() {
    let mut w = World::new(EngineConfig::default());
    w.hot.set(300);
    w.run(1200);
    let moved = |w: &World| w.costs(GREEDY).moved_bytes / PAGE_SIZE;
    let mut before = moved(&w);
    for _ in 0..5 {
        for hot in [0, 300] {
            w.hot.set(hot);
            w.run(600);
        }
        let cycle = moved(&w) - before;
        assert!(cycle <= 2 * 50, "{cycle} pages in a cycle");
        before = moved(&w);
        assert_eq!(w.fast(), [200, 200, 200]);
    }
}

#[test]
fn the_move_budget_is_shared_by_weight() {
    let shares = |config: EngineConfig| {
        let config = EngineConfig {
            move_budget_bytes_per_s: 1 << 20,
            plan_max_bytes: 2 << 20,
            plan_max_pages: 16,
            ..config
        };
        let mut host = Host::new(config, &[16_000, 32_000]);
        // All that is hot is in slow memory.
        let heat = |page, _| (page >= 4000, false);
        for (vm, weight) in [(GREEDY, 1000), (OTHER, 3000)] {
            let mut vm = spec(vm, 8000, 4000);
            vm.weight = weight;
            host.arrive(vm, Box::new(heat));
        }
        host.run_until(Tick(13 * SECOND));
        [GREEDY, OTHER].map(|vm| host.engine().vm(VmId(vm)).unwrap().neighbours)
    };
    let before = shares(unfair()).map(|n| n.moved_bytes / PAGE_SIZE);
    assert!(before[0].abs_diff(before[1]) <= 128, "one each: {before:?}");
    let after = shares(EngineConfig::default());
    let moved = [0, 1].map(|i| after[i].moved_bytes / PAGE_SIZE);
    // The 512 pages of the first burst were for both alike.
    assert!(moved[1] + 64 >= 3 * (moved[0] - 300), "{moved:?}");
    assert!(moved[1] > 2 * moved[0], "{moved:?}");
    assert_eq!(after[0].all_moved_bytes, after[1].all_moved_bytes);
    assert_eq!(moved[0] + moved[1], after[0].all_moved_bytes / PAGE_SIZE);
    assert!(after[0].late_plans > 0 && after[0].late_plans_ns > 0);
}

/// Gaps between the scans of a VM's first round, ms.
fn gaps(host: &Host, vm: u32) -> Vec<u128> {
    let scans = host.log().iter().filter_map(|(at, record)| match record {
        Record::Action(Action::Scan(s)) if s.space.vm() == VmId(vm) => Some(*at),
        _ => None,
    });
    let scans: Vec<Tick> = scans.take(9).collect();
    scans
        .windows(2)
        .map(|w| w[1].since(w[0]).as_millis())
        .collect()
}

/// Two VMs, each of whose scans cost so many us, with windows of 10 ms and this budget.
fn scanned(config: EngineConfig, budget: u32, cost_us: [u64; 2]) -> Host {
    let config = EngineConfig {
        policy: PolicyName::Vtmm.into(),
        window_ms: 10,
        scan_cpu_budget_percent: budget,
        ..config
    };
    let mut host = Host::new(config, &[FAST, 1 << 20]);
    for (vm, cost) in [GREEDY, OTHER].into_iter().zip(cost_us) {
        host.arrive(spec(vm, PAGES, 100), Box::new(|_, _| (true, false)));
        host.guests.get_mut(&VmId(vm)).unwrap().cpu_ns = cost * 1000;
    }
    host.run_until(Tick(20 * SECOND));
    host
}

#[test]
fn a_vm_with_costly_scans_is_scanned_less_and_no_other_is() {
    let before = scanned(unfair(), 20, [4000, 500]);
    assert_eq!(
        gaps(&before, GREEDY)[1..],
        [11; 7],
        "each had 50 % of its own"
    );
    let after = scanned(EngineConfig::default(), 20, [4000, 500]);
    assert_eq!(gaps(&after, OTHER)[1..], [11; 7]);
    // 5 % are the other's, 15 % are left while both are scanned: 4 ms in 27.
    assert!(
        gaps(&after, GREEDY)[1..].contains(&27),
        "{:?}",
        gaps(&after, GREEDY)
    );
    let costs = |vm| after.engine().vm(VmId(vm)).unwrap().neighbours;
    assert!(costs(GREEDY).late_scans >= 4 && costs(GREEDY).late_scans_ns > 0);
    assert_eq!(
        (costs(OTHER).late_scans, costs(OTHER).late_scans_ns),
        (0, 0)
    );
    let sum = costs(GREEDY).scan_cpu_ns + costs(OTHER).scan_cpu_ns;
    assert_eq!(sum, costs(OTHER).all_scan_cpu_ns);
    // Both want more than half: half each.
    let both = scanned(EngineConfig::default(), 20, [4000, 4000]);
    assert_eq!(gaps(&both, OTHER)[1..], [41; 7]);
}

#[test]
fn the_kernels_figure_of_a_worker_counts_not_the_workers_own() {
    let mut host = Host::new(config(PolicyName::Vtmm), &[FAST, 1 << 20]);
    host.arrive(spec(GREEDY, PAGES, 100), Box::new(|_, _| (true, false)));
    host.guests.get_mut(&VmId(GREEDY)).unwrap().cpu_ns = 0;
    let spent = |host: &mut Host, ms: u64| {
        host.after(
            0,
            Event::ScanSpent(ScanSpent {
                vm: VmId(GREEDY),
                cpu_ns: ms * 1_000_000,
            }),
        );
        let now = host.now;
        host.run_until(now);
    };
    // With a search before it, the first pass makes no window longer, but the next round comes later:
    // 40 s of CPU time at half a CPU.
    spent(&mut host, 40_000);
    host.run_until(Tick(SECOND / 10));
    spent(&mut host, 600);
    host.run_until(Tick(59 * SECOND));
    let gaps = gaps(&host, GREEDY);
    assert_eq!(gaps[0], 601, "{gaps:?}");
    assert!(gaps[1] >= 1200, "{gaps:?}");
    let starts = |host: &Host| {
        let queries = host
            .log()
            .iter()
            .filter(|(_, r)| matches!(r, Record::Action(Action::QueryPlacement(_))));
        queries.map(|(at, _)| at.0 / SECOND).collect::<Vec<_>>()
    };
    assert_eq!(starts(&host), [0]);
    host.run_until(Tick(200 * SECOND));
    assert_eq!(starts(&host)[..2], [0, 80]);
    assert_eq!(
        host.engine()
            .vm(VmId(GREEDY))
            .unwrap()
            .neighbours
            .scan_cpu_ns,
        40_600_000_000
    );
}

#[test]
fn an_impossible_cost_stops_neither_others_nor_returns() {
    let mut w = World::new(EngineConfig::default());
    w.hot.set(150);
    for vm in [GREEDY, GREEDY, 77] {
        let spent = ScanSpent {
            vm: VmId(vm),
            cpu_ns: u64::MAX,
        };
        w.host.after(0, Event::ScanSpent(spent));
    }
    w.run(1200);
    let view = |vm| w.host.engine().vm(VmId(vm)).unwrap();
    assert_eq!(w.fast(), [250, 150, 150]);
    assert!(view(OTHER).counters.rounds > 5);
    assert_eq!(view(OTHER).neighbours.all_scan_cpu_ns, u64::MAX);
}

/// A guest whose tables are dear to walk, or a worker that was taken over: its next window would end never.
#[test]
fn a_vm_whose_scans_cost_for_ever_gives_back_what_it_borrowed() {
    for cpu_ns in [u64::MAX, 3600 * SECOND] {
        let mut w = World::new(EngineConfig::default());
        w.run(300);
        assert!(w.fast()[0] > 300, "lent: {:?}", w.fast());
        w.host.guests.get_mut(&VmId(GREEDY)).unwrap().cpu_ns = cpu_ns;
        w.run(300);
        w.hot.set(900);
        w.run(1200);
        assert_eq!(w.fast(), [200, 200, 200], "{cpu_ns}");
    }
}

fn recorded(w: &World, fair: bool) -> Vec<u8> {
    let mut records = w.host.log().to_vec();
    for (_, record) in &mut records {
        if let (Record::Start(start), false) = (record, fair) {
            // As a log from before shares by weight has it.
            let key = "\"fair_shares\":false,";
            assert!(start.config.contains(key));
            start.config = start.config.replace(key, "");
        }
    }
    written(&records)
}

#[test]
fn a_log_from_before_shares_by_weight_is_replayed_without() {
    for (config, fair) in [(unfair(), false), (EngineConfig::default(), true)] {
        let mut w = World::new(config);
        w.hot.set(150);
        w.run(300);
        let replayed = replay(&recorded(&w, fair)[..]).unwrap();
        assert!(replayed.actions > 30 && replayed.unrecorded_actions == 0);
    }
    let mut w = World::new(EngineConfig::default());
    w.hot.set(150);
    w.run(300);
    let key = "\"fair_shares\":true,";
    if let Record::Start(start) = &mut w.host.session.log_mut()[0].1 {
        start.config = start.config.replace(key, "");
    }
    assert!(
        replay(&recorded(&w, true)[..]).is_err(),
        "the rule is recorded"
    );
}
