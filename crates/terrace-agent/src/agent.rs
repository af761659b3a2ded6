//! The agent's loop: samples go into the controller of ranges, and what it asks for is done.
//!
//! Responsible for: the order of things, and what `status` tells. It leaves to others: sampling, every decision
//! (`terrace_core::ranges`), what the kernel is asked ([`crate::kernel`]), the channel.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use terrace_core::ranges::{Config as RangesConfig, Params, Ranges};
use terrace_core::session::Session;
use terrace_proto::PAGE_SIZE;
use terrace_proto::agent::Budgets;
use terrace_proto::ranges::{
    EpochSummary, Exchanged, RangeSample, RangesAction, RangesBudget, RangesEvent, Survey, Surveyed,
};
use terrace_sys::{HostRoot, MonotonicClock, Pages, thread_cpu_time};

use crate::channel::Wishes;
use crate::config::Config;
use crate::kernel;
use crate::managed::Managed;
use crate::mappings::Layout;
use crate::processes::{self, Found};
use crate::record::FileLog;
use crate::report::own_wishes;
use crate::room::Room;
use crate::sampler::{Drained, Sample, Samplers};
use crate::status::{ChannelStatus, Journal, Totals};

/// Samples that the controller is told of at once.
const TOLD_AT_ONCE: usize = 4096;

/// The agent.
pub struct Agent {
    pub(crate) config: Config,
    pub(crate) root: HostRoot,
    pub(crate) room: Room,
    pages: Box<dyn Pages>,
    pub(crate) samplers: Samplers,
    pub(crate) managed: BTreeMap<u32, Managed>,
    /// Decides.
    session: Session<Option<FileLog>, Ranges>,
    /// The kernel's words of this epoch, by process, where it refused to move pages.
    refused: BTreeMap<u32, String>,
    pub(crate) clock: MonotonicClock,
    looked_at: Option<terrace_proto::Tick>,
    pub(crate) totals: Totals,
    pub(crate) journal: Journal,
    pub(crate) wishes: Wishes,
    /// How the channel to the host is.
    pub channel: ChannelStatus,
    vcpus: u32,
}

impl Agent {
    /// An agent that has looked at nothing yet.
    #[must_use]
    pub fn new(
        config: Config,
        root: HostRoot,
        room: Room,
        pages: Box<dyn Pages>,
        samplers: Samplers,
    ) -> Self {
        let vcpus = std::thread::available_parallelism().map_or(1, |n| n.get());
        let vcpus = u32::try_from(vcpus).unwrap_or(1);
        let params = config.params(samplers.params(vcpus));
        let ranges = RangesConfig {
            epoch_ms: u32::try_from(config.epoch.as_millis()).unwrap_or(u32::MAX),
            moves: config.moves,
            headroom_pages: config.headroom_bytes / PAGE_SIZE,
            capacity_pages: config.capacity_bytes.map(|bytes| bytes / PAGE_SIZE),
            ..RangesConfig::new(params, room.tiers(), budget(config.budgets()))
        };
        Self {
            session: Session::new(Ranges::new(ranges), None),
            refused: BTreeMap::new(),
            root,
            room,
            pages,
            samplers,
            managed: BTreeMap::new(),
            clock: MonotonicClock::start(),
            looked_at: None,
            totals: Totals::default(),
            journal: Journal::default(),
            wishes: own_wishes(config.budgets()),
            config,
            channel: ChannelStatus::default(),
            vcpus,
        }
    }

    /// The controller, to look at.
    pub(crate) fn ranges(&self) -> &Ranges {
        self.session.controller()
    }

    /// Records all that the controller hears and decides, in a new file. To be called before the first epoch.
    ///
    /// # Errors
    /// Where the file cannot be made, or epochs ended already.
    pub fn record(&mut self, file: &Path) -> Result<()> {
        let ranges = self.ranges();
        ensure!(
            ranges.epoch() == 0 && ranges.programs().is_empty(),
            "a log begins before the first epoch"
        );
        let log = FileLog::start(file, ranges.config())?;
        *self.session.log_mut() = Some(log);
        Ok(())
    }

