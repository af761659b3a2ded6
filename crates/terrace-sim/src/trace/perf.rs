//! Memory samples as `perf script` prints them, one line each:
//!
//! ```text
//! redis-server  1234  98.765432:  cpu/mem-loads,ldlat=30/P:  7f0012345678
//! ```
//!
//! Made by `perf mem record` (or `perf record -d -e …`) and `perf script -F comm,pid,time,event,addr`. Other fields
//! may be there too, as long as the address follows the event's name. The event's name distinguishes a load from a
//! store; if it does not (AMD's `ibs_op`), the `|OP LOAD|` or `|OP STORE|` that the field `data_src` prints does.
//!
//! perf does not record the length of an access: each counts as one byte, and so as one line.

use super::lackey::hexadecimal;
use super::{Op, Record};

/// The form of a line.
pub(super) const EXPECTED: &str = "a memory sample of `perf script -F comm,pid,time,event,addr` \
     (… TIME: EVENT: ADDR, the event naming loads or stores, or data_src telling |OP LOAD or |OP STORE)";

/// The access of a line; `None` if it has none (comments, empty lines, samples without an address), an error if it is
/// not a sample.
pub(super) fn parse(line: &[u8]) -> Result<Option<Record>, &'static str> {
    let Ok(line) = std::str::from_utf8(line) else {
        return Err(EXPECTED);
    };
    if line.trim().is_empty() || line.starts_with('#') {
        return Ok(None);
    }
    let mut time_ns = None;
    let mut fields = line.split_ascii_whitespace();
    while let Some(word) = fields.next() {
        let Some(name) = word.strip_suffix(':') else {
            continue;
        };
        if let Some(time) = nanoseconds(name) {
            time_ns = Some(time);
            continue;
        }
        let Some(event) = Event::of(name) else {
            continue;
        };
        let digits = fields.next().ok_or(EXPECTED)?;
        let digits = digits.strip_prefix("0x").unwrap_or(digits);
        let addr = hexadecimal(digits.as_bytes()).ok_or(EXPECTED)?;
        if addr == 0 {
            return Ok(None);
        }
        return Ok(Some(Record {
            addr,
            bytes: 1,
            op: event.op(line).ok_or(EXPECTED)?,
            time_ns,
        }));
    }
    Err(EXPECTED)
}

/// The kind of an event, by its name.
enum Event {
    Load,
    Store,
    /// A memory event of both kinds.
    Memory,
}

impl Event {
    fn of(name: &str) -> Option<Self> {
        let name = name.to_ascii_lowercase();
        if name.contains("store") {
            Some(Self::Store)
        } else if name.contains("load") {
            Some(Self::Load)
        } else if ["ibs", "spe", "mem"].iter().any(|m| name.contains(m)) {
            Some(Self::Memory)
        } else {
            None
        }
    }

    fn op(&self, line: &str) -> Option<Op> {
        if line.contains("|OP STORE") {
            Some(Op::Store)
        } else if line.contains("|OP LOAD") {
            Some(Op::Load)
        } else {
            match self {
                Self::Load => Some(Op::Load),
                Self::Store => Some(Op::Store),
                Self::Memory => None,
            }
        }
    }
}

/// The time in ns of a text `SECONDS.FRACTION` with 1 to 9 digits of fraction.
fn nanoseconds(text: &str) -> Option<u64> {
    let (seconds, fraction) = text.split_once('.')?;
    let digits = |t: &str| !t.is_empty() && t.bytes().all(|b| b.is_ascii_digit());
    if !digits(seconds) || !digits(fraction) || fraction.len() > 9 {
        return None;
    }
    let seconds: u64 = seconds.parse().ok()?;
    let fraction: u64 = format!("{fraction:0<9}").parse().ok()?;
    seconds.checked_mul(1_000_000_000)?.checked_add(fraction)
}
