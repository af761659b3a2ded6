//! Records in a ring, parsed from bytes.

use super::Fields;

/// Length of `struct perf_event_header`: type, flags, length.
const HEADER: usize = 8;

/// `enum perf_event_type`.
mod kind {
    pub const LOST: u32 = 2;
    pub const THROTTLE: u32 = 5;
    pub const UNTHROTTLE: u32 = 6;
    pub const SAMPLE: u32 = 9;
    pub const LOST_SAMPLES: u32 = 13;
}

/// One sample. Fields that were not asked for are 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct SampleRecord {
    /// Id of the event: [`super::Event::id`].
    pub identifier: u64,
    /// Address of the instruction.
    pub ip: u64,
    /// Process (the kernel's `tgid`); `u32::MAX` if it was ending.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// Time of the sample, ns.
    pub time_ns: u64,
    /// Virtual address that was accessed; 0 if the PMU knew none.
    pub address: u64,
    /// The CPU.
    pub cpu: u32,
    /// Events since the previous sample.
    pub period: u64,
    /// `union perf_mem_data_src`.
    pub data_source: u64,
}

/// A record that the kernel wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    /// A sample.
    Sample(SampleRecord),
    /// So many records found the ring full (`PERF_RECORD_LOST`).
    Lost(u64),
    /// So many samples were lost before they came to the ring (`PERF_RECORD_LOST_SAMPLES`).
    LostSamples(u64),
    /// The event came too often and was stopped until the next tick.
    Throttled,
    /// The event runs again.
    Unthrottled,
    /// A kind that is not used here.
    Other(u32),
}

/// Bytes that are no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed {
    /// The number of bytes passed over.
    pub bytes: usize,
}

/// The records in some bytes. After a length that cannot be right, the rest is passed over as malformed, since it is
/// not known where the next record begins.
#[derive(Clone, Copy, Debug)]
pub struct Records<'a> {
    rest: &'a [u8],
    fields: Fields,
}

impl<'a> Records<'a> {
    /// The records in bytes that hold whole records, one after the other, of events with these fields.
    #[must_use]
    pub fn new(bytes: &'a [u8], fields: Fields) -> Self {
        Self {
            rest: bytes,
            fields,
        }
    }
}

impl Iterator for Records<'_> {
    type Item = Result<Record, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let mut header = Cursor(self.rest);
        // Little endian: type in the low half, then flags, then length.
        let len = header.word().and_then(|word| {
            let len = usize::try_from(word >> 48).ok()?;
            // The kernel rounds each record up to eight bytes.
            let plausible = len >= HEADER && len.is_multiple_of(8) && len <= self.rest.len();
            plausible.then_some((low_half(word), len))
        });
        let Some((kind, len)) = len else {
            let bytes = self.rest.len();
            self.rest = &[];
            return Some(Err(Malformed { bytes }));
        };
        let (record, rest) = self.rest.split_at(len);
        self.rest = rest;
        let body = Cursor(&record[HEADER..]);
        Some(parse(kind, body, self.fields).ok_or(Malformed { bytes: len }))
    }
}

/// Parses a record's body; `None` if it is too short for its kind.
fn parse(kind: u32, mut body: Cursor<'_>, fields: Fields) -> Option<Record> {
    Some(match kind {
        kind::SAMPLE => Record::Sample(sample(body, fields)?),
        kind::LOST => {
            let _id = body.word()?;
            Record::Lost(body.word()?)
        }
        kind::LOST_SAMPLES => Record::LostSamples(body.word()?),
        kind::THROTTLE => Record::Throttled,
        kind::UNTHROTTLE => Record::Unthrottled,
        other => Record::Other(other),
    })
}

/// The fields in the order of `PERF_RECORD_SAMPLE`'s description in the header.
fn sample(mut body: Cursor<'_>, fields: Fields) -> Option<SampleRecord> {
    let mut field = |which| {
        if fields.has(which) {
            body.word()
        } else {
            Some(0)
        }
    };
    let identifier = field(Fields::IDENTIFIER)?;
    let ip = field(Fields::IP)?;
    let process = field(Fields::TID)?;
    let time_ns = field(Fields::TIME)?;
    let address = field(Fields::ADDRESS)?;
    let cpu = field(Fields::CPU)?;
    let period = field(Fields::PERIOD)?;
    let data_source = field(Fields::DATA_SOURCE)?;
    Some(SampleRecord {
        identifier,
        ip,
        pid: low_half(process),
        tid: low_half(process >> 32),
        time_ns,
        address,
        cpu: low_half(cpu),
        period,
        data_source,
    })
}

fn low_half(word: u64) -> u32 {
    let [a, b, c, d, ..] = word.to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}

/// Words from the front of some bytes.
struct Cursor<'a>(&'a [u8]);

