//! RAM that is plugged in or taken out while the engine is at it.

#![allow(clippy::unwrap_used, reason = "test helpers outside of test functions")]

use terrace_core::{EngineConfig, PhaseView};
use terrace_proto::log::Record;
use terrace_proto::{
    Action, Command, Event, Gfn, PAGE_SIZE, PageSize, RamChange, RamRange, Tick, VmId,
};
use terrace_testkit::engine::{Host, SECOND, spec};
use terrace_testkit::log::written;

const VM: VmId = VmId(1);
const PAGES: u64 = 4096;

fn host() -> Host {
    let mut h = Host::new(EngineConfig::default(), &[8192, 32768]);
    let hot = |page: u64, _: u64| (page >= PAGES - 512, false);
    h.arrive(spec(1, PAGES, 1024), Box::new(hot));
    h
}

fn change(pages: u64) -> Event {
    let range = RamRange {
        start: Gfn(0),
        pages,
    };
    Event::RamChanged(RamChange {
        vm: VM,
        ram: if pages == 0 { vec![] } else { vec![range] },
        unit: PageSize::Base,
    })
}

/// Gives the guest's RAM so many pages: new ones in the slow tier; those that it had stay where they are.
fn resize(h: &mut Host, pages: u64) {
    let pages = usize::try_from(pages).unwrap();
    let guest = h.guests.get_mut(&VM).unwrap();
    guest.tier.resize(pages, 1);
    guest.accessed.resize(pages, false);
}

fn actions_after(h: &Host, at: Tick) -> Vec<Action> {
    let of = |(when, record): &(Tick, Record)| match record {
        Record::Action(action) if *when > at => Some(action.clone()),
        _ => None,
    };
    h.log().iter().filter_map(of).collect()
}

fn until_moving(h: &mut Host) {
    let moving = |h: &Host| {
        let phase = h.engine().vm(VM).map(|vm| vm.phase);
        matches!(phase, Some(PhaseView::Moving { in_flight_pages, .. }) if in_flight_pages > 0)
    };
    while !moving(h) {
        assert!(h.now.0 < 60 * SECOND, "no plan is under way");
        h.run_until(Tick(h.now.0 + 1_000_000));
    }
}

#[test]
fn plans_of_an_old_map_are_cancelled_and_late_reports_ignored() {
    let mut h = host();
    until_moving(&mut h);
    let before = h.engine().vm(VM).unwrap().counters;
    let PhaseView::Moving {
        in_flight_pages, ..
    } = h.engine().vm(VM).unwrap().phase
    else {
        unreachable!();
    };
    let at = h.now;
    h.after(0, change(0));
    h.run_until(at);
    let view = h.engine().vm(VM).unwrap();
    assert!(matches!(view.phase, PhaseView::Unscannable { .. }));
    assert_eq!(
        view.counters.not_tried_pages,
        before.not_tried_pages + in_flight_pages
    );
    let held: u64 = view.tiers.iter().map(|t| t.bytes + t.coming_bytes).sum();
    assert_eq!(held, 0, "something of the old map is held");
    // The reports that the host still owes, and an operator who wants a round.
    h.after(SECOND, Event::Command(Command::RoundNow(VM)));
    h.run_until(Tick(300 * SECOND));
    let view = h.engine().vm(VM).unwrap();
    assert_eq!(actions_after(&h, at), [], "of a map that is not known");
    assert!(view.counters.stale_answers > 0);
    assert_eq!(view.counters.promoted_pages, before.promoted_pages);
    assert_eq!(
        (view.counters.map_changes, view.counters.rounds_abandoned),
        (1, 1)
    );
    assert!(
        view.reasons
            .iter()
            .any(|r| r.text.contains("the location of its RAM is not known"))
    );
}

#[test]
fn a_new_map_is_ranked_whole_and_what_an_operator_set_stays() {
    let mut h = host();
    h.run_until(Tick(30 * SECOND));
    h.after(0, Event::Command(Command::Weight(VM, 7)));
    h.after(0, Event::Command(Command::FastSize(VM, 1024 * PAGE_SIZE)));
    let changed = Tick(40 * SECOND);
    h.run_until(changed);
    let before = h.engine().vm(VM).unwrap();
    h.after(0, change(0));
    resize(&mut h, 2 * PAGES);
    h.after(SECOND, change(2 * PAGES));
    h.run_until(Tick(90 * SECOND));
    let view = h.engine().vm(VM).unwrap();
    assert_eq!(view.ram_pages, 2 * PAGES);
    assert_eq!(view.counters.map_changes, 1);
    assert_eq!(view.share.as_ref().unwrap().weight, 7);
    assert!(view.counters.rounds > before.counters.rounds);
    assert_eq!(view.last_round.as_ref().unwrap().known_pages, 2 * PAGES);
    // 4,608 pages are hot now, and the ceiling is 1,024: the new ones are among them.
    let text = "its new memory map is known: 32 MiB of RAM, before 16 MiB";
    assert!(view.reasons.iter().any(|r| r.text == text));
    let scans = actions_after(&h, changed);
    assert!(scans.iter().any(|a| matches!(a, Action::Scan(_))));
    // The log of all that gives the same again.
    let replayed = terrace_core::session::replay::replay(&written(h.log())[..]).unwrap();
    let actions = h
        .log()
        .iter()
        .filter(|(_, r)| matches!(r, Record::Action(_)));
    assert_eq!(replayed.actions, actions.count() as u64);
}

#[test]
fn ram_that_makes_no_sense_is_not_taken() {
    let mut h = host();
    h.run_until(Tick(30 * SECOND));
    let at = h.now;
    let range = |start, pages| RamRange {
        start: Gfn(start),
        pages,
    };
    h.after(
        0,
        Event::RamChanged(RamChange {
            vm: VM,
            ram: vec![range(0, 10), range(5, 10)],
            unit: PageSize::Base,
        }),
    );
    h.after(
        0,
        Event::RamChanged(RamChange {
            vm: VmId(9),
            ram: vec![],
            unit: PageSize::Huge,
        }),
    );
    h.run_until(Tick(200 * SECOND));
    assert_eq!(actions_after(&h, at), []);
    let view = h.engine().vm(VM).unwrap();
    assert!(matches!(view.phase, PhaseView::Unscannable { .. }));
    // It is taken as soon as it does.
    h.after(0, change(PAGES));
    h.run_until(Tick(260 * SECOND));
    assert!(!actions_after(&h, Tick(200 * SECOND)).is_empty());
}
