//! The guest agent.
//!
//! Responsible for: which processes of this guest are looked after ([`programs`], [`processes`], [`mappings`]),
//! samples of their accesses ([`sampler`]), what the controller of ranges asks for
//! ([`agent`], [`controller`], [`kernel`]; HyperTier §4.2), what came of it ([`account`]), and telling the guest's
//! owner ([`view`], [`status`]) and the host ([`report`], [`channel`]) how it goes. It leaves to others: every decision
//! (`terrace_core::ranges`), system calls (`terrace-sys`), the host's end of the
//! channel (`terraced`).
//!
//! Everything runs on one thread but DAMON's answers and those to `status`.

pub mod account;
pub mod agent;
pub mod channel;
pub mod config;
pub mod controller;
pub mod doctor;
pub mod host;
pub mod journal;
pub mod kernel;
pub mod managed;
pub mod mappings;
pub mod processes;
pub mod programs;
pub mod record;
pub mod report;
pub mod room;
pub mod sampler;
pub mod status;
pub mod top;
pub mod view;
