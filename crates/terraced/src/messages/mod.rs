//! Messages of the threads to the daemon's loop, and questions of the API to it.
//!
//! Everything that happens comes in by one channel, as an [`Input`]. The types are below all senders and below the
//! loop that receives them, so that none of these needs another.

mod found;
mod inbox;
mod input;

pub use found::{AgentVm, Discovered, DiscoveryScan, Ready, State};
pub use inbox::{Inbox, Stop};
pub use input::{GuestSetup, Input, ProviderNews, Question};
