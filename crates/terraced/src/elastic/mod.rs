//! Elastic memory: VMs whose memory changes size, tier by tier, while they run.
//!
//! Responsible for: one [`keeper`] thread per VM that has a [`Provider`] (a hung device or monitor blocks that thread
//! alone), what the daemon keeps of it ([`kept`]), the one way of an order, and [`admission`]. It leaves to others:
//! how a device or a monitor is asked (providers), and which sizes are good.
//!
//! **Where orders come from.** Each has an [`Origin`]: the operator now. An arbiter that shares memory between VMs
//! gives its orders by the same function, `Daemon::order`, on the daemon's thread: it checks the order against the VM's
//! limits, devices that are passed through and the host's free memory, records it, makes it an event, and hands it to
//! the VM's keeper. Nothing else resizes a VM.

pub mod admission;
mod hyperflex;
pub mod keeper;
pub mod kept;
pub mod lookout;
pub mod orders;
mod qemu;
#[cfg(test)]
mod tests;
pub mod views;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use terrace_api::elastic::GuestTier;
use terrace_host::HostRoot;
use terrace_host::qemu::who::HypervisorConfig;
use terrace_host::sharers::Found;
use terrace_proto::PAGE_SIZE;
use terrace_sys::FileId;

use self::lookout::Lookout;

use crate::config::{VmConfig, VmMode};

/// Resizes one VM: a device, or the hypervisor's monitor. All calls block, and run on the VM's keeper alone.
pub trait Provider: Send {
    /// What it is.
    fn mechanism(&self) -> Mechanism;

    /// How the VM stands; `verify` looks at the host's memory behind it as well, where that costs more.
    ///
    /// # Errors
    /// Where it does not answer.
    fn look(&mut self, verify: bool) -> Result<Look, Trouble>;

    /// Orders what each tier shall have, bytes, one for each tier of [`Look::tiers`]; `None` leaves it as it is.
    /// Returns once the order is taken; a newer one replaces it.
    ///
    /// # Errors
    /// Where it does not answer, or the sizes cannot be.
    fn order(&mut self, size_bytes: &[Option<u64>]) -> Result<(), Trouble>;

    /// Tells what the look of this number came to, and says which one is wanted next; `None` where it gives memory back
    /// without.
    ///
    /// # Errors
    /// Where it does not answer.
    fn lease(&mut self, _looked: Option<(u64, Found)>) -> Result<Option<Wanted>, Trouble> {
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

/// What resizes a VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mechanism {
    /// Which.
    pub kind: Kind,
    /// In words, to stand after "by": `HyperFlex`, `virtio-mem in 2 MiB blocks`.
    pub words: String,
    /// Where it is asked, for people: a control socket, a monitor.
    pub at: String,
}

/// The mechanisms that there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A device of ours with one balloon per tier.
    HyperFlex,
    /// Blocks of memory that are plugged and unplugged.
    VirtioMem,
    /// The hypervisor's balloon, one for the whole VM.
    Balloon,
}

impl Kind {
    /// What the API calls it.
    pub fn name(self) -> &'static str {
        match self {
            Self::HyperFlex => "hyperflex",
            Self::VirtioMem => "virtio-mem",
            Self::Balloon => "balloon",
        }
    }

    /// Whether memory may be taken away although a device is passed through: with virtio-mem QEMU unmaps from the
    /// device what the guest unplugs, and refuses devices for which it cannot.
    pub fn frees_pinned(self) -> bool {
        self == Self::VirtioMem
    }

    /// Whether what the guest claims to have given back counts as gone only once the host's memory agreed: such a
    /// guest may keep it, where QEMU takes it by itself.
    pub fn needs_proof(self) -> bool {
        self == Self::HyperFlex
    }

    /// Whether it resizes each tier for itself.
    pub fn knows_tiers(self) -> bool {
        self != Self::Balloon
    }
}

/// How a VM's elastic memory stands.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Look {
    /// Whether the hypervisor shares memory with the device; true where the hypervisor does it itself.
    pub connected: bool,
    /// Whether the guest's driver knows the targets.
    pub told: bool,
    /// The hypervisor's process by the provider's word: another VM may have the same name.
    pub hypervisor_pid: Option<u32>,
    /// How often the guest started anew.
    pub resets: u64,
    /// What the VM's owner pays for, bytes, where that is a limit.
    pub total_bytes: Option<u64>,
    /// Requests of the guest that were refused.
    pub refused_entries: u64,
    /// How often the guest has spoken, where it speaks more seldom than it is looked at.
    pub reports: Option<u64>,
    /// Its tiers, fastest first.
    pub tiers: Vec<TierLook>,
}

/// How a tier stands.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TierLook {
    /// The guest's node.
    pub node: Option<u32>,
    /// The host's nodes behind it; empty where they are not known.
    pub host_nodes: Vec<u32>,
    /// What the VM was started with, bytes: the most that it may have.
    pub whole_bytes: u64,
    /// The least that it can have, bytes.
    pub least_bytes: u64,
    /// Sizes above the least are whole blocks of so many bytes; 0 where any size can be.
    pub block_bytes: u64,
    /// The largest page that its memory on the host is made of, bytes: beyond [`PAGE_SIZE`] its memory comes from a
    /// pool of huge pages. 0 where it is not known.
    pub page_bytes: u64,
    /// What it shall have, bytes.
    pub target_bytes: u64,
    /// What it has by what the guest claims, bytes.
    pub size_bytes: u64,
    /// What the host says, where it was looked at.
    pub verified: Option<Verified>,
    /// Since when that is so, at the latest; the look's own time where the provider does not say.
    pub verified_at: Option<Instant>,
    /// What was given back as somebody came who may have pinned it, bytes: out of use until the guest starts anew.
    pub withheld_bytes: u64,
    /// Why the target cannot be reached for now, where the guest says so.
    pub stuck: Option<String>,
    /// What the guest says besides.
    pub guest: GuestTier,
}

