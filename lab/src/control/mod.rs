//! A running lab: the channels into it, and the work that is done in it by them.

pub mod agent;
mod channel;
pub mod daemon;
pub mod damos;
mod filler;
pub mod lab;
pub mod naming;
mod native;
mod redis;
mod truth;
