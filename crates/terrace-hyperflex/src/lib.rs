//! HyperFlex: the vhost-user device through which a running VM's memory changes size, tier by tier (HyperTier §4.1).
//!
//! Responsible for: the device's half of `docs/hyperflex-abi.md`, giving pages back to the host, the state that
//! survives restarts, and the control socket. It leaves to others: which targets are good, the driver in the guest, and
//! starting hypervisors.
//!
//! One process per VM, `terrace-hyperflex`, faces the guest: without capabilities, files, network or programs to
//! start (`sandbox`). [`control`] is the daemon's and the command's way to it.

pub mod abi;
mod backend;
mod chain;
pub mod config;
pub mod control;
mod counters;
pub mod device;
mod error;
pub mod export;
pub mod lease;
pub mod memory;
pub mod policy;
mod rate;
pub mod ring;
pub mod sandbox;
mod serve;
pub mod state;
mod sweep;
#[cfg(test)]
mod test_vm;
pub mod tier;

pub use config::{Args, Config};
pub use counters::Counters;
pub use device::Device;
pub use error::FlexError;
pub use serve::Prepared;
pub use state::State;
