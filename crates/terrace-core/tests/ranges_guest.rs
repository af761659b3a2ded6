//! The controller of ranges on a guest made of numbers: what may be spent, what is asked about, what is left alone.

use std::collections::BTreeSet;

use terrace_core::ranges::{Config, Range, Ranges};
use terrace_core::session::Session;
use terrace_core::session::replay::replay;
use terrace_proto::Tick;
use terrace_proto::log::{RangesRecord, Record};
use terrace_proto::ranges::{
    EpochSummary, Exchanged, MigrationOutcome, PieceState, RangesBudget, RangesEvent, Stopped,
    Surveyed,
};
use terrace_testkit::guest::{Guest, config, mapped, start};
use terrace_testkit::log::written;

/// A block of 2 MiB.
const BLOCK: u64 = 512;

fn blocks(from: u64, count: u64) -> Range {
    Range {
        start: from * BLOCK,
        end: (from + count) * BLOCK,
    }
}

/// A process with 16 blocks, the first four of them in fast memory, and what is free.
fn guest(config: Config, free: [u64; 2]) -> (Guest, Session<(), Ranges>) {
    let mut guest = Guest {
        free,
        survey_ns: 1000,
        ..Guest::default()
    };
    guest.put(7, blocks(0, 4), 0);
    guest.put(7, blocks(4, 12), 1);
    let mut session = Session::new(Ranges::new(config), ());
    guest.tell(&mut session, mapped(7, blocks(0, 16)));
    (guest, session)
}

const HOT: u32 = 600;

fn run(guest: &mut Guest, session: &mut Session<(), Ranges>, epochs: u32) -> Vec<EpochSummary> {
    let heat = [(7, blocks(12, 3), HOT)];
    (0..epochs).map(|_| guest.epoch(session, &heat)).collect()
}

fn moved(epochs: &[EpochSummary]) -> (u64, u64) {
    let exchanged = epochs.iter().filter_map(|epoch| epoch.exchanged.as_ref());
    exchanged.fold((0, 0), |(up, down), e: &Exchanged| {
        (up + e.promoted, down + e.demoted)
    })
}

#[test]
fn hot_pages_replace_cold_ones_and_then_nothing_moves() {
    let (mut guest, mut session) = guest(config(256), [256, 4096]);
    run(&mut guest, &mut session, 15);
    assert_eq!(guest.on_fast(7, blocks(12, 3)), 3 * BLOCK);
    assert_eq!(guest.on_fast(7, blocks(0, 16)), 4 * BLOCK);
    assert_eq!(guest.free, [256, 4096], "what is free stays as it is");
    let quiet = run(&mut guest, &mut session, 10);
    assert_eq!(moved(&quiet), (0, 0));
}

#[test]
fn no_extent_is_asked_about_twice_in_an_epoch() {
    let (mut guest, mut session) = guest(config(256), [256, 4096]);
    guest.busy = (12 * BLOCK..13 * BLOCK).map(|page| (7, page)).collect();
    let mut asked = 0;
    for _ in 0..20 {
        run(&mut guest, &mut session, 1);
        let each: BTreeSet<u64> = guest.surveys.iter().map(|s| s.range.start).collect();
        assert_eq!(each.len(), guest.surveys.len(), "{:?}", guest.surveys);
        asked += each.len();
    }
    assert!(asked >= 16 * 19, "{asked}");
}

#[test]
fn what_a_move_did_its_own_answer_says() {
    let (mut guest, mut session) = guest(config(256), [256, 4096]);
    // Nothing is surveyed but what is to move.
    run(&mut guest, &mut session, 1);
    let none = RangesBudget {
        bytes_per_s: 512 << 20,
        cpu_percent: 0,
    };
    guest.tell(&mut session, RangesEvent::Budget(none));
    let epochs = run(&mut guest, &mut session, 12);
    assert!(epochs.iter().all(|epoch| epoch.surveys == 0));
    assert_eq!(guest.on_fast(7, blocks(12, 3)), 3 * BLOCK);
    let known = session.controller().programs()[&7].total();
    assert_eq!((known.fast, known.slow), (4 * BLOCK, 12 * BLOCK));
}

