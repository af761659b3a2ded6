//! Pages that the host names, on a guest made of numbers.

use proptest::prelude::*;
use terrace_core::ranges::{Config, Range, Ranges};
use terrace_core::session::Session;
use terrace_core::session::replay::replay;
use terrace_proto::Tick;
use terrace_proto::log::{RangesRecord, Record};
use terrace_proto::ranges::{
    EpochSummary, Exchanged, FRAMES, Named, PieceRun, RangesBudget, RangesEvent, Side, Stopped,
};
use terrace_testkit::guest::{Guest, config, mapped, start};
use terrace_testkit::log::written;

fn range(start: u64, end: u64) -> Range {
    Range { start, end }
}

/// A process with 64 pages on the fast node and 192 on the slow one, and as many frames of nobody knows whom.
fn guest(config: Config, free: [u64; 2]) -> (Guest, Session<(), Ranges>) {
    let mut guest = Guest {
        free,
        ..Guest::default()
    };
    for owner in [7, FRAMES] {
        guest.put(owner, range(0, 64), 0);
        guest.put(owner, range(64, 256), 1);
    }
    let mut session = Session::new(Ranges::new(config), ());
    guest.tell(&mut session, mapped(7, range(0, 256)));
    (guest, session)
}

fn side(process: u32, pages: Range, node: u32) -> Side {
    let pieces = vec![PieceRun {
        page: pages.start,
        pieces: u32::try_from(pages.pages()).expect("few pages"),
        pages_each: 1,
        node,
    }];
    Side { process, pieces }
}

fn name(
    guest: &mut Guest,
    session: &mut Session<(), Ranges>,
    up: Vec<Side>,
    down: Vec<Side>,
) -> EpochSummary {
    let named = RangesEvent::Named(Named { up, down });
    let over = guest.tell(session, named);
    over.expect("named pages are an epoch of their own")
}

fn exchanged(summary: &EpochSummary) -> Exchanged {
    summary.exchanged.clone().unwrap_or_default()
}

#[test]
fn named_pages_come_up_into_what_is_free_beside_the_headroom() {
    let (mut guest, mut session) = guest(config(10), [30, 100]);
    let over = name(
        &mut guest,
        &mut session,
        vec![side(7, range(100, 120), 1)],
        vec![],
    );
    assert_eq!(exchanged(&over).promoted, 20);
    assert_eq!(
        (over.surveys, guest.surveys.len()),
        (0, 0),
        "nothing is asked"
    );
    let over = name(
        &mut guest,
        &mut session,
        vec![side(7, range(120, 140), 1)],
        vec![],
    );
    assert_eq!(exchanged(&over).promoted, 0);
    assert_eq!(guest.free[0], 10, "the headroom is left");
}

#[test]
fn where_fast_memory_is_full_as_many_go_down_as_come_up() {
    let (mut guest, mut session) = guest(config(0), [0, 100]);
    let up = vec![side(7, range(100, 150), 1)];
    let over = name(&mut guest, &mut session, up, vec![side(7, range(0, 30), 0)]);
    let exchanged = exchanged(&over);
    assert_eq!((exchanged.promoted, exchanged.demoted), (30, 30));
    assert_eq!(guest.free, [0, 100]);
}

#[test]
fn pages_that_are_named_cold_alone_go_down() {
    let (mut guest, mut session) = guest(config(0), [0, 100]);
    let over = name(
        &mut guest,
        &mut session,
        vec![],
        vec![side(7, range(0, 30), 0)],
    );
    assert_eq!((exchanged(&over).demoted, guest.free), (30, [30, 70]));
}

#[test]
fn full_nodes_move_nothing_without_the_module() {
    let up = || vec![side(7, range(100, 130), 1)];
    let down = || vec![side(7, range(0, 30), 0)];
    let (mut full, mut session) = guest(config(0), [0, 0]);
    let over = name(&mut full, &mut session, up(), down());
    assert_eq!(exchanged(&over).stopped, Some(Stopped::BothFull));
    assert_eq!(full.on_fast(7, range(0, 256)), 64);
    let with_module = Config {
        swaps: true,
        ..config(0)
    };
    let (mut full, mut session) = guest(with_module, [0, 0]);
    name(&mut full, &mut session, up(), down());
    assert_eq!(full.on_fast(7, range(100, 130)), 30);
}

#[test]
fn pages_of_unknown_processes_and_those_that_are_there_are_left() {
    let (mut guest, mut session) = guest(config(0), [100, 100]);
    let up = vec![side(8, range(0, 9), 1), side(7, range(0, 9), 0)];
    let over = name(&mut guest, &mut session, up, vec![]);
    assert_eq!(exchanged(&over), Exchanged::default());
    assert!(guest.migrations.is_empty());
}

/// A budget of 200 pages in half a second.
fn small_budget() -> Config {
    let budget = RangesBudget {
        bytes_per_s: 200 * 4096 * 2,
        cpu_percent: 5,
    };
    Config {
        budget,
        extent_pages: 1,
        ..config(0)
    }
}

