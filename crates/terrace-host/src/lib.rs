//! The Linux host.
//!
//! Responsible for: finding VMs and talking to their hypervisor, where guest RAM is in the hypervisor's memory, the
//! worker process that walks one guest's page tables, placement queries and page moves, the connection to a guest's
//! agent and what of it is believed, resizing by QEMU's own means, and findings about all of it. It leaves to others:
//! every decision (`terrace-core`), the walk itself (`terrace-pagetable`), nodes and tiers (`terrace-sys`), clocks,
//! threads and the API of the daemon (`terraced`).
//!
//! Readers of `/proc` and `/sys` take a [`HostRoot`], so that tests hand in a tree of their own.
//! All calls block; none panics on input from a guest or a hypervisor.

pub mod agent;
pub mod doctor;
pub mod host_memory;
pub mod huge;
pub mod memory_map;
pub mod mover;
pub mod node_memory;
pub mod page_walks;
pub mod placement;
pub mod process_memory;
pub mod providers;
pub mod qemu;
pub mod sharers;
pub mod tracker;
pub mod unit;
pub mod vm;
pub mod worker;

pub use terrace_sys::{Finding, Health, HostRoot, ReadError, topology};
