//! The guest agent.
//!
//! Responsible for: which processes of this guest are looked after, samples of their accesses
//! ([`sampler`]), exchanging pages by the engine's plan (HyperTier §4.2), and telling the host how it goes
//! ([`channel`]).
//! It leaves to others: the tree of ranges and the plan (`terrace_core::hyperplace`), system calls
//! (`terrace-sys`), the host's end of the channel (`terraced`).

pub mod channel;
pub mod sampler;
