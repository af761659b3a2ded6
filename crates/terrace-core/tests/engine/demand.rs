//! Demand by protection faults: what is protected when, and when VMs are tracked.

use terrace_core::demand::{DemandConfig, Track};
use terrace_core::{Engine, EngineConfig, PolicyName, Session, TrackingView};
use terrace_proto::{
    Action, Command, Event, FaultReport, Gfn, PageSize, Protection, RamRange, Tick, TierLimit,
    VmId, VmSpec, VmStatistics,
};

/// Time between two reports of statistics.
const TENTH: u64 = 100_000_000;

/// 2 MiB blocks of a VM: more than half of them would not fit into the hot set.
const BLOCKS: u32 = 100;

const A: VmId = VmId(1);
const B: VmId = VmId(2);

fn session(demand: DemandConfig, vms: &[VmId]) -> Session {
    let config = EngineConfig {
        policy: PolicyName::Hpmbs.into(),
        demand,
        ..EngineConfig::default()
    };
    let engine = Engine::new(config).expect("a valid configuration");
    let mut session = Session::new(engine, ());
    for vm in vms {
        let spec = VmSpec {
            vm: *vm,
            name: vm.to_string(),
            ram: vec![RamRange {
                start: Gfn(0),
                pages: u64::from(BLOCKS) * 512,
            }],
            unit: PageSize::Huge,
            limits: vec![
                TierLimit {
                    floor_bytes: 0,
                    ceiling_bytes: u64::MAX,
                };
                2
            ],
            weight: 1000,
            moves: true,
        };
        let decided = session.hear(Tick(0), Event::VmArrived(spec));
        assert_eq!(decided, [], "nothing is known of it yet");
    }
    session
}

fn always(hot_set_pages: u32) -> DemandConfig {
    DemandConfig {
        track: Track::Always,
        hot_set_pages,
        resize_hot_set: false,
        ..DemandConfig::default()
    }
}

/// Statistics at the n-th tenth of a second of a VM with memory enough that walks as evenly as can be.
fn calm(vm: VmId, tenth: u64) -> VmStatistics {
    VmStatistics {
        vm,
        accesses: tenth * 1_000_000,
        walks: tenth * 20_000,
        tracking_ns: 0,
        cpu_ns: tenth * TENTH,
        total_bytes: 1 << 30,
        free_bytes: 1 << 29,
        used_swap_bytes: 0,
    }
}

fn report(session: &mut Session, tenth: u64, seen: VmStatistics) -> Vec<Action> {
    session.hear(Tick(tenth * TENTH), Event::Statistics(seen))
}

fn faults(session: &mut Session, blocks: &[u32]) -> Vec<Action> {
    faults_of(session, A, 5, blocks)
}

/// Faults of a VM after so many million accesses, a tenth of a second each.
fn faults_of(session: &mut Session, vm: VmId, tenth: u64, blocks: &[u32]) -> Vec<Action> {
    let report = FaultReport {
        vm,
        accesses: tenth * 1_000_000,
        blocks: blocks.to_vec(),
    };
    session.hear(Tick(tenth * TENTH), Event::Faulted(report))
}

fn protect(vm: VmId, blocks: impl IntoIterator<Item = u32>) -> Action {
    Action::Protect(Protection {
        vm,
        blocks: blocks.into_iter().collect(),
    })
}

#[test]
fn all_blocks_are_protected_first_then_those_that_left() {
    let mut session = session(always(3), &[A]);
    let all = report(&mut session, 0, calm(A, 0));
    assert_eq!(all, [protect(A, 0..BLOCKS)]);
    assert_eq!(faults(&mut session, &[7, 8, 9]), []);
    assert_eq!(
        faults(&mut session, &[10, 7]),
        [protect(A, [8])],
        "7 came back"
    );
    let demand = session.engine().demand(A).expect("tracked");
    assert_eq!((demand.tracked_faults, demand.known_blocks), (5, 4));
    assert_eq!(demand.tracking, TrackingView::On);
    let curve = demand.curve.expect("a curve");
    assert_eq!((curve.misses(3), curve.misses(4)), (5, 4));
}

