//! The guest agent.
//!
//! Responsible for: which processes of this guest are managed ([`programs`], [`processes`], [`mappings`]), samples of
//! their accesses ([`sampler`]), carrying out what the controller of ranges asks for ([`agent`], [`controller`],
//! [`kernel`], [`module`]; HyperTier §4.2), the outcome ([`account`]), and reports for the guest's owner ([`view`], [`status`])
//! and the host ([`report`], [`channel`]). It leaves to others: every decision (`terrace_core::ranges`), system calls
//! (`terrace-sys`), the host's end of the channel (`terraced`).
//!
//! Everything runs on one thread, except DAMON's answers, the module's scans and the answers to `status`.

pub mod account;
pub mod agent;
pub mod channel;
pub mod config;
pub mod controller;
pub mod doctor;
pub mod frames;
pub mod gather;
pub mod gathering;
pub mod host;
pub mod journal;
pub mod kernel;
pub mod managed;
pub mod mappings;
pub mod module;
pub mod opener;
pub mod output;
pub mod processes;
pub mod programs;
pub mod record;
pub mod report;
pub mod room;
pub mod sampler;
pub mod status;
pub mod top;
pub mod view;
