//! A node's watermarks as mechanisms compare them: at the full-size machine's size.

use terrace_proto::PAGE_SIZE;

use super::super::{Ground, Setup};
use crate::guest::marks::Marks;

/// The watermarks of each tier's node.
#[must_use]
pub fn of_tiers(ground: &Ground) -> Vec<Marks> {
    let per_unit = full_pages(ground.setup());
    let tiers = (0_u8..).take(ground.setup().tiers);
    let nodes: Vec<u64> = tiers.map(|t| ground.node(t) * per_unit).collect();
    let all = nodes.iter().sum();
    nodes.iter().map(|node| Marks::of(*node, all)).collect()
}

/// 4 KiB pages of the full-size machine that a unit stands for.
#[must_use]
pub fn full_pages(setup: &Setup) -> u64 {
    setup.scale * setup.pages_per_unit
}

/// 4 KiB pages of the full-size machine that are free in a tier.
#[must_use]
pub fn free_pages(ground: &Ground, tier: u8) -> u64 {
    ground.free(tier) * full_pages(ground.setup())
}

/// Whether a page may come to a tier (`migrate_balanced_pgdat`): more than the high watermark stays free.
#[must_use]
pub fn may_come(ground: &Ground, marks: &Marks, tier: u8) -> bool {
    free_pages(ground, tier) > marks.high + ground.setup().pages_per_unit
}

/// 4 KiB pages in so many bytes.
#[must_use]
pub fn pages(bytes: u64) -> u64 {
    bytes / PAGE_SIZE
}