#[test]
fn blocks_that_the_vm_does_not_have_are_counted_alone() {
    let mut session = session(always(3), &[A]);
    report(&mut session, 0, calm(A, 0));
    assert_eq!(faults(&mut session, &[BLOCKS, u32::MAX, 5]), []);
    let view = session.engine().vm(A).expect("managed");
    assert_eq!(view.counters.malformed_answers, 2);
    assert_eq!(
        session.engine().demand(A).expect("tracked").tracked_faults,
        1
    );
    // A VM that is not there, or not tracked, is nobody's.
    let stray = FaultReport {
        vm: B,
        accesses: 1,
        blocks: vec![1],
    };
    assert_eq!(session.hear(Tick(TENTH), Event::Faulted(stray)), []);
    assert_eq!(report(&mut session, 1, calm(B, 1)), []);
}

#[test]
fn a_paused_vm_gets_its_permissions_back() {
    let mut session = session(always(3), &[A]);
    report(&mut session, 0, calm(A, 0));
    let _ = session.hear(Tick(1), Event::Command(Command::Pause(Some(A))));
    assert_eq!(report(&mut session, 1, calm(A, 1)), [Action::Unprotect(A)]);
    assert_eq!(faults(&mut session, &[1]), [], "too late to say anything");
    assert_eq!(
        session.engine().demand(A).expect("tracked").tracked_faults,
        0
    );
    let _ = session.hear(Tick(2), Event::Command(Command::Resume(Some(A))));
    assert_eq!(report(&mut session, 2, calm(A, 2)), [protect(A, 0..BLOCKS)]);
}

#[test]
fn all_are_tracked_from_a_short_vms_phase_until_all_are_stable() {
    let mut session = session(DemandConfig::default(), &[A, B]);
    let mut seen = [(A, Vec::new()), (B, Vec::new())];
    let mut walks = 0;
    for tenth in 1..200 {
        // A begins another phase after ten seconds; B has 4 % free from twelve and a half on.
        walks += if tenth < 100 { 20_000 } else { 60_000 };
        let a = VmStatistics {
            walks,
            ..calm(A, tenth)
        };
        let free_bytes = if tenth < 105 { 1 << 29 } else { (1 << 30) / 25 };
        let b = VmStatistics {
            free_bytes,
            ..calm(B, tenth)
        };
        for one in [a, b] {
            for action in report(&mut session, tenth, one) {
                let vm = action.vm();
                let on = matches!(action, Action::Protect(_));
                let of = seen
                    .iter_mut()
                    .find(|(id, _)| Some(*id) == vm)
                    .expect("one of both");
                of.1.push((tenth, on));
            }
        }
    }
    for (vm, changes) in &seen {
        let [(begun, true), (ended, false)] = changes[..] else {
            panic!("{vm}: {changes:?}");
        };
        assert!((105..110).contains(&begun), "{vm} from {begun}");
        assert!((130..150).contains(&ended), "{vm} until {ended}");
    }
    assert_eq!(session.engine().demand(A).expect("known").phases, 1);
}

#[test]
fn all_are_let_go_when_the_vm_that_changed_goes_idle() {
    let mut session = session(DemandConfig::default(), &[A, B]);
    let (mut walks, mut changes) = (0, Vec::new());
    for tenth in 1..300 {
        // A begins another phase, and sleeps a second later; B has 4 % free from then on.
        walks += match tenth {
            0..100 => 20_000,
            100..110 => 60_000,
            _ => 10,
        };
        let a = VmStatistics {
            walks,
            ..calm(A, tenth)
        };
        let free_bytes = if tenth < 105 { 1 << 29 } else { (1 << 30) / 25 };
        let b = VmStatistics {
            free_bytes,
            ..calm(B, tenth)
        };
        for one in [a, b] {
            let vm = one.vm;
            let actions = report(&mut session, tenth, one);
            changes.extend(actions.iter().map(|action| {
                assert_eq!(action.vm(), Some(vm), "each follows at its own report");
                (tenth, vm, matches!(action, Action::Protect(_)))
            }));
        }
    }
    // 4 s after A's last walks.
    let expected = [
        (105, B, true),
        (106, A, true),
        (149, A, false),
        (149, B, false),
    ];
    assert_eq!(changes, expected);
}

