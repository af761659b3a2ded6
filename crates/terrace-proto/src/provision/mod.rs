//! Sizes of VMs, tier by tier: reports of the providers that resize VMs, orders to them, and the outcomes.
//!
//! All sizes are bytes, and lists of tiers begin with the fastest.

mod huge;
mod status;

pub use huge::{
    BlockOutcome, BlockStatus, CollapseReport, CollapseRequest, Collapsed, HugeBacking,
    NotCollapsed,
};
pub use status::{
    AgesPoint, AgesStatus, BalanceStatus, GuestTier, HugeStatus, HugeSteps, OrderCounts,
    OrderState, OrderView, Ordered, PhaseStatus, ProvisionedTier, ProvisioningStatus, Resident,
    SharedMemory, SizeChange,
};

use std::marker::PhantomData;
use std::{fmt, mem};

use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use crate::{OrderId, PAGE_SIZE, ProviderId, ResizeId, TierId};

/// Pages of a balloon that may still be there, however few it has: 64 MiB.
const BALLOON_MAY_LEAVE: u64 = (64 << 20) / PAGE_SIZE;

/// Most tiers that a provider may have.
pub const MAX_TIERS: usize = TierId::MAX;

/// Reads a list with one entry per tier. A list that is longer than any VM's is refused before it is held: an entry
/// may be far larger in memory, and as text, than the three bytes it came as.
///
/// # Errors
/// If the list has more than [`MAX_TIERS`] entries.
pub fn tiers_within_max<'de, D, T>(from: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    struct Tiers<T>(PhantomData<T>);
    impl<'de, T: Deserialize<'de>> Visitor<'de> for Tiers<T> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "a list of {MAX_TIERS} tiers at most")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<T>, A::Error> {
            let mut tiers = Vec::new();
            while let Some(tier) = list.next_element()? {
                if tiers.len() == MAX_TIERS {
                    return Err(serde::de::Error::invalid_length(MAX_TIERS + 1, &self));
                }
                tiers.push(tier);
            }
            Ok(tiers)
        }
    }
    from.deserialize_seq(Tiers(PhantomData))
}

/// Something that can resize a VM, as it is found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProviderSpec {
    /// The provider's id.
    pub provider: ProviderId,
    /// The VM's name.
    pub vm: String,
    /// The operator configured it, so that it counts before it has answered.
    pub is_configured: bool,
    /// No client waits for the provider: as long as it does not answer, nothing is logged of it.
    pub is_quiet: bool,
    /// The host's nodes behind the provider's tiers, as the operator configured them; empty: not configured.
    pub host_nodes: Vec<u32>,
}

/// The mechanism that resizes a VM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mechanism {
    /// The kind of mechanism.
    pub kind: ProviderKind,
    /// The name for people, to stand after "by": `HyperFlex`, `virtio-mem in 2 MiB blocks`.
    pub name: String,
    /// The address at which the mechanism is queried, for people: a control socket, a monitor.
    pub at: String,
}

/// All mechanisms. New ones are added at the end: their position is their number in the log.
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
    /// The mechanism's name in the API.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::HyperFlex => "hyperflex",
            Self::VirtioMem => "virtio-mem",
            Self::Balloon => "balloon",
        }
    }

    /// Whether memory may be taken away although a device is passed through: with virtio-mem QEMU unmaps from the
    /// device the memory that the guest unplugs, and refuses devices for which it cannot.
    #[must_use]
    pub fn frees_pinned(self) -> bool {
        self == Self::VirtioMem
    }

    /// Whether memory that the guest claims to have given back counts as gone only once a verification of the host's
    /// memory confirmed it. HyperFlex needs that: its guest may keep the memory. With the other mechanisms QEMU itself
    /// takes the memory.
    #[must_use]
    pub fn needs_proof(self) -> bool {
        self == Self::HyperFlex
    }

    /// The most of the claimed pages that may still be there without the guest having anything to do with it. A balloon gives
    /// single pages back, and the host's khugepaged fills the 2 MiB that it took some of.
    fn may_leave(self, claimed: u64) -> u64 {
        match self {
            Self::Balloon => (claimed / 8).max(BALLOON_MAY_LEAVE),
            Self::HyperFlex | Self::VirtioMem => claimed / 100,
        }
    }

    /// Whether the mechanism resizes each tier separately.
    #[must_use]
    pub fn knows_tiers(self) -> bool {
        self != Self::Balloon
    }
}