impl TierLook {
    /// What it gets when it is asked to have so many bytes: whole blocks, never more. What is below the least is
    /// the provider's to refuse.
    pub fn rounded(&self, asked: u64) -> u64 {
        let above = asked.saturating_sub(self.least_bytes);
        asked - above.checked_rem(self.block_bytes).unwrap_or(0)
    }

    /// The least that it can be asked to have so that it gives back nothing more, bytes.
    pub fn kept_as_it_is(&self) -> u64 {
        let above = self.size_bytes.saturating_sub(self.least_bytes);
        let whole = above.checked_next_multiple_of(self.block_bytes);
        let kept = self.least_bytes.saturating_add(whole.unwrap_or(above));
        kept.min(self.whole_bytes)
    }

    /// The page size of the pool that its memory comes from; 0 where that is all memory of its node.
    pub fn pool(&self) -> u64 {
        if self.page_bytes > PAGE_SIZE {
            self.page_bytes
        } else {
            0
        }
    }

    /// Whether the target is reached by what the guest claims.
    pub fn is_met(&self) -> bool {
        self.size_bytes == self.target_bytes
    }
}

impl Look {
    /// Whether every target is reached by what the guest claims.
    pub fn is_met(&self) -> bool {
        self.tiers.iter().all(TierLook::is_met)
    }
}

/// What the host's own memory says about a tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// Host memory behind the tier, bytes.
    pub present_bytes: u64,
    /// What the guest claims to have given back, bytes.
    pub claimed_bytes: u64,
    /// What of that is still there, bytes.
    pub kept_bytes: u64,
}

impl Verified {
    /// The share of what the guest claims to have given back that is really gone, 0 to 1.
    pub fn honesty(&self) -> f64 {
        if self.claimed_bytes < PAGE_SIZE {
            return 1.0;
        }
        // Far below 2^52 in pages.
        let kept = self.kept_bytes.min(self.claimed_bytes) >> 12;
        1.0 - kept as f64 / (self.claimed_bytes >> 12) as f64
    }
}

/// Why a provider did not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Trouble {
    /// It does not answer, or not so that it could be understood.
    #[error("{0}")]
    Gone(String),
    /// It refuses.
    #[error("{0}")]
    Refused(String),
    /// Nothing is there that could.
    #[error("{0}")]
    Nothing(String),
}

/// Who gives an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A person or a program, by the API.
    Operator,
    /// The daemon, which takes no memory from under a device.
    Pinning,
    /// The daemon, which takes no memory that another process may have pinned.
    Sharing,
}

impl Origin {
    /// What the API calls it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Operator => "operator",
            Self::Pinning => "pinning",
            Self::Sharing => "sharing",
        }
    }

    /// In a sentence.
    pub fn words(self) -> &'static str {
        match self {
            Self::Operator => "the operator",
            Self::Pinning => "terraced, because a device is passed through",
            Self::Sharing => "terraced, because another process has its RAM",
        }
    }
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
pub type Find = Box<dyn FnMut() -> Result<Option<Box<dyn Provider>>, Trouble> + Send>;

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

/// The mechanisms of this host, whose VMs are of these users: the device that is configured, else what the VM's QEMU has. The monitor of a VM that
/// is not opted in may be somebody else's: it is asked nothing before an operator wants that VM resized.
pub fn finder(hypervisors: HypervisorConfig) -> Finder {
    Arc::new(move |place| {
        let Some(control) = place.config.hyperflex.clone() else {
            let opted_in = place.config.scan || place.config.mode != VmMode::Host;
            return (opted_in || place.is_asked_for).then(|| qemu::find(place));
        };
        let nodes = place.config.hyperflex_nodes.clone();
        let (root, hypervisors) = (place.root.clone(), hypervisors.clone());
        Some(Box::new(move || {
            let device = hyperflex::Device::new(&control, &nodes, &root, &hypervisors);
            Ok(Some(Box::new(device) as Box<dyn Provider>))
        }))
    })
}

/// How often and how long; tests are less patient.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Between two looks while targets are not met.
    pub under_way: Duration,
    /// Between two looks else.
    pub idle: Duration,
    /// How old what the host says of a tier's memory may become.
    pub verify: Duration,
    /// How long a look or an order may take before somebody is told that it does.
    pub patience: Duration,
    /// How long a driver may take to learn its targets.
    pub driver: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            under_way: Duration::from_secs(1),
            idle: Duration::from_secs(5),
            verify: Duration::from_secs(10),
            patience: Duration::from_secs(3),
            driver: Duration::from_secs(30),
        }
    }
}

/// Most characters of a device's or a monitor's words that are kept.
const MOST_WORDS: usize = 400;

/// Devices and QEMU face the guest: what they say goes to events and terminals without anything that steers them.
fn plain(said: &str) -> String {
    let printable = |c: char| if c.is_control() { ' ' } else { c };
    said.chars().take(MOST_WORDS).map(printable).collect()
}

/// `512 MiB`, `1.5 GiB`.
pub fn size(bytes: u64) -> String {
    bytesize::ByteSize(bytes).to_string().replace(".0 ", " ")
}

/// What people call the tiers of a VM.
pub fn tier_name(kind: Kind, tier: usize) -> &'static str {
    const NAMES: [&str; 4] = ["fast", "slow", "third", "fourth"];
    if kind.knows_tiers() {
        NAMES.get(tier).copied().unwrap_or("tier")
    } else {
        "memory"
    }
}
