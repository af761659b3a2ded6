//! The memory of a node, kept as a pool of 2 MiB pages, which page cache cannot take meanwhile.
//!
//! A block is given up just before pages are sent to its place. What decides is the node's count of free pages: a block that was
//! given up may rest in a processor's list for a while. The pool takes the node below its watermarks, so that some memory
//! stays free for good: else the first block given up feeds the watermark.
//!
//! Pages that the pool had before are somebody's: a file in `/run` has their number, and they are never given up.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use terrace_core::gather::BLOCK_PAGES;
use terrace_sys::HostRoot;
use terrace_sys::topology::{NodeId, NodeMemory, node_memory};

const BLOCK: u64 = BLOCK_PAGES as u64;
/// Folder of what outlives the program, until the guest boots.
pub const FOLDER: &str = "run/terrace-gather";
/// Start of the name of a node's file there.
const PREFIX: &str = "gather-node";

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
        Ok(pool)
    }

    /// Nodes that have a pool for gathering since the guest booted.
    #[must_use]
    pub fn known(root: &HostRoot) -> Vec<u32> {
        let files = fs::read_dir(root.join(FOLDER))
            .into_iter()
            .flatten()
            .flatten();
        let names = files.filter_map(|file| file.file_name().into_string().ok());
        names
            .filter_map(|name| name.strip_prefix(PREFIX)?.parse().ok())
            .collect()
    }

    fn floor_file(&self) -> PathBuf {
        self.root.join(format!("{FOLDER}/{PREFIX}{}", self.node))
    }

    /// Pages that the pool had before the first one was taken for gathering.
    fn floor(&self) -> Result<u64> {
        let file = self.floor_file();
        match file.exists() {
            true => number(&file),
            false => self.blocks(),
        }
    }

    /// Remembers what the pool has now, unless that was done before.
    fn begin(&self) -> Result<()> {
        let file = self.floor_file();
        if file.exists() {
            return Ok(());
        }
        let keep = || {
            make_folder(&self.root)?;
            // A file that a full /run cut short would be taken for the number.
            let new = file.with_file_name("floor.new");
            let blocks = number(&self.file).map_err(io::Error::other)?;
            fs::write(&new, format!("{blocks}\n"))?;
            fs::rename(&new, &file)
        };
        keep().with_context(|| format!("writing {}", file.display()))
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

    /// Pages in the pool.
    fn blocks(&self) -> Result<u64> {
        number(&self.file)
    }

    /// Blocks for gathering that no program uses.
    ///
    /// # Errors
    /// If the kernel's files make no sense.
    pub fn spare(&self) -> Result<u64> {
        let more = self.blocks()?.saturating_sub(self.floor()?);
        Ok(more.min(number(&self.file.with_file_name("free_hugepages"))?))
    }

    /// Asks for so many pages; returns what the kernel has found.
    fn set(&self, blocks: u64) -> Result<u64> {
        fs::write(&self.file, blocks.to_string())
            .with_context(|| format!("writing {}", self.file.display()))?;
        self.blocks()
    }

    /// Takes what is free into the pool, but for what stays free for good.
    ///
    /// # Errors
    /// If the pool cannot be written.
    pub fn fill(&self) -> Result<()> {
        self.begin()?;
        let frames = self.memory()?.frames;
        // The kernel stops where it finds no more; page cache leaves for it.
        self.set(self.blocks()? + (frames.end - frames.start) / BLOCK)?;
        // A block that was given up may rest in a processor's list and not count as free: more would follow it for nothing.
        let enough = self.memory()?.low.div_ceil(BLOCK) + 2;
        for _ in 0..enough {
            if self.has_slack()? || !self.give_one()? {
                break;
            }
        }
        Ok(())
    }

    /// Whether the node has the low watermark and a block free.
    fn has_slack(&self) -> Result<bool> {
        let memory = self.memory()?;
        Ok(memory.free >= memory.low + BLOCK)
    }

    /// Gives a block up; returns whether there was one. A page that a program uses leaves the pool's count later only.
    fn give_one(&self) -> Result<bool> {
        let blocks = self.blocks()?;
        Ok(self.spare()? > 0 && self.set(blocks - 1)? < blocks)
    }

    /// Gives up blocks until a block's pages can go to the node.
    ///
    /// # Errors
    /// If the pool is used up.
    pub fn make_room(&self) -> Result<()> {
        while !self.has_slack()? {
            if !self.give_one()? {
                bail!(
                    "node {} is full: its pool has no block that is not in use",
                    self.node
                );
            }
        }
        Ok(())
    }

    /// Gives up blocks until so many pages can go to the node, or none is left.
    ///
    /// # Errors
    /// If the kernel's files make no sense.
    pub fn open_up(&self, pages: u64) -> Result<()> {
        let lacks = || {
            let memory = self.memory()?;
            Ok::<_, anyhow::Error>(
                memory.free < memory.low.saturating_add(BLOCK).saturating_add(pages),
            )
        };
        while lacks()? && self.give_one()? {}
        Ok(())
    }

    /// Gives up all that was taken for gathering: the node's memory is the guest's again.
    ///
    /// # Errors
    /// If the pool cannot be written.
    pub fn give_up(&self) -> Result<()> {
        self.set(self.floor()?).map(drop)
    }

    /// Forgets what the pool had before: nothing is left to undo.
    ///
    /// # Errors
    /// If the file cannot be removed.
    pub fn forget(&self) -> Result<()> {
        let file = self.floor_file();
        fs::remove_file(&file).with_context(|| format!("removing {}", file.display()))
    }
}