    /// Writes out what is left of the log, if one is written.
    ///
    /// # Errors
    /// Where it could not be written.
    pub fn finish(&mut self) -> Result<()> {
        self.session
            .log_mut()
            .as_mut()
            .map_or(Ok(()), FileLog::finish)
    }

    /// One epoch.
    pub fn step(&mut self) {
        if self.rests() {
            // Sources clear accessed bits; others may want them now.
            self.samplers.rest();
            return;
        }
        self.follow_processes();
        let targets: Vec<_> = self.managed.values().map(Managed::target).collect();
        self.sample(&targets);
        self.tell(RangesEvent::EpochEnded);
    }

    /// Tells the controller, and does what it asks for.
    pub(crate) fn tell(&mut self, event: RangesEvent) {
        let mut event = Some(event);
        while let Some(heard) = event.take() {
            for action in self.session.hear(self.clock.now(), heard) {
                event = self.carry_out(action);
            }
        }
    }

    /// Does what the controller asks for; the answer, where it is to have one.
    fn carry_out(&mut self, action: RangesAction) -> Option<RangesEvent> {
        match action {
            RangesAction::ReadFree => Some(RangesEvent::Free(self.room.free())),
            RangesAction::Survey(survey) => Some(RangesEvent::Surveyed(self.survey(&survey))),
            RangesAction::Travel(travel) => {
                let (travelled, refused) = kernel::travel(self.pages.as_ref(), &travel);
                if let Some(words) = refused {
                    self.refused.insert(travel.process, words);
                }
                Some(RangesEvent::Travelled(travelled))
            }
            RangesAction::EpochOver(summary) => {
                self.epoch_over(&summary);
                None
            }
        }
    }

    /// Asks the kernel where pages are. A process that ended is dropped at the next epoch.
    fn survey(&self, survey: &Survey) -> Surveyed {
        let begin = thread_cpu_time();
        let managed = self.managed.get(&survey.process);
        let present = managed.and_then(|m| m.survey(survey.range, self.pages.as_ref()).ok());
        let cpu = thread_cpu_time().saturating_sub(begin);
        Surveyed {
            id: survey.id,
            present,
            cpu_ns: u64::try_from(cpu.as_nanos()).unwrap_or(u64::MAX),
        }
    }

    fn epoch_over(&mut self, summary: &EpochSummary) {
        let refused = std::mem::take(&mut self.refused);
        let exchanged = summary.exchanged.as_ref();
        let moved = exchanged.map_or(0, |exchanged| exchanged.promoted + exchanged.demoted);
        self.totals.quiet_epochs = if moved > 0 {
            0
        } else {
            self.totals.quiet_epochs + 1
        };
        let Some(exchanged) = exchanged else {
            return;
        };
        for pid in &exchanged.refused {
            if let (Some(managed), Some(why)) = (self.managed.get(pid), refused.get(pid)) {
                let words = format!("{} is left where it is for a while: {why}", managed.name);
                self.journal.tell(summary.epoch, words);
            }
        }
        self.count(summary.epoch, exchanged);
    }

    /// New processes and mappings, every now and then; those that ended, at once.
    fn follow_processes(&mut self) {
        self.keep(Managed::is_alive);
        let epoch = self.coming_epoch();
        let now = self.clock.now();
        let due = |at| now.since(at) >= self.config.look_every;
        if !self.looked_at.is_none_or(due) {
            return;
        }
        self.looked_at = Some(now);
        let managed: BTreeSet<u32> = self.managed.keys().copied().collect();
        let found = match processes::find(&self.root, &self.config.wanted, &managed) {
            Ok(found) => found,
            Err(error) => {
                self.journal.tell(epoch, format!("/proc: {error}"));
                return;
            }
        };
        self.keep(|managed| found.iter().any(|found| found.pid == managed.pid()));
        let pids: Vec<u32> = found.iter().map(|found| found.pid).collect();
        let mut layouts = Layout::read_all(&self.root, &pids);
        for found in found {
            // A process that ends meanwhile is no longer of interest.
            if let Some(layout) = layouts.remove(&found.pid) {
                self.follow_process(&found, layout);
            }
        }
    }

