//! Sizes of VMs, tier by tier: what resizes a VM says of itself, what is ordered, and what comes of it.
//!
//! All sizes are bytes, and lists of tiers begin with the fastest.

mod status;

pub use status::{Elastic, ElasticTier, GuestTier, Order, OrderState, Ordered, Orders, Resident};

use serde::{Deserialize, Serialize};

use crate::{OrderId, PAGE_SIZE, ProviderId, ResizeId, TierId};

/// Most tiers that a provider may have.
pub const MOST_TIERS: usize = TierId::MAX;

/// Something that can resize a VM, as it is found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProviderSpec {
    /// Its id.
    pub provider: ProviderId,
    /// The VM's name.
    pub vm: String,
    /// The operator configured it, so that it counts before it has answered.
    pub is_configured: bool,
    /// Nobody waits for it: as long as it does not answer, nothing is said of it.
    pub is_quiet: bool,
    /// The host's nodes behind its tiers by the operator's word; empty: not said.
    pub host_nodes: Vec<u32>,
}

/// What resizes a VM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mechanism {
    /// Which.
    pub kind: ProviderKind,
    /// In words, to stand after "by": `HyperFlex`, `virtio-mem in 2 MiB blocks`.
    pub words: String,
    /// Its address, for people: a control socket, a monitor.
    pub at: String,
}

/// The mechanisms that there are. New ones are added at the end: their position is their number in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ProviderKind {
    /// A device of ours with one balloon per tier.
    HyperFlex,
    /// Blocks of memory that are plugged and unplugged.
    VirtioMem,
    /// The hypervisor's balloon, one for the whole VM.
    Balloon,
}

impl ProviderKind {
    /// The API's name of it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::HyperFlex => "hyperflex",
            Self::VirtioMem => "virtio-mem",
            Self::Balloon => "balloon",
        }
    }

    /// Memory may be taken away although a device is passed through: with virtio-mem QEMU unmaps from the device
    /// what the guest unplugs, and refuses devices for which it cannot.
    #[must_use]
    pub fn frees_pinned(self) -> bool {
        self == Self::VirtioMem
    }

    /// What the guest claims to have given back counts as gone only once the host's memory agreed: such a guest may
    /// keep it. QEMU takes it by itself.
    #[must_use]
    pub fn needs_proof(self) -> bool {
        self == Self::HyperFlex
    }

    /// It resizes each tier for itself.
    #[must_use]
    pub fn knows_tiers(self) -> bool {
        self != Self::Balloon
    }
}

/// A provider that is to be looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LookRequest {
    /// Which.
    pub provider: ProviderId,
    /// Echoed in the report.
    pub number: u64,
    /// The host's memory behind the VM is looked at as well, even if that costs more.
    pub verify: bool,
    /// Somebody waits for sizes: the report says what the host has free.
    pub is_awaited: bool,
}

/// How a provider stands, and what the host says of the hypervisor's process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProviderReport {
    /// Which.
    pub provider: ProviderId,
    /// The [`LookRequest`]'s number.
    pub number: u64,
    /// What it is; none: not known yet.
    pub mechanism: Option<Mechanism>,
    /// How it stands.
    pub status: Result<ProviderStatus, ProviderError>,
    /// The host's memory was asked for.
    pub verify: bool,
    /// Memory of the hypervisor's process.
    pub resident: Option<ResidentMemory>,
    /// What pins the VM's memory; an error: why that is not known.
    pub pinned_by: Result<Option<String>, String>,
    /// Who else has the VM's RAM.
    pub held_by: OtherUsers,
    /// The last order that it was given before; 0: none.
    pub order: OrderId,
    /// What the host has free, if that was wanted.
    pub host: Vec<NodeMemory>,
}

/// Resident memory of a hypervisor's process, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResidentMemory {
    /// Shared, of a guest's memfd or file.
    pub shared_bytes: u64,
    /// Private, of a guest's other memory.
    pub private_bytes: u64,
}

