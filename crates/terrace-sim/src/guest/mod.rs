//! The guest's own kernel, as far as no mechanism is one: watermarks, reclaim to swap, the balloon.
//!
//! Responsible for: how much of a node its kernel keeps free ([`marks`]), and what a guest does that lacks memory
//! ([`reclaim`]). It leaves to others: its page tables ([`crate::machine::tables`]), and who places its pages.

pub mod marks;
pub mod reclaim;

#[cfg(test)]
mod tests;
