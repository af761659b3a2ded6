//! Baselines: a behaviour of each that no other has, on small machines.

mod common;

mod autonuma;
mod edges;
mod memory_mode;
mod memtierd;
mod nimble;
mod raminate;
