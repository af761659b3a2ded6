//! The tests that need a real host and guest: what they are, where they are listed, and who runs them.
//!
//! `registry` lists the tests of this crate; `plain` speaks for `terrace-host`'s own, which start plain guests.
//! `runner` runs them all.

pub mod runner;

mod attempts;
mod flex;
mod l1;
mod outcome;
mod plain;
mod refused;
mod registry;
mod stock;
mod test;
