//! The sizes of VMs as the arbiter knows them, and its words about them.

use terrace_proto::provision::{ProviderKind, SizesAnswer};
use terrace_proto::{ProviderId, Tick};

use super::Provision;
use super::provider::Provider;

/// Requests with this bit are the arbiter's.
pub(crate) const ARBITERS: u64 = 1 << 63;

/// The reason of a VM that has an order and is not where that has it.
pub(crate) const ON_ITS_WAY: &str = "it is on its way to another size";
/// The reason of a VM whose guest says that it cannot get there.
pub(crate) const STUCK: &str = "its guest cannot reach its target";

/// A tier's size, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TierSize {
    /// The present size.
    pub size: u64,
    /// The target.
    pub target: u64,
    /// The most that it has or may be on its way to.
    pub most: u64,
    /// The least that can be ordered.
    pub least: u64,
    /// The size that the VM was started with.
    pub whole: u64,
    /// Sizes above the least are multiples of this.
    pub block: u64,
}

/// The sizes of a VM as its provider reports them, fastest tier first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    /// The tiers.
    pub tiers: Vec<TierSize>,
    /// Why the VM cannot be resized now, if it cannot.
    pub still: Option<&'static str>,
    /// Whether pages in use of what goes must first move to what stays: memory is unplugged.
    pub unplugs: bool,
}

impl Sizes {
    /// The VM's memory, bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.sum(|tier| tier.size)
    }

    /// The memory that counts as the VM's, bytes: memory on its way to it does, and memory on its way from it is not gone.
    #[must_use]
    pub fn most(&self) -> u64 {
        self.sum(|tier| tier.most)
    }

    /// The memory that the VM is to have, bytes.
    #[must_use]
    pub fn target(&self) -> u64 {
        self.sum(|tier| tier.target)
    }

    fn sum(&self, of: impl Fn(&TierSize) -> u64) -> u64 {
        self.tiers
            .iter()
            .map(of)
            .fold(0, |sum, size| sum.saturating_add(size))
    }

    /// Least memory that the VM can have.
    #[must_use]
    pub fn least(&self) -> u64 {
        self.sum(|tier| tier.least)
    }

    /// Most memory that the VM can have.
    #[must_use]
    pub fn whole(&self) -> u64 {
        self.sum(|tier| tier.whole)
    }

    /// The tiers' sizes for a total: the slowest tiers change first.
    #[must_use]
    pub fn of_total(&self, total: u64) -> Vec<u64> {
        let has = self.size();
        let (grows, mut rest) = (total > has, total.abs_diff(has));
        let mut sizes = self.each(|tier| tier.size);
        for (tier, size) in self.tiers.iter().zip(&mut sizes).rev() {
            let room = match grows {
                true => tier.whole.saturating_sub(tier.size),
                false => tier.size.saturating_sub(tier.least),
            };
            let change = rest.min(room);
            *size = match grows {
                true => *size + change,
                false => *size - change,
            };
            rest -= change;
        }
        sizes
    }

    /// A number of each tier.
    #[must_use]
    pub fn each(&self, of: impl Fn(&TierSize) -> u64) -> Vec<u64> {
        self.tiers.iter().map(of).collect()
    }
}

impl TierSize {
    /// The largest size that can be ordered of those at most so many bytes above the present one.
    #[must_use]
    pub fn up_by(&self, bytes: u64) -> u64 {
        let most = self.size.saturating_add(bytes).min(self.whole);
        let above = most.saturating_sub(self.least);
        let size = most - above % self.block.max(1);
        size.max(self.size)
    }

    /// The least size that can be ordered without taking anything.
    #[must_use]
    pub fn rounded_up(&self) -> u64 {
        let above = self.size.saturating_sub(self.least);
        let above = above.checked_next_multiple_of(self.block.max(1));
        let size = above.and_then(|above| self.least.checked_add(above));
        size.unwrap_or(self.size).min(self.whole.max(self.size))
    }

    /// The present size in whole blocks, or less than a block below it.
    #[must_use]
    pub fn rounded_down(&self) -> u64 {
        let above = self.size.saturating_sub(self.least);
        self.size - above.checked_rem(self.block).unwrap_or(0)
    }

    /// The least size that can be ordered of those at most so many bytes below the present one. A size between two
    /// blocks would be rounded down.
    #[must_use]
    pub fn down_by(&self, bytes: u64) -> u64 {
        let least = self.size.saturating_sub(bytes).max(self.least);
        // Up to a whole block: below it is what the VM must keep.
        let above = (least - self.least).checked_next_multiple_of(self.block.max(1));
        let size = above.and_then(|above| self.least.checked_add(above));
        size.map_or(self.size, |size| size.min(self.size))
    }
}

impl Provision {
    /// The sizes of a VM; `None` if nothing is known of them.
    pub(crate) fn sizes(&self, id: ProviderId) -> Option<Sizes> {
        let provider = self.providers.get(&id)?;
        let status = provider.status()?;
        // Not the target alone: an order that was given may still be carried out.
        let tiers = status.tiers.iter().enumerate().map(|(i, tier)| TierSize {
            size: tier.size_bytes,
            target: tier.target_bytes,
            most: provider.most(i, tier),
            least: tier.least_bytes,
            whole: tier.whole_bytes,
            block: tier.block_bytes,
        });
        Some(Sizes {
            tiers: tiers.collect(),
            still: still(provider),
            unplugs: provider.kind() == ProviderKind::VirtioMem,
        })
    }

    /// The name of a provider's VM.
    pub(crate) fn name(&self, id: ProviderId) -> String {
        self.providers
            .get(&id)
            .map_or_else(|| id.0.to_string(), |provider| provider.spec.vm.clone())
    }

    /// Records a sentence about a VM.
    pub(crate) fn say(&mut self, now: Tick, id: ProviderId, said: String) {
        if let Some(provider) = self.providers.get_mut(&id) {
            provider.reasons.say(now, said);
        }
    }

    /// Takes the answers to the arbiter.
    pub(crate) fn take_answers(&mut self) -> Vec<SizesAnswer> {
        std::mem::take(&mut self.answers)
    }
}

/// Why a VM is not to be resized by the arbiter now.
fn still(provider: &Provider) -> Option<&'static str> {
    let status = provider.status()?;
    let is_dishonest = (0..status.tiers.len()).any(|i| provider.guest.is_dishonest(i));
    let is_stuck = (0..status.tiers.len()).any(|i| provider.guest.is_stuck(i));
    // The most lasting reason first: one on its way is so for seconds, one without a driver for ever.
    match () {
        () if provider.trouble.is_some() => Some("its provider fails"),
        () if !status.connected || !status.targets_sent => Some("its guest has no driver for it"),
        () if provider.pins.device.by().is_some() => Some("a device pins its memory"),
        () if provider.pins.sharer.by().is_some() => Some("another process has its memory"),
        () if is_dishonest => Some("it keeps memory that it claims to have given back"),
        () if is_stuck => Some(STUCK),
        () if !status.is_met() => Some(ON_ITS_WAY),
        () => None,
    }
}
