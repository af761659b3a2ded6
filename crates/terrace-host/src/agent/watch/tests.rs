use terrace_proto::TierId;
use terrace_proto::agent::{Mechanism, NodeMemory, Pressure, Report};
use terrace_testkit::agent::hello;

use super::*;

const RAM: u64 = 4 << 30;

fn at(ms: u64) -> Tick {
    Tick(ms.saturating_mul(1_000_000))
}

fn report() -> Report {
    let node = |node, tier| NodeMemory {
        node,
        tier: TierId(tier),
        total_bytes: RAM / 2,
        free_bytes: 1 << 20,
    };
    Report {
        nodes: vec![node(0, 0), node(1, 1)],
        mechanism: Mechanism {
            sampler: Text::lossy("damon"),
            ..Mechanism::default()
        },
        ..Report::default()
    }
}

fn beat(sequence: u64, guest_ms: u64, change: impl FnOnce(&mut Report)) -> AgentMessage {
    let mut report = report();
    change(&mut report);
    let beat = Heartbeat::new(sequence, at(guest_ms), report).unwrap();
    AgentMessage::Heartbeat(Box::new(beat))
}

fn watch() -> AgentWatch {
    let config = WatchConfig {
        ram_bytes: Some(RAM),
        ..WatchConfig::default()
    };
    AgentWatch::new(config, at(0))
}

/// One that is trusted after a heartbeat at 1 s, sequence 10, guest time 100 s.
fn trusted() -> AgentWatch {
    let mut watch = watch();
    watch.connected();
    assert!(watch.hear(at(0), hello(7)).is_some());
    watch.hear(at(1000), beat(10, 100_000, |_| {}));
    watch.tick(at(1000));
    assert_eq!(watch.verdict(), &Verdict::Trusted);
    watch
}

/// The lie that a trusted agent is caught in if it sends this a second later.
fn caught(message: AgentMessage) -> Lie {
    let mut watch = trusted();
    assert_eq!(watch.hear(at(2000), message), None);
    watch.tick(at(2000));
    match (watch.state(), watch.verdict()) {
        (AgentState::Lying(lie), Verdict::Fallback(why)) => {
            assert_eq!(why, &format!("its agent lies: {lie}"));
            lie.clone()
        }
        other => panic!("believed: {other:?}"),
    }
}

#[test]
fn an_agent_is_trusted_after_its_first_heartbeat() {
    let mut watch = watch();
    watch.tick(at(4999));
    assert_eq!(watch.verdict(), &Verdict::Waiting);
    let mut watch = trusted();
    watch.hear(at(2000), beat(11, 101_000, |_| {}));
    watch.tick(at(2000));
    assert_eq!(watch.state(), &AgentState::Speaking);
    let view = watch.view();
    assert_eq!(
        (view.heartbeats, view.program.as_deref()),
        (2, Some("0.1.0"))
    );
}

#[test]
fn an_agent_that_never_speaks_is_given_up_after_the_silence() {
    let mut watch = watch();
    watch.disconnected("no such file");
    watch.tick(at(5000));
    let Verdict::Fallback(why) = watch.verdict() else {
        panic!();
    };
    assert!(why.contains("no such file"), "{why}");
}

#[test]
fn a_silent_agent_is_dropped_and_must_prove_itself() {
    let mut watch = trusted();
    watch.tick(at(5999));
    assert_eq!(watch.verdict(), &Verdict::Trusted);
    watch.tick(at(6000));
    assert_eq!(watch.state(), &AgentState::Silent(at(1000)));
    let is_out = |w: &AgentWatch| matches!(w.verdict(), Verdict::Fallback(_));
    assert!(is_out(&watch));
    for s in 0..5 {
        watch.hear(
            at(10_000 + s * 1000),
            beat(20 + s, 110_000 + s * 1000, |_| {}),
        );
        watch.tick(at(10_000 + s * 1000));
        assert!(is_out(&watch), "after {s} s");
    }
    watch.hear(at(15_000), beat(30, 115_000, |_| {}));
    watch.tick(at(15_000));
    assert_eq!(watch.verdict(), &Verdict::Trusted);
}

#[test]
fn a_connection_that_is_cut_and_soon_back_changes_nothing() {
    let mut watch = trusted();
    watch.disconnected("QEMU closed the connection");
    watch.tick(at(2000));
    assert_eq!(watch.verdict(), &Verdict::Trusted);
    watch.connected();
    // It does not know that this end was away.
    let answer = watch.hear(at(3000), beat(11, 102_000, |_| {}));
    assert_eq!(answer, Some(HostMessage::WhoIsThere));
    watch.hear(at(3100), hello(8));
    watch.hear(at(3200), beat(12, 102_200, |_| {}));
    watch.tick(at(5500));
    assert_eq!(watch.verdict(), &Verdict::Trusted);
}