/// A request to query a provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProviderQuery {
    /// The provider to query.
    pub provider: ProviderId,
    /// Echoed in the report.
    pub number: u64,
    /// The host's memory behind the VM is verified as well, even if that costs more.
    pub verify: bool,
    /// Somebody waits for sizes: the report names the host's free memory.
    pub is_awaited: bool,
}

/// A provider's state, and the host's figures of the hypervisor's process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProviderReport {
    /// The provider that was queried.
    pub provider: ProviderId,
    /// The [`ProviderQuery`]'s number.
    pub number: u64,
    /// The provider's mechanism; `None` if it is not known yet.
    pub mechanism: Option<Mechanism>,
    /// The provider's state, or why it is not known.
    pub status: Result<ProviderStatus, ProviderError>,
    /// Whether the host's memory was to be verified.
    pub verify: bool,
    /// Memory of the hypervisor's process.
    pub resident: Option<ResidentMemory>,
    /// The device that pins the VM's memory; `None` if there is none; an error, in words, if that is not known.
    pub pinned_by: Result<Option<String>, String>,
    /// The other processes that have the VM's RAM.
    pub held_by: OtherUsers,
    /// The last order that the provider was given before the query; 0: none.
    pub order: OrderId,
    /// Free memory of the host's nodes, if the request wanted it.
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

/// Processes, besides the hypervisor and its device, that have a VM's RAM and may have pinned it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum OtherUsers {
    /// There is no such process.
    Nobody,
    /// There is at least one, in words that begin a sentence.
    Somebody(String),
    /// Not known; the reason.
    Unknown(String),
}

/// Free memory of one node of the host, in one pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeMemory {
    /// The node.
    pub node: u32,
    /// The node's tier; `None` if it is in none.
    pub tier: Option<TierId>,
    /// The page size of the pool, bytes; 0: memory that is in none.
    pub page_bytes: u64,
    /// Free, with page cache that was not used lately, bytes.
    pub free_bytes: u64,
}

/// The state of a VM's resizable memory, as its provider reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProviderStatus {
    /// The hypervisor shares memory with the device; true if the hypervisor resizes the VM itself.
    pub connected: bool,
    /// The guest's driver knows the targets.
    pub targets_sent: bool,
    /// The hypervisor's process by the provider's word: another VM may have the same name.
    pub hypervisor_pid: Option<u32>,
    /// Number of times that the guest started anew.
    pub resets: u64,
    /// The limit of the VM's whole size that its owner pays for, bytes; `None` if there is no such limit.
    pub total_bytes: Option<u64>,
    /// Requests of the guest that were refused.
    pub refused_entries: u64,
    /// Number of reports that the guest has sent, if it sends them less often than the provider is queried.
    pub reports: Option<u64>,
    /// The VM's tiers, fastest first.
    pub tiers: Vec<TierStatus>,
}

/// The state of one tier of a VM.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TierStatus {
    /// The guest's node.
    pub node: Option<u32>,
    /// The host's nodes behind the tier; empty: not known.
    pub host_nodes: Vec<u32>,
    /// The greatest size that the tier may have, bytes: the one that the VM was started with.
    pub whole_bytes: u64,
    /// The tier's least size, bytes.
    pub least_bytes: u64,
    /// Size of a block, bytes: sizes above the least are whole blocks. 0: any size is possible.
    pub block_bytes: u64,
    /// The largest page that the tier's memory on the host is made of, bytes: beyond [`PAGE_SIZE`] the memory comes
    /// from a pool of huge pages. 0: not known.
    pub page_bytes: u64,
    /// The target: the size that the tier is to have, bytes.
    pub target_bytes: u64,
    /// The tier's size by the guest's claims, bytes.
    pub size_bytes: u64,
    /// The host's own figures; `None` if its memory was not verified.
    pub verified: Option<Verified>,
    /// Age of these figures, ns; 0 if the provider does not report it.
    pub verified_age_ns: u64,
    /// Bytes that were being given back when another process came that may have pinned them: out of use until the
    /// guest starts anew.
    pub withheld_bytes: u64,
    /// The reason why the target cannot be reached for now, if the guest gives one.
    pub stuck: Option<String>,
    /// Further statistics that the guest reports.
    pub guest: GuestTier,
}

