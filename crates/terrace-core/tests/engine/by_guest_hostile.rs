//! A guest that moves its own pages, and what is not as it should be: QEMU's nodes, a slow kernel, an operator in between.

use proptest::prelude::*;
use terrace_core::engine::Stand;
use terrace_core::session::replay::replay;
use terrace_core::{EngineConfig, PolicyName};
use terrace_proto::{
    Command, Event, Gfn, GuestMoves, GuestNode, GuestNodes, PAGE_SIZE, Tick, TierId, VmId,
};
use terrace_testkit::engine::scattered::{FAST, PAGES, hot, scattered};
use terrace_testkit::engine::{Host, Lie, SECOND, spec};
use terrace_testkit::log::written;

use crate::in_rounds::{VM, config, host_with, plans};

fn node(start: u64, pages: u64, tier: u8) -> GuestNode {
    GuestNode {
        start: Gfn(start),
        pages,
        tier: TierId(tier),
    }
}

fn tell_nodes(h: &mut Host, nodes: Vec<GuestNode>) {
    h.after(
        1,
        Event::GuestNodes(GuestNodes {
            vm: VM,
            nodes,
            only_guest: false,
        }),
    );
}

fn tell_free(h: &mut Host, free_bytes: Option<Vec<u64>>) {
    h.after(1, Event::GuestMoves(GuestMoves { vm: VM, free_bytes }));
}

fn run(h: &mut Host, seconds: u64) {
    h.run_until(Tick(h.now.0 + seconds * SECOND));
}

fn by_nodes() -> Vec<GuestNode> {
    vec![node(0, FAST, 0), node(FAST, PAGES - FAST, 1)]
}

fn stand(h: &Host) -> Stand {
    h.engine().stand(VM).cloned().unwrap_or_default()
}

fn reasons(h: &Host) -> String {
    let reasons = h.engine().vm_reasons(VM, 0);
    let texts: Vec<String> = reasons.map(|r| r.text.clone()).collect();
    texts.join("\n")
}

fn tiers_of_nodes() -> Vec<u8> {
    (0..PAGES).map(|page| u8::from(page >= FAST)).collect()
}

#[test]
fn huge_pages_that_stay_elsewhere_count_with_their_size() {
    let mut h = host_with(config(PolicyName::Vtmm));
    let vm = h.guests.get_mut(&VM).expect("as set up");
    vm.huge = (0..PAGES / 512).collect();
    vm.tier = (0..PAGES).map(|page| u8::from(page < PAGES / 2)).collect();
    // The kernel leaves them all.
    vm.others = (0..PAGES).collect();
    tell_nodes(
        &mut h,
        vec![node(0, PAGES / 2, 0), node(PAGES / 2, PAGES / 2, 1)],
    );
    tell_free(&mut h, Some(vec![0, 0]));
    run(&mut h, 60);
    assert!(
        matches!(stand(&h), Stand::Refused(_)),
        "{:?}: {}",
        stand(&h),
        reasons(&h)
    );
    assert!(
        reasons(&h).contains("16 MiB are put back"),
        "{}",
        reasons(&h)
    );
}

#[test]
fn a_round_that_plans_alone_puts_nothing_back() {
    let mut h = host_with(EngineConfig {
        first_round_after_ms: 5000,
        ..config(PolicyName::Vtmm)
    });
    h.run_until(Tick(100 * SECOND));
    let before = h.guests[&VM].tier.clone();
    assert_ne!(before, tiers_of_nodes(), "the host has moved pages");
    tell_nodes(&mut h, by_nodes());
    tell_free(&mut h, Some(vec![0, 0]));
    h.run_until(Tick(h.now.0 + 10));
    let number = plans(&h).len();
    h.after(1, Event::Command(Command::PlanRound(VM)));
    run(&mut h, 4);
    assert_eq!(plans(&h).len(), number, "{}", reasons(&h));
    assert_eq!(h.guests[&VM].tier, before);
}

#[test]
fn a_plan_of_the_host_that_ends_late_is_put_back_too() {
    let mut h = host_with(config(PolicyName::Vtmm));
    h.slow = Some(Vec::new());
    while h.slow.as_ref().is_some_and(Vec::is_empty) {
        run(&mut h, 1);
    }
    // Nothing has moved yet: all frames lie where their nodes do.
    tell_nodes(&mut h, by_nodes());
    for _ in 0..20 {
        tell_free(&mut h, Some(vec![0, 0]));
        run(&mut h, 1);
    }
    h.begin_slow();
    for _ in 0..60 {
        tell_free(&mut h, Some(vec![0, 0]));
        run(&mut h, 1);
    }
    assert!(matches!(stand(&h), Stand::Guest { .. }), "{}", reasons(&h));
    let elsewhere = h.guests[&VM].tier.iter().zip(tiers_of_nodes());
    let elsewhere = elsewhere.filter(|(is, node)| *is != node).count();
    assert_eq!(elsewhere, 0, "{}", reasons(&h));
}

