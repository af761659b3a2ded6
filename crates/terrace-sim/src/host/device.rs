//! The devices that give guests their memory, as they are described.

/// What `virtio-mem` plugs and unplugs at a time, bytes.
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
    /// All of them.
    pub const ALL: [Self; 3] = [Self::VirtioMem, Self::Balloon, Self::Hyperflex];

    /// As people write it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::VirtioMem => "virtio-mem",
            Self::Balloon => "balloon",
            Self::Hyperflex => "hyperflex",
        }
    }
}

/// How a VM's tiers get their sizes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Provision {
    /// By what.
    pub by: Device,
    /// What the guest's nodes have when it boots, bytes per tier; of `virtio-mem`, what they can have.
    pub nodes: Vec<u64>,
    /// What the VM is to have later, in order of time.
    pub resizes: Vec<Resize>,
}

impl Provision {
    /// By a device whose nodes are as large as they usually are, for a VM of these sizes.
    #[must_use]
    pub fn usual(by: Device, sizes: &[u64], resizes: Vec<Resize>) -> Self {
        let nodes = usual_nodes(by, sizes, &resizes);
        Self { by, nodes, resizes }
    }
}

/// A VM's sizes from a time on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resize {
    /// Since the start, ns.
    pub at_ns: u64,
    /// What the VM is to have per tier, bytes.
    pub sizes: Vec<u64>,
}

/// A balloon begins with all of the VM's memory in each node, so that it may be of one tier alone (HyperTier
/// §4.1); memory that is plugged is no more than is asked for.
fn usual_nodes(by: Device, sizes: &[u64], resizes: &[Resize]) -> Vec<u64> {
    let wanted = || std::iter::once(sizes).chain(resizes.iter().map(|r| r.sizes.as_slice()));
    let sum = |sizes: &[u64]| {
        sizes
            .iter()
            .fold(0_u64, |sum, size| sum.saturating_add(*size))
    };
    let all = wanted().map(sum).max().unwrap_or(0);
    let most = |tier| wanted().filter_map(|sizes| sizes.get(tier)).max();
    let node = |tier| match by {
        Device::VirtioMem => most(tier).copied().unwrap_or(0),
        Device::Balloon | Device::Hyperflex => all,
    };
    (0..sizes.len()).map(node).collect()
}
