//! The tests that need a real host and guest: their type, their list, and their runner.
//!
//! `registry` lists the tests of this crate; `plain` speaks for `terrace-host`'s own, which start plain guests.
//! `runner` runs them all, those in L1 beside those on guests of this machine (`halves`).

pub mod runner;

mod attempts;
mod flex;
mod halves;
mod l1;
mod module;
mod outcome;
mod plain;
mod refused;
mod registry;
mod stock;
mod test;
