//! Baselines: a behaviour of each that no other has, on small machines.

mod common;

mod autonuma;
mod hemem;
mod memtis;
mod sampled;