/// One that followed at the other's report would begin with accesses of a tenth of a second before.
#[test]
fn two_equal_vms_with_rests_have_equal_curves() {
    let mut session = session(always(3), &[A, B]);
    for tenth in 0..400 {
        for vm in [A, B] {
            let costly = VmStatistics {
                tracking_ns: tenth * TENTH / 5,
                ..calm(vm, tenth)
            };
            faults_of(&mut session, vm, tenth, &[1, 2, 3, 4, 5]);
            report(&mut session, tenth, costly);
        }
    }
    let demands = [A, B].map(|vm| session.engine().demand(vm).expect("tracked"));
    assert_eq!(demands.each_ref().map(|demand| demand.rests), [10, 10]);
    let curves = demands.map(|demand| demand.curve.expect("a curve"));
    // Ten seconds in all, of a million accesses each tenth.
    assert_eq!(curves[0].accesses, 100_000_000);
    assert_eq!(curves[0], curves[1]);
}

#[test]
fn tracking_that_takes_too_much_time_rests_and_says_so() {
    let mut session = session(always(3), &[A]);
    let costly = |tenth| VmStatistics {
        tracking_ns: tenth * TENTH / 5,
        ..calm(A, tenth)
    };
    let mut changes = Vec::new();
    for tenth in 0..45 {
        let actions = report(&mut session, tenth, costly(tenth));
        changes.extend(
            actions
                .iter()
                .map(|a| (tenth, matches!(a, Action::Protect(_)))),
        );
    }
    // A second of which a fifth was faults, then three of rest: 5 % of four.
    assert_eq!(changes[..3], [(0, true), (10, false), (40, true)]);
    let demand = session.engine().demand(A).expect("tracked");
    assert_eq!(demand.rests, 1);
    let reasons = session.engine().vm(A).expect("managed").reasons;
    let said = reasons
        .iter()
        .any(|reason| reason.text.contains("more than 5 % of the VM's time"));
    assert!(said, "{reasons:?}");
}

#[test]
fn a_guest_that_swaps_wants_its_size_and_its_swap() {
    let mut session = session(always(3), &[A]);
    for tenth in 1..=41 {
        let seen = VmStatistics {
            used_swap_bytes: tenth << 20,
            ..calm(A, tenth)
        };
        report(&mut session, tenth, seen);
    }
    let estimate = session
        .engine()
        .demand_estimate(A)
        .expect("a second passed");
    assert!(estimate.is_swapping);
    assert_eq!(estimate.demand_bytes, (1 << 30) + (41 << 20));
}

#[test]
fn a_guest_that_swapped_and_is_not_tracked_has_no_demand() {
    let mut session = session(DemandConfig::default(), &[A]);
    let mut demands = Vec::new();
    for tenth in 1..=200 {
        // Too few walks to be tracked; its swap grows for eight seconds.
        let seen = VmStatistics {
            walks: tenth,
            used_swap_bytes: tenth.min(80) << 20,
            ..calm(A, tenth)
        };
        assert_eq!(report(&mut session, tenth, seen), []);
        if tenth % 10 == 0 {
            let estimate = session.engine().demand_estimate(A);
            demands.push(estimate.map(|estimate| estimate.is_swapping));
        }
    }
    assert_eq!((demands[7], demands[19]), (Some(true), None), "{demands:?}");
}
