//! The description of the devices that give guests their memory.

use terrace_proto::PageSize;

/// The unit in which `virtio-mem` plugs and unplugs, bytes.
pub const BLOCK: u64 = 2 << 20;

/// The device that gives a guest its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    /// virtio-mem, one for each node: memory is plugged in blocks.
    VirtioMem,
    /// The virtio balloon, which knows no tiers.
    Balloon,
    /// HyperFlex: a balloon for each tier.
    Hyperflex,
}

impl Device {
    /// All devices.
    pub const ALL: [Self; 3] = [Self::VirtioMem, Self::Balloon, Self::Hyperflex];

    /// The device's name in scenarios.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::VirtioMem => "virtio-mem",
            Self::Balloon => "balloon",
            Self::Hyperflex => "hyperflex",
        }
    }
}

/// The device that sizes a VM's tiers, and the sizes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Provision {
    /// The device.
    pub by: Device,
    /// The sizes of the guest's nodes when it boots, bytes per tier; with `virtio-mem`, their largest sizes.
    pub nodes: Vec<u64>,
    /// The pages that a balloon takes; a guest's leaf goes as a whole, in so many of them.
    pub page: PageSize,
    /// Later resizes of the VM, in order of time.
    pub resizes: Vec<Resize>,
}

impl Provision {
    /// A device with nodes of their usual sizes, for a VM of these sizes.
    #[must_use]
    pub fn usual(by: Device, sizes: &[u64], resizes: Vec<Resize>) -> Self {
        Self::up_to(by, sizes, resizes, 0)
    }

    /// A device with nodes of their usual sizes, for a VM of these sizes that may get `ceiling` bytes in all.
    #[must_use]
    pub fn up_to(by: Device, sizes: &[u64], resizes: Vec<Resize>, ceiling: u64) -> Self {
        let nodes = usual_nodes(by, sizes, &resizes, ceiling);
        Self {
            by,
            nodes,
            page: PageSize::Base,
            resizes,
        }
    }
}

/// A VM's sizes from a given time on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resize {
    /// Time since the start, ns.
    pub at_ns: u64,
    /// The VM's target sizes per tier, bytes.
    pub sizes: Vec<u64>,
}

/// The usual sizes of a VM's nodes. A balloon's VM has all of its memory in each node, so that it may be of one tier
/// alone (HyperTier §4.1); memory that is plugged is no more than is asked for. A virtio balloon knows no tiers: if the
/// VM's memory is always of one, its guest has no other node, whose pages it would take or leave as well.
fn usual_nodes(by: Device, sizes: &[u64], resizes: &[Resize], ceiling: u64) -> Vec<u64> {
    let wanted = || std::iter::once(sizes).chain(resizes.iter().map(|r| r.sizes.as_slice()));
    let sum = |sizes: &[u64]| {
        sizes
            .iter()
            .fold(0_u64, |sum, size| sum.saturating_add(*size))
    };
    let all = wanted().map(sum).max().unwrap_or(0).max(ceiling);
    let most = |tier| wanted().filter_map(|sizes| sizes.get(tier).copied()).max();
    let used: Vec<bool> = (0..sizes.len())
        .map(|tier| most(tier).is_some_and(|bytes| bytes > 0))
        .collect();
    let is_of_one_tier = used.iter().filter(|used| **used).count() == 1;
    let node = |tier: usize| match by {
        Device::VirtioMem if ceiling > 0 && used[tier] => all,
        Device::VirtioMem => most(tier).unwrap_or(0),
        Device::Balloon if is_of_one_tier && !used[tier] => 0,
        Device::Balloon | Device::Hyperflex => all,
    };
    (0..sizes.len()).map(node).collect()
}
