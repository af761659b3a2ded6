//! What resizes a VM, and how it is found.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use terrace_config::VmConfig;
use terrace_host::HostRoot;
use terrace_host::sharers::Found;
use terrace_proto::provision::{Mechanism, ProviderError, ProviderStatus};
use terrace_sys::FileId;

use super::lookout::Lookout;

/// Resizes one VM: a device, or the hypervisor's monitor. All calls block, and run on the VM's keeper alone.
pub trait Provider: Send {
    /// What it is.
    fn mechanism(&self) -> Mechanism;

    /// How the VM stands; `verify` looks at the host's memory behind it as well, where that costs more.
    ///
    /// # Errors
    /// Where it does not answer.
    fn look(&mut self, verify: bool) -> Result<ProviderStatus, ProviderError>;

    /// Orders what each tier shall have, bytes, one for each tier of [`ProviderStatus::tiers`]; `None` leaves it as it is.
    /// Returns once the order is taken; a newer one replaces it.
    ///
    /// # Errors
    /// Where it does not answer, or the sizes cannot be.
    fn order(&mut self, size_bytes: &[Option<u64>]) -> Result<(), ProviderError>;

    /// Tells what the look of this number came to, and says which one is wanted next; `None` where it gives memory back
    /// without.
    ///
    /// # Errors
    /// Where it does not answer.
    fn lease(&mut self, _looked: Option<(u64, Found)>) -> Result<Option<Wanted>, ProviderError> {
        Ok(None)
    }
}

/// A look at who else has the VM's RAM, which begins after it was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Its number; `None`: no look is needed, and the rest is what the device says of itself.
    pub number: Option<u64>,
    /// Memory waits for it.
    pub waits: bool,
    /// The files that memory is given back from.
    pub files: BTreeSet<FileId>,
    /// The process that gives it back.
    pub process: Option<u32>,
}

/// What is known of a VM when its memory is looked after.
#[derive(Clone, Debug)]
pub struct Place {
    /// Its name.
    pub name: String,
    /// Its hypervisor's process, where it is known.
    pub pid: Option<u32>,
    /// Its monitor.
    pub monitor: PathBuf,
    /// What is configured for it.
    pub config: VmConfig,
    /// An operator asked for this VM to be resized: its monitor may be asked what there is, whether it is opted
    /// in or not.
    pub is_asked_for: bool,
    /// Where files of the host are.
    pub root: HostRoot,
    /// Who has the RAM of which VM.
    pub lookout: Lookout,
}

impl Place {
    /// Nobody waits for what resizes it, nor says that there is anything: a monitor that does not answer is no news.
    pub fn is_quiet(&self) -> bool {
        !self.is_asked_for && self.config.hyperflex.is_none()
    }
}

/// Finds what resizes a VM. Runs on the VM's keeper, again and again until it finds something, because a monitor may
/// hang or be held by another client; `None` where there is nothing that could.
pub type Find = Box<dyn FnMut() -> Result<Option<Box<dyn Provider>>, ProviderError> + Send>;

/// Says how to find what resizes a VM; `None` for a VM that is not looked after at all.
pub type Finder = Arc<dyn Fn(&Place) -> Option<Find> + Send + Sync>;

/// Says how a VM is given what resizes it.
pub fn three_ways(name: &str) -> String {
    format!(
        "{name} has nothing that resizes it. Give it one of three: a HyperFlex device (hyperflex = \
         \"/path/control.sock\" under [vm.{name}], where a terrace-hyperflex runs for it); a virtio-mem device for \
         each node of the guest (-device virtio-mem-pci,id=…,memdev=…,node=…); or a balloon, which knows no tiers \
         (-device virtio-balloon-pci)"
    )
}

/// Most characters of a device's or a monitor's words that are kept.
pub const MOST_WORDS: usize = 400;

/// Devices and QEMU face the guest: what they say goes to events and terminals without anything that steers them.
pub fn plain(said: &str) -> String {
    let printable = |c: char| if c.is_control() { ' ' } else { c };
    said.chars().take(MOST_WORDS).map(printable).collect()
}

/// `512 MiB`, `1.5 GiB`.
pub fn size(bytes: u64) -> String {
    bytesize::ByteSize(bytes).to_string().replace(".0 ", " ")
}
