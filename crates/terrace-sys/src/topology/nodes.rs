//! Nodes as `/sys/devices/system/node` shows them, and the kernel's memory tiers.

use std::fmt;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::root::{malformed, read as read_file};
use crate::{HostRoot, ReadError};

/// A NUMA node of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NodeId(pub u32);

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {}", self.0)
    }
}

/// Latency and bandwidth from the best-placed initiator to a node (`access0` of the HMAT). Zero: not stated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Performance {
    /// Latency of reads, ns.
    pub read_latency_ns: u64,
    /// Latency of writes, ns.
    pub write_latency_ns: u64,
    /// Bandwidth of reads, MB/s.
    pub read_bandwidth_mbs: u64,
    /// Bandwidth of writes, MB/s.
    pub write_bandwidth_mbs: u64,
}

/// One node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Node {
    /// The node's number.
    pub id: NodeId,
    /// The node's memory, bytes.
    pub total_bytes: u64,
    /// The node's CPUs.
    pub cpus: Vec<u32>,
    /// Distance to each online node in ascending order of nodes; 10 is local.
    pub distances: Vec<u32>,
    /// Latency and bandwidth by the HMAT, if it has them.
    pub performance: Option<Performance>,
}

const NODES: &str = "sys/devices/system/node";
const KERNEL_TIERS: &str = "sys/devices/virtual/memory_tiering";

/// Every online node, ascending.
pub(super) fn read(root: &HostRoot) -> Result<Vec<Node>, ReadError> {
    let folder = root.join(NODES);
    let online = list(&folder.join("online"))?;
    online
        .into_iter()
        .map(|id| node(&folder.join(format!("node{id}")), NodeId(id)))
        .collect()
}

fn node(folder: &Path, id: NodeId) -> Result<Node, ReadError> {
    let meminfo = folder.join("meminfo");
    let total_kib = read_file(&meminfo)?
        .lines()
        .find_map(|line| {
            let (_, value) = line.split_once("MemTotal:")?;
            value.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()
        })
        .ok_or_else(|| malformed(meminfo, "no MemTotal in it"))?;
    let distance = folder.join("distance");
    let distances = read_file(&distance)?
        .split_whitespace()
        .map(|d| d.parse().map_err(|_| malformed(distance.clone(), d)))
        .collect::<Result<_, _>>()?;
    Ok(Node {
        id,
        total_bytes: total_kib.saturating_mul(1024),
        cpus: list(&folder.join("cpulist"))?,
        distances,
        performance: performance(&folder.join("access0/initiators")),
    })
}

/// The figures of a node; `None` if the firmware states no latency.
fn performance(folder: &Path) -> Option<Performance> {
    let value =
        |name: &str| -> Option<u64> { read_file(&folder.join(name)).ok()?.trim().parse().ok() };
    let read_latency_ns = value("read_latency").filter(|ns| *ns > 0)?;
    Some(Performance {
        read_latency_ns,
        write_latency_ns: value("write_latency").unwrap_or(0),
        read_bandwidth_mbs: value("read_bandwidth").unwrap_or(0),
        write_bandwidth_mbs: value("write_bandwidth").unwrap_or(0),
    })
}

/// The kernel's memory tiers, fastest (lowest number) first; empty if the kernel has none.
pub(super) fn read_kernel_tiers(root: &HostRoot) -> Result<Vec<Vec<NodeId>>, ReadError> {
    let Ok(entries) = std::fs::read_dir(root.join(KERNEL_TIERS)) else {
        return Ok(Vec::new());
    };
    let mut tiers = Vec::new();
    for entry in entries.flatten() {
        let name = entry.file_name();
        let number = name.to_str().and_then(|n| n.strip_prefix("memory_tier"));
        if let Some(number) = number.and_then(|n| n.parse::<u32>().ok()) {
            let nodes = list(&entry.path().join("nodelist"))?;
            tiers.push((number, nodes.into_iter().map(NodeId).collect()));
        }
    }
    tiers.sort_unstable_by_key(|(number, _)| *number);
    Ok(tiers.into_iter().map(|(_, nodes)| nodes).collect())
}

fn list(path: &Path) -> Result<Vec<u32>, ReadError> {
    let text = read_file(path)?;
    parse_list(&text).ok_or_else(|| malformed(path.into(), format!("{:?} is no list", text.trim())))
}

/// Parses the kernel's lists, such as `0-2,5`. At most 65,536 entries.
#[must_use]
pub fn parse_list(text: &str) -> Option<Vec<u32>> {
    let mut numbers = Vec::new();
    for part in text.trim().split(',').filter(|p| !p.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        if last < first || last - first >= 1 << 16 || numbers.len() >= 1 << 16 {
            return None;
        }
        numbers.extend(first..=last);
    }
    Some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_lists_are_read_and_absurd_ones_refused() {
        assert_eq!(parse_list("0-2,5\n"), Some(vec![0, 1, 2, 5]));
        assert_eq!(parse_list("\n"), Some(vec![]));
        for bad in ["a", "3-1", "0-4294967295", "1,-"] {
            assert_eq!(parse_list(bad), None);
        }
    }
}
