//! The lab: a two-tier KVM host (L1) with real guests (L2) in it, on any machine.
//!
//! QEMU emulates L1; inside it, KVM runs L2. [`Lab`] is a running one. The product is not part of
//! the machine that is booted: it is pushed into it afterwards, so that a change of the product
//! never needs a new boot.

mod agent;
mod alone;
mod beside;
mod blueprint;
mod compare;
mod control;
mod cost;
mod cpio;
mod daemon;
mod demo;
mod emulator;
mod filler;
mod flex;
mod guests;
mod images;
mod kernel;
mod machine;
mod native;
mod process;
mod programs;
mod qmp;
mod redis;
mod refused;
mod running;
mod shell;
mod snapshot;
mod stock;
mod tasks;
mod tests;
mod tiered;
mod truth;

pub use demo::run as demo;
pub use guests::prepare as guest_images;
pub use kernel::{Kernel, numbers};
pub use running::Lab;
pub use tasks::{Task, TestArguments, run, test};
