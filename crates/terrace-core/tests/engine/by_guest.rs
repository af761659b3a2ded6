//! A guest that moves its own pages: frames stay in their tiers, and data changes frames.

use proptest::prelude::*;
use terrace_core::engine::Stand;
use terrace_core::session::replay::replay;
use terrace_core::{EngineConfig, PolicyName};
use terrace_proto::{
    Command, Event, Gfn, GuestMoves, GuestNode, GuestNodes, PAGE_SIZE, Tick, TierId,
};
use terrace_testkit::engine::scattered::{FAST, PAGES, hot};
use terrace_testkit::engine::{Host, Lie, SECOND};
use terrace_testkit::log::written;

use crate::in_rounds::{VM, config, host_with, last, plans, round_starts};

/// Free frames of the guest's fast node, and of the slow one.
const FREE: [u64; 2] = [40, 300];

/// A guest whose frames have data but for some of each tier.
fn guest(config: EngineConfig) -> Host {
    let mut host = host_with(config);
    let vm = host.guests.get_mut(&VM).expect("a VM that arrives");
    let mut left = FREE;
    let frames = (0_u64..).zip(&vm.tier);
    let data = frames.map(|(page, tier)| {
        let left = &mut left[usize::from(*tier)];
        let free = *left > 0 && !hot(page);
        *left -= u64::from(free);
        (!free).then_some(page)
    });
    let data = data.collect();
    vm.data = Some(data);
    tell(&mut host);
    host
}

/// The guest says what it has free.
fn tell(host: &mut Host) {
    let free = [0, 1].map(|tier| host.guests[&VM].free_frames(tier) * PAGE_SIZE);
    let free_bytes = Some(free.to_vec());
    host.after(1, Event::GuestMoves(GuestMoves { vm: VM, free_bytes }));
}

/// Runs on, and lets the guest speak each second.
fn run(host: &mut Host, seconds: u64) {
    for _ in 0..seconds {
        tell(host);
        host.run_until(Tick(host.now.0 + SECOND));
    }
}

fn hot_on_fast(host: &Host) -> u64 {
    host.guests[&VM].data_on_fast(hot)
}

#[test]
fn hot_data_comes_to_fast_frames_that_stay_where_they_are() {
    let mut h = guest(config(PolicyName::Vtmm));
    let tiers = h.guests[&VM].tier.clone();
    let all: u64 = (0..4096).filter(|page| hot(*page)).count() as u64;
    run(&mut h, 200);
    assert!(
        hot_on_fast(&h) * 100 >= all * 95,
        "{} of {all}",
        hot_on_fast(&h)
    );
    assert_eq!(h.guests[&VM].tier, tiers);
    let data = h.guests[&VM].data.as_ref().expect("as set up");
    let mut pages: Vec<u64> = data.iter().flatten().copied().collect();
    pages.sort_unstable();
    pages.dedup();
    assert_eq!(
        pages.len() as u64,
        4096 - FREE[0] - FREE[1],
        "no data is lost"
    );
}

#[test]
fn no_more_is_named_up_than_the_guest_has_room_for() {
    let mut h = guest(config(PolicyName::Vtmm));
    run(&mut h, 120);
    let plans = plans(&h);
    let (_, first) = plans.first().expect("a plan");
    let of = |to| first.moves.iter().filter(|m| m.to == to).count() as u64;
    let (up, down) = (of(TierId::FAST), of(TierId(1)));
    assert!(up > 0 && up <= FREE[0] + down, "{up} up, {down} down");
    let firsts = first.moves.iter().take_while(|m| m.to == TierId(1));
    assert_eq!(firsts.count() as u64, down, "demotions first");
}

#[test]
fn free_frames_of_the_guest_do_not_fill_its_fast_node() {
    let mut h = host_with(config(PolicyName::Vtmm));
    let vm = h.guests.get_mut(&VM).expect("a VM that arrives");
    // All of the fast node is free.
    let frames = (0_u64..).zip(&vm.tier);
    vm.data = Some(
        frames
            .map(|(page, tier)| (*tier == 1).then_some(page))
            .collect(),
    );
    let slow = |page: u64| hot(page) && page >= terrace_testkit::engine::scattered::FAST;
    let all: u64 = (0..4096).filter(|page| slow(*page)).count() as u64;
    run(&mut h, 200);
    let now = h.guests[&VM].data_on_fast(slow);
    assert!(now * 100 >= all * 95, "{now} of {all}");
    let plans = plans(&h);
    let (_, first) = plans.first().expect("a plan");
    let up = first.moves.iter().filter(|m| m.to == TierId::FAST).count();
    assert_eq!(up, first.moves.len(), "nothing has to go");
}

