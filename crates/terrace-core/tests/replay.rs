//! Logs replayed with the policy that recorded them, with another one, broken, and refused.

#![allow(clippy::unwrap_used, reason = "test helpers outside of test functions")]

use proptest::prelude::*;
use terrace_core::session::other::{Other, OtherError, Refused, ReplayReport, replay_with};
use terrace_core::session::replay::{ReplayError, replay};
use terrace_core::{EngineConfig, PolicyChoice, PolicyName, TierKind};
use terrace_proto::log::{LogError, Record};
use terrace_proto::{Command, Event, Gfn, PageSize, RamChange, RamRange, Tick, VmId};

use terrace_testkit::engine::scattered::{EXCHANGED, FAST, PAGES, scattered};
use terrace_testkit::engine::{Heat, Host, SECOND, spec};
use terrace_testkit::log::written;

const VM: VmId = VmId(1);

fn config(policy: PolicyName) -> EngineConfig {
    EngineConfig {
        policy: policy.into(),
        rearm_all: true,
        quiet_counter_max: 0,
        ..EngineConfig::default()
    }
}

/// A machine with room for an exchange, and a VM of `pages` with `fast` of them in the first tier.
fn host(config: EngineConfig, pages: u64, fast: u64, heat: Heat) -> Host {
    let mut host = Host::new(config, &[pages, 4 * pages]);
    host.arrive(spec(1, pages, fast), heat);
    host
}

/// A run of three rounds of a VM with a scattered hot fifth.
fn three_rounds(config: EngineConfig) -> Host {
    let mut host = host(config, PAGES, FAST, Box::new(scattered));
    host.run_until(Tick(170 * SECOND));
    host
}

fn named(policy: &str) -> Other {
    Other {
        policy: PolicyChoice::Named(policy.into()),
        window_ms: None,
    }
}

fn staged(stages: &str) -> Other {
    Other {
        policy: serde_json::from_str(stages).unwrap(),
        window_ms: None,
    }
}

fn other(host: &Host, policy: &str) -> ReplayReport {
    replay_with(&written(host.log())[..], &named(policy)).unwrap()
}

fn refused(records: &[(Tick, Record)], other: &Other) -> Refused {
    match replay_with(&written(records)[..], other) {
        Err(OtherError::Refused(refused)) => refused,
        got => panic!("not refused: {got:?}"),
    }
}

#[test]
fn a_log_replays_exactly_even_if_every_page_was_rearmed() {
    for rearm_all in [false, true] {
        let config = EngineConfig {
            rearm_all,
            ..config(PolicyName::Vtmm)
        };
        let host = three_rounds(config);
        let replayed = replay(&written(host.log())[..]).unwrap();
        let events = host
            .log()
            .iter()
            .filter(|(_, r)| matches!(r, Record::Event(_)));
        assert_eq!(replayed.events, events.count() as u64);
        assert_eq!(replayed.records, host.log().len() as u64);
    }
}

#[test]
fn re_arming_every_page_changes_no_decision() {
    let moves = |rearm_all| {
        let host = three_rounds(EngineConfig {
            rearm_all,
            ..config(PolicyName::Vtmm)
        });
        host.engine().vm(VM).unwrap().counters
    };
    assert_eq!(moves(false), moves(true));
}

#[test]
fn another_policy_places_known_accesses_where_they_belong() {
    // Every fourth page is accessed in every window, and no other; 4 of the 16 are in fast memory.
    let heat = |page: u64, _: u64| (page % 4 == 1, false);
    let mut host = host(config(PolicyName::Random), 64, 16, Box::new(heat));
    host.run_until(Tick(170 * SECOND));
    let report = other(&host, "vtmm");
    let vm = &report.vms[0];
    assert_eq!(vm.coverage, Some(1.0));
    assert_eq!((vm.unit_windows, vm.accesses), (64 * 24, 16 * 24));
    assert_eq!(
        (vm.other.rounds, vm.recorded.rounds, vm.missed_rounds),
        (3, 3, 0)
    );
    assert_eq!((vm.other.promoted_pages, vm.other.demoted_pages), (12, 12));
    // A quarter in the first round, all in the other two.
    assert_eq!(vm.other.fast_share, Some(0.75));
    let recorded = host.engine().vm(VM).unwrap().counters;
    assert_eq!(vm.recorded.promoted_pages, recorded.promoted_pages);
    assert_eq!(vm.recorded.demoted_pages, recorded.demoted_pages);
    assert!(vm.recorded.fast_share < Some(0.5));
    assert_eq!((report.window_s, report.recorded_window_s), (0.6, 0.6));
}

