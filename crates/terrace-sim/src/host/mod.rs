//! The simulated host: what it does for the engine, on processors of its own, and at what price.
//!
//! Responsible for: where pages are at first ([`start`]), scans ([`scan`]), moves ([`moves`], [`travel`]), the
//! processors that do them ([`management`]), the devices that size guests' nodes ([`provision`]), who answers
//! a VM's faults ([`placer`]), and the bound that knows the future ([`oracle`]). It leaves to others: decisions (the
//! engine's, or a mechanism's).

pub mod device;
pub mod management;
pub mod moves;
pub mod oracle;
pub mod placer;
pub mod provision;
pub mod scan;
pub mod start;
pub mod travel;
pub mod vm;
