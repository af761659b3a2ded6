//! The guest agent.
//!
//! Responsible for: which processes of this guest are looked after ([`processes`], [`mappings`]), samples
//! of their accesses ([`sampler`]), what the controller of ranges asks for
//! ([`agent`], [`kernel`]; HyperTier §4.2), and telling the guest's owner ([`status`]) and the host
//! ([`channel`]) how it goes. It leaves to others: every decision
//! (`terrace_core::ranges`), system calls (`terrace-sys`), the host's end of the
//! channel (`terraced`).
//!
//! Everything runs on one thread but DAMON's answers and those to `status`.

pub mod agent;
pub mod channel;
pub mod config;
pub mod doctor;
pub mod kernel;
pub mod managed;
pub mod mappings;
pub mod processes;
pub mod record;
pub mod report;
pub mod room;
pub mod sampler;
pub mod status;
pub mod top;