#[test]
fn an_agent_that_restarts_counts_from_zero_again() {
    let mut watch = trusted();
    watch.hear(at(1500), beat(11, 100_500, |r| r.activity.epochs = 900));
    watch.hear(at(2000), hello(8));
    watch.hear(at(3000), beat(1, 102_000, |_| {}));
    watch.tick(at(3000));
    assert_eq!(watch.verdict(), &Verdict::Trusted);
}

#[test]
fn an_unknown_version_is_refused_until_the_agent_is_updated() {
    let mut watch = trusted();
    let versions = Versions::try_from((7, 9)).unwrap();
    let newer = |session| {
        AgentMessage::Hello(Hello {
            versions,
            session,
            program: Text::lossy("9.0"),
        })
    };
    let Some(HostMessage::Refused { session: 3, reason }) = watch.hear(at(2000), newer(3)) else {
        panic!("welcomed");
    };
    assert!(reason.as_str().contains("7 to 9"), "{reason}");
    watch.tick(at(2000));
    assert!(matches!(watch.verdict(), Verdict::Fallback(why) if why.contains("7 to 9")));
    watch.hear(at(8000), hello(4));
    for s in 0..7 {
        watch.hear(at(9000 + s * 1000), beat(1 + s, 1000 + s * 1000, |_| {}));
        watch.tick(at(9000 + s * 1000));
    }
    assert_eq!(watch.verdict(), &Verdict::Trusted);
}

#[test]
fn lie_nodes_larger_than_the_vm() {
    let lie = caught(beat(11, 101_000, |r| r.nodes[1].total_bytes = RAM));
    assert!(matches!(lie, Lie::MoreThanRam { ram_bytes: RAM, .. }));
    let lie = caught(beat(11, 101_000, |r| {
        r.nodes.iter_mut().for_each(|n| n.total_bytes = u64::MAX);
    }));
    assert!(matches!(lie, Lie::MoreThanRam { .. }), "no overflow");
}

#[test]
fn lie_more_free_than_there_is() {
    let lie = caught(beat(11, 101_000, |r| r.nodes[1].free_bytes = RAM / 2 + 1));
    assert!(matches!(lie, Lie::FreeAboveTotal { node: 1, .. }));
}

#[test]
fn lie_sequence_backwards() {
    for sequence in [10, 9, 0] {
        let lie = caught(beat(sequence, 101_000, |_| {}));
        assert!(matches!(lie, Lie::SequenceBackwards { before: 10, .. }));
    }
}

#[test]
fn lie_time_backwards() {
    let lie = caught(beat(11, 99_999, |_| {}));
    assert!(matches!(lie, Lie::TimeBackwards { .. }));
}

#[test]
fn lie_counters_that_fall() {
    type Set = fn(&mut Report, u64);
    let counters: [(&str, Set); 13] = [
        ("epochs", |r, n| r.activity.epochs = n),
        ("promoted pages", |r, n| r.activity.promoted_pages = n),
        ("demoted pages", |r, n| r.activity.demoted_pages = n),
        ("failed pages", |r, n| r.activity.failed_pages = n),
        ("major faults", |r, n| r.faults.major = n),
        ("minor faults", |r, n| r.faults.minor = n),
        ("pages read from swap", |r, n| r.faults.swap_in_pages = n),
        ("pages written to swap", |r, n| r.faults.swap_out_pages = n),
        ("CPU time", |r, n| r.cost.cpu_ns = n),
        ("frames taken", |r, n| r.frames_taken = n),
        ("frames refused", |r, n| r.frames_refused = n),
        ("time under pressure", |r, n| {
            r.pressure.get_or_insert_default().some_total_us = n;
        }),
        ("time under full pressure", |r, n| {
            r.pressure.get_or_insert_default().full_total_us = n;
        }),
    ];
    for (name, set) in counters {
        let mut watch = trusted();
        watch.hear(at(1500), beat(11, 100_500, |r| set(r, 100)));
        watch.hear(at(2500), beat(12, 101_500, |r| set(r, 99)));
        let AgentState::Lying(Lie::CounterFell { what, before, now }) = watch.state() else {
            panic!("{name}: {:?}", watch.state());
        };
        assert_eq!((*what, *before, *now), (name, 100, 99));
    }
}

