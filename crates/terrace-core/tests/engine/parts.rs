//! Rounds that look at parts of a VM's memory in turn.

use terrace_core::session::other::{Other, OtherError, Refused, replay_with};
use terrace_core::session::replay::replay;
use terrace_core::{EngineConfig, PhaseView, PolicyChoice, PolicyName};
use terrace_proto::log::Record;
use terrace_proto::{
    Action, Event, PartAnswer, PartCell, PartRequest, ScanStats, Space, Tick, VmId,
};
use terrace_testkit::engine::scattered::{EXCHANGED, FAST, PAGES, scattered};
use terrace_testkit::engine::{Host, SECOND, spec};
use terrace_testkit::log::written;

use crate::in_rounds::{VM, actions, host_with, last, scans};

const MS: u64 = 1_000_000;

fn config(parts: u16) -> EngineConfig {
    EngineConfig {
        policy: PolicyName::Vtmm.into(),
        scan_parts: parts,
        window_ms: 20,
        ..EngineConfig::default()
    }
}

pub fn passes(host: &Host) -> Vec<(Tick, &PartRequest)> {
    actions(host, |action| match action {
        Action::ScanPart(request) => Some(request),
        _ => None,
    })
    .collect()
}

#[test]
fn each_part_has_the_windows_of_a_round_and_none_is_left_out() {
    let mut host = host_with(config(4));
    host.run_until(Tick(30 * SECOND));
    assert!(scans(&host).is_empty(), "no pass is over all");
    let passes = passes(&host);
    assert_eq!(
        passes.len(),
        4 * 9,
        "a clearing pass and eight windows each"
    );
    for (index, of_part) in passes.chunks(9).enumerate() {
        for (number, (_, pass)) in of_part.iter().enumerate() {
            assert_eq!((pass.part.index() as usize, pass.part.count()), (index, 4));
            assert_eq!(pass.discover, (index, number) == (0, 0));
            // The last window's bits are cleared by the next round.
            assert_eq!(pass.clear, number < 8);
        }
        let windows = of_part.windows(2).map(|two| two[1].0.0 - two[0].0.0);
        assert!(
            windows
                .into_iter()
                .all(|ns| (20 * MS..25 * MS).contains(&ns))
        );
    }
}

#[test]
fn a_hot_set_is_found_part_by_part() {
    let mut host = host_with(config(8));
    host.run_until(Tick(50 * SECOND));
    let round = last(&host);
    assert_eq!(round.scan.scans, 8 * 9);
    assert_eq!(round.known_pages, PAGES);
    assert_eq!((round.hot_pages, round.promoted_pages), (FAST, EXCHANGED));
}

#[test]
fn a_window_is_shown_with_the_part_that_it_is_of() {
    let mut host = host_with(config(4));
    let mut shown = Vec::new();
    for ms in 0..900 {
        host.run_until(Tick(ms * MS));
        if let PhaseView::Window { part, .. } = host.engine().vm(VM).unwrap().phase {
            shown.push(part.unwrap().to_string());
        }
    }
    shown.dedup();
    let observe = host.engine().vm(VM).unwrap().mechanism.observe;
    assert!(
        observe.ends_with("4 parts in turn by windows of 20 ms, every page re-armed"),
        "{observe}"
    );
    let parts = ["part 1 of 4", "part 2 of 4", "part 3 of 4", "part 4 of 4"];
    assert_eq!(shown, parts);
}

#[test]
fn windows_of_parts_that_are_stretched_push_no_reason_out() {
    let mut host = host_with(EngineConfig {
        window_ms: 1,
        scan_cpu_share_max_percent: 1,
        ..config(16)
    });
    host.run_until(Tick(50 * SECOND));
    assert_eq!(last(&host).scan.stretched_windows, 16 * 8);
    let reasons = host.engine().vm(VM).unwrap().reasons;
    let said: Vec<_> = reasons
        .iter()
        .filter(|reason| reason.text.contains("a scan of a part took"))
        .collect();
    assert_eq!(said.len(), 1, "one a round");
}

#[test]
fn another_round_draws_other_parts() {
    let mut host = host_with(EngineConfig {
        quiet_counter_max: 0,
        ..config(4)
    });
    host.run_until(Tick(100 * SECOND));
    let passes = passes(&host);
    assert_eq!(passes.len(), 2 * 4 * 9);
    assert_ne!(passes[0].1.part, passes[4 * 9].1.part);
}

#[test]
fn a_log_by_parts_is_replayed_with_its_own_policy_alone() {
    let mut host = host_with(config(4));
    host.run_until(Tick(100 * SECOND));
    let log = written(host.log());
    let replayed = replay(&log[..]).unwrap();
    assert_eq!(replayed.unrecorded_actions, 0);
    assert!(replayed.actions > 36);
    let other = Other {
        policy: PolicyChoice::Named("fixed-threshold".into()),
        window_ms: None,
    };
    match replay_with(&log[..], &other) {
        Err(OtherError::Refused(Refused::Parts(4))) => {}
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_cannot_be_about_the_part_ends_the_round() {
    let bad: [fn(&mut PartAnswer); 4] = [
        |answer| answer.part = answer.part.next().unwrap(),
        |answer| answer.cells[0].at = u32::MAX,
        |answer| answer.cells[0].accessed = 1,
        |answer| answer.huge = vec![9, 3],
    ];
    for change in bad {
        let mut host = Host::new(config(4), &[PAGES, 4 * PAGES]);
        host.arrive(spec(1, PAGES, FAST), Box::new(scattered));
        let mut now = 0;
        while !matches!(
            host.log().last(),
            Some((_, Record::Action(Action::ScanPart(_))))
        ) {
            now += MS / 10;
            host.run_until(Tick(now));
        }
        let (_, pending) = passes(&host).pop().expect("a pass");
        let mut answer = PartAnswer {
            id: pending.id,
            space: Space::Guest(VM),
            part: pending.part,
            cells: vec![PartCell {
                at: 0,
                mapped: 2,
                accessed: 0,
            }],
            huge: Vec::new(),
            written: None,
            stats: ScanStats::default(),
        };
        change(&mut answer);
        let before = host.engine().vm(VM).unwrap().counters.malformed_answers;
        host.after(0, Event::ScannedPart(Box::new(answer)));
        host.run_until(Tick(now + MS));
        let after = host.engine().vm(VM).unwrap().counters;
        assert_eq!(after.malformed_answers, before + 1);
        assert_eq!(after.rounds_abandoned, 1);
    }
}

#[test]
fn a_vm_that_goes_in_the_middle_leaves_nothing_behind() {
    let mut host = host_with(config(4));
    host.run_until(Tick(SECOND / 10));
    host.after(0, Event::VmDeparted(VmId(1)));
    host.run_until(Tick(2 * SECOND));
    assert!(host.engine().vm(VM).is_none());
}
