//! Tiers that virtio-mem devices plug memory into and unplug it from.

use std::collections::BTreeMap;
use std::fmt;

use super::{Bytes, ResizeError, tier_name};
use crate::qemu::{Memdev, Monitor, NodeMemory, VirtioMem};

/// A node of the guest with memory, as a tier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tier {
    /// The node.
    pub node: u32,
    /// The memory of the tier that the VM was started with: it stays. DIMMs that were plugged in later are not
    /// counted.
    pub boot_bytes: u64,
    /// The tier's current size.
    pub size_bytes: u64,
    /// The tier's target size.
    pub target_bytes: u64,
    /// The tier's largest possible size.
    pub max_bytes: u64,
    /// The host's nodes behind its virtio-mem devices; empty if QEMU was not given any.
    pub host_nodes: Vec<u32>,
    /// The tier's virtio-mem devices.
    pub devices: Vec<VirtioMem>,
}

/// A plan to resize a VM; nothing is done yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The tiers that are to be resized.
    pub tiers: Vec<TierPlan>,
    /// The orders to devices, in the order in which they are sent.
    pub orders: Vec<DeviceOrder>,
}

/// The plan for one tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TierPlan {
    /// The tier, from 0.
    pub tier: usize,
    /// The requested size.
    pub asked_bytes: u64,
    /// The same in whole blocks, never more.
    pub target_bytes: u64,
    /// The largest of its devices' blocks.
    pub block_bytes: u64,
}

/// An order to a device: the memory that the guest is to have plugged of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceOrder {
    /// The device's name.
    pub device: String,
    /// The requested size, bytes.
    pub bytes: u64,
    /// The requested size before, bytes.
    before: u64,
}

impl fmt::Display for TierPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", tier_name(self.tier), Bytes(self.target_bytes))?;
        if self.target_bytes == self.asked_bytes {
            return Ok(());
        }
        let [asked, block] = [self.asked_bytes, self.block_bytes].map(Bytes);
        write!(f, " ({asked} rounded down to blocks of {block})")
    }
}

/// The guest's nodes with memory, in the order of their numbers: the first is the fast tier. `boot_bytes` is
/// what the VM was started with in all.
///
/// # Errors
/// If QEMU's answers contradict each other.
pub fn tiers(
    nodes: &[NodeMemory],
    boot_bytes: u64,
    devices: Vec<VirtioMem>,
) -> Result<Vec<Tier>, ResizeError> {
    let contradiction = |what: String| Err(ResizeError::Contradiction(what));
    let mut boot: BTreeMap<u32, u64> = BTreeMap::new();
    for node in nodes {
        // Read in one answer, so that what is plugged meanwhile does no harm.
        boot.insert(node.node, node.size - node.plugged);
    }
    if nodes.is_empty() {
        boot.insert(0, boot_bytes);
    }
    let sum: u64 = boot.values().sum();
    // Nodes are reported by the mebibyte.
    if sum > boot_bytes || boot_bytes - sum > (boot.len() as u64) << 20 {
        return contradiction(format!(
            "nodes were started with {} and the VM with {}",
            Bytes(sum),
            Bytes(boot_bytes)
        ));
    }
    let mut tiers: BTreeMap<u32, Tier> = BTreeMap::new();
    for (node, boot_bytes) in boot {
        tiers.insert(node, Tier::without_devices(node, boot_bytes));
    }
    for device in devices {
        let Some(tier) = tiers.get_mut(&device.node) else {
            let name = device.id.as_deref().unwrap_or("without a name");
            return contradiction(format!(
                "virtio-mem device {name} is of node {}, which the guest does not have",
                device.node
            ));
        };
        tier.size_bytes = tier.size_bytes.saturating_add(device.size);
        tier.target_bytes = tier.target_bytes.saturating_add(device.requested);
        tier.max_bytes = tier.max_bytes.saturating_add(device.max);
        tier.devices.push(device);
    }
    tiers.retain(|_, tier| tier.max_bytes > 0);
    Ok(tiers.into_values().collect())
}

