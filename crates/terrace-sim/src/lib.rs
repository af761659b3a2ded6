//! A simulated host: the engine that runs live, on a machine that need not be bought.
//!
//! Responsible for, from the bottom up: the definitions that all use (`base`), recorded accesses (`trace`), loads
//! (`workload`), the two-dimensional-paging machine (`machine`), the guest's kernel (`guest`), the host (`host`),
//! other systems' mechanisms (`mechanisms`), scenarios as people write them (`scenario`) and running them
//! (`simulation`). Each sees only those before it. It leaves to others: decisions (the engine's), walking page tables
//! (the live scanner's), the use of several runs, the command line and the terminal.
//!
//! **Invariant:** a run is a pure function of scenario and seed: no clock, no thread, no hash order, no
//! libm of the system.

mod base;
mod guest;
mod host;
mod machine;
mod mechanisms;
mod scenario;
mod simulation;
pub mod trace;
mod workload;

pub use base::access::{Access, LINE, Pace, Source};
pub use base::load::{Context, Stop};
pub use base::number;
pub use base::service::{Curve, Service};
pub use base::tier::Tier;
pub use guest::reclaim::BalloonStep;
pub use host::device::{Device, Provision, Resize};
pub use host::start::{Initial, Start, Tables};
pub use machine::costs::Costs;
pub use machine::tlb::{Cached, Tlb};
pub use mechanisms::{Name, Side};
pub use scenario::{
    Cache, Claim, Fault, GuestPolicy, Host, HostPolicy, HostShare, Pages, Scenario, ScenarioError,
    Shortage, Vm, policy, presets, quantity,
};
pub use simulation::demand_result::{Demand, DemandCurve, DemandPoint, PhaseAt, WorkingSetAt};
pub use simulation::result::{
    HotBlocks, OrderAt, Overhead, Provisioned, Refused, RunResult, SizeAt, Sweep, VmResult, Way,
};
pub use simulation::timeline::{Sample, Timeline, VmTimeline};
pub use simulation::{Options, Output, Profiles, RunError, Simulation};
pub use workload::kinds;
