//! A node's watermarks as mechanisms compare them: at the size of the full-size machine.

use terrace_proto::PAGE_SIZE;

use super::super::{Context, Setup};
use crate::guest::marks::Marks;

/// The watermarks of each tier's node.
#[must_use]
pub fn of_tiers(context: &Context) -> Vec<Marks> {
    let per_unit = full_pages(context.setup());
    let tiers = (0_u8..).take(context.setup().tiers);
    let nodes: Vec<u64> = tiers.map(|t| context.node(t) * per_unit).collect();
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
pub fn free_pages(context: &Context, tier: u8) -> u64 {
    context.free(tier) * full_pages(context.setup())
}

/// Whether a page may come to a tier (`migrate_balanced_pgdat`): more than the high watermark stays free.
#[must_use]
pub fn may_come(context: &Context, marks: &Marks, tier: u8) -> bool {
    free_pages(context, tier) > marks.high + context.setup().pages_per_unit
}

/// 4 KiB pages in so many bytes.
#[must_use]
pub fn pages(bytes: u64) -> u64 {
    bytes / PAGE_SIZE
}
