//! Figures for people, of properties on which a test must not depend.

pub mod compare;
pub mod cost;
pub mod leases;
mod marked;
mod median;
pub mod proof;
pub mod resize;
pub mod sharing;
