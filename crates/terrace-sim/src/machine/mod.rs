//! The machine: the cost of an access, and the marks that it leaves.
//!
//! Responsible for: guest page tables that are real x86-64 tables in simulated guest RAM ([`tables`]), the second
//! stage ([`second_stage`]), TLBs and two-dimensional walks ([`mmu`], [`walk`]), memory with latency, bandwidth and
//! queueing ([`tier`]), the last-level cache in front of it ([`last_level`]), page-modification logging, counts by page ([`profile`]). It leaves to others: the accesses (a
//! [`crate::base::access::Source`]), the answers to faults ([`faults`]), and all that the host does.
//!
//! **Invariant:** the only mark that an access leaves for a table tracker is the A or D bit that a TLB
//! fill or a first write sets in simulated memory.

pub mod caches;
pub mod costs;
pub mod faults;
pub mod histogram;
pub mod last_level;
pub mod lines;
pub mod memory_mode;
pub mod mmu;
pub mod permissions;
pub mod pml;
pub mod pmu;
pub mod profile;
pub mod progress;
pub mod quota;
pub mod second_stage;
pub mod space;
pub mod stream;
pub mod tables;
#[cfg(test)]
pub(crate) mod tests;
pub mod tier;
pub mod tlb;
pub mod vcpu;
pub mod walk;
mod ways;

/// Picoseconds in a nanosecond: the machine counts its time in ps.
pub const PS: u64 = 1000;

/// Most tiers that a machine may have.
pub const TIERS: usize = terrace_proto::TierId::MAX;
