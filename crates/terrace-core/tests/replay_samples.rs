//! Logs that were recorded once are replayed for ever.

#![allow(clippy::unwrap_used, reason = "test helpers outside of test functions")]

use std::fs::{self, File};
use std::io::BufReader;
use std::path::{Path, PathBuf};

use terrace_core::session::replay::{ReplayError, replay};
use terrace_proto::log::{LogReader, Record};
use terrace_proto::{Action, Event};
use terrace_testkit::log::written;

fn samples() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/logs");
    let mut files: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "trlog"))
        .collect();
    files.sort();
    assert!(!files.is_empty());
    files
}

/// The engine's.
fn engines() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/logs/v1-sample.trlog")
}

#[test]
fn every_sample_gives_the_recorded_actions_exactly() {
    for path in samples() {
        let name = path.display();
        let file = BufReader::new(File::open(&path).unwrap());
        match replay(file) {
            Ok(replayed) => {
                assert!(replayed.actions > 30, "{name}: {replayed:?}");
                assert_eq!(replayed.unrecorded_actions, 0, "{name}");
                assert!(!replayed.cut_off && replayed.skipped == 0, "{name}");
            }
            Err(error) => panic!(
                "{name}: {error}\n\
                 The engine no longer decides as it did when this log was recorded. If that is not \
                 meant, it is a bug. If it is meant, keep this file for the reader's sake, exempt it \
                 here from comparison by name with the reason, and add a new sample beside it:\n\
                 cargo run -p terrace-core --example record_sample (or record_ranges) -- \
                 crates/terrace-core/tests/logs/v1-NAME.trlog"
            ),
        }
    }
}

/// A sample's records.
fn records(path: &Path) -> Vec<(terrace_proto::Tick, Record)> {
    let mut reader = LogReader::new(BufReader::new(File::open(path).unwrap())).unwrap();
    std::iter::from_fn(|| reader.next_record().unwrap()).collect()
}

fn replay_records(records: &[(terrace_proto::Tick, Record)]) -> Result<u64, ReplayError> {
    replay(&written(records)[..]).map(|r| r.actions)
}

#[test]
fn the_first_action_that_differs_is_named_by_its_record() {
    let mut all = records(&engines());
    assert!(replay_records(&all).is_ok());
    let at = all
        .iter()
        .position(|(_, r)| matches!(r, Record::Action(Action::Move(_))))
        .unwrap();
    if let Record::Action(Action::Move(plan)) = &mut all[at].1 {
        plan.moves.swap(0, 1);
    }
    let error = replay_records(&all).unwrap_err();
    assert!(
        matches!(error, ReplayError::Differs { record, .. } if record == at as u64),
        "{error}"
    );
}

#[test]
fn one_flipped_accessed_bit_changes_what_is_decided() {
    let mut all = records(&engines());
    for (_, record) in &mut all {
        if let Record::Event(Event::Scanned(answer)) = record {
            let cold = (0..answer.accessed.pages()).find(|p| p % 15 == 7).unwrap();
            answer.accessed.set(cold);
        }
    }
    assert!(matches!(
        replay_records(&all),
        Err(ReplayError::Differs { .. })
    ));
}

#[test]
fn a_missing_action_is_noticed() {
    let mut all = records(&engines());
    let at = all
        .iter()
        .position(|(_, r)| matches!(r, Record::Action(_)))
        .unwrap();
    all.remove(at);
    assert!(replay_records(&all).is_err());
}

#[test]
fn a_log_without_a_start_record_is_refused() {
    let all = records(&engines());
    assert!(matches!(
        replay_records(&all[1..]),
        Err(ReplayError::NoStart)
    ));
}
