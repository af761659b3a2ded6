//! Gathering on a small node of the same tier, by `move_pages(2)`.

use std::collections::BTreeMap;
use std::ops::Range;

use anyhow::{Context as _, Result, bail, ensure};
use terrace_core::gather::BLOCK_PAGES;
use terrace_proto::PAGE_SIZE;
use terrace_sys::topology::{NodeId, node_free_bytes};
use terrace_sys::{HostRoot, KernelPages, MoveScope, MoveTo, Pages, SysError};

use super::pool::Pool;
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
    pub fn open(root: &HostRoot, node: u32) -> Result<Self> {
        balancing(root)?;
        without_processors(root, node)?;
        let way = Self {
            root: root.clone(),
            pool: Pool::open(root, node)?,
            pages: Box::new(KernelPages),
        };
        ensure!(
            way.homes().next().is_some(),
            "gather.node = {node} is this guest's only node: pages come from another one of the same tier"
        );
        Ok(way)
    }

    /// Other nodes with their free bytes.
    fn homes(&self) -> impl Iterator<Item = (NodeId, u64)> {
        let own = NodeId(self.pool.node());
        let nodes: BTreeMap<NodeId, u64> = node_free_bytes(&self.root);
        nodes.into_iter().filter(move |(node, _)| *node != own)
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

impl Way for NodeWay {
    fn name(&self) -> &'static str {
        "node"
    }

    fn target(&self) -> Result<Option<Range<u64>>> {
        Ok(Some(self.pool.memory()?.frames))
    }

    fn prepare(&mut self) -> Result<u64> {
        self.pool.fill()?;
        let room = self.pool.room()?;
        ensure!(
            room > 0,
            "node {} has no free block of 2 MiB: its memory is in use or in pieces (reserve blocks at boot: \
             hugepages={}:N)",
            self.pool.node(),
            self.pool.node()
        );
        Ok(room)
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

    fn send_home(&mut self, pid: u32, addresses: &[u64]) -> Result<u64> {
        let mut sent = 0;
        for part in addresses.chunks(BLOCK_PAGES.into()) {
            let need = part.len() as u64 * PAGE_SIZE;
            let roomiest = self.homes().max_by_key(|(_, free)| *free);
            let home = roomiest.filter(|(_, free)| *free > need);
            let (home, _) = home.context("no other node has room for pages that go home")?;
            match self.send(pid, part, home.0) {
                Ok(()) => sent += part.len() as u64,
                Err(error) if error.errno() == libc::ESRCH => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(sent)
    }

    fn finish(&mut self) -> Result<()> {
        self.pool.fill().map(drop)
    }
}
