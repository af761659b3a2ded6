//! The memory of a node, kept as a pool of 2 MiB pages: neither page cache nor other programs can take it meanwhile.
//!
//! A block is given up just before pages are sent to its place. What decides is the node's count of free pages: a block that was
//! given up may rest in a processor's list for a while. The pool takes the node below its watermarks, so that some memory
//! stays free for good: else the first block given up feeds the watermark.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use terrace_core::gather::BLOCK_PAGES;
use terrace_sys::HostRoot;
use terrace_sys::topology::{NodeId, NodeMemory, node_memory};

const BLOCK: u64 = BLOCK_PAGES as u64;

/// A node's pool.
#[derive(Debug)]
pub struct Pool {
    root: HostRoot,
    node: u32,
    file: PathBuf,
}

impl Pool {
    /// The pool of a node.
    ///
    /// # Errors
    /// If there is no such node, or its kernel has no pool of 2 MiB pages.
    pub fn open(root: &HostRoot, node: u32) -> Result<Self> {
        let folder = root.join(format!("sys/devices/system/node/node{node}"));
        ensure!(
            folder.exists(),
            "gather.node = {node}: this guest has no node {node} (docs/gather.md has the VM's options)"
        );
        let file = folder.join("hugepages/hugepages-2048kB/nr_hugepages");
        ensure!(
            file.exists(),
            "node {node} has no pool of 2 MiB pages: the kernel lacks CONFIG_HUGETLBFS, or the processor 2 MiB pages"
        );
        let pool = Self {
            root: root.clone(),
            node,
            file,
        };
        ensure!(
            !pool.memory()?.frames.is_empty(),
            "gather.node = {node}: node {node} has no memory"
        );
        pool.is_unused()?;
        Ok(pool)
    }

    /// Fails if programs use pages of the pool: it is theirs then, and giving blocks up would take memory that they count on.
    fn is_unused(&self) -> Result<()> {
        let read = |name| -> Result<u64> { number(&self.file.with_file_name(name)) };
        let (all, free) = (read("nr_hugepages")?, read("free_hugepages")?);
        ensure!(
            free >= all,
            "gather.node = {node}: programs use {} of node {node}'s {all} pages of 2 MiB (hugetlb); name a node that nobody \
             else uses",
            all - free,
            node = self.node
        );
        Ok(())
    }

    /// Number of the node.
    #[must_use]
    pub fn node(&self) -> u32 {
        self.node
    }

    /// The node's memory, by the kernel's counts of now.
    ///
    /// # Errors
    /// If they cannot be read.
    pub fn memory(&self) -> Result<NodeMemory> {
        // Each processor counts for itself for a second; this has them report. It fails for who is not root.
        let _ = fs::read(self.root.join("proc/sys/vm/stat_refresh"));
        let nodes = node_memory(&self.root)?;
        Ok(nodes.get(&NodeId(self.node)).cloned().unwrap_or_default())
    }

    /// Blocks in the pool.
    ///
    /// # Errors
    /// If the kernel's file makes no sense.
    pub fn blocks(&self) -> Result<u64> {
        number(&self.file)
    }

    /// Asks for so many blocks; returns what the kernel has found.
    fn set(&self, blocks: u64) -> Result<u64> {
        fs::write(&self.file, blocks.to_string())
            .with_context(|| format!("writing {}", self.file.display()))?;
        self.blocks()
    }

    /// Takes what is free into the pool, but for what stays free for good.
    ///
    /// # Errors
    /// If the pool cannot be written.
    pub fn fill(&self) -> Result<u64> {
        let before = self.blocks()?;
        let frames = self.memory()?.frames;
        // The kernel stops where it finds no more; page cache leaves for it.
        let mut blocks = self.set(before + (frames.end - frames.start) / BLOCK)?;
        while blocks > 0 && !self.has_slack()? {
            blocks = self.set(blocks - 1)?;
        }
        Ok(blocks)
    }

    /// Whether the node has the low watermark and a block free.
    fn has_slack(&self) -> Result<bool> {
        let memory = self.memory()?;
        Ok(memory.free >= memory.low + BLOCK)
    }

    /// Gives up blocks until a block's pages can go to the node.
    ///
    /// # Errors
    /// If the pool is used up.
    pub fn make_room(&self) -> Result<()> {
        let mut blocks = self.blocks()?;
        while !self.has_slack()? {
            if blocks == 0 {
                bail!("node {} is full: no block is left in its pool", self.node);
            }
            let now = self.set(blocks - 1)?;
            ensure!(
                now < blocks,
                "node {} is full: its pool's pages are in use by programs",
                self.node
            );
            blocks = now;
        }
        Ok(())
    }

    /// Gives all blocks up: the node's memory is the guest's again.
    ///
    /// # Errors
    /// If the pool cannot be written.
    pub fn give_up(&self) -> Result<()> {
        self.set(0).map(drop)
    }

    /// Pages that can be sent to the node.
    ///
    /// # Errors
    /// If the kernel's counts cannot be read.
    pub fn room(&self) -> Result<u64> {
        Ok(self.blocks()? * BLOCK)
    }
}

fn number(file: &Path) -> Result<u64> {
    let text = fs::read_to_string(file);
    let text = text.with_context(|| format!("reading {}", file.display()))?;
    text.trim()
        .parse()
        .with_context(|| format!("{}: {text:?}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FOLDER: &str = "sys/devices/system/node/node1/hugepages/hugepages-2048kB";

    fn guest(all: u64, free: u64) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let put = |name: &str, text: String| {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        put(&format!("{FOLDER}/nr_hugepages"), format!("{all}\n"));
        put(&format!("{FOLDER}/free_hugepages"), format!("{free}\n"));
        let zone = "Node 1, zone Normal\n  pages free 600\n    low 100\n    high 200\n    spanned 4096\n  start_pfn: 8192\n";
        put("proc/zoneinfo", zone.into());
        dir
    }

    fn refused(dir: &tempfile::TempDir, node: u32) -> String {
        format!(
            "{:#}",
            Pool::open(&HostRoot::new(dir.path()), node).unwrap_err()
        )
    }

    #[test]
    fn a_pool_that_programs_use_is_theirs() {
        let used = guest(10, 7);
        assert!(refused(&used, 1).contains("programs use 3 of node 1's 10 pages"));
        assert!(refused(&used, 2).contains("this guest has no node 2"));
        let unused = guest(10, 10);
        let pool = Pool::open(&HostRoot::new(unused.path()), 1).unwrap();
        assert_eq!((pool.blocks().unwrap(), pool.room().unwrap()), (10, 5120));
        assert_eq!(pool.memory().unwrap().frames, 8192..12288);
    }

    #[test]
    fn blocks_are_given_up_until_a_block_is_free() {
        let dir = guest(3, 3);
        let root = HostRoot::new(dir.path());
        let pool = Pool::open(&root, 1).unwrap();
        // Nothing becomes free here: the pool ends.
        let error = pool.make_room().unwrap_err();
        assert!(error.to_string().contains("no block is left in its pool"));
        assert_eq!(pool.blocks().unwrap(), 0);
        fs::write(
            dir.path().join("proc/zoneinfo"),
            "Node 1, zone Normal\n  pages free 612\n    low 100\n    high 200\n",
        )
        .unwrap();
        pool.make_room().unwrap();
    }
}
