//! Records of libCacheSim's oracleGeneral: 24 bytes, little-endian, packed: time (`u32`, s), object id
//! (`u64`), object size (`u32`, bytes), number of the object's next request (`i64`, from 1; -1: none).
//!
//! Objects have no addresses: each gets a place of its own, dense, in order of first sight, as long as its size
//! rounded up to whole 64-byte lines. An object that grows past its place gets a new one, as a reallocation would
//! give it. All requests are loads: the format has no writes.

use std::collections::HashMap;

use crate::base::access::LINE;

use super::{Op, Record};

/// Largest object: a request is one access for each of its lines.
const LARGEST: u32 = 64 << 20;

/// Length of a record.
pub(super) const RECORD: usize = 24;

/// The location of an object.
#[derive(Clone, Copy)]
struct Place {
    addr: u64,
    bytes: u64,
}

/// The objects seen so far.
#[derive(Default)]
pub(super) struct Objects {
    places: HashMap<u64, Place>,
    next: u64,
}

/// The fields of a record.
pub(super) struct Fields {
    time_s: u32,
    object: u64,
    bytes: u32,
    next_request: i64,
}

impl Fields {
    pub(super) fn of(record: &[u8; RECORD]) -> Self {
        fn at<const N: usize>(record: &[u8; RECORD], from: usize) -> [u8; N] {
            let mut field = [0; N];
            field.copy_from_slice(&record[from..from + N]);
            field
        }
        Self {
            time_s: u32::from_le_bytes(at(record, 0)),
            object: u64::from_le_bytes(at(record, 4)),
            bytes: u32::from_le_bytes(at(record, 12)),
            next_request: i64::from_le_bytes(at(record, 16)),
        }
    }
}

impl Objects {
    /// The access of a record.
    pub(super) fn access(&mut self, fields: &Fields) -> Result<Record, &'static str> {
        if fields.bytes == 0 || fields.bytes > LARGEST {
            return Err("the object's size is 0 or above 64 MiB; expected 1 to 67108864 bytes");
        }
        let needed = u64::from(fields.bytes).next_multiple_of(LINE);
        let known = self.places.get(&fields.object).copied();
        let place = match known.filter(|place| place.bytes >= needed) {
            Some(place) => place,
            None => {
                let place = Place {
                    addr: self.next,
                    bytes: needed,
                };
                self.next = (self.next.checked_add(needed))
                    .ok_or("all objects together need more than 64 bits of address")?;
                self.places.insert(fields.object, place);
                place
            }
        };
        Ok(Record {
            addr: place.addr,
            bytes: fields.bytes,
            op: Op::Load,
            time_ns: Some(u64::from(fields.time_s) * 1_000_000_000),
        })
    }
}

/// Whether a file's first bytes resemble records: sizes that are not 0, time that does not go back, next requests
/// that come later.
pub(super) fn is_likely(start: &[u8]) -> bool {
    let (records, _) = start.as_chunks::<RECORD>();
    let mut time = 0;
    for (number, record) in (1_i64..).zip(records.iter().take(64)) {
        let fields = Fields::of(record);
        let next = fields.next_request;
        let next_is_later = next == -1 || next == i64::MAX || (number < next && next < 1 << 48);
        if fields.bytes == 0 || fields.time_s < time || !next_is_later {
            return false;
        }
        time = fields.time_s;
    }
    !records.is_empty()
}
