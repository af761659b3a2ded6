//! Baselines: a behaviour of each that no other has, on small machines.

mod common;
mod edges;

mod autonuma;
mod hyperplace;
mod nomad;
mod numab2;
mod tpp;