    /// Forgets the other processes.
    fn keep(&mut self, wanted: impl Fn(&Managed) -> bool) {
        let gone: Vec<u32> = self
            .managed
            .extract_if(.., |_, managed| !wanted(managed))
            .map(|(pid, _)| pid)
            .collect();
        for pid in gone {
            self.tell(RangesEvent::Gone(pid));
        }
    }

    /// The number of the epoch that ends next.
    pub(crate) fn coming_epoch(&self) -> u32 {
        self.ranges().epoch().saturating_add(1)
    }

    fn follow_process(&mut self, found: &Found, layout: Layout) {
        let choice = self.config.root;
        if let Some(managed) = self.managed.get_mut(&found.pid)
            && !layout.is_of_another_program(&managed.layout)
        {
            managed.name.clone_from(&found.name);
            if managed.layout != layout {
                managed.layout = layout;
                let mappings = managed.mappings(choice);
                self.tell(RangesEvent::Mapped(mappings));
            }
            return;
        }
        if self.managed.remove(&found.pid).is_some() {
            self.tell(RangesEvent::Gone(found.pid));
        }
        let epoch = self.coming_epoch();
        match Managed::open(&self.root, found, layout) {
            Ok(managed) => {
                let words = format!("{} ({}) is managed", found.name, found.pid);
                self.journal.tell(epoch, words);
                let mappings = managed.mappings(choice);
                self.managed.insert(found.pid, managed);
                self.tell(RangesEvent::Mapped(mappings));
            }
            Err(error) => {
                let words = format!("{} is left alone: {error}", found.name);
                self.journal.tell_once(epoch, words);
            }
        }
    }

    fn params(&self) -> Params {
        self.config.params(self.samplers.params(self.vcpus))
    }

    /// Hands over what was seen. Where the source changed, counts of the old one mean nothing to the new one.
    fn sample(&mut self, targets: &[crate::sampler::Target]) {
        let (session, now) = (&mut self.session, self.clock.now());
        let mut seen = Vec::new();
        let mut sink = |sample: Sample| {
            seen.push(RangeSample {
                process: sample.pid,
                page: sample.range.start,
                pages: sample.range.pages(),
                accesses: sample.accesses,
            });
            if seen.len() == TOLD_AT_ONCE {
                let seen = std::mem::take(&mut seen);
                // Samples are only counted: nothing is decided before the epoch ends.
                let _ = session.hear(now, RangesEvent::Sampled(seen));
            }
        };
        let Drained { lost, malformed } = self.samplers.sample(targets, &mut sink);
        if !seen.is_empty() {
            self.tell(RangesEvent::Sampled(seen));
        }
        self.totals.lost_samples += lost;
        self.totals.malformed_samples += malformed;
        if let Some(words) = self.samplers.take_news() {
            self.journal.tell(self.coming_epoch(), words);
            self.tell(RangesEvent::Restarted(self.params()));
        }
    }

    fn count(&mut self, epoch: u32, exchanged: &Exchanged) {
        let totals = &mut self.totals;
        totals.promoted_pages += exchanged.promoted;
        totals.demoted_pages += exchanged.demoted;
        totals.busy_pages += exchanged.busy;
        totals.failed_pages += exchanged.failed;
        let mut words = format!(
            "{} pages up, {} down",
            exchanged.promoted, exchanged.demoted
        );
        if let Some(stopped) = &exchanged.stopped {
            words.push_str(&format!("; ended early: {stopped}"));
        }
        if exchanged.promoted + exchanged.demoted > 0 {
            self.journal.tell(epoch, words);
        } else {
            self.journal.tell_once(epoch, words);
        }
    }

    /// Length of an epoch.
    #[must_use]
    pub fn epoch_length(&self) -> Duration {
        self.config.epoch
    }
}

/// What the controller may spend.
pub(crate) fn budget(budgets: Budgets) -> RangesBudget {
    RangesBudget {
        bytes_per_s: budgets.bytes_per_s(),
        cpu_percent: budgets.cpu_percent().into(),
    }
}