impl ResidentMemory {
    /// All of it.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.shared_bytes.saturating_add(self.private_bytes)
    }
}

/// Which processes, besides the hypervisor and its device, have a VM's RAM and may have pinned it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum OtherUsers {
    /// None.
    Nobody,
    /// One, in words that begin a sentence.
    Somebody(String),
    /// Not known, and why.
    Unknown(String),
}

/// Free memory of one node of the host, in one pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeMemory {
    /// The node.
    pub node: u32,
    /// Its tier, if it has one.
    pub tier: Option<TierId>,
    /// The page size of the pool, bytes; 0: memory that is in none.
    pub page_bytes: u64,
    /// Free, with page cache that nobody used lately, bytes.
    pub free_bytes: u64,
}

/// How a VM's elastic memory stands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProviderStatus {
    /// The hypervisor shares memory with the device; true if the hypervisor resizes the VM itself.
    pub connected: bool,
    /// The guest's driver knows the targets.
    pub told: bool,
    /// The hypervisor's process by the provider's word: another VM may have the same name.
    pub hypervisor_pid: Option<u32>,
    /// How often the guest started anew.
    pub resets: u64,
    /// What the VM's owner pays for, bytes, if that is a limit.
    pub total_bytes: Option<u64>,
    /// Requests of the guest that were refused.
    pub refused_entries: u64,
    /// How often the guest has spoken, if it speaks more seldom than it is looked at.
    pub reports: Option<u64>,
    /// Its tiers, fastest first.
    pub tiers: Vec<TierStatus>,
}

/// How a tier stands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TierStatus {
    /// The guest's node.
    pub node: Option<u32>,
    /// The host's nodes behind it; empty: not known.
    pub host_nodes: Vec<u32>,
    /// What the VM was started with, bytes: the most that it may have.
    pub whole_bytes: u64,
    /// The least that it can have, bytes.
    pub least_bytes: u64,
    /// Sizes above the least are whole blocks of so many bytes; 0: any size can be.
    pub block_bytes: u64,
    /// The largest page that its memory on the host is made of, bytes: beyond [`PAGE_SIZE`] its memory comes from a
    /// pool of huge pages. 0: not known.
    pub page_bytes: u64,
    /// What it shall have, bytes.
    pub target_bytes: u64,
    /// What it has by what the guest claims, bytes.
    pub size_bytes: u64,
    /// What the host says, if it was looked at.
    pub verified: Option<Verified>,
    /// How old that is, ns; 0 if the provider does not say.
    pub verified_age_ns: u64,
    /// What was given back as somebody came who may have pinned it, bytes: out of use until the guest starts anew.
    pub withheld_bytes: u64,
    /// Why the target cannot be reached for now, if the guest says so.
    pub stuck: Option<String>,
    /// What the guest says besides.
    pub guest: GuestTier,
}

impl TierStatus {
    /// What it gets if it is asked to have so many bytes: whole blocks, never more. The provider refuses less than
    /// the least.
    #[must_use]
    pub fn rounded(&self, asked: u64) -> u64 {
        let above = asked.saturating_sub(self.least_bytes);
        asked - above.checked_rem(self.block_bytes).unwrap_or(0)
    }

    /// The least that it can be asked to have so that it gives back nothing more, bytes.
    #[must_use]
    pub fn kept_as_it_is(&self) -> u64 {
        let above = self.size_bytes.saturating_sub(self.least_bytes);
        let whole = above.checked_next_multiple_of(self.block_bytes);
        let kept = self.least_bytes.saturating_add(whole.unwrap_or(above));
        kept.min(self.whole_bytes)
    }

    /// The page size of the pool that its memory comes from; 0: all memory of its node.
    #[must_use]
    pub fn pool(&self) -> u64 {
        if self.page_bytes > PAGE_SIZE {
            self.page_bytes
        } else {
            0
        }
    }

