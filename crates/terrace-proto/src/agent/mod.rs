//! The channel between the agent in a guest and the host.
//!
//! Responsible for: the messages ([`AgentMessage`] to the host, [`HostMessage`] to the guest), their frames,
//! and a decoder of bounded memory ([`Decoder`]). It leaves to others: sockets and ports, the times of messages,
//! and whether to believe it.
//!
//! Neither end trusts the other. Each type with a rule becomes a value by `TryFrom`, also when decoded; every
//! list and text has a greatest length. Page numbers travel from the host to the guest only: no message of
//! the agent has room for one.
//!
//! A frame is a mark of four bytes, a little-endian `u32` length of the body, a `u32` CRC-32 of the body, and
//! the body: a little-endian `u16` kind and a postcard message. Kinds that a reader does not know are
//! skipped by their length, and bytes after a message that it knows are ignored, so that later versions may
//! add both. The check is against chance (half a frame of an agent that was killed), not against malice.

mod frame;
mod gather;
mod messages;
mod rate;
mod text;

pub use frame::{Broken, Counts, Decoder, FrameError, HEADER, MARK, MAX_BODY, Message};
pub use gather::{Gather, MAX_HOT};
pub use messages::{
    Activity, AgentMessage, Budgets, Cost, Faults, Frames, GREATEST_GFN, Heartbeat, Hello,
    HostMessage, MAX_FRAMES, MAX_NODES, Mechanism, Mode, NodeMemory, OutOfBounds, Pressure, Report,
    SwapSpace, VERSION, Versions,
};
pub use rate::Allowance;
pub use text::Text;
