//! Huge pages made of the single pages behind a VM's RAM, in the hypervisor's own memory.
//!
//! Responsible for: which blocks of 2 MiB may be collapsed without taking memory of the host, and collapsing them. It
//! leaves to others: when, and how many (`terrace_core::provision`).
//!
//! Rules, each checked right before it matters:
//!
//! - A block is collapsed only if all its 512 pages are there, anonymous, and mapped by this process alone. The kernel
//!   would fill a hole with a new page: memory that the balloon gave back, or that the guest reported free. It would also undo
//!   what KSM merged.
//! - Only private anonymous memory that may have huge pages by the operator's settings. Memory that is locked, of
//!   hugetlbfs, of a device, or under userfaultfd is left alone, and so is a VM that does not run or migrates.
//! - All pages lie on one node: the kernel takes the huge page from the node that has most of them, so a mixed block
//!   would change tiers.

mod settings;
#[cfg(test)]
mod tests;

use terrace_proto::PAGE_SIZE;
use terrace_proto::provision::{
    BlockOutcome, BlockStatus, CollapseRequest, Collapsed, HugeBacking, NotCollapsed,
};
use terrace_sys::{Collapse, CollapseError, Pagemap, Pages, Process, SysError};

use crate::host_memory::host_memory;
use crate::memory_map::MemoryMapError;
use crate::memory_map::{
    AnonymousMapping, GuestMemory, Unscannable, anonymous_mappings, read_guest_addresses,
};
use crate::qemu::{Monitor, QemuError};
use crate::{HostRoot, process_memory};
use settings::{Thp, thp};

/// Size of a block, bytes.
const BLOCK: u64 = 2 << 20;
/// Blocks whose pages are read at a time: 256 MiB.
const CHUNK: u64 = 128;
/// Blocks that one call searches at most: 8 GiB.
const MAX_SEARCHED: u64 = 4096;
/// Flags of mappings that are never touched: without huge pages, of a device or its registers, of a pool of huge pages.
const NEVER: [&str; 4] = ["nh", "pf", "io", "ht"];
/// Flags of mappings whose faults another process serves.
const UFFD: [&str; 3] = ["um", "uw", "ui"];

/// A VM's process and its RAM in it.
#[derive(Debug)]
pub struct HugeTarget {
    process: Process,
    ram: Vec<Run>,
}

/// A run of private RAM whose 2 MiB blocks are 2 MiB blocks of the process's memory.
#[derive(Clone, Copy, Debug)]
struct Run {
    /// The first block, and the one behind the last.
    first: u64,
    end: u64,
    /// The address of the first block.
    hva: u64,
}

/// The kernel's calls.
#[derive(Clone, Copy)]
pub struct HugeKernel<'a> {
    /// Collapses blocks.
    pub collapse: &'a dyn Collapse,
    /// Reports the nodes of pages.
    pub pages: &'a dyn Pages,
}

impl HugeTarget {
    /// Asks a VM's monitor where its RAM is. `monitor`: a connection to this process, which is so the one that is held.
    ///
    /// # Errors
    /// If the VM does not run or migrates, or has no private RAM.
    pub fn read(root: &HostRoot, pid: u32, monitor: &mut Monitor) -> Result<Self, NotCollapsed> {
        let process = Process::open(&root.proc(), pid).map_err(|error| not_now(&error))?;
        // Answered by the process after it was taken hold of.
        if !monitor.status().map_err(|error| by_qemu(&error))?.running {
            return Err(NotCollapsed::NotNow("it is stopped".into()));
        }
        if monitor
            .migration()
            .map_err(|error| by_qemu(&error))?
            .is_some()
        {
            return Err(NotCollapsed::NotNow("it migrates".into()));
        }
        let memory = read_guest_addresses(root, pid, monitor).map_err(|error| match error {
            MemoryMapError::Unscannable(why @ Unscannable::Hugetlbfs(_)) => never(&why),
            other => not_now(&other),
        })?;
        Self::new(process, &memory)
    }

    /// A process whose RAM is known.
    ///
    /// # Errors
    /// If none of it is private memory in blocks of 2 MiB.
    pub fn new(process: Process, memory: &GuestMemory) -> Result<Self, NotCollapsed> {
        let ranges = memory.ranges().iter();
        let ranges =
            ranges.filter(|range| !range.shared && range.gpa.0 % BLOCK == range.hva.0 % BLOCK);
        let runs = ranges.map(|range| {
            let first = range.gpa.0.div_ceil(BLOCK);
            Run {
                first,
                end: (range.gpa.0 + range.len) / BLOCK,
                hva: range.hva.0 + (first * BLOCK - range.gpa.0),
            }
        });
        let ram: Vec<Run> = runs.filter(|run| run.first < run.end).collect();
        if ram.is_empty() {
            let why = "its RAM is not private memory in blocks of 2 MiB";
            return Err(NotCollapsed::Never(why.into()));
        }
        Ok(Self { process, ram })
    }