#[test]
fn moves_that_are_on_again_have_the_guest_tried_again() {
    let mut h = host_with(config(PolicyName::Vtmm));
    h.run_until(Tick(100 * SECOND));
    h.after(1, Event::Command(Command::Moves(VM, false)));
    tell_nodes(&mut h, by_nodes());
    tell_free(&mut h, Some(vec![0, 0]));
    run(&mut h, 30);
    assert!(matches!(stand(&h), Stand::Refused(_)), "{}", reasons(&h));
    h.after(1, Event::Command(Command::Moves(VM, true)));
    for _ in 0..60 {
        tell_free(&mut h, Some(vec![0, 0]));
        run(&mut h, 1);
    }
    assert!(matches!(stand(&h), Stand::Guest { .. }), "{}", reasons(&h));
}

#[test]
fn nodes_beyond_the_memory_hold_nothing_up() {
    let mut h = host_with(config(PolicyName::Vtmm));
    let wild = vec![
        node(0, u64::MAX, 0),
        node(u64::MAX, u64::MAX, 1),
        node(PAGES, u64::MAX, 1),
        node(1 << 40, 1 << 62, 200),
        node(FAST, PAGES - FAST, 1),
    ];
    tell_nodes(&mut h, wild);
    for _ in 0..60 {
        tell_free(&mut h, Some(vec![u64::MAX, u64::MAX]));
        run(&mut h, 1);
    }
    assert_ne!(stand(&h), Stand::Host);
}

#[test]
fn a_guest_that_comes_and_goes_is_moved_once_each_way() {
    let mut h = host_with(config(PolicyName::Vtmm));
    tell_nodes(&mut h, by_nodes());
    for second in 0..600_u64 {
        let free = (second % 80 < 20).then(|| vec![0, 0]);
        tell_free(&mut h, free);
        run(&mut h, 1);
    }
    let moved: usize = plans(&h).iter().map(|(_, plan)| plan.moves.len()).sum();
    let each = FAST * 2 * 2;
    assert!(moved > 0 && moved as u64 <= 600 / 80 * each, "{moved}");
}

#[test]
fn nodes_by_the_hypervisors_word_bring_no_more_than_the_ceiling() {
    let mut h = host_with(config(PolicyName::Vtmm));
    h.run_until(Tick(100 * SECOND));
    tell_nodes(&mut h, vec![node(0, 3000, 0), node(3000, PAGES - 3000, 1)]);
    for _ in 0..60 {
        tell_free(&mut h, Some(vec![0, 0]));
        run(&mut h, 1);
        assert!(h.on_fast(1, |_| true) <= FAST);
    }
    assert!(matches!(stand(&h), Stand::Refused(_)), "{}", reasons(&h));
    assert!(
        reasons(&h).contains("a limit of the VM's"),
        "{}",
        reasons(&h)
    );
}

#[test]
fn a_liar_that_was_silent_for_a_while_is_not_believed_anew() {
    let mut h = host_with(config(PolicyName::Vtmm));
    let vm = h.guests.get_mut(&VM).expect("as set up");
    vm.data = Some(
        (0..PAGES)
            .map(|page| (page % 8 > 0 || hot(page)).then_some(page))
            .collect(),
    );
    vm.lie = Some(Lie::MovesNone);
    tell_nodes(&mut h, by_nodes());
    let free = || Some(vec![40 * PAGE_SIZE, 300 * PAGE_SIZE]);
    let mut rounds_of_lies = 0;
    // Silent before it would be found out for the fourth time.
    for _ in 0..10 {
        let before = reasons(&h).matches("are accessed as before").count();
        for _ in 0..200 {
            tell_free(&mut h, free());
            run(&mut h, 1);
            let lies = reasons(&h).matches("are accessed as before").count() - before;
            if lies == 3 || matches!(stand(&h), Stand::Refused(_)) {
                break;
            }
        }
        rounds_of_lies += reasons(&h).matches("are accessed as before").count() - before;
        tell_free(&mut h, None);
        run(&mut h, 10);
    }
    assert!(
        reasons(&h).contains("4 times in a row"),
        "{rounds_of_lies}: {}",
        reasons(&h)
    );
}

/// Whatever may come.
#[derive(Clone, Debug)]
enum Wild {
    Runs(u64),
    Nodes(Vec<GuestNode>),
    Free(Option<Vec<u64>>),
    Lies(Option<Lie>),
    Ordered(u8),
    Slow(bool),
    Remapped(Vec<(u64, u64)>),
    Stuck(bool),
}

fn any_node() -> impl Strategy<Value = GuestNode> {
    let edge = prop::sample::select(vec![
        0,
        1,
        FAST,
        511,
        512,
        PAGES - 1,
        PAGES,
        1 << 33,
        u64::MAX,
    ]);
    let length = prop::sample::select(vec![0, 1, FAST, 513, PAGES, 1 << 33, u64::MAX]);
    let tier = prop::sample::select(vec![0, 0, 0, 1, 1, 1, 2, 3, 15, 254, 255]);
    (edge, length, tier).prop_map(|(start, pages, tier)| node(start, pages, tier))
}

