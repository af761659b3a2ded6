//! Fuzz bodies: what a fuzzer runs over any bytes, as plain functions. `fuzz/` calls them on nightly Rust, and tests
//! call them on stable over the committed corpus, changes of it, and random bytes.
//!
//! A body panics, or returns the fault, if a promise of the code under it does not hold.

mod agent_talk;
pub mod flex;
pub mod frames;
mod guest_module;
mod host_talk;
mod scan;

pub use agent_talk::fuzz_agent_talk;
pub use guest_module::fuzz_guest_module;
pub use host_talk::fuzz_host_talk;
pub use scan::fuzz_scan;

/// `data` with a small change that the number chooses: flipped, overwritten, cut, doubled, joined with itself.
#[must_use]
pub fn changed(data: &[u8], number: u64) -> Vec<u8> {
    let mut bytes = data.to_vec();
    let mut state = number ^ 0x9e37_79b9_7f4a_7c15;
    let mut next = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let below = u64::try_from(below.max(1)).unwrap_or(1);
        usize::try_from(state % below).unwrap_or(0)
    };
    for _ in 0..=next(4) {
        let at = next(bytes.len());
        match next(6) {
            _ if bytes.is_empty() => bytes.push(0xd7),
            0 => bytes[at] ^= 1 << next(8),
            1 => bytes[at] = [0, 1, 0x7f, 0x80, 0xff, 0xd7][next(6)],
            2 => bytes.truncate(at),
            3 => {
                let tail = bytes[at..].to_vec();
                bytes.extend(tail);
            }
            4 => drop(bytes.splice(at..at, data[..next(data.len())].to_vec())),
            _ => drop(bytes.drain(at..at + next(bytes.len() - at))),
        }
    }
    bytes
}
