//! The machine: what one access costs, and the marks that it leaves.
//!
//! Responsible for: guest page tables that are real x86-64 tables in simulated guest RAM ([`tables`]),
//! the second stage ([`second_stage`]), TLBs and walks of two dimensions ([`vcpu`], [`walk`]), memory
//! with latency, bandwidth and queueing ([`tier`]), page-modification logging. It leaves to others: what
//! is accessed (a [`crate::words::access::Source`]), who answers a fault ([`faults`]), and everything that the host does.
//!
//! **Invariant:** the only mark that an access leaves for a table tracker is the A or D bit that a TLB
//! fill or a first write sets in simulated memory.

pub mod costs;
pub mod faults;
pub mod histogram;
pub mod lines;
pub mod memory_mode;
pub mod pml;
pub mod pmu;
pub mod second_stage;
pub mod space;
pub mod tables;
#[cfg(test)]
pub(crate) mod tests;
pub mod tier;
pub mod tlb;
pub mod vcpu;
pub mod walk;

/// Picoseconds in a nanosecond: the machine counts its time in ps.
pub const PS: u64 = 1000;

/// Most tiers there are.
pub const TIERS: usize = terrace_proto::TierId::MAX;
