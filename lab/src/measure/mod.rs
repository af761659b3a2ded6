//! Figures for people, of what a test must not depend on.

pub mod compare;
pub mod cost;
pub mod leases;
mod median;
pub mod resize;
