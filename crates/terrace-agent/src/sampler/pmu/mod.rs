//! Samples of memory accesses by the processor's PMU: Intel PEBS and AMD IBS (HyperTier §4.2.1).
//!
//! Responsible for: which events ([`Recipe`]), whether they can be had and else why not ([`choose`]), one ring
//! per CPU for everybody's accesses, and which of them are samples of watched processes ([`Intake`]). It leaves
//! to others: the system call and the records' layout (`terrace_sys::perf`), what samples mean.
//!
//! Events belong to CPUs and not to processes: with hundreds of threads there is still one ring per CPU, and
//! nothing is to be opened when a process forks. Accesses of others are sampled too, and left out here.
//!
//! Not run on hardware yet: what is asked of the kernel was derived from its sources, and records of PEBS and
//! IBS that the tests read are built by hand. Rings, losses and the way to the ranges are tested on page faults
//! of the running kernel ([`SampleKind::PageFaults`]).

mod choice;
mod cpus;
mod format;
mod holders;
mod intake;
mod recipe;
mod refusal;

use std::os::fd::BorrowedFd;

use terrace_core::ranges::Params;
use terrace_sys::HostRoot;

pub use choice::{Choice, choose, choose_with};
pub use cpus::{Kernel, Opener};
pub use intake::{Counters, Intake, Layout};
pub use recipe::{Access, Lacks, Recipe, SampleKind, Wanted};

use super::{Drained, Sample, Sampler, SamplerError, Target};
use cpus::Cpus;

/// Settings of the sampler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Pages of each CPU's ring, a power of two. 64 (256 KiB) hold 8,192 samples, which is 16,384 samples per
    /// second and CPU if they are drained twice a second and never in between. Two rings of that size still
    /// fit into what the kernel lets anybody lock per CPU (`kernel.perf_event_mlock_kb`, 516).
    pub ring_pages: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Self { ring_pages: 64 }
    }
}

/// The sampler.
#[derive(Debug)]
pub struct Pmu {
    kind: SampleKind,
    cpus: Cpus,
    intake: Intake,
    /// A buffer for the records of one ring at a time.
    scratch: Vec<u8>,
}

impl Pmu {
    /// Opens the events on all CPUs that are online. Nothing is sampled until processes are watched.
    ///
    /// # Errors
    /// If no CPU's events can be opened.
    pub fn open(root: HostRoot, recipe: Recipe, settings: Settings) -> Result<Self, SamplerError> {
        Self::open_with(root, recipe, settings, Box::new(Kernel))
    }

    /// Does the same as [`Pmu::open`], with an opener other than the kernel.
    ///
    /// # Errors
    /// As [`Pmu::open`].
    pub fn open_with(
        root: HostRoot,
        recipe: Recipe,
        settings: Settings,
        opener: Box<dyn Opener>,
    ) -> Result<Self, SamplerError> {
        let kind = recipe.kind;
        Ok(Self {
            kind,
            cpus: Cpus::open(root, recipe, settings.ring_pages, opener)?,
            intake: Intake::default(),
            scratch: Vec::new(),
        })
    }

    /// The counts of records that came, and of those left out.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.intake.counters()
    }

    /// The number of CPUs that are sampled.
    #[must_use]
    pub fn sampled_cpus(&self) -> usize {
        self.cpus.len()
    }

    /// The number of CPUs that are online but could not be sampled when they were last tried, with the reason for the
    /// last.
    #[must_use]
    pub fn failed_cpus(&self) -> Option<&(usize, String)> {
        self.cpus.failed()
    }

    /// Descriptors that become readable when a CPU's ring is half full: a thread that waits for the end of an epoch
    /// waits for these too, and drains. Others take their place when CPUs come and go, in [`Sampler::watch`].
    pub fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.cpus.fds()
    }

    /// The share of the time in which the PMU had room for our events, 0 to 1: less than 1 if others take turns with
    /// them. `None` before anything was sampled. Asks each CPU, so not for every epoch.
    #[must_use]
    pub fn running_share(&self) -> Option<f64> {
        self.cpus.running_share()
    }

    /// Bytes of memory: locked rings with their control pages, and the heap.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.cpus.ring_bytes() + self.scratch.capacity() + self.intake.heap_bytes()
    }
}

impl Sampler for Pmu {
    fn name(&self) -> &'static str {
        self.kind.name()
    }

    fn clears_accessed_bits(&self) -> bool {
        false
    }

    /// The paper's parameters. For PEBS, they were found with its period and threshold. For IBS too: its period is
    /// chosen so that a busy CPU gives hundreds of samples per epoch, the order that τ_split is made for
    /// ([`recipe::IBS_PERIOD`](Recipe::ibs)).
    fn params(&self, vcpus: u32) -> Params {
        Params::paper(vcpus)
    }

    fn watch(&mut self, targets: &[Target]) -> Result<(), SamplerError> {
        self.intake.watch(targets.iter().map(|target| target.pid));
        self.cpus.set_running(!targets.is_empty())
    }

    fn drain(&mut self, sink: &mut dyn FnMut(Sample)) -> Result<Drained, SamplerError> {
        let before = self.intake.counters();
        for (ring, layout) in self.cpus.rings() {
            self.scratch.clear();
            if ring.drain(&mut self.scratch).is_none() {
                self.intake.count_malformed();
            }
            self.intake.take(&self.scratch, layout, sink);
        }
        let now = self.intake.counters();
        Ok(Drained {
            lost: now.lost - before.lost,
            malformed: now.malformed - before.malformed,
        })
    }
}