#[test]
fn no_more_is_copied_than_the_budget_allows() {
    let (mut guest, mut session) = guest(small_budget(), [200, 200]);
    let over = name(
        &mut guest,
        &mut session,
        vec![side(7, range(64, 256), 1)],
        vec![],
    );
    assert_eq!(
        exchanged(&over).promoted,
        100,
        "half of a round's 200 pages each way"
    );
}

#[test]
fn frames_move_by_the_same_limits_whoever_has_them() {
    let (mut guest, mut session) = guest(config(10), [30, 100]);
    let up = |pages| vec![side(FRAMES, pages, 1)];
    let over = name(&mut guest, &mut session, up(range(100, 200)), vec![]);
    assert_eq!(exchanged(&over).promoted, 20, "beside the headroom");
    let down = vec![side(FRAMES, range(0, 30), 0)];
    let over = name(&mut guest, &mut session, up(range(120, 200)), down);
    let exchanged = exchanged(&over);
    assert_eq!((exchanged.promoted, exchanged.demoted), (30, 30));
    assert_eq!(guest.free[0], 10);
    let first = guest
        .migrations
        .get(1)
        .expect("the second naming's first move");
    assert_eq!(
        (first.process, first.node),
        (FRAMES, 1),
        "demotions come first"
    );
}

#[test]
fn frames_on_full_nodes_stay_they_cannot_be_exchanged() {
    let with_module = Config {
        swaps: true,
        ..config(0)
    };
    let (mut guest, mut session) = guest(with_module, [0, 0]);
    let up = vec![side(FRAMES, range(100, 130), 1)];
    let over = name(
        &mut guest,
        &mut session,
        up,
        vec![side(FRAMES, range(0, 30), 0)],
    );
    assert_eq!(exchanged(&over).stopped, Some(Stopped::BothFull));
    assert_eq!((guest.migrations.len(), guest.swapped), (0, 0));
}

#[test]
fn pages_that_are_named_twice_at_once_have_one_budget() {
    let (mut guest, mut session) = guest(small_budget(), [200, 200]);
    let mut promoted = || {
        let up = vec![side(FRAMES, range(64, 256), 1)];
        let over = name(&mut guest, &mut session, up, vec![]);
        guest.now = Tick(guest.now.0 + 125_000_000);
        exchanged(&over).promoted
    };
    // Half of the pages that are saved up go each way; a quarter of an epoch passes between two namings.
    assert_eq!([promoted(), promoted(), promoted()], [100, 75, 62]);
}

#[test]
fn named_pages_are_replayed_to_the_same_moves() {
    let settings = config(4);
    let mut guest = Guest {
        free: [40, 100],
        ..Guest::default()
    };
    guest.put(7, range(0, 64), 0);
    guest.put(7, range(64, 256), 1);
    let log = vec![(Tick(0), start(&settings))];
    let mut session = Session::new(Ranges::new(settings), log);
    guest.tell(&mut session, mapped(7, range(0, 256)));
    for at in [70, 90, 130] {
        let named = Named {
            up: vec![side(7, range(at, at + 20), 1)],
            down: vec![side(7, range(at / 10, at / 10 + 3), 0)],
        };
        guest.tell(&mut session, RangesEvent::Named(named));
    }
    let records = session.log().clone();
    let named = |record: &&(Tick, Record)| {
        matches!(
            record.1,
            Record::Ranges(RangesRecord::Event(RangesEvent::Named(_)))
        )
    };
    assert_eq!(records.iter().filter(named).count(), 3);
    let replayed = replay(&written(&records)[..]).unwrap();
    assert_eq!(replayed.records, records.len() as u64);
    assert_eq!(replayed.unrecorded_actions, 0);
}

proptest! {
    #[test]
    fn whatever_is_named_no_page_is_lost_and_the_headroom_stays(
        free in (0_u64..80, 0_u64..80),
        headroom in 0_u64..20,
        named in proptest::collection::vec(
            (0_u64..300, 0_u64..40, any::<bool>(), prop_oneof![6_u32..9, Just(FRAMES)]),
            0..12,
        ),
        busy in proptest::collection::btree_set((7_u32..8, 0_u64..256), 0..3),
    ) {
        let (mut guest, mut session) = guest(config(headroom), [free.0, free.1]);
        guest.busy = busy;
        let before = guest.pages.len();
        let (mut up, mut down) = (Vec::new(), Vec::new());
        for (start, pages, is_up, process) in named {
            // By the kernel's word; a run is on one node.
            let (node, end) = if start < 64 { (0, (start + pages).min(64)) } else { (1, start + pages) };
            let side = side(process, range(start, end), node);
            if is_up { up.push(side) } else { down.push(side) }
        }
        name(&mut guest, &mut session, up, down);
        prop_assert_eq!(guest.pages.len(), before);
        prop_assert_eq!(guest.free.iter().sum::<u64>(), free.0 + free.1);
        // Pages that do not go down are the headroom's, as in guest mode.
        if guest.busy.is_empty() {
            prop_assert!(guest.free[0] >= headroom.min(free.0), "{:?}", guest.free);
        }
    }
}
