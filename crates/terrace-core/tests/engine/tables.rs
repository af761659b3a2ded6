//! Page tables under policy `terrace`: first in fast memory, one upper one at a time, and nothing for a guest that lies.

use crate::in_rounds::config;
use terrace_core::{PolicyName, TablePlace};
use terrace_proto::log::Record;
use terrace_proto::{Action, Event, RequestId, Space, TableFrame, TablesAnswer, Tick, VmId};
use terrace_testkit::engine::{Host, NamedTable, SECOND, spec};

const PAGES: u64 = 4096;
const FAST: u64 = 1024;
/// Page tables: the last pages, which are in slow memory at first. The first three are upper ones.
const TABLES: std::ops::Range<u32> = 4080..4091;
const UPPERS: std::ops::Range<u32> = 4080..4083;

fn leaf_table(accessed: u16) -> NamedTable {
    NamedTable {
        level: 1,
        accessed,
        mapped: false,
    }
}

/// Data that is touched in all windows, a tenth of it, and a host with the page tables of such a VM.
fn host_with(tables: TablePlace) -> Host {
    let mut config = config(PolicyName::Terrace);
    config.tables = tables;
    let mut h = Host::new(config, &[4 * PAGES, 4 * PAGES]);
    h.arrive(
        spec(1, PAGES, FAST),
        Box::new(|page, _| (page % 10 == 3, false)),
    );
    let guest = h.guests.get_mut(&VmId(1)).expect("a guest");
    for frame in TABLES {
        let level = if UPPERS.contains(&frame) { 2 } else { 1 };
        let table = NamedTable {
            level,
            ..leaf_table(50)
        };
        guest.tables.insert(frame, table);
    }
    h
}

fn is_table(page: u64) -> bool {
    (u64::from(TABLES.start)..u64::from(TABLES.end)).contains(&page)
}

fn is_upper(page: u64) -> bool {
    (u64::from(UPPERS.start)..u64::from(UPPERS.end)).contains(&page)
}

fn asks(h: &Host) -> usize {
    let asked = |r: &&(Tick, Record)| matches!(r.1, Record::Action(Action::NameTables(_)));
    h.log().iter().filter(asked).count()
}

/// The frames of each plan.
fn plans(h: &Host) -> Vec<Vec<u64>> {
    let plan = |r: &(Tick, Record)| match &r.1 {
        Record::Action(Action::Move(plan)) => Some(plan.moves.iter().map(|m| m.gfn.0).collect()),
        _ => None,
    };
    h.log().iter().filter_map(plan).collect()
}

#[test]
fn hot_tables_come_to_fast_memory_and_stay_there() {
    let mut h = host_with(TablePlace::First);
    h.run_until(Tick(20 * SECOND));
    let all = u64::from(TABLES.end - TABLES.start);
    assert_eq!(h.on_fast(1, is_table), all);
    h.run_until(Tick(120 * SECOND));
    assert_eq!(h.on_fast(1, is_table), all);
    let moves = plans(&h).concat();
    assert_eq!(
        moves.iter().filter(|gfn| is_table(**gfn)).count() as u64,
        all,
        "each once"
    );
    assert!(h.used(0) <= FAST, "they count as the VM's");
}

#[test]
fn tables_stay_if_the_configuration_says_so() {
    let mut h = host_with(TablePlace::Stay);
    h.run_until(Tick(20 * SECOND));
    assert_eq!((h.on_fast(1, is_table), asks(&h)), (0, 0));
}

#[test]
fn policies_without_rates_do_not_ask_for_tables() {
    for policy in [PolicyName::Vtmm, PolicyName::Hmvisor] {
        let mut h = Host::new(config(policy), &[4 * PAGES, 4 * PAGES]);
        h.arrive(
            spec(1, PAGES, FAST),
            Box::new(|page, _| (page % 10 == 3, false)),
        );
        h.run_until(Tick(20 * SECOND));
        assert_eq!(asks(&h), 0, "{policy:?}");
    }
}

#[test]
fn upper_tables_move_one_at_a_time_each_in_a_plan_of_its_own() {
    let mut h = host_with(TablePlace::First);
    h.run_until(Tick(20 * SECOND));
    let with: Vec<_> = plans(&h)
        .into_iter()
        .filter(|plan| plan.iter().any(|gfn| is_upper(*gfn)))
        .collect();
    assert_eq!(with.len(), 3);
    assert!(with.iter().all(|plan| plan.len() == 1), "{with:?}");
}

#[test]
fn a_table_that_is_hot_no_more_makes_room_for_data() {
    let mut h = host_with(TablePlace::First);
    h.run_until(Tick(20 * SECOND));
    let guest = h.guests.get_mut(&VmId(1)).expect("a guest");
    guest
        .tables
        .values_mut()
        .for_each(|table| table.accessed = 0);
    // More hot data than fast memory holds.
    guest.heat = Box::new(|page, _| (page % 10 < 5, false));
    h.run_until(Tick(300 * SECOND));
    let leaf = |page| is_table(page) && !is_upper(page);
    assert_eq!(h.on_fast(1, leaf), 0);
    assert_eq!(h.on_fast(1, is_upper), 3, "upper ones stay");
}

