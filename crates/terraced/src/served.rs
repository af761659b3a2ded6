//! What the API shows and steers: this host, or a simulated one.

use terrace_api::elastic::{Elastic, Ordered, Resize};
use terrace_api::types::Tier;
use terrace_core::Engine;
use terrace_host::Finding;
use terrace_proto::provision::{NotOrdered, Origin};
use terrace_proto::{Command, Tick};
use tokio::sync::oneshot;

use crate::events::Events;
use crate::registry::{Registry, VmKey};

/// Looks at a host for what there is to say about it. It reads many files, so it never runs on the engine's thread.
pub type FindHost = Box<dyn FnOnce() -> Vec<Finding> + Send>;

/// What comes of a resize.
pub type Resized = Result<Ordered, NotOrdered>;

/// Where the one answer to a resize comes.
pub type ResizeAnswer = oneshot::Receiver<Resized>;

/// Why nothing can come of an operator's wish any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Over {
    /// The loads of a simulation are done.
    #[error("the scenario is over and its time stands still; start terraced again")]
    Scenario,
}

/// What the API shows and steers.
pub trait Served {
    /// Decides.
    fn engine(&self) -> &Engine;
    /// Time since the start.
    fn now(&self) -> Tick;
    /// The VMs.
    fn vms(&self) -> &Registry;
    /// The tiers and their memory.
    fn tiers(&self) -> Vec<Tier>;
    /// What was told to people.
    fn events(&self) -> &Events;
    /// Name of the policy in general.
    fn policy(&self) -> String;
    /// Moves are turned on for some VM.
    fn moves(&self) -> bool;
    /// All VMs are paused.
    fn paused(&self) -> bool;
    /// Why the observation log ended before its time, where it did.
    fn log_ended(&self) -> Option<String>;
    /// Says how to find out, elsewhere, what there is to say about the host, for `doctor`.
    fn find_host(&self) -> FindHost;
    /// Hands an operator's wish to the engine.
    ///
    /// # Errors
    /// Where nothing can come of it any more.
    fn wish(&mut self, command: Command) -> Result<(), Over>;
    /// A VM's elastic memory as last seen, where it has any.
    fn elastic(&self, _vm: VmKey) -> Option<Elastic> {
        None
    }
    /// What there is to say about a VM's elastic memory, for `doctor`.
    fn elastic_findings(&self, _vm: VmKey) -> Vec<Finding> {
        Vec::new()
    }
    /// Wants a VM to have other sizes; what comes of it is told once.
    ///
    /// # Errors
    /// Where nothing could resize it, or the sizes make no sense.
    fn resize(
        &mut self,
        vm: VmKey,
        origin: Origin,
        sizes: &Resize,
    ) -> Result<ResizeAnswer, NotOrdered>;
    /// Pauses or resumes the agent in a VM; `false` where there is none.
    fn halt_agent(&mut self, _vm: VmKey, _halt: bool) -> bool {
        false
    }
}
