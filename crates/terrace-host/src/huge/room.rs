//! Room for one more huge page: a free one on the node, and memory that the VM's cgroups leave it.
//!
//! Without either the kernel would look for one: it reclaims and compacts memory, for as long as that takes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use terrace_proto::PAGE_SIZE;
use terrace_proto::provision::NotCollapsed;
use terrace_sys::opener;

use super::{BLOCK, not_now};
use crate::HostRoot;
use crate::worker::paying_cgroups;

/// Greatest age of what is known. The huge pages that were taken since are counted.
const AGE: Duration = Duration::from_millis(100);
/// The kernel's order of a huge page: as many pages as a power of two.
const ORDER: u32 = (BLOCK / PAGE_SIZE).ilog2();
/// Memory that a cgroup must have room for beside a huge page, bytes: its processes go on meanwhile, and the kernel charges
/// in batches.
const MARGIN: u64 = 16 << 20;

/// The room for huge pages by the last look.
#[derive(Debug)]
pub(super) struct Room<'a> {
    root: &'a HostRoot,
    /// The cgroups of the VM and their parents; none if they are not known.
    cgroups: Vec<PathBuf>,
    read_at: Option<Instant>,
    /// Free huge pages of each node.
    free: BTreeMap<u32, u64>,
}

/// The nodes that have a free huge page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Free {
    /// The one that was asked about.
    Here,
    /// Others alone.
    Elsewhere,
    /// None at all.
    Nowhere,
}

impl<'a> Room<'a> {
    /// The room for a VM's process.
    pub fn new(root: &'a HostRoot, pid: u32) -> Self {
        Self {
            root,
            cgroups: paying_cgroups(root, pid).unwrap_or_default(),
            read_at: None,
            free: BTreeMap::new(),
        }
    }

    /// The nodes that have a free huge page, as seen from this one.
    ///
    /// # Errors
    /// If that is not known, or a cgroup has no room for one.
    pub fn on(&mut self, node: u32) -> Result<Free, NotCollapsed> {
        if self.read_at.is_none_or(|at| at.elapsed() >= AGE) {
            self.read()?;
        }
        let of_node = self.free.get(&node).copied().unwrap_or(0);
        let mut all = self.free.values();
        Ok(match of_node {
            0 if all.any(|free| *free > 0) => Free::Elsewhere,
            0 => Free::Nowhere,
            _ => Free::Here,
        })
    }

    /// Takes in that a huge page of a node was taken.
    pub fn took(&mut self, node: u32) {
        if let Some(free) = self.free.get_mut(&node) {
            *free = free.saturating_sub(1);
        }
    }

    fn read(&mut self) -> Result<(), NotCollapsed> {
        let text = self.root.read("proc/buddyinfo");
        self.free = free_blocks(&text.map_err(|error| not_now(&error))?);
        if let Some(full) = self.cgroups.iter().find(|folder| !has_room(folder)) {
            let full = full.display();
            let why = format!("its cgroup {full} is too near to its limit of memory");
            return Err(NotCollapsed::NotNow(why));
        }
        self.read_at = Some(Instant::now());
        Ok(())
    }
}

/// Free huge pages of each node, by `/proc/buddyinfo`: free runs of each zone, by the order of their length.
fn free_blocks(text: &str) -> BTreeMap<u32, u64> {
    let zone = |line: &str| -> Option<(u32, u64)> {
        let (node, rest) = line.strip_prefix("Node ")?.split_once(", zone")?;
        let runs = rest.split_whitespace().skip(1);
        let runs = runs.map(|count| count.parse::<u64>().unwrap_or(0));
        let large = (0_u32..).zip(runs).filter(|(order, _)| *order >= ORDER);
        let blocks = large.map(|(order, count)| count.saturating_mul(1 << (order - ORDER).min(32)));
        Some((
            node.trim().parse().ok()?,
            blocks.fold(0, u64::saturating_add),
        ))
    };
    let mut free = BTreeMap::new();
    for (node, blocks) in text.lines().filter_map(zone) {
        let sum: &mut u64 = free.entry(node).or_default();
        *sum = sum.saturating_add(blocks);
    }
    free
}

/// Whether a cgroup has room for a huge page. One without limits has, and one that says nothing is taken for such.
fn has_room(cgroup: &Path) -> bool {
    let bytes = |name: &str| -> Option<u64> {
        let text = opener::read(&cgroup.join(name)).ok()?;
        String::from_utf8_lossy(&text).trim().parse().ok()
    };
    let limits = ["memory.max", "memory.high"].into_iter().filter_map(bytes);
    let Some((limit, used)) = limits.min().zip(bytes("memory.current")) else {
        return true;
    };
    used.saturating_add(BLOCK + MARGIN) <= limit
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_a_huge_page_and_more_count_by_node_over_its_zones() {
        let text = "Node 0, zone      DMA      0      0      0      0      0      0      0      0      1      1      3 \n\
            Node 0, zone   Normal    948   5910  13265   7153   2426    852    344    116     64     11     24 \n\
            Node 1, zone   Normal    948   5910  13265   7153   2426    852    344    116     64      0      0 \n\
            Node x, zone   Normal    1\n";
        let expected = BTreeMap::from([(0, 1 + 6 + 11 + 48), (1, 0)]);
        assert_eq!(free_blocks(text), expected);
        assert_eq!(free_blocks(""), BTreeMap::new());
    }

    #[test]
    fn a_cgroup_near_one_of_its_limits_has_no_room() {
        let has = |max: &str, high: &str, current: &str| {
            let folder = tempfile::tempdir().unwrap();
            for (name, text) in [
                ("memory.max", max),
                ("memory.high", high),
                ("memory.current", current),
            ] {
                std::fs::write(folder.path().join(name), text).unwrap();
            }
            has_room(folder.path())
        };
        let near = (1_u64 << 30) - BLOCK - MARGIN;
        let (limit, near, nearer) = ("1073741824\n", format!("{near}\n"), format!("{}", near + 1));
        assert!(has(limit, "max\n", &near) && has("max\n", limit, &near));
        assert!(!has(limit, "max\n", &nearer) && !has("max\n", limit, &nearer));
        assert!(has("max\n", "max\n", "99999999999\n") && has("", "", "1"));
        // The root's has no such files.
        assert!(has_room(Path::new("/nowhere")));
    }
}
