//! Words that all layers use: they stand on nothing else here.
//!
//! Responsible for: accesses and where they come from ([`access`]), what is known of a load before it runs ([`load`]),
//! a tier's description ([`tier`]), the sides of the second stage ([`side`]), numbers ([`number`]) and random
//! streams ([`random`]).

pub mod access;
pub mod load;
pub mod number;
pub mod random;
pub mod side;
pub mod tier;
