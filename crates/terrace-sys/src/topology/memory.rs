//! Memory of each node by the kernel's zones: what is free, the reserve of the watermarks, and which frames it has.

use std::collections::BTreeMap;
use std::ops::Range;

use terrace_proto::PAGE_SIZE;

use super::NodeId;
use crate::{HostRoot, ReadError};

/// Memory of a node, pages of 4 KiB, summed over its zones.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct NodeMemory {
    /// Free pages.
    pub free: u64,
    /// Free pages above the high watermark and the zones' reserves for others.
    pub usable: u64,
    /// The low watermarks: below it the kernel begins to reclaim.
    pub low: u64,
    /// From the first to behind the last frame; there may be holes, and frames of other nodes.
    pub frames: Range<u64>,
}

/// The memory of each node.
///
/// # Errors
/// If `/proc/zoneinfo` cannot be read.
pub fn node_memory(root: &HostRoot) -> Result<BTreeMap<NodeId, NodeMemory>, ReadError> {
    Ok(parse_zoneinfo(&root.read("proc/zoneinfo")?))
}

/// Free bytes above the high watermark and the zones' reserves for others, summed over each node's zones.
pub(super) fn free_bytes(root: &HostRoot) -> Result<BTreeMap<NodeId, u64>, ReadError> {
    let nodes = node_memory(root)?.into_iter();
    Ok(nodes
        .map(|(node, memory)| (node, memory.usable.saturating_mul(PAGE_SIZE)))
        .collect())
}

/// The figures of a zone, as far as its lines were read.
#[derive(Default)]
struct Zone {
    node: Option<NodeId>,
    free: u64,
    low: Option<u64>,
    /// Pages that the high watermark keeps.
    high: Option<u64>,
    /// Pages that the zone keeps from allocations that could use a higher zone (`lowmem_reserve`).
    protection: u64,
    spanned: u64,
    first: Option<u64>,
}

impl Zone {
    fn add_to(self, nodes: &mut BTreeMap<NodeId, NodeMemory>) {
        let Some(node) = self.node else {
            return;
        };
        // Without its watermark nothing of a zone is known to be usable.
        let reserved = self
            .high
            .unwrap_or(u64::MAX)
            .saturating_add(self.protection);
        let sum = nodes.entry(node).or_default();
        sum.free = sum.free.saturating_add(self.free);
        sum.usable = sum
            .usable
            .saturating_add(self.free.saturating_sub(reserved));
        sum.low = sum.low.saturating_add(self.low.unwrap_or(0));
        if let Some(first) = self.first.filter(|_| self.spanned > 0) {
            let end = first.saturating_add(self.spanned);
            sum.frames = match sum.frames.is_empty() {
                true => first..end,
                false => sum.frames.start.min(first)..sum.frames.end.max(end),
            };
        }
    }

    /// Takes in a line; unknown ones are skipped.
    fn take_in(&mut self, line: &str) {
        if let Some(list) = line.trim_start().strip_prefix("protection:") {
            let pages = list.split(|c: char| !c.is_ascii_digit());
            self.protection = pages.filter_map(|n| n.parse().ok()).max().unwrap_or(0);
            return;
        }
        let mut fields = line.split_whitespace();
        let number = |text: &str| text.parse().unwrap_or(0);
        match (fields.next(), fields.next(), fields.next()) {
            (Some("pages"), Some("free"), Some(count)) => self.free = number(count),
            (Some("low"), Some(count), None) => {
                self.low.get_or_insert(number(count));
            }
            // Per-CPU lists further down have a `high:` of their own.
            (Some("high"), Some(count), None) => {
                self.high.get_or_insert(count.parse().unwrap_or(u64::MAX));
            }
            (Some("spanned"), Some(count), None) => self.spanned = number(count),
            (Some("start_pfn:"), Some(first), None) => self.first = first.parse().ok(),
            _ => {}
        }
    }
}

fn parse_zoneinfo(text: &str) -> BTreeMap<NodeId, NodeMemory> {
    let mut nodes = BTreeMap::new();
    let mut zone = Zone::default();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("Node ") {
            let number = rest.split([',', ' ']).next().and_then(|n| n.parse().ok());
            let next = Zone {
                node: number.map(NodeId),
                ..Zone::default()
            };
            std::mem::replace(&mut zone, next).add_to(&mut nodes);
        } else {
            zone.take_in(line);
        }
    }
    zone.add_to(&mut nodes);
    nodes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watermarks_are_not_free_memory_and_cpu_lists_do_not_count() {
        let text = "\
Node 0, zone      DMA
  per-node stats
      nr_inactive_anon 1
  pages free     3840
        boost    0
        min      13
        low      16
        high     19
        spanned  4095
        protection: (0, 1877, 3000, 2999)
  pagesets
    cpu: 0
              count:    0
              high:     14
              batch:    1
Node 0, zone   Normal
  pages free     100
        high     200
Node 1, zone  Movable
  pages free     5000
        min      1
        high     1000
";
        let nodes = parse_zoneinfo(text);
        assert_eq!(nodes[&NodeId(0)].usable, 3840 - 19 - 3000);
        assert_eq!(nodes[&NodeId(1)].usable, 4000);
        let mut node = NodeMemory {
            free: 3940,
            usable: 3840 - 19 - 3000,
            low: 16,
            frames: 0..0,
        };
        assert_eq!(nodes[&NodeId(0)], node, "no frame without its number");
        let text = text.replace("pagesets", "start_pfn: 1\n  pagesets");
        node.frames = 1..4096;
        assert_eq!(parse_zoneinfo(&text)[&NodeId(0)], node);
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "((Node |pages free |high )?[0-9a-z, \n]{0,24}){0,12}") {
            parse_zoneinfo(&text);
        }
    }
}