#[test]
fn the_budget_covers_both_directions_and_the_rest_waits() {
    let (mut guest, mut session) = guest(config(256), [256, 4096]);
    let small = RangesBudget {
        bytes_per_s: 8 << 20,
        cpu_percent: 5,
    };
    guest.tell(&mut session, RangesEvent::Budget(small));
    let epochs = run(&mut guest, &mut session, 20);
    for epoch in &epochs {
        let (up, down) = moved(std::slice::from_ref(epoch));
        assert!(up + down <= 2 * BLOCK, "{epoch:?}");
    }
    let (up, down) = moved(&epochs);
    // 1,024 pages an epoch, and a huge page each way at the first.
    assert!(
        up + down <= 1024 * 20 + 2 * BLOCK && up > BLOCK,
        "{up}, {down}"
    );
}

#[test]
fn full_tiers_without_headroom_move_nothing_and_give_the_reason() {
    let (mut guest, mut session) = guest(config(0), [0, 0]);
    let epochs = run(&mut guest, &mut session, 8);
    let mut stopped = epochs.iter().filter_map(|e| e.exchanged.as_ref()?.stopped);
    assert_eq!(stopped.next_back(), Some(Stopped::BothFull));
    assert_eq!(moved(&epochs), (0, 0));
}

#[test]
fn full_tiers_exchange_in_place_until_the_hot_pages_are_up() {
    let config = Config {
        swaps: true,
        ..config(0)
    };
    let (mut guest, mut session) = guest(config, [0, 0]);
    let epochs = run(&mut guest, &mut session, 20);
    let (up, down) = moved(&epochs);
    assert!(up > 0 && up == down, "{up} up, {down} down");
    assert_eq!((guest.swapped, guest.free), (up, [0, 0]));
    assert!(guest.migrations.is_empty());
    let still = epochs.last().and_then(|epoch| epoch.exchanged.as_ref());
    assert!(
        still.is_none_or(|exchanged| exchanged.promoted == 0),
        "it comes to rest"
    );
}

#[test]
fn an_extent_that_cannot_move_rests_for_a_while() {
    let (mut guest, mut session) = guest(config(256), [256, 4096]);
    guest.busy = (12 * BLOCK..15 * BLOCK).map(|page| (7, page)).collect();
    let epochs = run(&mut guest, &mut session, 40);
    let tried = epochs
        .iter()
        .filter(|e| e.exchanged.as_ref().is_some_and(|e| e.busy > 0));
    let tried = tried.count();
    assert!((1..15).contains(&tried), "{tried} of 40 epochs");
}

#[test]
fn a_process_that_the_kernel_refuses_is_left_alone_and_told_of() {
    let (mut guest, mut session) = guest(config(256), [256, 4096]);
    guest.refuses.insert(7);
    let epochs = run(&mut guest, &mut session, 60);
    let exchanged = epochs.iter().filter_map(|epoch| epoch.exchanged.as_ref());
    let refused: Vec<_> = exchanged.map(|e| e.refused.clone()).collect();
    assert_eq!(refused, [vec![7]], "it is tried once in 120 epochs");
}

#[test]
fn answers_that_were_not_asked_for_change_nothing() {
    let (_, mut session) = guest(config(256), [256, 4096]);
    let stray = [
        RangesEvent::Free(Vec::new()),
        RangesEvent::Surveyed(Surveyed {
            id: 0,
            present: None,
            cpu_ns: 0,
        }),
        RangesEvent::Migrated(MigrationOutcome {
            id: 0,
            states: vec![(u32::MAX, PieceState::On(9))],
            refusal: None,
        }),
    ];
    for event in stray {
        assert_eq!(session.hear(Tick(1), event), []);
    }
    assert_eq!(session.controller().epoch(), 0);
}

#[test]
fn recorded_ranges_replay_exactly_and_a_misplaced_page_shows() {
    let config = config(256);
    let (mut guest, _) = guest(config.clone(), [256, 4096]);
    let log = vec![(Tick(0), start(&config))];
    let mut session = Session::new(Ranges::new(config), log);
    guest.tell(&mut session, mapped(7, blocks(0, 16)));
    for _ in 0..12 {
        guest.epoch(&mut session, &[(7, blocks(12, 3), HOT)]);
    }
    let mut records = session.log().clone();
    let replayed = replay(&written(&records)[..]).unwrap();
    assert_eq!(replayed.records, records.len() as u64);
    assert_eq!(replayed.unrecorded_actions, 0);
    let answer = records
        .iter_mut()
        .rev()
        .find_map(|(_, record)| match record {
            Record::Ranges(RangesRecord::Event(RangesEvent::Migrated(answer))) => Some(answer),
            _ => None,
        });
    answer.unwrap().states = vec![(1, PieceState::Busy)];
    assert!(replay(&written(&records)[..]).is_err());
}
