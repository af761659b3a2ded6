//! The lab: a two-tier KVM host (L1) with real guests (L2) in it, on any machine, and the tests that need one.
//!
//! QEMU emulates L1; inside it, KVM runs L2. The product is not part of the machine that is booted: it is
//! pushed into it afterwards, so that a change of the product never needs a new boot. What runs inside, and
//! the formats of the channels, are `terrace-lab-programs`.
//!
//! A module imports from those above it in this list, and from none below:
//!
//! - `progress`, `places`, `children`, `host`: lines for people, folders, child processes, the distribution's packages
//! - `alone`, `programs`: a run that sees every process; what is built for the lab
//! - `machine`: emulator, kernel, images, and the process of L1 with its snapshots
//! - `modules`: the guest's kernel modules, built for the lab's kernel
//! - `control`: a running lab, and the product and the workloads in it
//! - `guests`: guests of this machine without an L1 around them, and what stands beside them
//! - `measure`: figures for people
//! - `tests`: the registry of tests and its runner
//! - `commands`: `cargo xtask lab …`

pub mod children;
pub mod host;
pub mod modules;
pub mod places;
pub mod progress;

mod alone;
mod commands;
mod control;
mod guests;
mod machine;
mod measure;
mod programs;
mod tests;

pub use commands::{Task, demo::run as demo, run};
pub use guests::plain::prepare as guest_images;
pub use tests::runner::{TestArguments, run as test};
