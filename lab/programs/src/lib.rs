//! Programs of the lab, and the formats that both of its ends agree on.
//!
//! The lab is a virtual machine (L1) that is a real two-tier KVM host, with real guests (L2)
//! running inside it. This crate holds the programs that run in there, `lab-host` in L1 and
//! `lab-guest` in L2, and the few types and formats they share with `terrace-lab`, which drives it
//! from outside. `lab-native` is a workload of L1 itself, where L1 is the guest that places its own pages.

pub mod churn;
pub mod commands;
pub mod frame;
pub mod hotset;
pub mod move_pages;
pub mod native;
pub mod numa;
pub mod pages;
pub mod port;
pub mod region;
pub mod vm;
pub mod workload;
