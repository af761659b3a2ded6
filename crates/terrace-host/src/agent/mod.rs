//! The host's end of the channel to the agent in a guest.
//!
//! Responsible for: the connection to QEMU's end of the virtio-serial port ([`AgentLink`]: non-blocking, with
//! limits of bytes and messages), what of the guest's words is believed, and the verdict whether the agent
//! may go on managing its VM ([`AgentWatch`], a value: time is an argument). It leaves to others: what
//! happens to a VM whose agent is silent or lies (`terraced`), and the messages (`terrace_proto::agent`).
//!
//! An agent can hurt its own VM only: nothing that it sends is an address, steers another VM, or makes this
//! end hold more than one frame.

mod lie;
mod link;
mod watch;

pub use lie::Lie;
pub use link::{AgentLink, Orders};
pub use watch::{AgentState, AgentView, AgentWatch, Verdict, WatchConfig};
