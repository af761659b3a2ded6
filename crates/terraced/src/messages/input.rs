//! All that reaches the daemon's thread.

use terrace_host::Finding;
use terrace_host::agent::AgentView;
use terrace_proto::provision::{OrderOutcome, ProviderReport};
use terrace_proto::{Event, VmId};

use super::found::{Found, Looked};
use crate::registry::{TrackingNews, VmKey};
use crate::served::Served;

/// A question of the API, to be answered on the thread that has what is served. It has its answer's channel in it.
pub type Question = Box<dyn FnOnce(&mut dyn Served) + Send>;

/// What reaches the daemon's thread.
pub enum Input {
    /// Something for the engine.
    Event(Event),
    /// The scout found a VM.
    Found(Box<Found>),
    /// The scout looked everywhere.
    Looked(Looked),
    /// What a VM's tracker says of itself.
    Tracking(VmId, TrackingNews),
    /// News of a VM's agent; none where its link ended by a defect.
    Agent(VmKey, Option<Box<AgentView>>),
    /// A VM's memory map is another one, with what changed; once for each map.
    MapChanged(VmId, String),
    /// What there is to say about a VM's moves.
    MoveFindings(VmId, Vec<Finding>),
    /// News of what resizes a VM.
    Provider(ProviderNews),
    /// A question of the API.
    Ask(Question),
    /// End.
    Stop,
}

/// News of what resizes a VM.
pub enum ProviderNews {
    /// How the VM stands, and that somebody waits for it.
    Seen(Box<ProviderReport>, bool),
    /// What came of an order.
    Answered(OrderOutcome),
}
