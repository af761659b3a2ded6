//! Definitions that all layers use: they depend on nothing else of this crate.
//!
//! Responsible for: accesses and their sources ([`access`]), the facts about a load before it runs ([`load`]), a
//! tier's description ([`tier`]) and its service under load ([`service`]), the sides of the second stage ([`side`]), numbers ([`number`]) and random streams
//! ([`random`]).

pub mod access;
pub mod load;
pub mod number;
pub mod random;
pub mod service;
pub mod side;
pub mod tier;
