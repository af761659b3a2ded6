//! Tests that a written trace reads back the same.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::super::{Op, Record, Target, Writer};
use super::{any_record, record, records};

fn written(records: &[Record], target: Target) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), target);
    for record in records {
        writer.write(record).expect("a record");
    }
    writer.finish().expect("a trace").0
}

/// Records by page, without the pages' numbers: the shape of popularity.
fn popularity(records: &[Record]) -> Vec<u64> {
    let mut pages = BTreeMap::new();
    for record in records {
        for page in record.addr >> 12..=record.last() >> 12 {
            *pages.entry(page).or_insert(0) += 1;
        }
    }
    let mut counts: Vec<u64> = pages.into_values().collect();
    counts.sort_unstable();
    counts
}

proptest! {
    #[test]
    fn lackey_text_gives_the_same_records_back(trace in prop::collection::vec(any_record(), 1..80)) {
        prop_assert_eq!(&records(&written(&trace, Target::Lackey)), &trace);
        prop_assert_eq!(&records(&written(&trace, Target::LackeyZst)), &trace);
    }

    #[test]
    fn objects_give_the_same_pages_there_and_back(trace in prop::collection::vec(any_record(), 1..80)) {
        let objects = records(&written(&trace, Target::OracleGeneral));
        prop_assert_eq!(popularity(&objects), popularity(&trace));
        let back = records(&written(&objects, Target::LackeyZst));
        prop_assert_eq!(popularity(&back), popularity(&trace));
    }

    #[test]
    fn the_next_request_of_an_object_is_the_naive_one(trace in prop::collection::vec(any_record(), 1..80)) {
        let bytes = written(&trace, Target::OracleGeneral);
        let (requests, rest) = bytes.as_chunks::<24>();
        prop_assert!(rest.is_empty());
        for (index, request) in requests.iter().enumerate() {
            let later = requests[index + 1..].iter().position(|r| r[4..12] == request[4..12]);
            let expected = later.map_or(-1, |after| i64::try_from(index + after).unwrap() + 2);
            prop_assert_eq!(i64::from_le_bytes(request[16..].try_into().unwrap()), expected);
        }
    }
}

#[test]
fn a_trace_of_many_frames_is_read_back() {
    let trace: Vec<Record> = (0..400_000_u64)
        .map(|n| record(Op::Load, n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20, 8))
        .collect();
    let bytes = written(&trace, Target::LackeyZst);
    let frames = bytes
        .windows(4)
        .filter(|w| **w == [0x28, 0xb5, 0x2f, 0xfd])
        .count();
    assert!(frames >= 2, "{frames}");
    assert!(records(&bytes) == trace);
}

#[test]
fn a_record_too_long_for_lackey_becomes_several() {
    let trace = [record(Op::Store, 0x100, 150_000)];
    let expected = [
        record(Op::Store, 0x100, 65536),
        record(Op::Store, 0x1_0100, 65536),
        record(Op::Store, 0x2_0100, 18928),
    ];
    assert_eq!(records(&written(&trace, Target::Lackey)), expected);
}

#[test]
fn a_time_that_oracle_general_cannot_hold_is_refused() {
    let mut late = record(Op::Load, 1, 1);
    late.time_ns = Some((1 << 32) * 1_000_000_000);
    let mut writer = Writer::new(Vec::new(), Target::OracleGeneral);
    assert!(writer.write(&late).is_err());
    late.time_ns = Some(((1 << 32) - 1) * 1_000_000_000);
    assert!(writer.write(&late).is_ok());
}

#[test]
fn names_of_targets_are_read_back() {
    for target in Target::ALL {
        assert_eq!(target.name().parse(), Ok(target));
    }
    assert!("csv".parse::<Target>().is_err());
}
