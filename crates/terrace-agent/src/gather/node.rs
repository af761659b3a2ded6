//! Gathering on a small node of the same tier, by `move_pages(2)`.

use std::ops::Range;

use anyhow::{Result, bail, ensure};
use terrace_core::gather::BLOCK_PAGES;
use terrace_sys::topology::{NodeId, TierDefinition, TierSource, Topology};
use terrace_sys::{HostRoot, KernelPages, MoveScope, MoveTo, Pages, SysError};

use super::pool::Pool;
use super::residents::{Returns, Which};
use super::way::{Refusal, Way};

/// The bit of `kernel.numa_balancing` by which each page goes to the node whose processor touches it.
const BALANCES: u32 = 1;

/// A node whose memory is a pool of blocks.
pub struct NodeWay {
    root: HostRoot,
    pool: Pool,
    pages: Box<dyn Pages>,
}

impl NodeWay {
    /// Opens the node that the configuration names.
    ///
    /// # Errors
    /// If there is no such node, or NUMA balancing would take every page home.
    pub fn open(root: &HostRoot, node: u32, tiers: &[TierDefinition]) -> Result<Self> {
        balancing(root)?;
        without_processors(root, node)?;
        of_this_tier(root, node, tiers)?;
        Ok(Self {
            root: root.clone(),
            pool: Pool::open(root, node)?,
            pages: Box::new(KernelPages),
        })
    }

    fn send(&self, pid: u32, addresses: &[u64], node: u32) -> Result<(), SysError> {
        let mut status = vec![0; addresses.len()];
        let to = MoveTo {
            node: i32::try_from(node).unwrap_or(-1),
            scope: MoveScope::Exclusive,
        };
        self.pages
            .call(pid, addresses, Some(to), &mut status)
            .map(drop)
    }
}

/// Fails if the kernel moves pages to the node whose processor touches them: those of this node go home within seconds.
pub fn balancing(root: &HostRoot) -> Result<()> {
    let mode = root
        .read("proc/sys/kernel/numa_balancing")
        .unwrap_or_default();
    let mode: u32 = mode.trim().parse().unwrap_or(0);
    if mode & BALANCES != 0 {
        bail!(
            "NUMA balancing takes every page home within seconds (kernel.numa_balancing = {mode}): \
             sysctl kernel.numa_balancing=0 (2 works, too)"
        );
    }
    Ok(())
}

/// Fails for a node with processors: programs' memory comes from there first, and its free memory is theirs.
fn without_processors(root: &HostRoot, node: u32) -> Result<()> {
    let path = format!("sys/devices/system/node/node{node}/cpulist");
    let list = root.read(path).unwrap_or_default();
    ensure!(
        list.trim().is_empty(),
        "gather.node = {node}: node {node} has processors ({}); its free memory is its programs'. Name a node without any",
        list.trim()
    );
    Ok(())
}

/// Fails if the node is known to be of another tier than those with processors. What only lacks processors may be of the
/// same.
fn of_this_tier(root: &HostRoot, node: u32, tiers: &[TierDefinition]) -> Result<()> {
    let topology = Topology::read(root, tiers)?;
    let all: u64 = topology.nodes.iter().map(|node| node.total_bytes).sum();
    let own = topology.nodes.iter().find(|own| own.id == NodeId(node));
    ensure!(
        own.is_none_or(|own| own.total_bytes <= all / 2),
        "gather.node = {node}: node {node} is more than half of this guest's memory; a small one serves"
    );
    if topology.source == TierSource::Distance {
        return Ok(());
    }
    let others = topology.nodes.iter().filter(|node| !node.cpus.is_empty());
    let mut tiers = others.map(|node| topology.tier_of(node.id));
    let of = topology.tier_of(NodeId(node));
    ensure!(
        of.is_none() || tiers.any(|tier| tier == of),
        "gather.node = {node}: node {node} is of another tier than the nodes with processors ({}): hot pages would go to \
         slower memory",
        of.and_then(|tier| topology.tiers.get(tier.index()))
            .map_or("?", |tier| tier.name.as_str())
    );
    Ok(())
}

