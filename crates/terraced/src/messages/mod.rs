//! What threads tell the daemon's loop, and what the API asks of it.
//!
//! Everything that happens comes in by one channel, as an [`Input`]. The words stand below all who send them and below
//! the loop that hears them, so that none of these needs another.

mod found;
mod inbox;
mod input;

pub use found::{AgentVm, Found, Looked, Ready, State};
pub use inbox::{Inbox, Stop};
pub use input::{Input, ProviderNews, Question};
