//! Free memory of each node, less the reserve of the kernel's watermarks.

use std::collections::BTreeMap;

use terrace_proto::PAGE_SIZE;

use super::NodeId;
use crate::{HostRoot, ReadError};

/// Free bytes above the high watermark and the zones' reserves for others, summed over each node's zones.
pub(super) fn free_bytes(root: &HostRoot) -> Result<BTreeMap<NodeId, u64>, ReadError> {
    Ok(parse_zoneinfo(&root.read("proc/zoneinfo")?))
}

/// The figures of a zone, as far as its lines were read.
#[derive(Default)]
struct Zone {
    node: Option<NodeId>,
    free: u64,
    /// Pages that the high watermark keeps.
    high: Option<u64>,
    /// Pages that the zone keeps from allocations that could use a higher zone (`lowmem_reserve`).
    protection: u64,
}

impl Zone {
    fn add_to(self, free: &mut BTreeMap<NodeId, u64>) {
        if let (Some(node), Some(high)) = (self.node, self.high) {
            let reserved = high.saturating_add(self.protection);
            let bytes = self.free.saturating_sub(reserved).saturating_mul(PAGE_SIZE);
            let sum: &mut u64 = free.entry(node).or_default();
            *sum = sum.saturating_add(bytes);
        }
    }
}

/// Parses `pages free`, then `high` and `protection` of the same zone; unknown lines are skipped.
fn parse_zoneinfo(text: &str) -> BTreeMap<NodeId, u64> {
    let mut free = BTreeMap::new();
    let mut zone = Zone::default();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("Node ") {
            let number = rest.split([',', ' ']).next().and_then(|n| n.parse().ok());
            let next = Zone {
                node: number.map(NodeId),
                ..Zone::default()
            };
            std::mem::replace(&mut zone, next).add_to(&mut free);
            continue;
        }
        if let Some(list) = line.trim_start().strip_prefix("protection:") {
            let pages = list.split(|c: char| !c.is_ascii_digit());
            zone.protection = pages.filter_map(|n| n.parse().ok()).max().unwrap_or(0);
            continue;
        }
        let mut fields = line.split_whitespace();
        match (fields.next(), fields.next(), fields.next()) {
            (Some("pages"), Some("free"), Some(count)) => zone.free = count.parse().unwrap_or(0),
            // Per-CPU lists further down have a `high:` of their own.
            (Some("high"), Some(count), None) => {
                zone.high.get_or_insert(count.parse().unwrap_or(u64::MAX));
            }
            _ => {}
        }
    }
    zone.add_to(&mut free);
    free
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
        let free = parse_zoneinfo(text);
        assert_eq!(free[&NodeId(0)], (3840 - 19 - 3000) * 4096);
        assert_eq!(free[&NodeId(1)], 4000 * 4096);
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "((Node |pages free |high )?[0-9a-z, \n]{0,24}){0,12}") {
            parse_zoneinfo(&text);
        }
    }
}