    /// Collapses blocks as the request says.
    ///
    /// # Errors
    /// If something is in the way; blocks that were collapsed before stay so.
    pub fn collapse(
        &self,
        root: &HostRoot,
        request: &CollapseRequest,
        kernel: HugeKernel<'_>,
    ) -> Result<Collapsed, NotCollapsed> {
        let mappings = self.mappings(root, request.host_reserve_percent)?;
        kernel
            .collapse
            .probe(&self.process)
            .map_err(|error| match error {
                CollapseError::Gone(_) => not_now(&error),
                CollapseError::NotKnown(_) | CollapseError::NotAllowed(_) => never(&error),
            })?;
        let pid = self.process.pid();
        let pagemap =
            Pagemap::open(&root.process(pid, "pagemap")).map_err(|error| not_now(&error))?;
        // The number was still this process's when its files were opened.
        if !self.process.is_alive() {
            return Err(NotCollapsed::NotNow("it has ended".into()));
        }
        let mut search = Search {
            target: self,
            request,
            kernel,
            pagemap,
            mappings: &mappings,
            tried: Vec::new(),
        };
        let next = search.run()?;
        let (pagemap, mut blocks) = (search.pagemap, search.tried);
        let before = backing(&mappings);
        let after = match blocks.is_empty() {
            true => before,
            false => backing(&self.mappings(root, 0)?),
        };
        if !pagemap.sees_huge_pages() {
            // Blocks that were huge before count as tried here: without PAGEMAP_SCAN (Linux 6.7) they look alike.
            let grew = after.huge_bytes.saturating_sub(before.huge_bytes) / BLOCK;
            keep_collapsed(&mut blocks, grew);
        }
        Ok(Collapsed {
            before,
            after,
            blocks,
            next,
        })
    }

    /// The mappings of the RAM that may have huge pages.
    fn mappings(
        &self,
        root: &HostRoot,
        reserve_percent: u8,
    ) -> Result<Vec<AnonymousMapping>, NotCollapsed> {
        let pid = self.process.pid();
        let thp = thp(root, pid)?;
        let not_known = || NotCollapsed::NotNow("the host's memory is not known".into());
        let host = host_memory(root).ok_or_else(not_known)?;
        let reserve = u128::from(host.total_bytes) * u128::from(reserve_percent) / 100;
        if u128::from(host.available_bytes) < reserve {
            return Err(NotCollapsed::NotNow("the host is short of memory".into()));
        }
        match process_memory::pinned_by(root, pid) {
            Ok(None) => {}
            Ok(Some(device)) => {
                return Err(NotCollapsed::NotNow(format!("{device} pins its memory")));
            }
            Err(error) => return Err(not_now(&error)),
        }
        let all = anonymous_mappings(root, pid).map_err(|error| not_now(&error))?;
        let of_ram = all.into_iter().filter(|mapping| self.has_ram_in(mapping));
        let mut may = Vec::new();
        for mapping in of_ram {
            if UFFD.iter().any(|flag| mapping.has(flag)) {
                let why = "another process serves its page faults (userfaultfd)";
                return Err(NotCollapsed::NotNow(why.into()));
            }
            if mapping.has("lo") {
                return Err(NotCollapsed::Never("its memory is locked".into()));
            }
            let is_wanted = thp == Thp::Always || mapping.has("hg");
            let is_left = !mapping.has_flags() || NEVER.iter().any(|flag| mapping.has(flag));
            if is_wanted && !is_left {
                may.push(mapping);
            }
        }
        if may.is_empty() {
            let why = "no part of its RAM is private anonymous memory that may have huge pages";
            return Err(NotCollapsed::Never(why.into()));
        }
        Ok(may)
    }

    fn has_ram_in(&self, mapping: &AnonymousMapping) -> bool {
        let mut runs = self.ram.iter();
        runs.any(|run| {
            run.hva < mapping.end && mapping.start < run.hva + (run.end - run.first) * BLOCK
        })
    }
}

/// One search through the RAM.
struct Search<'a> {
    target: &'a HugeTarget,
    request: &'a CollapseRequest,
    kernel: HugeKernel<'a>,
    pagemap: Pagemap,
    mappings: &'a [AnonymousMapping],
    tried: Vec<BlockOutcome>,
}