#[test]
fn another_policy_decides_as_if_it_had_run_itself() {
    let log = three_rounds(config(PolicyName::Random)).log().to_vec();
    let itself = three_rounds(config(PolicyName::Vtmm));
    let counters = itself.engine().vm(VM).unwrap().counters;
    let report = replay_with(&written(&log)[..], &named("vtmm")).unwrap();
    let got = &report.vms[0].other;
    assert!(got.promoted_pages >= EXCHANGED);
    assert_eq!(got.promoted_pages, counters.promoted_pages);
    assert_eq!(got.demoted_pages, counters.demoted_pages);
    assert_eq!(got.rounds, counters.rounds);
    let own = other(&itself, "vtmm");
    assert_eq!(own.vms[0].recorded, own.vms[0].other);
    assert_eq!(own.vms[0].recorded, *got);
}

#[test]
fn vms_that_share_a_pool_are_replayed_together() {
    let mut config = config(PolicyName::Vtmm);
    config.share_lower_percent = 25;
    let mut host = Host::new(config, &[128, 1024]);
    // The second VM has no hot pages, and the first one more than its nominal size.
    for (vm, hot) in [(1, 90), (2, 0)] {
        let heat = move |page: u64, _: u64| (page % 200 >= 200 - hot, false);
        host.arrive(spec(vm, 256, 64), Box::new(heat));
        host.after(0, Event::Command(Command::FastSize(VmId(vm), 64 * 4096)));
    }
    for at in [60, 120, 180, 230] {
        host.run_until(Tick(at * SECOND));
        host.memory();
    }
    let report = other(&host, "vtmm");
    for (vm, id) in report.vms.iter().zip([VM, VmId(2)]) {
        let counters = host.engine().vm(id).unwrap().counters;
        assert_eq!(vm.recorded, vm.other, "{}", vm.name);
        assert_eq!(vm.other.promoted_pages, counters.promoted_pages);
        assert_eq!(vm.other.rounds, counters.rounds);
    }
    assert!(report.vms[0].other.promoted_pages > 0);
}

#[test]
fn policies_without_scans_are_measured_on_the_same_accesses() {
    let host = three_rounds(config(PolicyName::Vtmm));
    let first_touch = other(&host, "first-touch");
    let vm = &first_touch.vms[0];
    assert_eq!(
        (vm.other.promoted_pages, vm.other.rounds, vm.missed_rounds),
        (0, 0, 0)
    );
    assert!(vm.other.fast_share < vm.recorded.fast_share);
    assert_eq!(vm.accesses, other(&host, "prefer-slow").vms[0].accesses);
    let slow = other(&host, "all-slow").vms[0].other.clone();
    assert_eq!((slow.promoted_pages, slow.demoted_pages), (0, FAST));
}

#[test]
fn a_full_record_covers_what_the_multi_level_queue_rests() {
    let coverage = |rearm_all| {
        let host = three_rounds(EngineConfig {
            rearm_all,
            ..config(PolicyName::Vtmm)
        });
        let report = other(&host, "fixed-threshold");
        let rests = report.notes.iter().any(|n| n.contains("record = \"full\""));
        (report.vms[0].coverage.unwrap(), rests)
    };
    let (part, said) = coverage(false);
    assert!(part > 0.5 && part < 0.99 && said, "{part}");
    assert_eq!(coverage(true), (1.0, false));
}

#[test]
fn windows_are_taken_together_where_coarser_ones_are_asked_for() {
    // Accessed in odd scans only: every window of two, half of the windows of one.
    let heat = |page: u64, scan: u64| (page < 4 && scan % 2 == 1, false);
    let mut host = host(config(PolicyName::Random), 64, 16, Box::new(heat));
    host.run_until(Tick(50 * SECOND));
    let threshold = |window_ms| {
        let other = Other {
            policy: PolicyChoice::Named("fixed-threshold".into()),
            window_ms: Some(window_ms),
        };
        replay_with(&written(host.log())[..], &other).unwrap()
    };
    assert_eq!(threshold(1200).window_s, 1.2);
    assert_eq!(
        threshold(1200).vms[0].accesses,
        threshold(600).vms[0].accesses
    );
    assert_eq!(threshold(1200).vms[0].other.rounds, 1);
}

