//! Tests of what a session records, and when it does not.

use terrace_core::session::{Log, Session};
use terrace_core::{Engine, EngineConfig};
use terrace_proto::log::Record;
use terrace_proto::{Action, Event, Tick, VmId};
use terrace_testkit::engine::{SECOND, spec};

/// Events by the last of which the engine asks where the pages of two VMs are.
fn events() -> [(Tick, Event); 3] {
    [
        (Tick(0), Event::VmArrived(spec(1, 64, 16))),
        (Tick(0), Event::VmArrived(spec(2, 64, 16))),
        (Tick(SECOND), Event::Timer),
    ]
}

fn engine() -> Engine {
    let config = EngineConfig {
        first_round_after_ms: 1000,
        ..EngineConfig::default()
    };
    Engine::new(config).expect("a valid configuration")
}

#[test]
fn an_event_is_recorded_before_all_its_actions() {
    let mut session = Session::new(engine(), Vec::new());
    let mut expected = Vec::new();
    let mut last = Vec::new();
    for (at, event) in events() {
        expected.push((at, Record::Event(event.clone())));
        last = session.hear(at, event);
        let actions = last.iter().cloned();
        expected.extend(actions.map(|action| (at, Record::Action(action))));
    }
    assert_eq!(*session.log(), expected);
    let asked = last.iter().filter_map(|action| match action {
        Action::QueryPlacement(query) => Some(query.vm),
        _ => None,
    });
    assert_eq!(asked.collect::<Vec<_>>(), [VmId(1), VmId(2)]);
}

#[test]
fn a_log_changes_no_decision() {
    let decided = |log: Option<Vec<_>>| {
        let mut session = Session::new(engine(), log);
        let decided = events().map(|(at, event)| session.hear(at, event));
        (decided, session.log().as_ref().map_or(0, Vec::len))
    };
    let (with, records) = decided(Some(Vec::new()));
    let (without, none) = decided(None);
    assert_eq!(with, without);
    assert_eq!((records, none), (5, 0));
}

/// A log that has room for so many records.
struct Room(usize, Vec<Record>);

impl Log for Room {
    fn is_on(&self) -> bool {
        self.1.len() < self.0
    }

    fn append(&mut self, _: Tick, record: Record) {
        assert!(self.is_on(), "no record is made for a log that is off");
        self.1.push(record);
    }
}

#[test]
fn a_log_ending_before_actions_yields_the_actions_due() {
    let mut session = Session::new(engine(), Room(4, Vec::new()));
    let decided = events().map(|(at, event)| session.hear(at, event));
    assert_eq!(decided[2].len(), 2);
    let log = &session.log().1;
    assert!(matches!(log[..], [.., Record::Event(_), Record::Action(_)]));
    let departed = Event::VmDeparted(VmId(1));
    assert!(session.hear(Tick(2 * SECOND), departed).is_empty());
    assert_eq!(session.log().1.len(), 4);
}