    /// The target is reached by what the guest claims.
    #[must_use]
    pub fn is_met(&self) -> bool {
        self.size_bytes == self.target_bytes
    }
}

impl ProviderStatus {
    /// Every target is reached by what the guest claims.
    #[must_use]
    pub fn is_met(&self) -> bool {
        self.tiers.iter().all(TierStatus::is_met)
    }
}

/// The host's own memory behind a tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verified {
    /// Host memory behind the tier, bytes.
    pub present_bytes: u64,
    /// What the guest claims to have given back, bytes.
    pub claimed_bytes: u64,
    /// What of that is still there, bytes.
    pub kept_bytes: u64,
}

impl Verified {
    /// At least 99 % of what the guest claims to have given back is gone.
    #[must_use]
    pub fn is_honest(&self) -> bool {
        let (kept, claimed) = self.pages();
        claimed == 0 || u128::from(kept) * 100 <= u128::from(claimed)
    }

    /// The share of what the guest claims to have given back that is really gone, 0 to 1. For people.
    #[must_use]
    pub fn honesty(&self) -> f64 {
        match self.pages() {
            (_, 0) => 1.0,
            // Far below 2^52.
            (kept, claimed) => 1.0 - kept as f64 / claimed as f64,
        }
    }

    fn pages(&self) -> (u64, u64) {
        let kept = self.kept_bytes.min(self.claimed_bytes);
        (kept / PAGE_SIZE, self.claimed_bytes / PAGE_SIZE)
    }
}

/// Why a provider did not do what it was asked. New kinds are added at the end: their position is their number in the
/// log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum ProviderError {
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

/// Who gives an order. New ones are added at the end: their position is their number in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Origin {
    /// A person or a program, by the API.
    Operator,
    /// The engine, which takes no memory from under a device.
    Pinning,
    /// The engine, which takes no memory that another process may have pinned.
    Sharing,
}

impl Origin {
    /// The API's name of it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Operator => "operator",
            Self::Pinning => "pinning",
            Self::Sharing => "sharing",
        }
    }

    /// In a sentence.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Self::Operator => "the operator",
            Self::Pinning => "terraced, because a device is passed through",
            Self::Sharing => "terraced, because another process has its RAM",
        }
    }
}

/// Sizes that somebody wants a VM to have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SizesWanted {
    /// Echoed in the answer.
    pub id: ResizeId,
    /// Of which VM.
    pub provider: ProviderId,
    /// Who wants it.
    pub origin: Origin,
    /// Bytes of each tier; none: as it is.
    pub size_bytes: Vec<Option<u64>>,
}

/// What became of [`SizesWanted`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SizesAnswer {
    /// Whose.
    pub id: ResizeId,
    /// The order that the provider took, or why there is none.
    pub result: Result<Ordered, NotOrdered>,
}

/// Why sizes are not ordered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NotOrdered {
    /// They cannot be.
    Invalid(String),
    /// They cannot be now.
    NotNow(String),
}

impl NotOrdered {
    /// Why, in words.
    #[must_use]
    pub fn words(&self) -> &str {
        match self {
            Self::Invalid(why) | Self::NotNow(why) => why,
        }
    }
}

/// An order to a provider.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SizeOrder {
    /// Its number.
    pub order: OrderId,
    /// To which.
    pub provider: ProviderId,
    /// What each tier shall have, bytes; none: it stays as it is.
    pub size_bytes: Vec<Option<u64>>,
}

/// What came of a [`SizeOrder`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OrderOutcome {
    /// Its number.
    pub order: OrderId,
    /// Whose.
    pub provider: ProviderId,
    /// The provider took it, or did not.
    pub result: Result<(), ProviderError>,
}

/// What came of taking a [`SizeOrder`] back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OrderWithdrawal {
    /// Its number.
    pub order: OrderId,
    /// Whose.
    pub provider: ProviderId,
    /// It will never be given; otherwise the provider has it already.
    pub in_time: bool,
}
