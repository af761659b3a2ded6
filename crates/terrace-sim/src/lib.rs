//! A simulated host: the engine that runs live, on a machine that nobody has to buy.
//!
//! Responsible for: the two-dimensional-paging machine ([`machine`]), the loads on it ([`workload`],
//! [`trace`]), scenarios as people write them ([`scenario`]), running them ([`run`]) and what a run says
//! ([`result`]). It leaves to others: decisions (the engine's), walking page tables (the live scanner's), what is
//! done with several runs, the command line and the terminal.
//!
//! **Invariant:** a run is a pure function of scenario and seed: no clock, no thread, no hash order, no
//! libm of the system.

pub mod access;
pub mod baseline;
pub mod host;
pub mod machine;
pub mod number;
pub mod random;
pub mod result;
pub mod run;
pub mod scenario;
mod setup;
pub mod swap;
pub mod timeline;
pub mod trace;
pub mod workload;

pub use access::{Access, LINE, Pace, Source};
pub use baseline::{Name, Side};
pub use machine::costs::Costs;
pub use machine::tlb::{Cached, Tlb};
pub use result::{Overhead, Provisioned, RunResult, Sweep, VmResult};
pub use run::{Options, Output, RunError, Simulation};
pub use scenario::{
    BalloonStep, Device, Fault, HostPolicy, Provision, Resize, Scenario, ScenarioError, Start,
    Stop, Tier, Vm, policy, presets, quantity,
};
pub use timeline::{Sample, Timeline, VmTimeline};
pub use workload::{Context, kinds};