impl Cursor<'_> {
    fn word(&mut self) -> Option<u64> {
        let (word, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*word))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn record(kind: u32, words: &[u64]) -> Vec<u8> {
        let len = u16::try_from(HEADER + words.len() * 8).unwrap();
        let mut bytes = kind.to_le_bytes().to_vec();
        bytes.extend(2_u16.to_le_bytes());
        bytes.extend(len.to_le_bytes());
        words
            .iter()
            .for_each(|word| bytes.extend(word.to_le_bytes()));
        bytes
    }

    fn all(bytes: &[u8], fields: Fields) -> Vec<Result<Record, Malformed>> {
        Records::new(bytes, fields).collect()
    }

    /// Each field alone, with its word.
    const EACH: [Fields; 8] = [
        Fields::IDENTIFIER,
        Fields::IP,
        Fields::TID,
        Fields::TIME,
        Fields::ADDRESS,
        Fields::CPU,
        Fields::PERIOD,
        Fields::DATA_SOURCE,
    ];

    fn values(sample: &SampleRecord) -> [u64; 8] {
        [
            sample.identifier,
            sample.ip,
            u64::from(sample.pid) | u64::from(sample.tid) << 32,
            sample.time_ns,
            sample.address,
            u64::from(sample.cpu),
            sample.period,
            sample.data_source,
        ]
    }

    #[test]
    fn every_kind_is_told_apart() {
        let fields = Fields::TID | Fields::ADDRESS;
        let mut bytes = record(9, &[7 | 8 << 32, 0x5000]);
        bytes.extend(record(2, &[1, 30]));
        bytes.extend(record(13, &[4]));
        bytes.extend(record(5, &[1, 2, 3]));
        bytes.extend(record(6, &[1, 2, 3]));
        bytes.extend(record(4, &[1, 2, 3]));
        let sample = SampleRecord {
            pid: 7,
            tid: 8,
            address: 0x5000,
            ..SampleRecord::default()
        };
        assert_eq!(
            all(&bytes, fields),
            [
                Ok(Record::Sample(sample)),
                Ok(Record::Lost(30)),
                Ok(Record::LostSamples(4)),
                Ok(Record::Throttled),
                Ok(Record::Unthrottled),
                Ok(Record::Other(4)),
            ]
        );
    }

    #[test]
    fn a_record_too_short_for_its_fields_is_skipped() {
        let mut bytes = record(9, &[7]);
        bytes.extend(record(2, &[1]));
        bytes.extend(record(13, &[4]));
        let got = all(&bytes, Fields::TID | Fields::ADDRESS);
        let short = |bytes| Err(Malformed { bytes });
        assert_eq!(got, [short(16), short(16), Ok(Record::LostSamples(4))]);
    }

    #[test]
    fn garbage_ends_the_records_and_is_counted() {
        let sample = record(9, &[7, 8]);
        let long = |len: u16| {
            let mut bytes = sample.clone();
            bytes[6..8].copy_from_slice(&len.to_le_bytes());
            bytes
        };
        let corpus: Vec<Vec<u8>> = vec![
            vec![0],
            vec![0xff; 7],
            vec![0; 8],
            vec![0; 4096],
            vec![0xff; 4096],
            sample[..16].to_vec(),
            sample[..23].to_vec(),
            long(0),
            long(7),
            long(12),
            long(32),
            long(u16::MAX),
        ];
        for bytes in corpus {
            let whole = bytes.len();
            let got = all(&bytes, Fields::TID | Fields::ADDRESS);
            assert_eq!(got, [Err(Malformed { bytes: whole })]);
            // Earlier records are not lost.
            let behind: Vec<u8> = [sample.clone(), bytes].concat();
            let got = all(&behind, Fields::TID | Fields::ADDRESS);
            assert!(matches!(got[0], Ok(Record::Sample(_))));
            assert_eq!(got[1..], [Err(Malformed { bytes: whole })]);
        }
        assert!(all(&[], Fields::TID).is_empty());
    }

    proptest! {
        #[test]
        fn any_bytes_end_without_a_panic_and_all_are_accounted_for(
            bytes in proptest::collection::vec(any::<u8>(), 0..2048),
            chosen in 0_usize..256,
        ) {
            let mut fields = Fields::default();
            for (bit, field) in EACH.into_iter().enumerate() {
                if chosen & (1 << bit) != 0 {
                    fields = fields | field;
                }
            }
            prop_assert!(Records::new(&bytes, fields).count() <= bytes.len() / HEADER + 1);
        }

        #[test]
        fn damaged_streams_never_give_more_samples_than_were_in_them(
            words in proptest::collection::vec(any::<u64>(), 1..64),
            at in any::<prop::sample::Index>(),
            value in any::<u8>(),
        ) {
            let mut bytes: Vec<u8> = words.iter().flat_map(|w| record(9, &[*w])).collect();
            let at = at.index(bytes.len());
            bytes[at] = value;
            let got = all(&bytes, Fields::TID);
            let samples = |n| {
                let sample = |r: &&Result<_, _>| matches!(r, Ok(Record::Sample(_)));
                got.iter().take(n).filter(sample).count()
            };
            prop_assert!(samples(usize::MAX) <= words.len());
            prop_assert_eq!(samples(at / 16), at / 16, "those before the damage");
        }

        #[test]
        fn what_was_laid_out_is_read_back_for_any_choice_of_fields(
            words in any::<[u64; 8]>(),
            chosen in 0_usize..256,
            extra in 0_usize..3,
        ) {
            let (mut fields, mut body, mut expected) = (Fields::default(), Vec::new(), [0; 8]);
            for (bit, field) in EACH.into_iter().enumerate() {
                if chosen & (1 << bit) != 0 {
                    fields = fields | field;
                    body.push(words[bit]);
                    // The upper half of CPU's word is reserved.
                    let mask = if field == Fields::CPU { u64::from(u32::MAX) } else { u64::MAX };
                    expected[bit] = words[bit] & mask;
                }
            }
            // Newer kernels may append.
            body.extend(std::iter::repeat_n(9, extra));
            let got = all(&record(9, &body), fields);
            let [Ok(Record::Sample(sample))] = got[..] else {
                panic!("{got:?}");
            };
            prop_assert_eq!(values(&sample), expected);
        }
    }
}
