//! Memory of the host's nodes that could be given to a VM now.

use std::collections::BTreeMap;

use crate::HostRoot;
use crate::topology::{NodeId, Topology, node_free_bytes};

/// Bytes of each node that are free above its watermarks, and of page cache that was not used lately.
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

/// Bytes of each node that are free in its pool of huge pages of that size. Pages that are reserved are not
/// free; the kernel does not say of which node they will come, so that they miss on every one.
#[must_use]
pub fn available_huge(
    root: &HostRoot,
    topology: &Topology,
    page_bytes: u64,
) -> BTreeMap<NodeId, u64> {
    let kib = page_bytes / 1024;
    let pages = |folder: String, file: &str| {
        let text = root.read(format!("{folder}/hugepages/hugepages-{kib}kB/{file}"));
        let count = text.ok().and_then(|text| text.trim().parse::<u64>().ok());
        count.unwrap_or(0)
    };
    let reserved = pages("sys/kernel/mm".into(), "resv_hugepages");
    let of_tiers = topology.tiers.iter().flat_map(|tier| &tier.nodes);
    let free = of_tiers.map(|node| {
        let folder = format!("sys/devices/system/node/node{}", node.0);
        let free = pages(folder, "free_hugepages").saturating_sub(reserved);
        (*node, free.saturating_mul(page_bytes))
    });
    free.collect()
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
    fn huge_pages_that_are_reserved_are_not_free() {
        let folder = tempfile::tempdir().unwrap();
        let node = folder.path().join("sys/devices/system/node");
        let pool = node.join("node0/hugepages/hugepages-2048kB");
        fs::create_dir_all(&pool).unwrap();
        fs::write(pool.join("free_hugepages"), "10\n").unwrap();
        fs::write(node.join("online"), "0\n").unwrap();
        fs::write(node.join("node0/cpulist"), "0\n").unwrap();
        fs::write(node.join("node0/distance"), "10\n").unwrap();
        fs::write(node.join("node0/meminfo"), "Node 0 MemTotal: 9000 kB\n").unwrap();
        let root = HostRoot::new(folder.path());
        let topology = Topology::read(&root, &[]).unwrap();
        let free = || available_huge(&root, &topology, 2 << 20)[&NodeId(0)];
        assert_eq!(free(), 10 * (2 << 20));
        let all = folder
            .path()
            .join("sys/kernel/mm/hugepages/hugepages-2048kB");
        fs::create_dir_all(&all).unwrap();
        fs::write(all.join("resv_hugepages"), "3\n").unwrap();
        assert_eq!(free(), 7 * (2 << 20));
        let none = available_huge(&root, &topology, 1 << 30);
        assert_eq!(none[&NodeId(0)], 0, "there is no such pool");
    }

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
