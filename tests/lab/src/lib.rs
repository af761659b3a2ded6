//! What both ends of the lab agree on.
//!
//! The lab is a virtual machine (L1) that is a real two-tier KVM host, with real guests (L2)
//! running inside it. This crate holds the programs that run in there, `lab-host` in L1 and
//! `lab-guest` in L2, and the few types and formats they share with `xtask`, which drives the lab
//! from outside.

pub mod frame;
pub mod pages;
pub mod port;
pub mod vm;
