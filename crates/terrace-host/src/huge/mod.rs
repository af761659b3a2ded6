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
//! - That node has a free huge page, and the VM's cgroups have room for one. Else the kernel would reclaim and compact
//!   memory for it, under the locks of the VM's process.
//! - A step has a deadline, and ends before the next block once it is told to. What is left is the next step's.
//!
//! Not checked is whether a step filled holes all the same: pages that went away after the last look at a block. The growth of the
//! process's memory would have to be told from what its guest touched meanwhile, which has no bound that the host knows.
//! It is 2 MiB for each block at most, and of blocks that were whole right before.

mod pass;
mod room;
mod search;
mod settings;
#[cfg(test)]
mod tests;

use std::time::Duration;

use terrace_proto::provision::{
    BlockOutcome, BlockStatus, CollapseRequest, Collapsed, HugeBacking, NotCollapsed,
};
use terrace_sys::{Collapse, CollapseError, Pagemap, Pages, Process, ProcessId};

use crate::host_memory::host_memory;
use crate::memory_map::MemoryMapError;
use crate::memory_map::{AnonymousMapping, GuestMemory, Unscannable, read_guest_addresses};
use crate::qemu::{Monitor, QemuError};
use crate::{HostRoot, process_memory};
pub use pass::HugePass;
use search::Search;
use settings::{Thp, thp};

/// Size of a block, bytes.
const BLOCK: u64 = 2 << 20;
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

/// The limits of a step.
#[derive(Clone, Copy)]
pub struct StepLimits<'a> {
    /// Time that the search may take. A block or a chunk that was begun is finished.
    pub deadline: Duration,
    /// Whether the step is to end now; asked before each block.
    pub is_over: &'a dyn Fn() -> bool,
}

impl HugeTarget {
    /// Asks a VM's monitor where its RAM is. `monitor`: a connection to this process, which is so the one that is held.
    ///
    /// # Errors
    /// If the VM does not run or migrates, or has no private RAM.
    pub fn read(
        root: &HostRoot,
        found: ProcessId,
        monitor: &mut Monitor,
    ) -> Result<Self, NotCollapsed> {
        let pid = found.pid;
        let process = Process::open(&root.proc(), pid).map_err(|error| not_now(&error))?;
        if process.start_time() != found.start_time {
            let why = "its process has ended, and another one has its number";
            return Err(NotCollapsed::NotNow(why.into()));
        }
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

    /// Collapses blocks as the request says. `pass`: what is known of the VM's pass.
    ///
    /// # Errors
    /// If something is in the way before a block was collapsed.
    pub fn collapse(
        &self,
        root: &HostRoot,
        request: &CollapseRequest,
        kernel: HugeKernel<'_>,
        limits: StepLimits<'_>,
        pass: &mut HugePass,
    ) -> Result<Collapsed, NotCollapsed> {
        let pid = self.process.pid();
        let thp = self.may_be_touched(root, request.host_reserve_percent)?;
        kernel
            .collapse
            .probe(&self.process)
            .map_err(|error| match error {
                CollapseError::Failed(_) => not_now(&error),
                CollapseError::NotKnown(_) | CollapseError::NotAllowed(_) => never(&error),
            })?;
        let pagemap =
            Pagemap::open(&root.process(pid, "pagemap")).map_err(|error| not_now(&error))?;
        let measures = !pagemap.sees_huge_pages();
        let before = pass.enter(self, root, thp, request.is_first || measures)?;
        // The number was still this process's when its files were opened.
        if !self.process.is_alive() {
            return Err(NotCollapsed::NotNow("it has ended".into()));
        }
        let mut search = Search::new((self, root), request, kernel, limits, pagemap);
        let next = search.run(pass.mappings())?;
        let mut blocks = search.tried;
        pass.has_tried |= !blocks.is_empty();
        let after = match next {
            Some(_) if !measures => None,
            _ if !pass.has_tried => pass.before,
            // Without it the outcomes of the blocks still count.
            _ => pass.measure(self, root, thp).ok(),
        };
        if measures {
            // Blocks that were huge before count as tried here: without PAGEMAP_SCAN (Linux 6.7) they look alike.
            let huge = |backing: Option<HugeBacking>| backing.unwrap_or_default().huge_bytes;
            let grew = huge(after).saturating_sub(huge(before)) / BLOCK;
            keep_collapsed(&mut blocks, grew);
        }
        Ok(Collapsed {
            before,
            after,
            blocks,
            next,
        })
    }

    /// Checks what else is in the way of the VM's memory, and returns the operator's setting.
    fn may_be_touched(&self, root: &HostRoot, reserve_percent: u8) -> Result<Thp, NotCollapsed> {
        let pid = self.process.pid();
        let thp = thp(root, pid)?;
        let not_known = || NotCollapsed::NotNow("the host's memory is not known".into());
        let host = host_memory(root).ok_or_else(not_known)?;
        let reserve = u128::from(host.total_bytes) * u128::from(reserve_percent) / 100;
        if u128::from(host.available_bytes) < reserve {
            return Err(NotCollapsed::NotNow("the host is short of memory".into()));
        }
        match process_memory::pinned_by(root, pid) {
            Ok(None) => Ok(thp),
            Ok(Some(device)) => Err(NotCollapsed::NotNow(format!("{device} pins its memory"))),
            Err(error) => Err(not_now(&error)),
        }
    }

    /// The mappings of the RAM that may have huge pages, of those that have RAM.
    fn that_may(
        of_ram: Vec<AnonymousMapping>,
        thp: Thp,
    ) -> Result<Vec<AnonymousMapping>, NotCollapsed> {
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

    fn id(&self) -> ProcessId {
        ProcessId {
            start_time: self.process.start_time(),
            pid: self.process.pid(),
        }
    }

    fn has_ram_in(&self, mapping: &AnonymousMapping) -> bool {
        let mut runs = self.ram.iter();
        runs.any(|run| {
            run.hva < mapping.end && mapping.start < run.hva + (run.end - run.first) * BLOCK
        })
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
