//! `perf_event_open(2)`: sampled accesses of processes, as records in a ring per CPU.
//!
//! Responsible for: what is asked of the kernel ([`EventAttr`]), open events ([`Event`]), the ring that the
//! kernel writes into ([`Ring`]), and the records in it ([`Records`], a pure function of bytes). It leaves to
//! others: which events, of which PMU, and what samples mean.
//!
//! One event of a CPU has a [`Ring`]; the other events of that CPU write into it too
//! ([`Event::output_to`]). Nothing here waits: an event's descriptor becomes readable when its ring is filled
//! to [`EventAttr::wakeup_bytes`], and its owner drains.
//!
//! The layouts are those of `include/uapi/linux/perf_event.h`.

mod attr;
mod event;
mod record;
mod ring;

#[cfg(test)]
mod tests;

pub use attr::{
    EventAttr, Fields, HARDWARE, HARDWARE_CACHE, HARDWARE_INSTRUCTIONS, SOFTWARE, SOFTWARE_DUMMY,
    SOFTWARE_PAGE_FAULTS, cache_misses,
};
pub use event::{Event, Scope, Times};
pub use record::{Malformed, Record, Records, SampleRecord};
pub use ring::{Ring, RingError};