#[test]
fn limits_set_while_recording_hold_for_the_other_policy() {
    let heat = |page: u64, _: u64| (page % 4 == 1, false);
    let mut host = host(config(PolicyName::Random), 64, 16, Box::new(heat));
    let mut limits = spec(1, 64, 16).limits;
    limits[0].ceiling_bytes = 8 * 4096;
    host.after(0, Event::Command(Command::Limits(VM, limits)));
    host.run_until(Tick(110 * SECOND));
    let vm = &other(&host, "vtmm").vms[0];
    // The first 16 pages were there; 8 may be, and in the second round all of them are hot.
    assert_eq!(vm.other.demoted_pages - vm.other.promoted_pages, 8);
    assert_eq!(vm.other.fast_share, Some((0.25 + 0.5) / 2.0));
}

#[test]
fn ram_that_the_engine_refuses_is_not_laid_out_in_a_replay() {
    let host = three_rounds(config(PolicyName::Vtmm));
    for pages in [1 << 60, u64::MAX] {
        let mut records = host.log().to_vec();
        let change = RamChange {
            vm: VM,
            ram: vec![RamRange {
                start: Gfn(0),
                pages,
            }],
            unit: PageSize::Base,
        };
        let event = Record::Event(Event::RamChanged(change));
        records.push((Tick(171 * SECOND), event));
        replay_with(&written(&records)[..], &named("vtmm")).unwrap();
    }
}

#[test]
fn a_truncated_log_replays_to_its_last_whole_record() {
    let bytes = written(three_rounds(config(PolicyName::Vtmm)).log());
    let cut = &bytes[..bytes.len() * 2 / 3];
    assert!(replay(cut).unwrap().cut_off);
    let report = replay_with(cut, &named("random")).unwrap();
    let rounds = report.vms[0].recorded.rounds;
    assert!(
        report.cut_off && (1..3).contains(&rounds),
        "{rounds} rounds"
    );
}

#[test]
fn a_log_of_another_version_is_named() {
    let mut bytes = written(three_rounds(config(PolicyName::Vtmm)).log());
    bytes[8] = 7;
    let error = replay_with(&bytes[..], &named("vtmm")).unwrap_err();
    assert!(
        matches!(
            error,
            OtherError::Log(ReplayError::Log(LogError::Version(7)))
        ),
        "{error}"
    );
}

#[test]
fn a_record_too_long_to_be_true_is_named_by_its_place() {
    let mut bytes = written(&three_rounds(config(PolicyName::Vtmm)).log()[..1]);
    let end = bytes.len();
    bytes.extend([0, 1, 255, 255, 255, 255, 0, 0, 0, 0, 0, 0, 0, 0]);
    for error in [
        replay(&bytes[..]).unwrap_err().to_string(),
        replay_with(&bytes[..], &named("vtmm"))
            .unwrap_err()
            .to_string(),
    ] {
        assert!(
            error.contains(&format!("record 1 at byte {end}")),
            "{error}"
        );
    }
}

#[test]
fn two_logs_in_one_file_are_refused() {
    let log = three_rounds(config(PolicyName::Vtmm)).log().to_vec();
    let twice = [&log[..5], &log[..5]].concat();
    let error = replay_with(&written(&twice)[..], &named("vtmm")).unwrap_err();
    assert!(matches!(error, OtherError::SecondStart(5)), "{error}");
}

#[test]
fn an_unknown_policy_is_refused_with_the_names_there_are() {
    let log = written(three_rounds(config(PolicyName::Vtmm)).log());
    let error = replay_with(&log[..], &named("lru")).unwrap_err();
    let why = std::error::Error::source(&error).unwrap().to_string();
    let names = "\"lru\" is unknown: allowed is vtmm";
    assert!(why.contains(names), "{error}: {why}");
}

#[test]
fn a_log_without_scans_is_refused() {
    let log = three_rounds(config(PolicyName::PreferFast)).log().to_vec();
    assert_eq!(refused(&log, &named("vtmm")), Refused::NoScans);
}

#[test]
fn a_log_without_placement_is_refused() {
    let mut log = three_rounds(config(PolicyName::Vtmm)).log().to_vec();
    log.retain(|(_, r)| !matches!(r, Record::Event(Event::Placement(_))));
    assert_eq!(
        refused(&log, &named("random")),
        Refused::NoPlacement("vm1".into())
    );
}

