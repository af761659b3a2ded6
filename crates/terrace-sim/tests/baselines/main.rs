//! Tests of baselines on small machines: a behaviour of each that no other has.

mod common;
mod edges;

mod autonuma;
mod balance;
mod damos;
mod hemem;
mod hyperplace;
mod memory_mode;
mod memtierd;
mod memtis;
mod nimble;
mod nomad;
mod numab2;
mod raminate;
mod sampled;
mod tpp;