#[test]
fn a_mapped_page_that_is_named_is_ranked_by_its_own_bits() {
    let mut h = host_with(TablePlace::First);
    let guest = h.guests.get_mut(&VmId(1)).expect("a guest");
    // Pages that nobody touches, by their tables in heavy use.
    guest.tables = (2000..2032)
        .map(|frame| {
            (
                frame,
                NamedTable {
                    mapped: true,
                    ..leaf_table(512)
                },
            )
        })
        .collect();
    h.run_until(Tick(60 * SECOND));
    let cold = |page: u64| (2000..2032).contains(&page) && page % 10 != 3;
    assert_eq!(h.on_fast(1, cold), 0);
}

/// Two VMs that compete for a tier; the second one names so many of its pages tables, and touches all of the others.
fn beside(tables: u32) -> (u64, u64) {
    let mut h = Host::new(config(PolicyName::Terrace), &[2 * FAST, 8 * PAGES]);
    for vm in [1, 2] {
        let all_hot = vm == 2;
        let heat = move |page: u64, _| (all_hot || page % 10 == 3, false);
        h.arrive(spec(vm, PAGES, FAST), Box::new(heat));
    }
    let guest = h.guests.get_mut(&VmId(2)).expect("a guest");
    guest.tables = (0..tables)
        .map(|frame| (frame * 7 % 4096, leaf_table(u16::MAX)))
        .collect();
    h.run_until(Tick(120 * SECOND));
    assert!(h.on_fast(2, |_| true) <= FAST);
    (h.on_fast(1, |page| page % 10 == 3), h.on_fast(1, |_| true))
}

#[test]
fn a_guest_that_is_all_tables_gains_nothing_beyond_its_share() {
    let honest = beside(0);
    assert_eq!(honest.0, 410, "all hot pages");
    assert_eq!(beside(4096), honest);
}

#[test]
fn tables_that_change_between_scans_keep_to_the_budget() {
    let mut h = host_with(TablePlace::First);
    for second in 1..60_u32 {
        h.run_until(Tick(u64::from(second) * SECOND));
        let guest = h.guests.get_mut(&VmId(1)).expect("a guest");
        // Another set in each second, each frame at another level than before.
        let level = 1 + u8::try_from(second % 5).expect("small");
        let frames = (0..32).map(|i| (i * 97 + second * 131) % 4096);
        guest.tables = frames
            .map(|frame| {
                (
                    frame,
                    NamedTable {
                        level,
                        ..leaf_table(512)
                    },
                )
            })
            .collect();
    }
    h.run_until(Tick(120 * SECOND));
    // The engine's own checks hold: no more than the ceiling, and the account agrees with where pages are.
    assert!(h.used(0) <= FAST);
    let held = h.engine().vm(VmId(1)).expect("a VM").tiers[0].bytes;
    assert_eq!(held, h.on_fast(1, |_| true) * 4096);
}

/// Gives the engine an event by which it decides nothing.
fn tell(h: &mut Host, event: Event) {
    assert!(h.session.hear(h.now, event).is_empty());
}

#[test]
fn tables_not_asked_for_or_impossible_change_nothing() {
    let mut h = host_with(TablePlace::First);
    h.run_until(Tick(SECOND / 10));
    let answer = |id, frames| {
        Event::Tables(Box::new(TablesAnswer {
            id: RequestId(id),
            space: Space::Guest(VmId(1)),
            frames,
        }))
    };
    let counters = |h: &Host| h.engine().vm(VmId(1)).expect("a VM").counters;
    let before = counters(&h).stale_answers;
    let table = TableFrame {
        frame: 1,
        accessed: 1,
        level: 1,
    };
    tell(&mut h, answer(999_999, vec![table]));
    assert_eq!(counters(&h).stale_answers, before + 1);
    // The pass that ends the next round's last window.
    loop {
        let asked = h
            .log()
            .iter()
            .rev()
            .take(2)
            .any(|r| matches!(r.1, Record::Action(Action::NameTables(_))));
        if asked {
            break;
        }
        assert!(h.step(Tick(60 * SECOND)), "no pass is asked to name tables");
    }
    let id = h.log().iter().rev().find_map(|r| match &r.1 {
        Record::Action(Action::Scan(request)) => Some(request.id.0),
        _ => None,
    });
    let before = counters(&h).malformed_answers;
    let beyond = TableFrame {
        frame: u32::MAX,
        ..table
    };
    tell(&mut h, answer(id.expect("a scan"), vec![table, beyond]));
    tell(&mut h, answer(id.expect("a scan"), vec![table, table]));
    assert_eq!(counters(&h).malformed_answers, before + 2);
}
