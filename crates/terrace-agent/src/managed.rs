//! One process under management: its ranges, and where its pages are.

use terrace_core::hyperplace::{Held, Params, Range, RangeTree};
use terrace_proto::{PAGE_SIZE, PAGES_PER_HUGE, TierId};
use terrace_sys::{HostRoot, Pagemap, Process, SysError};

use crate::config::RootChoice;
use crate::exchange::{Pages, Piece};
use crate::extents::Extents;
use crate::mappings::Layout;
use crate::processes::Found;
use crate::room::Room;
use crate::sampler::Target;

/// Extents of one process that are kept: those of 256 GiB.
const MOST_EXTENTS: usize = 131_072;

/// A process under management.
#[derive(Debug)]
pub struct Managed {
    process: Process,
    pagemap: Pagemap,
    /// For people.
    pub name: String,
    /// What of it is managed.
    pub layout: Layout,
    /// Its ranges.
    pub tree: RangeTree,
    /// Where its pages are.
    pub extents: Extents,
    /// Text, data and stack that are still to be brought up; none once that was done.
    pub pinned: Vec<Range>,
    /// In how many epochs that was tried.
    pub pinned_tries: u32,
    /// Epoch until which its pages are left where they are, because the kernel refuses to move them.
    pub rests_until: u32,
}

/// A process that could not be taken under management.
#[derive(Debug, thiserror::Error)]
pub enum ManagedError {
    /// It is gone or hidden.
    #[error(transparent)]
    Process(#[from] terrace_sys::ProcessError),
    /// Its pages cannot be looked at.
    #[error("{0}; the agent needs CAP_SYS_PTRACE to look at other users' processes")]
    Pagemap(#[from] SysError),
}

impl Managed {
    /// Takes a process under management.
    ///
    /// # Errors
    /// Where it has ended or may not be looked at.
    pub fn open(
        root: &HostRoot,
        found: &Found,
        layout: Layout,
        choice: RootChoice,
        params: Params,
    ) -> Result<Self, ManagedError> {
        let process = Process::open(&root.proc(), found.pid)?;
        let pagemap = Pagemap::open(&root.process(found.pid, "pagemap"))?;
        let mut managed = Self {
            process,
            pagemap,
            name: found.name.clone(),
            tree: RangeTree::new(params, &seeds(&layout, choice)),
            extents: Extents::default(),
            pinned: layout.pinned.clone(),
            pinned_tries: 0,
            rests_until: 0,
            layout: Layout::default(),
        };
        managed.follow(layout, choice);
        Ok(managed)
    }

    /// Follows the process's mappings.
    pub fn follow(&mut self, layout: Layout, choice: RootChoice) {
        if layout == self.layout {
            return;
        }
        self.extents.follow(&layout.mapped, MOST_EXTENTS);
        if self.layout != Layout::default() {
            self.tree.reseed(&seeds(&layout, choice));
        }
        self.layout = layout;
    }

    /// Begins anew, as where another source of samples counts differently.
    pub fn restart_tree(&mut self, params: Params, choice: RootChoice) {
        self.tree = RangeTree::new(params, &seeds(&self.layout, choice));
    }

    /// Its number.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Whether it still runs.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.process.is_alive()
    }

    /// What a sampler is told of it.
    #[must_use]
    pub fn target(&self) -> Target {
        Target {
            pid: self.pid(),
            ranges: self.layout.ranges.clone(),
        }
    }

    /// The present pages of a range and their tiers; pages of no tier are left out.
    ///
    /// # Errors
    /// Where the kernel does not answer.
    pub fn survey(
        &self,
        range: Range,
        pages: &mut dyn Pages,
        room: &Room,
    ) -> Result<Vec<Piece>, SysError> {
        let bytes = |page: u64| page.saturating_mul(PAGE_SIZE);
        let runs = self.pagemap.present(bytes(range.start), bytes(range.end))?;
        let mut addresses = Vec::new();
        let mut sizes = Vec::new();
        for run in runs {
            let mut at = run.start;
            while at < run.end {
                let huge_bytes = bytes(PAGES_PER_HUGE);
                let whole = run.huge && at % huge_bytes == 0 && run.end - at >= huge_bytes;
                let size = if whole { PAGES_PER_HUGE } else { 1 };
                addresses.push(at);
                sizes.push(u16::try_from(size).unwrap_or(1));
                at += bytes(size);
            }
        }
        if addresses.is_empty() {
            return Ok(Vec::new());
        }
        let mut status = vec![0; addresses.len()];
        pages.query(self.pid(), &addresses, &mut status)?;
        let pieces = addresses.iter().zip(sizes).zip(status);
        Ok(pieces
            .filter_map(|((address, size), node)| {
                Some(Piece {
                    pid: self.pid(),
                    address: *address,
                    pages: size,
                    node,
                    tier: room.tier(node)?,
                    shared: self.layout.is_shared(address / PAGE_SIZE),
                })
            })
            .collect())
    }

    /// Looks where the pages of an extent are, and keeps it. Says how many there are.
    ///
    /// # Errors
    /// Where the kernel does not answer.
    pub fn look(
        &mut self,
        at: usize,
        pages: &mut dyn Pages,
        room: &Room,
        epoch: u32,
    ) -> Result<u64, SysError> {
        let Some(extent) = self.extents.get(at) else {
            return Ok(0);
        };
        let pieces = self.survey(extent.range(), pages, room)?;
        let of = |fast: bool| -> u16 {
            let pieces = pieces.iter().filter(|p| (p.tier == TierId::FAST) == fast);
            pieces.fold(0, |sum, piece| sum.saturating_add(piece.pages))
        };
        let (fast, slow) = (of(true), of(false));
        self.extents.saw(at, fast, slow, epoch);
        Ok(u64::from(fast) + u64::from(slow))
    }

    /// Pages of a range that can be moved, as far as is known.
    #[must_use]
    pub fn held(&self, range: Range, epoch: u32) -> Held {
        if self.rests_until > epoch {
            return Held::default();
        }
        self.extents.held(range, epoch)
    }
}

fn seeds(layout: &Layout, choice: RootChoice) -> Vec<Range> {
    match (choice, layout.root) {
        (RootChoice::Paper, Some(root)) => vec![root],
        _ => layout.ranges.clone(),
    }
}
