//! Providers, which resize VMs, and how they are found.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use terrace_config::VmConfig;
use terrace_host::HostRoot;
use terrace_host::sharers::Holders;
use terrace_proto::provision::{
    CollapseRequest, Collapsed, Mechanism, NotCollapsed, ProviderError, ProviderStatus,
};
use terrace_sys::{FileId, ProcessId};

use super::guest::Readings;
use super::lookout::Lookout;

/// A provider, which resizes one VM: a device, or the hypervisor's monitor. All calls block, and run on the VM's
/// reconciler alone.
pub trait Provider: Send {
    /// The provider's mechanism.
    fn mechanism(&self) -> Mechanism;

    /// The state of the VM's memory. `verify` checks the host's memory behind it as well, even if that costs more.
    ///
    /// # Errors
    /// If the provider does not answer.
    fn query(&mut self, verify: bool) -> Result<ProviderStatus, ProviderError>;

    /// Orders the size of each tier, bytes, one for each tier of [`ProviderStatus::tiers`]; `None` leaves a tier as
    /// it is. Returns once the order is taken; a newer one replaces it.
    ///
    /// # Errors
    /// If the provider does not answer, or the sizes are impossible.
    fn order(&mut self, size_bytes: &[Option<u64>]) -> Result<(), ProviderError>;

    /// The readings of the VM's guest that the last query made besides; `None` if it made none.
    fn guest(&mut self) -> Option<Readings> {
        None
    }

    /// Prepares a step that makes huge pages of the VM's single ones: what the provider has to be asked for it.
    ///
    /// # Errors
    /// If something is in the way, for now or for good.
    fn collapse(&mut self, _request: &CollapseRequest) -> Result<CollapseStep, NotCollapsed> {
        let why = "its provider leaves whole huge pages";
        Err(NotCollapsed::Never(why.into()))
    }

    /// Sends the provider the result of the pin check of this number, and returns the pin check that it wants next;
    /// `None` if it gives memory back without one.
    ///
    /// # Errors
    /// If the provider does not answer.
    fn lease(
        &mut self,
        _pin_checked: Option<(u64, Holders)>,
    ) -> Result<Option<Wanted>, ProviderError> {
        Ok(None)
    }
}

/// A step that makes huge pages: it runs on a thread of its own, and ends soon once its argument says that it is over.
pub type CollapseStep =
    Box<dyn FnOnce(&dyn Fn() -> bool) -> Result<Collapsed, NotCollapsed> + Send>;

/// A check of which other processes have the VM's RAM, which begins after it was requested.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The pin check's number; `None`: no pin check is needed, and the rest is the device's own report.
    pub number: Option<u64>,
    /// Whether memory waits for the pin check.
    pub waits: bool,
    /// The files that memory is given back from.
    pub files: BTreeSet<FileId>,
    /// The process that gives the memory back.
    pub process: Option<u32>,
}

/// The facts known of a VM when its reconciler starts.
#[derive(Clone, Debug)]
pub struct VmContext {
    /// The VM's name.
    pub name: String,
    /// The hypervisor's process; `None` if it is not known.
    pub pid: Option<u32>,
    /// The same as it was found: a later process with its number is another one.
    pub process: Option<ProcessId>,
    /// The VM's monitor.
    pub monitor: PathBuf,
    /// The VM's configuration.
    pub config: VmConfig,
    /// Whether an operator requested that this VM be resized: its monitor may then be queried for providers, whether
    /// the VM is opted in or not.
    pub is_asked_for: bool,
    /// The root folder of the host's files.
    pub root: HostRoot,
    /// The shared census of the processes that have VMs' RAM.
    pub lookout: Lookout,
}

impl VmContext {
    /// Whether no client waits for the VM's provider, and the configuration has none: a monitor that does not answer is
    /// then no news.
    pub fn is_quiet(&self) -> bool {
        !self.is_asked_for && !self.config.hyperflex.is_configured()
    }
}

/// A function that finds a VM's provider. It runs on the VM's reconciler, again and again until it finds one, because a
/// monitor may hang or be held by another client; `None` if there is nothing that could resize the VM.
pub type Find = Box<dyn FnMut() -> Result<Option<Box<dyn Provider>>, ProviderError> + Send>;

/// A function that returns the way to find a VM's provider; `None` for a VM that gets no reconciler at all.
pub type Finder = Arc<dyn Fn(&VmContext) -> Option<Find> + Send + Sync>;

/// The advice how to give a VM a provider.
pub fn three_ways(name: &str) -> String {
    format!(
        "{name} cannot be resized: it has no provider. Give it one of three: a HyperFlex device (hyperflex = \
         \"/path/control.sock\" under [vm.{name}], where a terrace-hyperflex runs for it); a virtio-mem device for \
         each node of the guest (-device virtio-mem-pci,id=…,memdev=…,node=…); or a balloon, which knows no tiers \
         (-device virtio-balloon-pci)"
    )
}

/// Most characters of a device's or a monitor's message that are stored.
pub const MAX_REASON_CHARS: usize = 400;

/// The words of a device or of QEMU, without control characters and cut. Both face the guest: their words go to
/// events and terminals, and must not steer these.
pub fn plain(said: &str) -> String {
    let printable = |c: char| if c.is_control() { ' ' } else { c };
    said.chars().take(MAX_REASON_CHARS).map(printable).collect()
}

/// `512 MiB`, `1.5 GiB`.
pub fn size(bytes: u64) -> String {
    bytesize::ByteSize(bytes).to_string().replace(".0 ", " ")
}
