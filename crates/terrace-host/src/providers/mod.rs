//! Resizable memory by what a stock QEMU has: virtio-mem, whose devices each plug memory into one node of the
//! guest, or the balloon, which knows no nodes.
//!
//! Responsible for: which of the two a VM has, what sizes it can be given, the orders to QEMU, and telling a
//! guest that is at it from one that is stuck. It leaves to others: who wants which sizes and when, HyperFlex
//! (`terrace-hyperflex`), and the monitor itself (`qemu`).

mod backing;
mod balloon;
mod guest_stats;
mod virtio_mem;
mod watch;

#[cfg(test)]
mod tests;

pub use backing::{Backing, backing};
pub use balloon::Balloon;
pub use guest_stats::StatsReader;
pub use terrace_proto::bytes::Bytes;
pub use virtio_mem::{DeviceOrder, Plan, Tier, TierPlan, tiers};
pub use watch::{Seen, Stuck, Watch};

use crate::qemu::{Monitor, QemuError};

/// Names of tiers, fastest first.
const TIER_NAMES: [&str; 4] = ["fast", "slow", "third", "fourth"];

/// The means by which a VM's memory can be resized.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Means {
    /// Tier by tier.
    VirtioMem(Vec<Tier>),
    /// As a whole.
    Balloon(Balloon),
}

/// The reason why a VM cannot be given a size.
#[derive(Debug, thiserror::Error)]
pub enum ResizeError {
    /// QEMU refused, or did not answer.
    #[error(transparent)]
    Qemu(#[from] QemuError),
    /// Nothing was asked for.
    #[error("say what to resize: the fast tier, the slow one or both")]
    NothingAsked,
    /// The guest has fewer nodes.
    #[error(
        "there is no {} tier to resize: the guest has {nodes} with memory, and a tier is a NUMA node of the \
         guest",
        tier_name(*tier),
        nodes = counted(*nodes)
    )]
    NoSuchTier {
        /// The tier that was asked for, from 0.
        tier: usize,
        /// Number of nodes.
        nodes: usize,
    },
    /// No virtio-mem device plugs into that node.
    #[error(
        "the {} tier (node {node} of the guest) has {size} and no virtio-mem device that could change it: start \
         the VM with -device virtio-mem-pci,id=…,memdev=…,node={node}",
        tier_name(*tier)
    )]
    NoDevice {
        /// The tier, from 0.
        tier: usize,
        /// The guest's node.
        node: u32,
        /// The current size.
        size: Bytes,
    },
    /// QEMU offers no way to name the device.
    #[error(
        "a virtio-mem device of node {node} has no id, without which it cannot be resized: start the VM \
         with -device virtio-mem-pci,id=…"
    )]
    Unnamed {
        /// The guest's node.
        node: u32,
    },
    /// Less than what cannot be unplugged.
    #[error(
        "{asked} is too little for the {} tier: the VM was started with {boot} on node {node}, and virtio-mem \
         takes back only what it plugged in; {boot} to {max} can be had",
        tier_name(*tier)
    )]
    BelowBoot {
        /// The tier, from 0.
        tier: usize,
        /// The guest's node.
        node: u32,
        /// The requested size.
        asked: Bytes,
        /// The least.
        boot: Bytes,
        /// The most.
        max: Bytes,
    },
    /// More than the devices can plug in.
    #[error(
        "{asked} is too much for the {} tier: the VM was started with {boot} on node {node}, and its virtio-mem \
         can plug in {} more; {boot} to {max} can be had",
        tier_name(*tier),
        Bytes(max.0 - boot.0)
    )]
    AboveMax {
        /// The tier, from 0.
        tier: usize,
        /// The guest's node.
        node: u32,
        /// The requested size.
        asked: Bytes,
        /// The least.
        boot: Bytes,
        /// The most.
        max: Bytes,
    },
    /// QEMU's figures for the nodes contradict its figure for the whole.
    #[error("QEMU's answers do not fit together: {0}")]
    Contradiction(String),
    /// An order was refused after others were taken.
    #[error("{done} done, then {source}; repeat the request to continue")]
    HalfWay {
        /// The orders that QEMU has taken.
        done: String,
        /// The error of QEMU for the next order.
        #[source]
        source: QemuError,
    },
    /// The balloon has one size.
    #[error(
        "this VM has only a balloon, which knows no tiers: say both sizes, and it gets their sum; to resize one \
         tier, start the VM with a virtio-mem device per node, or with HyperFlex"
    )]
    OneTierByBalloon,
    /// Not a size for this VM.
    #[error(
        "{asked} in all is out of range for the balloon of a VM of {ram}: allowed is from 1 MiB to {ram}"
    )]
    BalloonRange {
        /// The sum.
        asked: Bytes,
        /// The VM's RAM.
        ram: Bytes,
    },
}

/// The mechanism that this VM's QEMU offers: virtio-mem if there is such a device, else the balloon if there is one.
///
/// # Errors
/// If QEMU does not answer, or its answers do not fit together.
pub fn probe(monitor: &mut Monitor) -> Result<Option<Means>, ResizeError> {
    let devices = monitor.virtio_mems()?;
    if !devices.is_empty() {
        let (nodes, boot) = (monitor.nodes()?, monitor.boot_bytes()?);
        let mut tiers = tiers(&nodes, boot, devices)?;
        let memdevs = monitor.memdevs()?;
        tiers
            .iter_mut()
            .for_each(|tier| tier.learn_host_nodes(&memdevs));
        return Ok(Some(Means::VirtioMem(tiers)));
    }
    let Some(size) = monitor.balloon()? else {
        return Ok(None);
    };
    let ram = monitor.ram_bytes()?;
    Ok(Some(Means::Balloon(Balloon { size, ram })))
}

fn tier_name(tier: usize) -> &'static str {
    TIER_NAMES.get(tier).unwrap_or(&"next")
}

fn counted(nodes: usize) -> String {
    match nodes {
        1 => "one node".into(),
        n => format!("{n} nodes"),
    }
}
