//! Baselines: a behaviour of each that no other has, on small machines.

mod common;
mod edges;

mod autonuma;
mod hyperplace;
mod memory_mode;
mod memtierd;
mod nimble;
mod nomad;
mod numab2;
mod raminate;
mod tpp;