impl Search<'_> {
    /// Tries blocks, and returns the one from which the search continues.
    fn run(&mut self) -> Result<Option<u64>, NotCollapsed> {
        let mut left = MAX_SEARCHED;
        for run in &self.target.ram {
            let mut at = run.first.max(self.request.from);
            while at < run.end {
                if left == 0 {
                    return Ok(Some(at));
                }
                let end = run.end.min(at + CHUNK.min(left));
                left -= end - at;
                for block in self.full(run, at, end)? {
                    if self.tried.len() as u64 >= u64::from(self.request.blocks) {
                        return Ok(Some(block));
                    }
                    if self.attempt(block, run.hva + (block - run.first) * BLOCK)? == Free::Nothing
                    {
                        // Each further try would have the kernel look for one: it ends here.
                        return Ok(None);
                    }
                }
                at = end;
            }
        }
        Ok(None)
    }

    /// The blocks from `at` to `end` whose pages are all there, and are single ones.
    fn full(&self, run: &Run, at: u64, end: u64) -> Result<Vec<u64>, NotCollapsed> {
        let address = |block: u64| run.hva + (block - run.first) * BLOCK;
        let present = self.pagemap.present(address(at), address(end));
        let single: Vec<_> = present
            .map_err(|error| not_now(&error))?
            .into_iter()
            .filter(|pages| !pages.huge)
            .collect();
        let is_full = |block: &u64| {
            let (start, end) = (address(*block), address(*block) + BLOCK);
            single
                .iter()
                .any(|pages| pages.start <= start && end <= pages.end)
        };
        let blocks = (at..end).filter(is_full);
        let leave = &self.request.leave;
        Ok(blocks
            .filter(|block| leave.binary_search(block).is_err())
            .collect())
    }

    /// Collapses a block if it may be.
    fn attempt(&mut self, block: u64, start: u64) -> Result<Free, NotCollapsed> {
        let end = start + BLOCK;
        let mut mappings = self.mappings.iter();
        let is_within = mappings.any(|mapping| mapping.start <= start && end <= mapping.end);
        if !is_within || !self.is_on_one_node(start)? {
            return Ok(Free::Some);
        }
        // Last, so that as little as can be comes in between.
        if !self
            .pagemap
            .all_own(start, end)
            .map_err(|error| not_now(&error))?
        {
            return Ok(Free::Some);
        }
        let error = match self
            .kernel
            .collapse
            .collapse(&self.target.process, start, BLOCK)
        {
            Ok(()) => 0,
            Err(error) => match error.errno() {
                libc::EPERM | libc::ENOSYS => return Err(never(&error)),
                libc::ESRCH => return Err(not_now(&error)),
                errno => errno,
            },
        };
        let status = match error {
            0 => BlockStatus::Collapsed,
            libc::EAGAIN | libc::EBUSY | libc::ENOMEM => BlockStatus::Busy,
            errno => BlockStatus::Failed(errno),
        };
        self.tried.push(BlockOutcome { block, status });
        Ok(match error {
            libc::ENOMEM => Free::Nothing,
            _ => Free::Some,
        })
    }

    /// Whether all pages of the block at this address lie on one node.
    fn is_on_one_node(&self, start: u64) -> Result<bool, NotCollapsed> {
        let addresses: Vec<u64> = (0..BLOCK / PAGE_SIZE)
            .map(|n| start + n * PAGE_SIZE)
            .collect();
        let mut nodes = vec![-1; addresses.len()];
        let asked = self
            .kernel
            .pages
            .query(self.target.process.pid(), &addresses, &mut nodes);
        asked.map_err(|error: SysError| not_now(&error))?;
        let first = nodes.first().copied().unwrap_or(-1);
        Ok(first >= 0 && nodes.iter().all(|node| *node == first))
    }
}

/// Whether the host had a free huge page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Free {
    Some,
    Nothing,
}

fn backing(mappings: &[AnonymousMapping]) -> HugeBacking {
    let sum =
        |of: fn(&AnonymousMapping) -> u64| mappings.iter().map(of).fold(0, u64::saturating_add);
    HugeBacking {
        present_bytes: sum(|mapping| mapping.present_bytes),
        huge_bytes: sum(|mapping| mapping.huge_bytes),
    }
}

/// Keeps so many of the blocks that were collapsed, and all others.
fn keep_collapsed(blocks: &mut Vec<BlockOutcome>, mut count: u64) {
    blocks.retain(|outcome| {
        let stays = outcome.status != BlockStatus::Collapsed || count > 0;
        if outcome.status == BlockStatus::Collapsed {
            count = count.saturating_sub(1);
        }
        stays
    });
}

fn by_qemu(error: &QemuError) -> NotCollapsed {
    not_now(error)
}

fn not_now(error: &dyn std::error::Error) -> NotCollapsed {
    NotCollapsed::NotNow(error.to_string())
}

fn never(error: &dyn std::error::Error) -> NotCollapsed {
    NotCollapsed::Never(error.to_string())
}