/// Makes the folder. Nobody else may open its files: who may read one can lock it.
///
/// # Errors
/// If it cannot be made root's own.
pub fn make_folder(root: &HostRoot) -> io::Result<()> {
    let folder = root.join(FOLDER);
    fs::create_dir_all(&folder)?;
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o700))
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

    const NODE: &str = "sys/devices/system/node/node1/hugepages/hugepages-2048kB";

    fn guest(all: u64, free: u64) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        put(&dir, &format!("{NODE}/nr_hugepages"), &all.to_string());
        put(&dir, &format!("{NODE}/free_hugepages"), &free.to_string());
        zone(&dir, 600);
        dir
    }

    fn put(dir: &tempfile::TempDir, name: &str, text: &str) {
        let path = dir.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn zone(dir: &tempfile::TempDir, free: u64) {
        let text = format!(
            "Node 1, zone Normal\n  pages free {free}\n    low 100\n    high 200\n    spanned 4096\n  start_pfn: 8192\n"
        );
        put(dir, "proc/zoneinfo", &text);
    }

    fn pool(dir: &tempfile::TempDir) -> Pool {
        Pool::open(&HostRoot::new(dir.path()), 1).unwrap()
    }

    #[test]
    fn pages_that_were_there_before_are_never_given_up() {
        let dir = guest(3, 3);
        let pool = pool(&dir);
        assert_eq!(pool.memory().unwrap().frames, 8192..12288);
        assert_eq!(pool.spare().unwrap(), 0);
        pool.give_up().unwrap();
        assert_eq!(pool.blocks().unwrap(), 3, "nothing was taken yet");
        // Nothing becomes free in these files: no more than the slack may need is given up for it.
        pool.fill().unwrap();
        assert_eq!(Pool::known(&HostRoot::new(dir.path())), [1]);
        assert_eq!(pool.blocks().unwrap(), 8);
        assert!(pool.make_room().is_err());
        zone(&dir, 612);
        put(&dir, &format!("{NODE}/free_hugepages"), "11");
        pool.fill().unwrap();
        assert_eq!((pool.blocks().unwrap(), pool.spare().unwrap()), (11, 8));
        pool.make_room().unwrap();
        pool.give_up().unwrap();
        assert_eq!(pool.blocks().unwrap(), 3);
        assert_eq!(
            Pool::known(&HostRoot::new(dir.path())),
            [1],
            "pages may be left"
        );
        pool.forget().unwrap();
        assert!(Pool::known(&HostRoot::new(dir.path())).is_empty());
    }

    #[test]
    fn a_pool_in_use_ends_the_search_for_room() {
        let dir = guest(0, 0);
        let pool = pool(&dir);
        pool.begin().unwrap();
        put(&dir, &format!("{NODE}/nr_hugepages"), "5");
        let error = pool.make_room().unwrap_err().to_string();
        assert!(error.contains("no block that is not in use"), "{error}");
        pool.fill().unwrap();
    }

    #[test]
    fn the_folder_is_nobody_elses_even_if_it_was() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join(FOLDER);
        fs::create_dir_all(&folder).unwrap();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
        make_folder(&HostRoot::new(dir.path())).unwrap();
        let mode = fs::metadata(&folder).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
    }

    #[test]
    fn a_full_run_leaves_no_half_of_the_number() {
        let dir = guest(3, 3);
        let pool = pool(&dir);
        make_folder(&pool.root).unwrap();
        let new = dir.path().join(FOLDER).join("floor.new");
        std::os::unix::fs::symlink("/dev/full", &new).unwrap();
        assert!(pool.begin().is_err());
        pool.give_up().unwrap();
        fs::remove_file(new).unwrap();
        pool.begin().unwrap();
        assert_eq!(Pool::known(&pool.root), [1]);
    }

    #[test]
    fn a_node_that_is_not_there_is_named() {
        let dir = guest(0, 0);
        let error = Pool::open(&HostRoot::new(dir.path()), 2).unwrap_err();
        assert!(error.to_string().contains("this guest has no node 2"));
    }
}
