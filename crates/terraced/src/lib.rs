//! The daemon as a library: engine, clock, host and API, joined. The program beside it takes arguments and signals.
//!
//! The modules from the bottom up; each imports only from those before it:
//!
//! - `confine`: the rights of each thread.
//! - `events`, `record`: the events for people, and the log for replays.
//! - `registry`: the VMs that are known, as plain data.
//! - `served`: the host that the API shows and steers.
//! - `messages`: the messages of the threads to the daemon's loop.
//! - `discovery`, `executor`, `agent_mode`, `provisioning`, `api`: the threads around the loop; none imports another.
//! - `daemon`, `simulate`: the loop, for this host and for a simulated one.
//! - `host`: the daemon on this host, put together.

mod agent_mode;
mod api;
mod confine;
mod daemon;
mod discovery;
mod events;
mod executor;
mod host;
mod messages;
#[cfg(test)]
mod played;
mod provisioning;
mod record;
mod registry;
mod served;
mod simulate;

pub use host::{confine_process, serve};
pub use messages::{Inbox, Stop};
pub use simulate::{Simulated, Speed};