fn any_wild() -> impl Strategy<Value = Wild> {
    let lies = [Lie::MovesNone, Lie::MovesOthers, Lie::Silent, Lie::Refuses];
    let free = prop::sample::select(vec![0, 1, 4096, 1 << 20, 1 << 40, u64::MAX]);
    let run = prop::sample::select(vec![
        (0, PAGES),
        (0, 64),
        (100, 900),
        (0, 0),
        (PAGES - 1, 1),
    ]);
    prop_oneof![
        6 => (1..25_u64).prop_map(Wild::Runs),
        2 => prop::collection::vec(any_node(), 0..4).prop_map(Wild::Nodes),
        2 => Just(Wild::Nodes(by_nodes())),
        3 => prop::option::weighted(0.8, prop::collection::vec(free, 0..5)).prop_map(Wild::Free),
        1 => prop::option::of(prop::sample::select(lies.to_vec())).prop_map(Wild::Lies),
        4 => (0..10_u8).prop_map(Wild::Ordered),
        1 => any::<bool>().prop_map(Wild::Slow),
        1 => prop::collection::vec(run, 0..2).prop_map(Wild::Remapped),
        1 => any::<bool>().prop_map(Wild::Stuck),
    ]
}

fn take(h: &mut Host, wild: Wild) {
    let command = |h: &mut Host, command| h.after(1, Event::Command(command));
    match wild {
        Wild::Runs(seconds) => run(h, seconds),
        Wild::Nodes(nodes) => tell_nodes(h, nodes),
        Wild::Free(free) => tell_free(h, free),
        Wild::Lies(lie) => h.guests.get_mut(&VM).expect("as set up").lie = lie,
        Wild::Ordered(0) => command(h, Command::Pause(Some(VM))),
        Wild::Ordered(1) => command(h, Command::Resume(None)),
        Wild::Ordered(2) => command(h, Command::Moves(VM, false)),
        Wild::Ordered(3) => command(h, Command::Moves(VM, true)),
        Wild::Ordered(4) => command(h, Command::RoundNow(VM)),
        Wild::Ordered(5) => command(h, Command::PlanRound(VM)),
        Wild::Ordered(_) => command(h, Command::Resume(Some(VM))),
        Wild::Slow(true) => h.slow = h.slow.take().or(Some(Vec::new())),
        Wild::Slow(false) => h.begin_slow(),
        Wild::Stuck(is) => {
            let vm = h.guests.get_mut(&VM).expect("as set up");
            vm.others = if is {
                (0..PAGES).filter(|p| p % 3 == 0).collect()
            } else {
                Default::default()
            };
        }
        Wild::Remapped(runs) => {
            let ram = runs.iter().map(|(start, pages)| terrace_proto::RamRange {
                start: Gfn(*start),
                pages: *pages,
            });
            h.after(
                1,
                Event::RamChanged(terrace_proto::RamChange {
                    vm: VM,
                    ram: ram.collect(),
                    unit: terrace_proto::PageSize::Base,
                }),
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn whatever_comes_accounts_hold_and_the_log_replays(
        policy in prop::sample::select(PolicyName::ALL.to_vec()),
        huge in any::<bool>(),
        wild in prop::collection::vec(any_wild(), 1..40),
    ) {
        let mut h = Host::new(config(policy), &[2 * PAGES, 4 * PAGES]);
        h.arrive(spec(1, PAGES, FAST), Box::new(scattered));
        h.arrive(spec(2, PAGES, FAST), Box::new(scattered));
        let vm = h.guests.get_mut(&VM).expect("as set up");
        vm.data = Some((0..PAGES).map(|page| (page % 8 > 0 || hot(page)).then_some(page)).collect());
        if huge {
            vm.huge = (2..5).collect();
        }
        for wild in wild {
            take(&mut h, wild);
            let records = h.log().len();
            h.run_until(Tick(h.now.0 + 2));
            prop_assert!(h.log().len() - records < 1000, "no end: {}", reasons(&h));
            for id in [1, 2] {
                let vm = h.engine().vm(VmId(id)).expect("a VM that arrived");
                let held: u64 = vm.tiers.iter().map(|tier| tier.bytes).sum();
                prop_assert!(held <= PAGES * PAGE_SIZE, "{held}");
            }
        }
        for (_, plan) in plans(&h) {
            prop_assert!(plan.moves.iter().all(|page| page.gfn.0 < PAGES && page.to.0 < 2));
        }
        let records = h.log().len() as u64;
        prop_assert!(records < 400 * h.now.0.div_ceil(SECOND).max(1), "{records} in {:?}", h.now);
        let replayed = replay(&written(h.log())[..]).expect("the log of this run");
        prop_assert_eq!(replayed.unrecorded_actions, 0);
    }
}
