//! Tests of reading, refusing, loading and writing traces.

mod cuts;
mod formats;
mod hostile;
mod loading;
mod playing;
mod writing;

use std::io::Cursor;

use proptest::prelude::*;

use super::{Format, OnBroken, Op, Reader, Record, TraceError};

/// Reads all records; returns the number of skipped ones too.
fn read(
    bytes: &[u8],
    format: Option<Format>,
    on_broken: OnBroken,
) -> Result<(Vec<Record>, u64), TraceError> {
    let bytes = Box::new(Cursor::new(bytes.to_vec()));
    let mut reader = Reader::from_bytes("t", bytes, format, on_broken)?;
    let mut records = Vec::new();
    while let Some(record) = reader.next_record()? {
        records.push(record);
    }
    Ok((records, reader.skipped()))
}

fn records(bytes: &[u8]) -> Vec<Record> {
    read(bytes, None, OnBroken::Stop).expect("a trace").0
}

fn refused(bytes: &[u8]) -> String {
    let error = read(bytes, None, OnBroken::Stop).expect_err("an error");
    error.to_string()
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    ruzstd::encoding::compress_to_vec(bytes, ruzstd::encoding::CompressionLevel::Fastest)
}

fn record(op: Op, addr: u64, bytes: u32) -> Record {
    Record {
        addr,
        bytes,
        op,
        time_ns: None,
    }
}

/// A record of oracleGeneral.
fn request(seconds: u32, object: u64, bytes: u32, next: i64) -> Vec<u8> {
    let mut out = seconds.to_le_bytes().to_vec();
    out.extend(object.to_le_bytes());
    out.extend(bytes.to_le_bytes());
    out.extend(next.to_le_bytes());
    out
}

fn any_record() -> impl Strategy<Value = Record> {
    let op = prop_oneof![Just(Op::Load), Just(Op::Store), Just(Op::Modify)];
    (op, 0_u64..1 << 24, 1_u32..200).prop_map(|(op, addr, bytes)| record(op, addr, bytes))
}
