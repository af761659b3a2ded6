//! The guest's own kernel, as far as no mechanism stands for it: watermarks, reclaim to swap, the balloon.
//!
//! Responsible for: the memory of a node that the kernel keeps free ([`marks`], [`zones`]), and the reaction of a guest
//! to a lack of memory ([`reclaim`], which finds room in its [`frames`]). It leaves to others: the page tables ([`crate::machine::tables`]), and the placement
//! of pages.

pub mod frames;
pub mod marks;
pub mod reclaim;
pub mod zones;

#[cfg(test)]
mod tests;