#[test]
fn lie_pages_moved_faster_than_memory() {
    // 64 GiB/s over the second that passed and the one that is given.
    let most = 2 * ((64 << 30) / 4096);
    let fast = |pages| beat(11, 101_000, move |r| r.activity.promoted_pages = pages);
    let mut watch = trusted();
    watch.hear(at(2000), fast(most));
    assert_eq!(watch.state(), &AgentState::Speaking);
    assert!(matches!(caught(fast(most + 1)), Lie::TooFast { .. }));
    // A guest's clock that runs ahead makes nothing possible.
    let ahead = beat(11, 90_000_000, move |r| r.activity.demoted_pages = most + 1);
    assert!(matches!(caught(ahead), Lie::TooFast { .. }));
}

#[test]
fn lie_a_flood_of_heartbeats() {
    let mut watch = trusted();
    let mut counts = Counts::default();
    let mut sent = 0;
    while watch.state() == &AgentState::Speaking {
        sent += 1;
        watch.hear(at(1000 + sent), beat(10 + sent, 100_000 + sent, |_| {}));
        counts.messages += 1;
        watch.met(at(1000 + sent), counts, None);
        assert!(sent < 2000, "believed");
    }
    assert!(matches!(
        watch.state(),
        AgentState::Lying(Lie::Flood { .. })
    ));
    // Messages that waited while this program stood still for minutes are no flood.
    let mut watch = trusted();
    counts.messages = 600;
    watch.met(at(300_000), counts, None);
    assert_eq!(watch.state(), &AgentState::Speaking);
}

#[test]
fn lie_a_flood_of_unknown_messages() {
    let mut watch = trusted();
    let counts = Counts {
        unknown: 2000,
        ..Counts::default()
    };
    watch.met(at(1001), counts, None);
    assert!(matches!(
        watch.state(),
        AgentState::Lying(Lie::Flood { .. })
    ));
}

#[test]
fn lie_a_flood_of_hellos() {
    let mut watch = trusted();
    for session in 0..100 {
        watch.hear(at(1000 + session), hello(session));
    }
    assert_eq!(watch.state(), &AgentState::Lying(Lie::HelloFlood));
}

#[test]
fn lie_garbage() {
    let garbage = |garbage_bytes, broken| {
        let mut watch = trusted();
        let counts = Counts {
            garbage_bytes,
            ..Counts::default()
        };
        watch.met(at(2000), counts, broken);
        watch.state().clone()
    };
    assert_eq!(
        garbage(16 << 10, None),
        AgentState::Speaking,
        "half a frame"
    );
    let lie = garbage((16 << 10) + 65, None);
    assert!(matches!(lie, AgentState::Lying(Lie::Garbage(_))));
    let lie = garbage(1, Some(Broken::BadChecks(17)));
    assert!(matches!(lie, AgentState::Lying(Lie::Garbage(why)) if why.contains("17 frames")));
}

#[test]
fn lie_values_out_of_bounds() {
    let mut watch = trusted();
    let counts = Counts {
        malformed: 1,
        ..Counts::default()
    };
    watch.met(at(2000), counts, None);
    assert_eq!(watch.state(), &AgentState::Lying(Lie::Malformed));
}

#[test]
fn who_lied_is_not_believed_again_until_an_operator_says_so() {
    let mut watch = trusted();
    watch.hear(at(2000), beat(1, 1, |_| {}));
    watch.disconnected("cut");
    watch.connected();
    let answer = watch.hear(at(3000), hello(9));
    assert!(answer.is_some(), "it is welcomed, to be told to stop");
    for s in 4..60 {
        watch.hear(at(s * 1000), beat(s, 101_000 + s, |_| {}));
        watch.tick(at(s * 1000));
        assert!(matches!(watch.verdict(), Verdict::Fallback(_)));
    }
    assert_eq!(watch.view().heartbeats, 1);
    watch.forgive(at(60_000));
    watch.connected();
    watch.hear(at(60_000), hello(10));
    for s in 61..67 {
        watch.hear(at(s * 1000), beat(s, 200_000 + s, |_| {}));
        watch.tick(at(s * 1000));
        let out = matches!(watch.verdict(), Verdict::Fallback(_));
        assert_eq!(out, s < 66, "at {s} s");
    }
}

#[test]
fn pressure_that_is_no_longer_told_is_a_counter_that_fell() {
    let with = |some_total_us| {
        move |r: &mut Report| {
            r.pressure = Some(Pressure {
                some_total_us,
                ..Pressure::default()
            });
        }
    };
    let mut watch = trusted();
    watch.hear(at(1500), beat(11, 100_500, with(5)));
    watch.hear(at(2500), beat(12, 101_500, |r| r.pressure = None));
    assert!(matches!(
        watch.state(),
        AgentState::Lying(Lie::CounterFell { .. })
    ));
}
