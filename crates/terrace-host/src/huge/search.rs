//! One search through a VM's RAM for blocks that can be made huge pages, and making them.

use std::time::Instant;

use terrace_proto::PAGE_SIZE;
use terrace_proto::provision::{BlockOutcome, BlockStatus, CollapseRequest, NotCollapsed};
use terrace_sys::{Pagemap, SysError};

use super::room::{Free, Room};
use super::{BLOCK, HugeKernel, HugeTarget, Run, StepLimits, never, not_now};
use crate::HostRoot;
use crate::memory_map::AnonymousMapping;

/// Blocks whose pages are read at a time: 256 MiB.
const CHUNK: u64 = 128;
/// Blocks that one call searches at most: 8 GiB.
const MAX_SEARCHED: u64 = 4096;

/// A search through the RAM.
pub(super) struct Search<'a> {
    target: &'a HugeTarget,
    request: &'a CollapseRequest,
    kernel: HugeKernel<'a>,
    limits: StepLimits<'a>,
    pagemap: Pagemap,
    room: Room<'a>,
    began: Instant,
    /// The block that the search has reached.
    at: u64,
    /// Whether a block was tried, or a chunk searched.
    has_moved_on: bool,
    /// The blocks that were tried.
    pub tried: Vec<BlockOutcome>,
}

/// The consequence of a block for the search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    Continue,
    End,
}

impl<'a> Search<'a> {
    /// A search that begins where the request says.
    pub fn new(
        (target, root): (&'a HugeTarget, &'a HostRoot),
        request: &'a CollapseRequest,
        kernel: HugeKernel<'a>,
        limits: StepLimits<'a>,
        pagemap: Pagemap,
    ) -> Self {
        Self {
            target,
            request,
            kernel,
            limits,
            pagemap,
            room: Room::new(root, target.process.pid()),
            began: Instant::now(),
            at: request.from,
            has_moved_on: false,
            tried: Vec::new(),
        }
    }

    /// Tries blocks in these mappings, and returns the one from which the search continues.
    pub fn run(&mut self, mappings: &[AnonymousMapping]) -> Result<Option<u64>, NotCollapsed> {
        match self.search(mappings) {
            // The blocks that were made huge pages before count, and the next step meets the same obstacle first.
            Err(_) if self.made_some() => Ok(Some(self.at)),
            end => end,
        }
    }

    fn search(&mut self, mappings: &[AnonymousMapping]) -> Result<Option<u64>, NotCollapsed> {
        let target = self.target;
        let mut left = MAX_SEARCHED;
        for run in &target.ram {
            let mut chunk = run.first.max(self.request.from);
            while chunk < run.end {
                self.at = chunk;
                if left == 0 || self.is_over() {
                    return Ok(Some(chunk));
                }
                let end = run.end.min(chunk + CHUNK.min(left));
                left -= end - chunk;
                for block in self.full(run, chunk, end)? {
                    let is_enough = self.tried.len() as u64 >= u64::from(self.request.blocks);
                    if is_enough || self.is_over() {
                        return Ok(Some(block));
                    }
                    (self.at, self.has_moved_on) = (block, true);
                    let start = run.hva + (block - run.first) * BLOCK;
                    if self.attempt(block, start, mappings)? == Then::End {
                        return Ok(Some(block));
                    }
                }
                (chunk, self.has_moved_on) = (end, true);
            }
        }
        Ok(None)
    }

    /// Whether the step is to end before the next block. Not by its deadline before anything was done: a slow host would
    /// begin at the same block for ever.
    fn is_over(&self) -> bool {
        let is_late = || self.began.elapsed() >= self.limits.deadline;
        (self.limits.is_over)() || self.has_moved_on && is_late()
    }

    fn made_some(&self) -> bool {
        let mut tried = self.tried.iter();
        tried.any(|outcome| outcome.status == BlockStatus::Collapsed)
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
    fn attempt(
        &mut self,
        block: u64,
        start: u64,
        mappings: &[AnonymousMapping],
    ) -> Result<Then, NotCollapsed> {
        let end = start + BLOCK;
        let mut mappings = mappings.iter();
        if !mappings.any(|mapping| mapping.start <= start && end <= mapping.end) {
            return Ok(Then::Continue);
        }
        let Some(node) = self.node_of(start)? else {
            return Ok(Then::Continue);
        };
        match self.room.on(node)? {
            Free::Here => {}
            Free::Elsewhere => {
                self.lacks_huge_page(block);
                return Ok(Then::Continue);
            }
            Free::Nowhere => {
                self.lacks_huge_page(block);
                return Ok(Then::End);
            }
        }
        // Last, so that as little as can be comes in between.
        let is_own = self.pagemap.all_own(start, end);
        if !is_own.map_err(|error| not_now(&error))? {
            return Ok(Then::Continue);
        }
        self.collapse(block, start, node)
    }

    fn collapse(&mut self, block: u64, start: u64, node: u32) -> Result<Then, NotCollapsed> {
        let process = &self.target.process;
        let collapsed = self.kernel.collapse.collapse(process, start, BLOCK);
        let status = match collapsed {
            Ok(()) => {
                self.room.took(node);
                BlockStatus::Collapsed
            }
            Err(error) => match error.errno() {
                libc::EPERM | libc::ENOSYS => return Err(never(&error)),
                libc::ESRCH => return Err(not_now(&error)),
                // Each further try would have the kernel look for one.
                libc::ENOMEM => {
                    self.lacks_huge_page(block);
                    return Ok(Then::End);
                }
                libc::EAGAIN | libc::EBUSY => BlockStatus::Busy,
                errno => BlockStatus::Failed(errno),
            },
        };
        self.tried.push(BlockOutcome { block, status });
        Ok(Then::Continue)
    }

    /// Notes that no huge page was free; once, as it says nothing of the block.
    fn lacks_huge_page(&mut self, block: u64) {
        let status = BlockStatus::NoHugePage;
        if !self.tried.iter().any(|outcome| outcome.status == status) {
            self.tried.push(BlockOutcome { block, status });
        }
    }

    /// The node on which all pages of the block at this address lie, if they lie on one.
    fn node_of(&self, start: u64) -> Result<Option<u32>, NotCollapsed> {
        let pages = 0..BLOCK / PAGE_SIZE;
        let addresses: Vec<u64> = pages.map(|page| start + page * PAGE_SIZE).collect();
        let mut nodes = vec![-1; addresses.len()];
        let pid = self.target.process.pid();
        let asked = self.kernel.pages.query(pid, &addresses, &mut nodes);
        asked.map_err(|error: SysError| not_now(&error))?;
        let first = nodes.first().copied().unwrap_or(-1);
        let is_one = nodes.iter().all(|node| *node == first);
        // Below 0: the page is not there, or the kernel does not say.
        Ok(u32::try_from(first).ok().filter(|_| is_one))
    }
}
