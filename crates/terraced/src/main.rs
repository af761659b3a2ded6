//! The daemon: joins engine, clock, host and API.

fn main() {}