impl TierStatus {
    /// The size that the tier gets if `asked` bytes are ordered: whole blocks, never more. The provider
    /// refuses less than the least.
    #[must_use]
    pub fn rounded(&self, asked: u64) -> u64 {
        let above = asked.saturating_sub(self.least_bytes);
        asked - above.checked_rem(self.block_bytes).unwrap_or(0)
    }

    /// The least size that can be ordered without the tier giving back more memory, bytes.
    #[must_use]
    pub fn size_rounded_up(&self) -> u64 {
        let above = self.size_bytes.saturating_sub(self.least_bytes);
        let whole = above.checked_next_multiple_of(self.block_bytes);
        let rounded = self.least_bytes.saturating_add(whole.unwrap_or(above));
        rounded.min(self.whole_bytes)
    }

    /// The page size of the pool that the tier's memory comes from; 0: no pool, but all memory of its node.
    #[must_use]
    pub fn pool(&self) -> u64 {
        if self.page_bytes > PAGE_SIZE {
            self.page_bytes
        } else {
            0
        }
    }

    /// Whether the target is reached, by the guest's claims.
    #[must_use]
    pub fn is_met(&self) -> bool {
        self.size_bytes == self.target_bytes
    }
}

impl ProviderStatus {
    /// Whether every target is reached, by the guest's claims.
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
    /// Bytes that the guest claims to have given back.
    pub claimed_bytes: u64,
    /// Bytes of these that are still there.
    pub retained_bytes: u64,
}

impl Verified {
    /// Whether the memory that the guest claims to have given back is gone, as far as the mechanism may leave some of it.
    #[must_use]
    pub fn is_honest(&self, kind: ProviderKind) -> bool {
        let (retained, claimed) = self.pages();
        retained <= kind.may_leave(claimed)
    }

    /// The share of the memory that the guest claims to have given back that is really gone, 0 to 1. For people.
    #[must_use]
    pub fn verified_ratio(&self) -> f64 {
        match self.pages() {
            (_, 0) => 1.0,
            // Far below 2^52.
            (retained, claimed) => 1.0 - retained as f64 / claimed as f64,
        }
    }

    fn pages(&self) -> (u64, u64) {
        let retained = self.retained_bytes.min(self.claimed_bytes);
        (retained / PAGE_SIZE, self.claimed_bytes / PAGE_SIZE)
    }
}

/// The reason why a provider did not carry out an order or a query. New kinds are added at the end: their position is
/// their number in the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum ProviderError {
    /// The provider does not answer, or its answer makes no sense.
    #[error("{0}")]
    Gone(String),
    /// The provider refuses.
    #[error("{0}")]
    Refused(String),
    /// There is nothing that could do it: no provider resizes this VM.
    #[error("{0}")]
    Nothing(String),
}

/// The giver of an order. New ones are added at the end: their position is their number in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Origin {
    /// A person or a program, by the API.
    Operator,
    /// The engine, which takes no memory from under a device.
    Pinning,
    /// The engine, which takes no memory that another process may have pinned.
    Sharing,
    /// The engine, which shares the host's memory between VMs.
    Arbiter,
}

impl Origin {
    /// The origin's name in the API.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Operator => "operator",
            Self::Pinning => "pinning",
            Self::Sharing => "sharing",
            Self::Arbiter => "arbiter",
        }
    }

    /// The origin as part of a sentence.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            Self::Operator => "the operator",
            Self::Pinning => "terraced, because a device is passed through",
            Self::Sharing => "terraced, because another process has its RAM",
            Self::Arbiter => "the arbiter",
        }
    }
}

/// Sizes that a client wants a VM to have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SizesWanted {
    /// Echoed in the answer.
    pub id: ResizeId,
    /// The provider of the VM.
    pub provider: ProviderId,
    /// Whoever wants the sizes.
    pub origin: Origin,
    /// Wanted size of each tier, bytes; `None`: unchanged.
    pub size_bytes: Vec<Option<u64>>,
}

/// The answer to [`SizesWanted`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SizesAnswer {
    /// The request's id.
    pub id: ResizeId,
    /// The order that the provider took, or why there is none.
    pub result: Result<Ordered, NotOrdered>,
}

