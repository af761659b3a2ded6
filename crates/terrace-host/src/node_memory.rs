//! Memory of the host's nodes that could be given to a VM now.

use std::collections::BTreeMap;

use crate::HostRoot;
use crate::topology::{NodeId, Topology, node_free_bytes};

/// Bytes of each node that are free above its watermarks, and of page cache that nobody used lately.
#[must_use]
pub fn available(root: &HostRoot, topology: &Topology) -> BTreeMap<NodeId, u64> {
    let mut nodes = node_free_bytes(root);
    let of_tiers = topology.tiers.iter().flat_map(|tier| &tier.nodes);
    for node in of_tiers {
        let bytes = nodes.entry(*node).or_default();
        *bytes = bytes.saturating_add(inactive_file_bytes(root, *node));
    }
    nodes
}

fn inactive_file_bytes(root: &HostRoot, node: NodeId) -> u64 {
    let file = format!("sys/devices/system/node/node{}/meminfo", node.0);
    let text = root.read(file).unwrap_or_default();
    let kib = text.lines().find_map(|line| {
        let (_, rest) = line.split_once("Inactive(file):")?;
        rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()
    });
    kib.unwrap_or(0).saturating_mul(1024)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn page_cache_that_nobody_used_lately_counts_as_free() {
        let folder = tempfile::tempdir().unwrap();
        let node = folder.path().join("sys/devices/system/node");
        fs::create_dir_all(node.join("node0")).unwrap();
        fs::create_dir_all(folder.path().join("proc")).unwrap();
        fs::write(node.join("online"), "0\n").unwrap();
        fs::write(node.join("node0/cpulist"), "0\n").unwrap();
        fs::write(node.join("node0/distance"), "10\n").unwrap();
        let meminfo = "Node 0 MemTotal: 9000 kB\nNode 0 MemFree: 1200 kB\nNode 0 Active(file): 70 kB\n\
                       Node 0 Inactive(file):   100 kB\n";
        fs::write(node.join("node0/meminfo"), meminfo).unwrap();
        let zones = "Node 0, zone Normal\n  pages free 300\n  high 44\n";
        fs::write(folder.path().join("proc/zoneinfo"), zones).unwrap();
        let root = HostRoot::new(folder.path());
        let topology = Topology::read(&root, &[]).unwrap();
        let available = available(&root, &topology);
        assert_eq!(available[&NodeId(0)], 256 * 4096 + 100 * 1024);
    }
}
