//! A guest that moves its own pages: frames stay in their tiers, and data changes frames.

use terrace_core::{EngineConfig, PolicyName};
use terrace_proto::{Event, GuestMoves, PAGE_SIZE, Tick, TierId};
use terrace_testkit::engine::scattered::hot;
use terrace_testkit::engine::{Host, SECOND};

use crate::in_rounds::{VM, config, host_with, last, plans};

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
    h.guests.get_mut(&VM).expect("as set up").data = None;
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
