//! Moving a VM's pages between tiers by `move_pages(2)` on its hypervisor.
//!
//! Responsible for: carrying out a plan in its order within a bandwidth budget, one address for each
//! huge page, bounded retries, and reporting for every page where it is afterwards, as asked of the
//! kernel. It leaves to others: which pages move (`terrace-core`).

mod budget;
#[cfg(test)]
pub(crate) mod fake;
mod items;
mod kernel;
mod run;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::available_parallelism;

use terrace_proto::{MovePlan, MoveReport, PageSize};
use terrace_sys::Process;

use crate::memory_map::GuestMemory;
use crate::topology::Topology;
use crate::{Finding, HostRoot};

pub(crate) use budget::{Budget, Clock, SystemClock};
pub(crate) use kernel::{Kernel, LiveKernel};

/// The VM whose pages are moved or queried.
#[derive(Clone, Debug)]
pub struct Target {
    /// The VM's hypervisor process.
    pub process: Arc<Process>,
    /// The VM's RAM.
    pub memory: Arc<GuestMemory>,
    /// The unit of ranking and moving.
    pub unit: PageSize,
    /// Processes other than the hypervisor and ours are known to map files of its RAM, and not on its behalf (another
    /// VM on the same template file): of shared RAM, too, only pages that no other process maps are moved then. That
    /// our worker maps a page counts as another process.
    pub others_map: bool,
}

/// The configuration of moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MoverConfig {
    /// Threads that move at the same time, at least one.
    pub threads: usize,
    /// Most base pages in one system call, up to [`terrace_sys::MAX_BATCH`]. A huge page counts as 64. The number is
    /// lower if threads share a plan, but not under 64.
    pub batch_pages: usize,
    /// Most bytes per second, over all VMs; `None` is no limit. Pages count when they are tried.
    pub bytes_per_s: Option<u64>,
    /// Number of tries of a busy page in all, the first one included; at least one.
    pub attempts: u32,
}

impl Default for MoverConfig {
    /// Four threads (fewer on small hosts), 1,024 pages a call, no limit, three attempts.
    fn default() -> Self {
        Self {
            threads: available_parallelism().map_or(1, |n| n.get().min(4)),
            batch_pages: terrace_sys::MAX_BATCH,
            bytes_per_s: None,
            attempts: 3,
        }
    }
}

/// The outcome of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MoveOutcome {
    /// Every page of the plan once, in its order.
    pub report: MoveReport,
    /// Findings for people.
    pub findings: Vec<Finding>,
}

/// Moves pages of any VM, all within one budget. Shared between threads by reference.
#[derive(Debug)]
pub struct Mover {
    root: HostRoot,
    topology: Arc<Topology>,
    config: MoverConfig,
    budget: Budget<SystemClock>,
}

impl Mover {
    /// A mover; zeros in the configuration count as one.
    #[must_use]
    pub fn new(root: HostRoot, topology: Arc<Topology>, config: MoverConfig) -> Self {
        let config = MoverConfig {
            threads: config.threads.max(1),
            batch_pages: config.batch_pages.clamp(1, terrace_sys::MAX_BATCH),
            attempts: config.attempts.max(1),
            ..config
        };
        Self {
            root,
            topology,
            config,
            budget: Budget::new(config.bytes_per_s, SystemClock::start()),
        }
    }

    /// Carries out a plan. `stop` ends it before the next batch; pages not tried by then say so.
    /// Blocks until done.
    #[must_use]
    pub fn execute(&self, target: &Target, plan: &MovePlan, stop: &AtomicBool) -> MoveOutcome {
        let kernel = LiveKernel::open(&self.root, &target.process);
        let mut outcome = run::Run {
            kernel: &kernel,
            topology: &self.topology,
            memory: &target.memory,
            others_map: target.others_map,
            unit: target.unit,
            config: self.config,
            budget: &self.budget,
            stop,
        }
        .execute(plan);
        outcome.findings.extend(kernel.findings());
        outcome
    }
}
