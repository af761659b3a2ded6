//! The simulated host: what it does for the engine, on processors of its own, and at what price.
//!
//! Responsible for: where pages are at first ([`start`]), scans ([`scan`]), moves ([`moves`], [`travel`]), the
//! processors that do them ([`management`]), the devices that size guests' nodes ([`provision`]), and the bound
//! that knows the future ([`oracle`]). It leaves to others: decisions (the engine's).

pub mod management;
pub mod moves;
pub mod oracle;
pub mod provision;
pub mod scan;
pub mod sizes;
pub mod start;
pub mod travel;
pub mod vm;

#[cfg(test)]
mod tests;
