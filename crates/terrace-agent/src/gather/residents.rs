//! Pages that lie on the node for gathering, and their way home.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, BufRead, BufReader};
use std::ops::Range;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use terrace_core::gather::BLOCK_PAGES;
use terrace_proto::PAGE_SIZE;
use terrace_sys::opener::{self, How};
use terrace_sys::topology::{NodeId, Topology, node_free_bytes};
use terrace_sys::{HostRoot, MoveScope, MoveTo, Pagemap, Pages, SysError};

use super::areas::bounds;

/// Pause before pages that stayed are sent again.
const PAUSE: Duration = Duration::from_millis(250);

/// Which pages are looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// Anonymous ones that a single process has.
    Own,
    /// All that processes map.
    All,
}

/// Pages that lie in some frames.
#[derive(Clone, Debug, Default)]
pub struct Residents {
    /// Numbers of the virtual pages, by process; not of memory that a program bound to nodes.
    pub pages: BTreeMap<u32, Vec<u64>>,
    /// Processes that could not be looked at: they may have some, too.
    pub unreadable: u64,
}

impl Residents {
    /// Number of pages, of all processes.
    pub fn count(&self) -> u64 {
        self.pages.values().map(|pages| pages.len() as u64).sum()
    }
}

/// Finds the pages that lie in these frames.
///
/// # Errors
/// If `/proc` cannot be listed. A process that ends meanwhile has none.
pub fn pages_in(root: &HostRoot, frames: &Range<u64>, which: Which) -> Result<Residents> {
    let me = std::process::id();
    let entries = fs::read_dir(root.proc())
        .context("listing /proc")?
        .flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let mut found = Residents::default();
    for pid in pids.filter(|pid| *pid != me) {
        match of_process(root, pid, frames, which) {
            Ok(pages) if pages.is_empty() => {}
            Ok(pages) => drop(found.pages.insert(pid, pages)),
            Err(libc::ENOENT | libc::ESRCH) => {}
            Err(errno) => {
                tracing::debug!("process {pid}: error {errno}");
                found.unreadable += 1;
            }
        }
    }
    Ok(found)
}

/// A process's pages.
///
/// # Errors
/// The kernel's error number.
fn of_process(
    root: &HostRoot,
    pid: u32,
    frames: &Range<u64>,
    which: Which,
) -> Result<Vec<u64>, i32> {
    let maps = BufReader::new(opener::open(&root.process(pid, "maps"), How::Read).map_err(errno)?);
    let pagemap = Pagemap::open(&root.process(pid, "pagemap")).map_err(|error| error.errno())?;
    let mut found = Vec::new();
    for line in maps.lines() {
        let Some(mapping) = bounds(&line.map_err(errno)?) else {
            continue;
        };
        let mapping = mapping.start * PAGE_SIZE..mapping.end * PAGE_SIZE;
        let mut pages = Vec::new();
        for run in pagemap
            .present(mapping.start, mapping.end)
            .map_err(|error| error.errno())?
        {
            let numbers: Vec<u64> = (run.start / PAGE_SIZE..run.end / PAGE_SIZE).collect();
            let entries = pagemap.entries(&numbers).map_err(|error| error.errno())?;
            let inside = numbers.into_iter().zip(entries).filter(|(_, entry)| {
                let wanted = which == Which::All || entry.is_own();
                wanted && entry.frame().is_some_and(|frame| frames.contains(&frame))
            });
            pages.extend(inside.map(|(page, _)| page));
        }
        if !pages.is_empty() {
            found.push((mapping.start, pages));
        }
    }
    if !found.is_empty() {
        // The program wants them where it bound them.
        let maps = opener::open(&root.process(pid, "numa_maps"), How::Read).map_err(errno)?;
        let bound = bound(BufReader::new(maps));
        found.retain(|(start, _)| !bound.contains(start));
    }
    Ok(found.into_iter().flat_map(|(_, pages)| pages).collect())
}

fn errno(error: io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}

/// The first addresses of mappings whose policy binds them to nodes.
fn bound(numa_maps: impl BufRead) -> BTreeSet<u64> {
    let lines = numa_maps.lines().map_while(Result::ok);
    let starts = lines.filter_map(|line| {
        let (start, rest) = line.split_once(' ')?;
        let start = u64::from_str_radix(start, 16).ok()?;
        rest.starts_with("bind").then_some(start)
    });
    starts.collect()
}

