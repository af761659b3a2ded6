//! The simulated host: the work that it does for the engine on processors of its own, and the cost of that.
//!
//! Responsible for: the first locations of pages ([`start`]), scans ([`scan`]), moves ([`moves`], [`migration`], and by
//! the guest [`guest_moves`]), the processors that do them ([`management`]), the devices that size guests' nodes ([`provision`]), the answers to a
//! VM's faults ([`placer`]), the bounds that no policy can know ([`bounds`]), and the account of all that ([`account`]).
//! It leaves to others: decisions (the engine's, or a mechanism's).

pub mod account;
pub mod bounds;
pub mod device;
pub mod guest_moves;
pub mod management;
pub mod migration;
pub mod moves;
pub mod placer;
pub mod provision;
pub mod scan;
pub mod schedule;
pub mod start;
pub mod vm;
