//! One process under management, as `/proc` shows it. What is known of its pages is the controller's.

use terrace_core::ranges::Range;
use terrace_proto::ranges::{Mappings, PieceRun};
use terrace_sys::{HostRoot, Pagemap, Pages, Process, SysError};

use crate::config::RootChoice;
use crate::kernel;
use crate::mappings::Layout;
use crate::processes::ProcessInfo;
use crate::sampler::Target;

/// A process under management.
#[derive(Debug)]
pub struct Managed {
    process: Process,
    pagemap: Pagemap,
    /// The process's name, for people.
    pub name: String,
    /// The managed parts of its address space.
    pub layout: Layout,
}

/// A process that could not be taken under management.
#[derive(Debug, thiserror::Error)]
pub enum ManagedError {
    /// The process is gone or hidden.
    #[error(transparent)]
    Process(#[from] terrace_sys::ProcessError),
    /// The process's pages cannot be inspected.
    #[error("{0}; the agent needs CAP_SYS_PTRACE to read other users' processes")]
    Pagemap(#[from] SysError),
}

impl Managed {
    /// Takes a process under management.
    ///
    /// # Errors
    /// If it has ended or may not be inspected.
    pub fn open(
        root: &HostRoot,
        found: &ProcessInfo,
        layout: Layout,
    ) -> Result<Self, ManagedError> {
        Ok(Self {
            process: Process::open(&root.proc(), found.pid)?,
            pagemap: Pagemap::open(&root.process(found.pid, "pagemap"))?,
            name: found.name.clone(),
            layout,
        })
    }

    /// The process's number.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Whether the process still runs.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.process.is_alive()
    }

    /// The process as a sampler's target.
    #[must_use]
    pub fn target(&self) -> Target {
        Target {
            pid: self.pid(),
            ranges: self.layout.ranges.clone(),
        }
    }

    /// The process's mappings for the controller.
    #[must_use]
    pub fn mappings(&self, choice: RootChoice) -> Mappings {
        let layout = &self.layout;
        Mappings {
            process: self.pid(),
            seeds: match (choice, layout.root) {
                (RootChoice::Paper, Some(root)) => vec![root],
                _ => layout.ranges.clone(),
            },
            mapped: layout.mapped.clone(),
            shared: layout.shared.clone(),
            pinned: layout.pinned.clone(),
        }
    }

    /// The present pages of a range, and their nodes.
    ///
    /// # Errors
    /// If the kernel does not answer.
    pub fn survey(&self, range: Range, pages: &dyn Pages) -> Result<Vec<PieceRun>, SysError> {
        kernel::survey(pages, self.pid(), &self.pagemap, range)
    }
}