/// Sends pages from a node to the others.
pub struct Returns<'a> {
    pub root: &'a HostRoot,
    pub node: u32,
    pub pages: &'a dyn Pages,
    pub which: Which,
}

impl Returns<'_> {
    /// Sends a process's pages; returns how many are elsewhere now. The kernel may refuse: a page in use, a cpuset.
    #[must_use]
    pub fn send(&self, pid: u32, pages: &[u64]) -> u64 {
        let addresses: Vec<u64> = pages.iter().map(|page| page * PAGE_SIZE).collect();
        let parts = addresses.chunks(BLOCK_PAGES.into());
        parts
            .map(|part| self.send_part(pid, part).unwrap_or(0))
            .sum()
    }

    fn send_part(&self, pid: u32, addresses: &[u64]) -> Result<u64, SysError> {
        let Some(node) = self.roomiest() else {
            return Ok(0);
        };
        let to = MoveTo {
            node: i32::try_from(node.0).unwrap_or(-1),
            scope: match self.which {
                Which::Own => MoveScope::Exclusive,
                Which::All => MoveScope::Shared,
            },
        };
        let mut status = vec![0; addresses.len()];
        // Whatever is said of the move, where they are now decides.
        let _ = self.pages.call(pid, addresses, Some(to), &mut status);
        self.pages.query(pid, addresses, &mut status)?;
        let own = i32::try_from(self.node).unwrap_or(-1);
        Ok(status.iter().filter(|at| **at >= 0 && **at != own).count() as u64)
    }

    /// The other node with the most free memory, of those with processors if there are any.
    fn roomiest(&self) -> Option<NodeId> {
        let free = node_free_bytes(self.root);
        let nodes = Topology::read(self.root, &[]).map_or(Vec::new(), |all| all.nodes);
        let others = nodes
            .into_iter()
            .filter(|node| node.id != NodeId(self.node));
        let key = |id| free.get(&id).copied().unwrap_or(0);
        others
            .max_by_key(|node| (!node.cpus.is_empty(), key(node.id)))
            .map(|node| node.id)
    }
}

/// Sends pages away until `look` finds none any more, or for so long; returns those that are left. A page may be in use for a
/// moment, and page cache makes room for others a little after it was asked to.
///
/// # Errors
/// Those of `look`.
pub fn until_none(
    mut left: Residents,
    patience: Duration,
    send: impl Fn(u32, &[u64]) -> u64,
    look: impl Fn() -> Result<Residents>,
) -> Result<Residents> {
    let begin = Instant::now();
    loop {
        for (pid, pages) in &left.pages {
            // Where they are then decides.
            let _ = send(*pid, pages);
        }
        left = look()?;
        if left.count() == 0 || begin.elapsed() >= patience {
            return Ok(left);
        }
        thread::sleep(PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// What is left, and how often was sent, if a page goes the second time it is sent.
    fn sent(patience: Duration) -> (u64, u32) {
        let sent = Cell::new(0);
        let residents = |pages: &[u64]| Residents {
            pages: [(7, pages.to_vec())].into(),
            unreadable: 0,
        };
        let send = |_, pages: &[u64]| {
            sent.set(sent.get() + 1);
            pages.len() as u64
        };
        let look = || Ok(residents(if sent.get() < 2 { &[3] } else { &[] }));
        let left = until_none(residents(&[3, 4]), patience, send, look).unwrap();
        (left.count(), sent.get())
    }

    #[test]
    fn a_page_in_use_is_sent_again_but_not_for_ever() {
        assert_eq!(sent(Duration::from_secs(60)), (0, 2));
        assert_eq!(sent(Duration::ZERO), (1, 1));
    }

    #[test]
    fn mappings_that_a_program_bound_are_known() {
        let text = "1000 default heap anon=3 N0=3\n3000 bind:1 anon=2 N1=2\n9000 bind=static:1 anon=1 N1=1\na000 prefer:1 anon=1\n";
        assert_eq!(bound(text.as_bytes()), [0x3000, 0x9000].into());
    }
}
