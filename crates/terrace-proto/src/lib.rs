//! Plain data that Terrace's parts exchange.
//!
//! Responsible for: newtypes of addresses, page numbers, times and ids; the events that go into the engine and the
//! actions that come out of it; the observation log's format; sizes of VMs and their providers ([`provision`]); the
//! views for people ([`snapshot`]); the messages between the daemon and the worker that holds one VM's memory; those
//! between host and guest agent ([`agent`]); text of other programs, fit to be shown ([`printable`]). It leaves to
//! others: every decision, every system call, every clock.
//!
//! Wire data is untrusted: each type that has a rule is built by `TryFrom`, also when decoded.

pub mod action;
pub mod addr;
pub mod agent;
pub mod bitmap;
pub mod bytes;
pub mod event;
pub mod faults;
pub mod id;
pub mod log;
pub mod printable;
pub mod provision;
pub mod ranges;
pub mod samples;
pub mod scan;
mod scan_part;
pub mod sharing;
pub mod snapshot;
mod tables;
pub mod tick;
pub mod worker;

pub use action::{Action, MovePlan, PageMove};
pub use addr::{Gfn, Gpa, Gva, Hva, PAGE_SHIFT, PAGE_SIZE, PAGES_PER_HUGE, PageSize, Vpn};
pub use bitmap::PageBitmap;
pub use event::{
    BackingChange, Command, Event, MoveReport, MoveStatus, PageCode, PageResult, PlacementReport,
    Processors, RamChange, RamRange, ScanFailure, ScanSpent, TierLimit, TierMemory, VmSpec,
};
pub use faults::{FaultReport, Protection, VmStatistics};
pub use id::{OrderId, PlanId, ProcessId, ProviderId, RequestId, ResizeId, Space, TierId, VmId};
pub use samples::{MAX_SAMPLED_PAGES, PageSamples, Samples};
pub use scan::{PagingRegisters, Readings, Rearm, ScanAnswer, ScanRequest, ScanStats};
pub use scan_part::{NoPart, Part, PartAnswer, PartCell, PartRequest, Pass, Passed};
pub use sharing::{
    AgentMemory, GuestMemory, GuestMoves, GuestNode, GuestNodes, GuestWalks, HostMemory,
    MemoryBalance, MemoryNeed, MemoryRights, MemoryStanding, MemoryTiers, MemoryTraffic,
    SpeedRights,
};
pub use tables::{TableFrame, TablesAnswer};
pub use tick::Tick;