impl Way for NodeWay {
    fn name(&self) -> &'static str {
        "node"
    }

    fn target(&self) -> Result<Option<Range<u64>>> {
        Ok(Some(self.pool.memory()?.frames))
    }

    fn prepare(&mut self) -> Result<u64> {
        self.pool.fill()?;
        let room = self.pool.spare()? * u64::from(BLOCK_PAGES);
        ensure!(
            room > 0,
            "node {} has no free block of 2 MiB: its memory is in use or in pieces. What is in use there: numastat, \
             /proc/*/numa_maps, and HugePages_Free in the node's meminfo",
            self.pool.node()
        );
        Ok(room)
    }

    fn open_up(&mut self, pages: u64) -> Result<()> {
        self.pool.open_up(pages)
    }

    fn batch(&self) -> usize {
        BLOCK_PAGES.into()
    }

    fn take(&mut self, pid: u32, addresses: &[u64]) -> Result<(), Refusal> {
        let full = |error: anyhow::Error| Refusal::Full(format!("{error:#}"));
        self.pool.make_room().map_err(full)?;
        match self.send(pid, addresses, self.pool.node()) {
            Ok(()) => Ok(()),
            Err(error) if error.errno() == libc::ENOMEM => Err(Refusal::Full(error.to_string())),
            Err(error) => Err(Refusal::Process(error.to_string())),
        }
    }

    fn return_pages(&mut self, pid: u32, pages: &[u64]) -> u64 {
        let returns = Returns {
            root: &self.root,
            node: self.pool.node(),
            pages: self.pages.as_ref(),
            which: Which::Own,
        };
        returns.send(pid, pages)
    }

    fn finish(&mut self) -> Result<()> {
        self.pool.fill()
    }

    fn left(&self) -> Option<String> {
        let blocks = self.pool.spare().ok().filter(|blocks| *blocks > 0)?;
        Some(format!(
            "node {} keeps {blocks} free blocks ({} MiB) for gathering: terrace-agent gather --undo gives them back",
            self.pool.node(),
            2 * blocks
        ))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// A guest with processors on node 0, and node 1 in a kernel tier of its own or in the same.
    fn guest(cpus: &str, tiers: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        put("sys/devices/system/node/online", "0-1\n");
        for (node, cpus) in [(0, "0-1\n"), (1, cpus)] {
            let base = format!("sys/devices/system/node/node{node}");
            put(&format!("{base}/cpulist"), cpus);
            put(&format!("{base}/distance"), "10 20\n");
            put(
                &format!("{base}/meminfo"),
                &format!("Node {node} MemTotal: 2048 kB\n"),
            );
            let pool = format!("{base}/hugepages/hugepages-2048kB");
            put(&format!("{pool}/nr_hugepages"), "0\n");
            put(&format!("{pool}/free_hugepages"), "0\n");
        }
        for (tier, nodes) in tiers {
            put(
                &format!("sys/devices/virtual/memory_tiering/{tier}/nodelist"),
                nodes,
            );
        }
        let zone = |node: u32, first: u32| {
            format!(
                "Node {node}, zone Normal\n  pages free 600\n    low 100\n    high 200\n    spanned 512\n  start_pfn: {first}\n"
            )
        };
        put("proc/zoneinfo", &(zone(0, 0) + &zone(1, 512)));
        dir
    }

    fn opened(dir: &tempfile::TempDir, node: u32) -> Result<NodeWay> {
        NodeWay::open(&HostRoot::new(dir.path()), node, &[])
    }

    fn refused(dir: &tempfile::TempDir, node: u32) -> String {
        format!("{:#}", opened(dir, node).err().unwrap())
    }

    #[test]
    fn a_small_node_of_the_same_tier_is_taken() {
        let same = guest("\n", &[("memory_tier4", "0-1\n")]);
        let way = opened(&same, 1).unwrap();
        assert_eq!(way.target().unwrap(), Some(512..1024));
        assert!(
            opened(&guest("\n", &[]), 1).is_ok(),
            "nothing says that it is slower"
        );
    }

    #[test]
    fn nodes_that_are_needed_for_something_else_are_refused() {
        let slower = guest("\n", &[("memory_tier4", "0\n"), ("memory_tier22", "1\n")]);
        assert!(refused(&slower, 1).contains("is of another tier"));
        let busy = guest("2-3\n", &[]);
        assert!(refused(&busy, 1).contains("node 1 has processors (2-3)"));
        assert!(refused(&busy, 0).contains("node 0 has processors (0-1)"));
        assert!(refused(&busy, 9).contains("no node 9"));
    }

    #[test]
    fn numa_balancing_is_refused_but_for_tiering() {
        let dir = guest("\n", &[]);
        let path = dir.path().join("proc/sys/kernel/numa_balancing");
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        for (mode, works) in [("0\n", true), ("1\n", false), ("2\n", true), ("3\n", false)] {
            fs::write(&path, mode).unwrap();
            assert_eq!(opened(&dir, 1).is_ok(), works, "{mode}");
        }
        assert!(refused(&dir, 1).contains("sysctl kernel.numa_balancing=0"));
    }
}