impl SizesAnswer {
    /// Whether both answer the same request in the same way and with the same figures, in whatever words.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        let is_alike = |one: &str, other: &str| figures(one).eq(figures(other));
        let result = match (&self.result, &other.result) {
            (Ok(one), Ok(other)) => {
                (one.number, &one.by, &one.size_bytes)
                    == (other.number, &other.by, &other.size_bytes)
                    && is_alike(&one.done, &other.done)
            }
            (Err(one), Err(other)) => {
                mem::discriminant(one) == mem::discriminant(other)
                    && is_alike(one.text(), other.text())
            }
            _ => false,
        };
        self.id == other.id && result
    }
}

/// The numbers in a text, in their order.
fn figures(text: &str) -> impl Iterator<Item = &str> {
    let runs = text.split(|c: char| !c.is_ascii_digit());
    runs.filter(|digits| !digits.is_empty())
}

/// The reason why sizes are not ordered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NotOrdered {
    /// The sizes are impossible for this VM.
    Invalid(String),
    /// The sizes are impossible for now.
    NotNow(String),
}

impl NotOrdered {
    /// The reason, in words.
    #[must_use]
    pub fn text(&self) -> &str {
        match self {
            Self::Invalid(why) | Self::NotNow(why) => why,
        }
    }
}

/// An order to a provider.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SizeOrder {
    /// The order's number.
    pub order: OrderId,
    /// The provider that gets the order.
    pub provider: ProviderId,
    /// The size that each tier is to have, bytes; `None`: unchanged.
    pub size_bytes: Vec<Option<u64>>,
}

/// The outcome of a [`SizeOrder`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OrderOutcome {
    /// The order's number.
    pub order: OrderId,
    /// The provider that was given the order.
    pub provider: ProviderId,
    /// Whether the provider took the order; the error if it did not.
    pub result: Result<(), ProviderError>,
}

/// The outcome of taking a [`SizeOrder`] back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OrderWithdrawal {
    /// The order's number.
    pub order: OrderId,
    /// The provider that the order was for.
    pub provider: ProviderId,
    /// Whether the order was cancelled before it was given; otherwise the provider has it already.
    pub in_time: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Logs of earlier versions are replayed: a field's position is its name there.
    #[test]
    fn a_providers_status_keeps_its_place_in_the_log() {
        let tier = TierStatus {
            node: Some(1),
            host_nodes: vec![2],
            whole_bytes: 3,
            least_bytes: 4,
            block_bytes: 5,
            page_bytes: 6,
            target_bytes: 7,
            size_bytes: 8,
            verified: Some(Verified {
                present_bytes: 9,
                claimed_bytes: 10,
                retained_bytes: 11,
            }),
            verified_age_ns: 12,
            withheld_bytes: 13,
            stuck: None,
            guest: GuestTier {
                free_bytes: Some(14),
                total_bytes: Some(15),
                balloon_pages: Some(16),
                pressure_pages: Some(17),
                major_faults: Some(18),
                swapped_in_pages: Some(19),
                swapped_out_pages: None,
            },
        };
        let status = ProviderStatus {
            connected: true,
            targets_sent: false,
            hypervisor_pid: Some(20),
            resets: 21,
            total_bytes: Some(22),
            refused_entries: 23,
            reports: None,
            tiers: vec![tier],
        };
        let bytes = postcard::to_allocvec(&status).unwrap();
        let head = [1, 0, 1, 20, 21, 1, 22, 23, 0, 1];
        let tier = [1, 1, 1, 2, 3, 4, 5, 6, 7, 8, 1, 9, 10, 11, 12, 13, 0];
        let guest = [1, 14, 1, 15, 1, 16, 1, 17, 1, 18, 1, 19, 0];
        assert_eq!(bytes, [&head[..], &tier, &guest].concat());
        assert_eq!(postcard::from_bytes(&bytes), Ok(status));
    }

    #[test]
    fn answers_are_alike_in_other_words_not_with_other_figures() {
        let refused = |why: &str| SizesAnswer {
            id: ResizeId(1),
            result: Err(NotOrdered::NotNow(why.into())),
        };
        let old = refused("vm1: node 0 has 1 GiB free");
        assert!(old.is_same(&refused("vm1: of node 0, 1 GiB is free")));
        assert!(!old.is_same(&refused("vm1: node 0 has 2 GiB free")));
        let invalid = Err(NotOrdered::Invalid("vm1: node 0 has 1 GiB free".into()));
        assert!(!old.is_same(&SizesAnswer {
            id: ResizeId(1),
            result: invalid,
        }));
        let mut other = old.clone();
        other.id = ResizeId(2);
        assert!(!old.is_same(&other));
    }
}
