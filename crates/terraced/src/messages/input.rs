//! The inputs of the daemon's thread.

use terrace_host::Finding;
use terrace_host::agent::AgentView;
use terrace_host::qemu::BalloonSetup;
use terrace_proto::provision::{CollapseReport, OrderOutcome, ProviderReport};
use terrace_proto::{Event, ProviderId, VmId};

use super::found::{Discovered, DiscoveryScan};
use crate::registry::{TrackingNews, VmKey};
use crate::served::Served;

/// A question of the API, which is answered on the thread that owns the served host. The question holds the channel of
/// its answer.
pub type Question = Box<dyn FnOnce(&mut dyn Served) + Send>;

/// An input of the daemon's thread.
pub enum Input {
    /// An event for the engine.
    Event(Event),
    /// A VM that the discoverer found.
    Discovered(Box<Discovered>),
    /// The end of a discovery scan.
    DiscoveryScan(DiscoveryScan),
    /// News of a VM's tracker.
    Tracking(VmId, TrackingNews),
    /// News of a VM's agent; `None` if its link ended by a defect.
    Agent(VmKey, Option<Box<AgentView>>),
    /// A change of a VM's memory map, in words; once for each map.
    MapChanged(VmId, String),
    /// Findings about a VM's moves.
    MoveFindings(VmId, Vec<Finding>),
    /// News of a VM's provider, which resizes it.
    Provider(ProviderNews),
    /// The set-up of a VM as far as balancing depends on it.
    GuestSetup(ProviderId, GuestSetup),
    /// A question of the API.
    Ask(Question),
    /// The end of the loop.
    Stop,
}

/// The set-up of a VM as far as balancing depends on it.
#[derive(Clone, Debug, Default)]
pub struct GuestSetup {
    /// The settings of the VM's balloon, if it has one.
    pub balloon: Option<BalloonSetup>,
    /// The reason why its page walks are not counted; `None` if they are, or that is not known yet.
    pub walks_missing: Option<String>,
}

/// News of a VM's provider, which resizes it.
pub enum ProviderNews {
    /// A report on the VM, and whether a client waits for it.
    Seen(Box<ProviderReport>, bool),
    /// The outcome of an order.
    Answered(OrderOutcome),
    /// The outcome of making huge pages.
    Collapsed(Box<CollapseReport>),
}
