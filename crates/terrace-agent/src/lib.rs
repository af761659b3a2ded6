//! The guest agent.
//!
//! Responsible for: which processes of this guest are looked after ([`processes`], [`mappings`]), samples
//! of their accesses ([`sampler`]), exchanging pages by the engine's plan ([`agent`], [`exchange`];
//! HyperTier §4.2), and telling the guest's owner ([`status`]) and the host
//! ([`channel`]) how it goes. It leaves to others: the tree
//! of ranges and the plan (`terrace_core::hyperplace`), system calls (`terrace-sys`), the host's end of the
//! channel (`terraced`).
//!
//! Everything runs on one thread but DAMON's answers and those to `status`.

pub mod agent;
pub mod channel;
pub mod config;
pub mod doctor;
pub mod exchange;
pub mod extents;
pub mod managed;
pub mod mappings;
pub mod pick;
pub mod processes;
pub mod report;
pub mod room;
pub mod sampler;
pub mod status;
pub mod top;
