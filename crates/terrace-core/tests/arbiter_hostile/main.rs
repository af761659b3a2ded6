//! Guests, providers and operators that do their worst to the arbiter.

#![allow(clippy::unwrap_used, reason = "test helpers outside of test functions")]

mod any;
mod claims;
mod exchange;
mod faults;
mod host;
mod live;
mod price;
mod reserve;
mod world;
