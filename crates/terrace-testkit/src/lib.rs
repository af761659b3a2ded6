//! Builders and fakes that the tests of several crates share. No product binary depends on it.
//!
//! Helpers for a crate's inline tests of its own types stay in that crate, under `cfg(test)`: a test build of a crate
//! is another one than what this crate sees, with other types.

#![allow(
    clippy::unwrap_used,
    reason = "tests call it: what fails here fails the test"
)]

pub mod agent;
pub mod engine;
pub mod front_end;
pub mod fuzz;
pub mod guest;
pub mod log;
pub mod monitor;
pub mod pages;
pub mod providers;
pub mod qemu;

pub use terrace_bench::driver as mock;
