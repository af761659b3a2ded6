//! The host that the API shows and steers: this one, or a simulated one.

use terrace_api::provision::{Ordered, ProvisioningStatus, Resize};
use terrace_api::types::Tier;
use terrace_core::Engine;
use terrace_host::Finding;
use terrace_proto::provision::{NotOrdered, Origin};
use terrace_proto::{Command, Tick};
use tokio::sync::oneshot;

use crate::events::Events;
use crate::registry::{Registry, VmKey};

/// An inspection of a host for its findings. It reads many files, so it never runs on the engine's thread.
pub type FindHost = Box<dyn FnOnce() -> Vec<Finding> + Send>;

/// The result of a resize.
pub type Resized = Result<Ordered, NotOrdered>;

/// The receiver of the one answer to a resize.
pub type ResizeAnswer = oneshot::Receiver<Resized>;

/// The reason why an operator's command can have no effect any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Over {
    /// The loads of a simulation are done.
    #[error("the scenario is over and its clock has stopped; start terraced again")]
    Scenario,
}

/// A change of a VM's part in the sharing of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BalanceChange {
    /// Whether it takes part.
    On(bool),
    /// Whether it is paused.
    Halted(bool),
    /// The least memory that it is left, bytes.
    Floor(u64),
    /// The most that it is given, bytes.
    Ceiling(u64),
    /// How much its lost time counts, thousandths.
    Weight(u32),
}

/// A host that the API shows and steers.
pub trait Served {
    /// The engine.
    fn engine(&self) -> &Engine;
    /// Time since the start.
    fn now(&self) -> Tick;
    /// The VMs that are known.
    fn vms(&self) -> &Registry;
    /// The tiers and their memory.
    fn tiers(&self) -> Vec<Tier>;
    /// The events for people.
    fn events(&self) -> &Events;
    /// Name of the default policy.
    fn policy(&self) -> String;
    /// Whether all VMs are paused.
    fn paused(&self) -> bool;
    /// The reason why the observation log ended early; `None` if it did not.
    fn log_ended(&self) -> Option<String>;
    /// The inspection of the host for `doctor`, to be run on another thread.
    fn find_host(&self) -> FindHost;
    /// Hands an operator's command to the engine.
    ///
    /// # Errors
    /// If the command can have no effect any more.
    fn command(&mut self, command: Command) -> Result<(), Over>;
    /// A VM's resizable memory as last seen; `None` if it has none.
    fn provisioning(&self, _vm: VmKey) -> Option<ProvisioningStatus> {
        None
    }
    /// Findings about a VM's resizable memory, for `doctor`.
    fn provisioning_findings(&self, _vm: VmKey) -> Vec<Finding> {
        Vec::new()
    }
    /// Changes a VM's part in the sharing of memory.
    ///
    /// # Errors
    /// If it has none: the reason.
    fn balance(&mut self, _vm: VmKey, _change: BalanceChange) -> Result<(), String> {
        Err("a simulated host shares memory as its scenario says".into())
    }
    /// Wants a VM to have other sizes; the answer comes once.
    ///
    /// # Errors
    /// If nothing could resize the VM, or the sizes make no sense.
    fn resize(
        &mut self,
        vm: VmKey,
        origin: Origin,
        sizes: &Resize,
    ) -> Result<ResizeAnswer, NotOrdered>;
    /// Pauses or resumes the agent in a VM; `false` if there is none.
    fn halt_agent(&mut self, _vm: VmKey, _halt: bool) -> bool {
        false
    }
}