#[test]
fn a_named_frame_is_not_named_again_in_its_round() {
    let mut h = guest(config(PolicyName::Vtmm));
    run(&mut h, 200);
    let mut named = std::collections::BTreeMap::new();
    for (at, plan) in plans(&h) {
        for page in &plan.moves {
            if let Some(before) = named.insert(page.gfn, at) {
                assert!(
                    at.0 - before.0 > SECOND,
                    "frame {:?} at {before:?} and {at:?}",
                    page.gfn
                );
            }
        }
    }
    assert!(last(&h).promoted_pages < 4096);
}

#[test]
fn the_host_moves_pages_again_once_the_guest_does_not() {
    let mut h = guest(config(PolicyName::Vtmm));
    run(&mut h, 30);
    let nobody = GuestMoves {
        vm: VM,
        free_bytes: None,
    };
    h.after(1, Event::GuestMoves(nobody));
    let before = h.guests[&VM].tier.clone();
    h.run_until(Tick(h.now.0 + 200 * SECOND));
    assert_ne!(h.guests[&VM].tier, before, "frames change tiers");
    let reasons: Vec<String> = h
        .engine()
        .vm_reasons(VM, 0)
        .map(|r| r.text.clone())
        .collect();
    assert!(
        reasons
            .iter()
            .any(|r| r.contains("the host moves its pages")),
        "{reasons:?}"
    );
}

/// The tier of each of the guest's nodes, as QEMU has them.
fn tell_nodes(host: &mut Host) {
    let node = |start: u64, end, tier| GuestNode {
        start: Gfn(start),
        pages: end - start,
        tier: TierId(tier),
    };
    let pages = host.guests[&VM].tier.len() as u64;
    let nodes = vec![node(0, FAST, 0), node(FAST, pages, 1)];
    let only_guest = false;
    let nodes = GuestNodes {
        vm: VM,
        nodes,
        only_guest,
    };
    host.after(1, Event::GuestNodes(nodes));
}

fn stand(host: &Host) -> Stand {
    host.engine().stand(VM).cloned().unwrap_or_default()
}

fn is_by_guest(host: &Host) -> bool {
    matches!(stand(host), Stand::Guest { .. })
}

fn reasons(host: &Host) -> String {
    let reasons = host.engine().vm_reasons(VM, 0);
    let texts: Vec<String> = reasons.map(|r| r.text.clone()).collect();
    texts.join("\n")
}

/// A guest of which the tiers are known by its nodes.
fn guest_with_nodes() -> Host {
    let mut h = guest(config(PolicyName::Vtmm));
    tell_nodes(&mut h);
    h
}

#[test]
fn a_frames_tier_follows_from_its_node_without_a_query() {
    let mut h = guest_with_nodes();
    run(&mut h, 200);
    let queries = round_starts(&h);
    assert!(last(&h).number > 3 && queries.len() <= 2, "{queries:?}");
    assert!(is_by_guest(&h), "{}", reasons(&h));
    let all: u64 = (0..PAGES).filter(|page| hot(*page)).count() as u64;
    assert!(hot_on_fast(&h) * 100 >= all * 95, "{}", hot_on_fast(&h));
}

#[test]
fn what_the_host_moved_is_put_back_before_the_guest_moves() {
    let mut h = host_with(config(PolicyName::Vtmm));
    let nodes: Vec<u8> = (0..PAGES).map(|page| u8::from(page >= FAST)).collect();
    assert_eq!(h.guests[&VM].tier, nodes);
    h.run_until(Tick(100 * SECOND));
    assert_ne!(h.guests[&VM].tier, nodes, "the host has moved pages");
    let data = (0..PAGES).map(|page| (page % 8 > 0 || hot(page)).then_some(page));
    h.guests.get_mut(&VM).expect("as set up").data = Some(data.collect());
    tell_nodes(&mut h);
    run(&mut h, 10);
    assert!(
        reasons(&h).contains("are put back into the tiers"),
        "{}",
        reasons(&h)
    );
    run(&mut h, 120);
    assert_eq!(h.guests[&VM].tier, nodes, "{}", reasons(&h));
    assert!(is_by_guest(&h), "{}", reasons(&h));
    let all: u64 = (0..PAGES).filter(|page| hot(*page)).count() as u64;
    assert!(hot_on_fast(&h) * 100 >= all * 95, "{}", hot_on_fast(&h));
}

#[test]
fn frames_that_cannot_be_put_back_leave_the_host_in_force() {
    let mut h = host_with(config(PolicyName::Vtmm));
    h.run_until(Tick(100 * SECOND));
    let vm = h.guests.get_mut(&VM).expect("as set up");
    vm.others = (0..PAGES).collect();
    vm.lie = Some(Lie::Refuses);
    tell_nodes(&mut h);
    run(&mut h, 60);
    let Stand::Refused(why) = stand(&h) else {
        panic!("{:?}: {}", stand(&h), reasons(&h));
    };
    assert!(
        why.contains("do not lie in the tier of the guest's node"),
        "{why}"
    );
    h.guests.get_mut(&VM).expect("as set up").others.clear();
    run(&mut h, 60);
    assert!(
        matches!(stand(&h), Stand::Refused(_)),
        "until an operator says so"
    );
    h.after(1, Event::Command(Command::Resume(Some(VM))));
    run(&mut h, 60);
    assert!(is_by_guest(&h), "{}", reasons(&h));
}

