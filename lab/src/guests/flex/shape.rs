//! The shape with which a guest and its device are started.

use crate::guests::tiered::TIERS;

/// Memory of each of the guest's nodes, if a test does not say otherwise.
pub const NODE_BYTES: u64 = 512 << 20;

/// Bytes of the guest's smallest page.
pub const PAGE: u64 = 4096;

/// Orders of pages that a device offers, as bits: 4 KiB and 2 MiB.
pub const BASE: u32 = 1;
pub const HUGE: u32 = 1 << 9;

/// The shape with which a guest and its device are started.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Memory of each node.
    pub node_bytes: [u64; TIERS],
    /// Page orders that the device offers.
    pub orders: u32,
    /// Most memory that the VM may have in all, as its owner pays for, bytes. `None` if there is no limit.
    pub total_bytes: Option<u64>,
    /// Whether the firmware reports that the second node is slower, so that the guest's kernel has memory tiers.
    pub is_tiered: bool,
    /// Whether the guest has the stock balloon too.
    pub has_balloon: bool,
    /// Whether the device gives memory back only while a daemon makes pin checks.
    pub is_leased: bool,
}

impl Shape {
    /// Two nodes of the usual size.
    pub fn of_orders(orders: u32) -> Self {
        Self {
            node_bytes: [NODE_BYTES; TIERS],
            orders,
            total_bytes: None,
            is_tiered: false,
            has_balloon: false,
            is_leased: false,
        }
    }
}