impl Tier {
    fn without_devices(node: u32, boot_bytes: u64) -> Self {
        Self {
            node,
            boot_bytes,
            size_bytes: boot_bytes,
            target_bytes: boot_bytes,
            max_bytes: boot_bytes,
            host_nodes: Vec::new(),
            devices: Vec::new(),
        }
    }

    /// The largest of its devices' blocks.
    #[must_use]
    pub fn block_bytes(&self) -> u64 {
        self.devices.iter().map(|d| d.block).max().unwrap_or(1)
    }

    /// Learns from the memory backends which nodes of the host its devices take memory from.
    pub(super) fn learn_host_nodes(&mut self, memdevs: &[Memdev]) {
        for device in &self.devices {
            let memdev = memdevs.iter().find(|m| m.id == device.backend());
            self.host_nodes
                .extend(memdev.iter().flat_map(|m| &m.host_nodes));
        }
        self.host_nodes.sort_unstable();
        self.host_nodes.dedup();
    }

    /// The plan for this tier if it is to have `asked` bytes, and the orders that it takes.
    fn plan(&self, tier: usize, asked: u64) -> Result<(TierPlan, Vec<DeviceOrder>), ResizeError> {
        let (node, boot, max) = (self.node, self.boot_bytes, self.max_bytes);
        let [asked_, boot_, max_] = [asked, boot, max].map(Bytes);
        if self.devices.is_empty() && asked != boot {
            let size = Bytes(self.size_bytes);
            return Err(ResizeError::NoDevice { tier, node, size });
        }
        if asked < boot {
            return Err(ResizeError::BelowBoot {
                tier,
                node,
                asked: asked_,
                boot: boot_,
                max: max_,
            });
        }
        if asked > max {
            return Err(ResizeError::AboveMax {
                tier,
                node,
                asked: asked_,
                boot: boot_,
                max: max_,
            });
        }
        let mut left = asked - boot;
        let mut orders = Vec::new();
        for device in &self.devices {
            let id = device.id.clone();
            let bytes = left.min(device.max) / device.block * device.block;
            left -= bytes;
            orders.push(DeviceOrder {
                device: id.ok_or(ResizeError::Unnamed { node })?,
                bytes,
                before: device.requested,
            });
        }
        let plan = TierPlan {
            tier,
            asked_bytes: asked,
            target_bytes: asked - left,
            block_bytes: self.block_bytes(),
        };
        Ok((plan, orders))
    }
}

impl Plan {
    /// Plans to give each tier that many bytes; a tier without a size stays as it is.
    ///
    /// # Errors
    /// If a tier cannot have that size; nothing is ordered then.
    pub fn new(tiers: &[Tier], wanted: &[Option<u64>]) -> Result<Self, ResizeError> {
        let mut plan = Self {
            tiers: Vec::new(),
            orders: Vec::new(),
        };
        for (number, asked) in wanted.iter().enumerate() {
            let Some(asked) = *asked else {
                continue;
            };
            let nodes = tiers.len();
            let tier = tiers.get(number);
            let tier = tier.ok_or(ResizeError::NoSuchTier {
                tier: number,
                nodes,
            })?;
            let (of_tier, orders) = tier.plan(number, asked)?;
            plan.tiers.push(of_tier);
            plan.orders.extend(orders);
        }
        if plan.tiers.is_empty() {
            return Err(ResizeError::NothingAsked);
        }
        // Memory that leaves one tier may need its room in another.
        plan.orders.sort_by_key(|order| order.bytes < order.before);
        Ok(plan)
    }

    /// Sends the plan to the devices. A newer plan replaces this one, even if the guest still works on it.
    ///
    /// # Errors
    /// If QEMU refuses: the devices before keep the sizes that they were sent.
    pub fn carry_out(&self, monitor: &mut Monitor) -> Result<(), ResizeError> {
        let mut done = Vec::new();
        for order in &self.orders {
            match monitor.request_size(&order.device, order.bytes) {
                Ok(()) => done.push(format!("{} to {}", order.device, Bytes(order.bytes))),
                Err(source) if done.is_empty() => return Err(source.into()),
                Err(source) => {
                    let done = done.join(", ");
                    return Err(ResizeError::HalfWay { done, source });
                }
            }
        }
        Ok(())
    }
}