#[test]
fn a_host_that_only_observes_moves_nothing_in_the_guests_place() {
    let mut h = guest(config(PolicyName::Vtmm));
    let tiers = h.guests[&VM].tier.clone();
    let only = GuestNodes {
        vm: VM,
        nodes: Vec::new(),
        only_guest: true,
    };
    h.after(1, Event::GuestNodes(only));
    let nobody = GuestMoves {
        vm: VM,
        free_bytes: None,
    };
    h.after(2, Event::GuestMoves(nobody));
    h.run_until(Tick(200 * SECOND));
    assert_eq!(h.guests[&VM].tier, tiers);
    assert!(last(&h).number > 1 && last(&h).proposed_promotions > 0);
    // The guest does, once it speaks.
    run(&mut h, 200);
    assert!(
        last(&h).number > 3 && hot_on_fast(&h) > 700,
        "{}",
        hot_on_fast(&h)
    );
}

/// Runs a lying guest until the host takes over; gives the sizes of the plans that were for the guest.
fn until_refused(lie: Lie) -> (Host, Vec<usize>) {
    let mut h = guest_with_nodes();
    h.guests.get_mut(&VM).expect("as set up").lie = Some(lie);
    let mut seconds = 0;
    while !matches!(stand(&h), Stand::Refused(_)) && seconds < 1200 {
        run(&mut h, 1);
        seconds += 1;
    }
    let sizes = plans(&h).iter().map(|(_, plan)| plan.moves.len()).collect();
    (h, sizes)
}

fn expect_fallback(lie: Lie, said: &str) {
    let (mut h, sizes) = until_refused(lie);
    let Stand::Refused(why) = stand(&h) else {
        panic!("{lie:?}: not found out: {}", reasons(&h));
    };
    assert!(
        why.contains(said) && why.contains("4 times in a row"),
        "{why}"
    );
    assert!(
        reasons(&h).contains("at most 512 frames at once"),
        "{}",
        reasons(&h)
    );
    assert!(sizes.iter().all(|size| *size <= 1024), "{sizes:?}");
    // The host moves the backing of the hot pages by itself now.
    h.guests.get_mut(&VM).expect("as set up").lie = None;
    run(&mut h, 200);
    let all: u64 = (0..PAGES).filter(|page| hot(*page)).count() as u64;
    assert!(
        hot_on_fast(&h) * 100 >= all * 90,
        "{} of {all}",
        hot_on_fast(&h)
    );
}

#[test]
fn a_guest_that_accepts_all_and_moves_none_is_found_out() {
    expect_fallback(Lie::MovesNone, "are accessed as before");
}

#[test]
fn a_guest_that_moves_others_is_found_out() {
    expect_fallback(Lie::MovesOthers, "are accessed as before");
}

#[test]
fn a_guest_that_says_nothing_is_found_out() {
    expect_fallback(Lie::Silent, "does not say what became of");
}

#[test]
fn a_guest_that_refuses_all_is_no_liar() {
    let mut h = guest_with_nodes();
    h.guests.get_mut(&VM).expect("as set up").lie = Some(Lie::Refuses);
    run(&mut h, 400);
    assert!(is_by_guest(&h), "{}", reasons(&h));
    assert_eq!(last(&h).promoted_pages, 0);
}

#[test]
fn a_guest_whose_hot_set_moves_on_and_on_is_no_liar() {
    let mut h = guest_with_nodes();
    let mut moved = 0;
    for round in 0..12 {
        let vm = h.guests.get_mut(&VM).expect("as set up");
        vm.heat = Box::new(move |page, _| {
            let is_hot = (page * 7 + round * 523) % 5 == 0;
            (is_hot, false)
        });
        run(&mut h, 45);
        moved += last(&h).promoted_pages;
        assert!(is_by_guest(&h), "{}", reasons(&h));
    }
    assert!(moved > 0);
    assert!(!reasons(&h).contains("as before"), "{}", reasons(&h));
}

/// The VM's memory map is another one, as when memory was plugged in.
fn remap(h: &mut Host) {
    let change = terrace_proto::RamChange {
        vm: VM,
        ram: vec![terrace_proto::RamRange {
            start: Gfn(0),
            pages: h.guests[&VM].tier.len() as u64,
        }],
        unit: terrace_proto::PageSize::Base,
    };
    h.after(1, Event::RamChanged(change));
}