#[test]
fn a_policy_that_reads_second_stage_tables_is_refused() {
    let log = three_rounds(config(PolicyName::Vtmm)).log().to_vec();
    let ept = staged(r#"{"base": "vtmm", "observe": "ept-scan"}"#);
    let refused = refused(&log, &ept);
    assert!(
        matches!(
            refused,
            Refused::OtherTables {
                instead: "guest-scan",
                ..
            }
        ),
        "{refused}"
    );
}

#[test]
fn windows_finer_than_the_logs_are_refused() {
    let log = three_rounds(config(PolicyName::Vtmm)).log().to_vec();
    let fine = Other {
        window_ms: Some(300),
        ..named("vtmm")
    };
    let refused = refused(&log, &fine);
    assert!(matches!(refused, Refused::FinerWindows { .. }), "{refused}");
}

#[test]
fn windows_that_make_no_whole_rounds_are_refused() {
    let log = three_rounds(config(PolicyName::Vtmm)).log().to_vec();
    for window_ms in [900, 1800] {
        let uneven = Other {
            window_ms: Some(window_ms),
            ..named("vtmm")
        };
        let refused = refused(&log, &uneven);
        assert!(
            matches!(refused, Refused::UnevenWindows { .. }),
            "{refused}"
        );
    }
}

#[test]
fn regions_that_damon_saw_are_refused() {
    let mut log = three_rounds(config(PolicyName::Vtmm)).log().to_vec();
    for (_, record) in &mut log {
        if let Record::Event(Event::Scanned(answer)) = record {
            answer.stats.accessed = answer.accessed.count();
        }
    }
    assert_eq!(
        refused(&log, &named("random")),
        Refused::Damon("vm1".into())
    );
}

#[test]
fn a_log_without_written_bits_is_said_where_writes_weigh_more() {
    let said = |writes, kind| {
        let mut config = config(PolicyName::Vtmm);
        config.tiers[1].kind = kind;
        let mut host = host(config, PAGES, FAST, Box::new(scattered));
        host.guests.get_mut(&VM).unwrap().writes = writes;
        host.run_until(Tick(50 * SECOND));
        let notes = other(&host, "random").notes;
        notes.iter().any(|n| n.contains("no written bits"))
    };
    assert!(said(false, TierKind::Pmem));
    assert!(!said(true, TierKind::Pmem));
    assert!(!said(false, TierKind::Generic));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn broken_bytes_give_an_error_or_a_result_and_never_a_panic(
        broken in prop::collection::vec((any::<prop::sample::Index>(), 1_u8..), 1..4),
        end in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let heat = |page: u64, scan: u64| (page % 4 == scan % 4, false);
        let mut host = host(config(PolicyName::Vtmm), 64, 16, Box::new(heat));
        host.run_until(Tick(70 * SECOND));
        let mut bytes = written(host.log());
        for (at, bits) in broken {
            let at = at.index(bytes.len());
            bytes[at] ^= bits;
        }
        let end = end.map_or(bytes.len(), |end| end.index(bytes.len()));
        for policy in ["random", "prefer-fast"] {
            if let Err(error) = replay_with(&bytes[..end], &named(policy)) {
                prop_assert!(!error.to_string().is_empty());
            }
        }
        if let Err(error) = replay(&bytes[..end]) {
            prop_assert!(!error.to_string().is_empty());
        }
    }
}

#[test]
fn epochs_and_rounds_are_not_replayed_as_each_other() {
    let rounds = three_rounds(config(PolicyName::Vtmm));
    let mut epochs = host(
        config(PolicyName::Hmvisor),
        PAGES,
        FAST,
        Box::new(scattered),
    );
    epochs.run_until(Tick(20 * SECOND));
    for (log, policy) in [(&rounds, "hmvisor"), (&epochs, "vtmm")] {
        let why = refused(log.log(), &named(policy));
        assert!(matches!(why, Refused::OtherEpochs { .. }), "{why}");
    }
    // Advice that leads on, not to the next refusal: no stage and no parameter helps.
    for own in [
        "\"hmvisor\"",
        "{\"base\":\"hmvisor\",\"observe\":\"ept-scan\"}",
    ] {
        let why = refused(epochs.log(), &staged(own)).to_string();
        assert!(why.contains("replay it without naming a policy"), "{why}");
    }
    assert!(replay(&written(epochs.log())[..]).is_ok());
}
