//! A simulated host: the engine that runs live, on a machine that nobody has to buy.
//!
//! Responsible for: the two-dimensional-paging machine ([`machine`]), the loads on it ([`workload`],
//! [`trace`]), scenarios as people write them ([`scenario`]), running them ([`run`]) and what is told
//! about a run ([`result`], [`report`], [`choice`]). It leaves to others: decisions (the engine's), walking page
//! tables (the live scanner's), the command line and the terminal.
//!
//! **Invariant:** a run is a pure function of scenario and seed: no clock, no thread, no hash order, no
//! libm of the system.

pub mod access;
pub mod baseline;
pub mod choice;
pub mod compare;
pub mod host;
pub mod machine;
pub mod number;
pub mod random;
pub mod report;
pub mod repro;
pub mod result;
pub mod run;
pub mod scenario;
mod setup;
pub mod swap;
pub mod timeline;
pub mod trace;
pub mod workload;
