//! Logs as bytes, for tests that replay and for the samples that they keep.

use terrace_proto::Tick;
use terrace_proto::log::{LogWriter, Record};

/// The log of these records, as bytes.
///
/// # Panics
/// If it is longer than 1 GiB.
#[must_use]
pub fn written(records: &[(Tick, Record)]) -> Vec<u8> {
    limited(records, 1 << 30)
}

/// A log that is kept as a sample in `tests/logs`.
///
/// # Panics
/// If it is longer than a sample may be: 100 KiB.
#[must_use]
pub fn sample(records: &[(Tick, Record)]) -> Vec<u8> {
    limited(records, 100 << 10)
}

fn limited(records: &[(Tick, Record)], limit: u64) -> Vec<u8> {
    let mut writer = LogWriter::new(Vec::new(), limit).unwrap();
    for (at, record) in records {
        assert!(writer.append(*at, record).unwrap(), "over {limit} bytes");
    }
    writer.finish().unwrap()
}