#[test]
fn memory_that_was_plugged_in_has_its_nodes_anew() {
    let mut h = guest_with_nodes();
    run(&mut h, 60);
    let before = data(&h);
    // 2 MiB more on the slow node. The daemon says so when the map changed; the guest's room comes with its next heartbeat.
    let vm = h.guests.get_mut(&VM).expect("as set up");
    vm.tier.extend([1; 512]);
    vm.accessed.extend([false; 512]);
    vm.data.as_mut().expect("as set up").extend([None; 512]);
    remap(&mut h);
    run(&mut h, 1);
    tell_nodes(&mut h);
    run(&mut h, 120);
    assert!(is_by_guest(&h), "{}", reasons(&h));
    let queries = round_starts(&h);
    assert!(
        queries.len() >= 2,
        "its places are looked at again: {queries:?}"
    );
    let vm = h.engine().vm(VM).expect("a VM that arrived");
    let held: u64 = vm.tiers.iter().map(|tier| tier.bytes).sum();
    assert_eq!(
        (vm.ram_pages, held),
        (PAGES + 512, (PAGES + 512) * PAGE_SIZE)
    );
    assert_eq!(data(&h), before, "no data is lost");
}

/// Something that happens to a guest that moves its pages.
#[derive(Clone, Copy, Debug)]
enum Turn {
    Runs(u64),
    Lies(Option<Lie>),
    /// The agent is not trusted for so many seconds: the host moves pages.
    Silent(u64),
    Resumed,
    Remapped,
}

fn any_turn() -> impl Strategy<Value = Turn> {
    let lies = [Lie::MovesNone, Lie::MovesOthers, Lie::Silent, Lie::Refuses];
    prop_oneof![
        4 => (1..60_u64).prop_map(Turn::Runs),
        1 => prop::option::of(prop::sample::select(lies.to_vec())).prop_map(Turn::Lies),
        1 => (1..60_u64).prop_map(Turn::Silent),
        1 => Just(Turn::Resumed),
        1 => Just(Turn::Remapped),
    ]
}

fn take(h: &mut Host, turn: Turn) {
    match turn {
        Turn::Runs(seconds) => run(h, seconds),
        Turn::Lies(lie) => h.guests.get_mut(&VM).expect("as set up").lie = lie,
        Turn::Silent(seconds) => {
            let nobody = GuestMoves {
                vm: VM,
                free_bytes: None,
            };
            h.after(1, Event::GuestMoves(nobody));
            h.run_until(Tick(h.now.0 + seconds * SECOND));
        }
        Turn::Resumed => h.after(1, Event::Command(Command::Resume(Some(VM)))),
        Turn::Remapped => {
            remap(h);
            tell_nodes(h);
        }
    }
}

fn data(h: &Host) -> Vec<u64> {
    let data = h.guests[&VM].data.iter().flatten();
    let mut data: Vec<u64> = data.flatten().copied().collect();
    data.sort_unstable();
    data
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn whatever_a_guest_does_plans_are_bounded_and_no_page_is_lost(
        turns in prop::collection::vec(any_turn(), 1..12),
    ) {
        let mut h = guest_with_nodes();
        let before = data(&h);
        run(&mut h, 1);
        for turn in turns {
            let tiers = h.guests[&VM].tier.clone();
            let by_guest = is_by_guest(&h);
            take(&mut h, turn);
            if by_guest && is_by_guest(&h) && matches!(turn, Turn::Runs(_)) {
                prop_assert_eq!(&h.guests[&VM].tier, &tiers);
            }
            let vm = h.engine().vm(VM).expect("a VM that arrived");
            let held: u64 = vm.tiers.iter().map(|tier| tier.bytes).sum();
            prop_assert!(held <= PAGES * PAGE_SIZE);
        }
        // Each frame lies in its node's tier once the guest moves pages.
        take(&mut h, Turn::Lies(None));
        take(&mut h, Turn::Resumed);
        run(&mut h, 200);
        prop_assert!(is_by_guest(&h), "{}", reasons(&h));
        let nodes: Vec<u8> = (0..PAGES).map(|page| u8::from(page >= FAST)).collect();
        prop_assert_eq!(&h.guests[&VM].tier, &nodes);
        prop_assert_eq!(data(&h), before);
        for (_, plan) in plans(&h) {
            let up = plan.moves.iter().position(|page| page.to == TierId::FAST);
            let down = plan.moves.iter().rposition(|page| page.to != TierId::FAST);
            prop_assert!(plan.moves.len() <= 1024 && (down < up || up.is_none()));
        }
        let replayed = replay(&written(h.log())[..]).expect("the log of this run");
        prop_assert_eq!(replayed.unrecorded_actions, 0);
    }
}
