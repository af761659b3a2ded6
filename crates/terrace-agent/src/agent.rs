//! The agent's loop: samples go into the controller of ranges, and what it asks for is done.
//!
//! Responsible for: the order of things. It leaves to others: sampling, every decision (`terrace_core::ranges`), which
//! programs are managed ([`crate::programs`]), what the kernel is asked ([`crate::kernel`]), what is reported of it
//! ([`crate::view`], [`crate::report`]), the channel.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use terrace_core::ranges::{Config as RangesConfig, Params};
use terrace_proto::PAGE_SIZE;
use terrace_proto::agent::{Budgets, Report};
use terrace_proto::ranges::{
    FRAMES, Migration, RangeSample, RangesAction, RangesBudget, RangesEvent,
};
use terrace_sys::{HostRoot, Pages};

use crate::account::Account;
use crate::channel::{FrameRequests, HostLink, HotFrames, Instructions, guest_memory_end};
use crate::config::Config;
use crate::controller::Controller;
use crate::frames::{self, Frames, NotMoved};
use crate::gather::{self, Background};
use crate::host::Host;
use crate::kernel;
use crate::programs::Programs;
use crate::report::report;
use crate::room::Room;
use crate::sampler::{Sample, Samplers, Target};
use crate::status::Status;
use crate::view::AgentParts;

/// Samples that the controller takes at once.
const MAX_BATCH: usize = 4096;

/// The agent.
pub struct Agent {
    config: Config,
    root: HostRoot,
    room: Room,
    pages: Box<dyn Pages>,
    samplers: Samplers,
    programs: Programs,
    /// The part that decides.
    controller: Controller,
    account: Account,
    host: Host,
    frames: Frames,
    gathering: Option<Background>,
    vcpus: u32,
}

impl Agent {
    /// An agent that has scanned nothing yet.
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
        let account = Account::new(pages.swaps().err(), pages.migrates().err());
        let frames = Frames::new(root.clone(), guest_memory_end(&root));
        let ranges = RangesConfig {
            epoch_ms: u32::try_from(config.sampling.epoch.as_millis()).unwrap_or(u32::MAX),
            moves: config.moves,
            swaps: account.no_swaps.is_none(),
            headroom_pages: config.headroom_bytes / PAGE_SIZE,
            capacity_pages: config.capacity_bytes.map(|bytes| bytes / PAGE_SIZE),
            ..RangesConfig::new(params, room.tiers(), budget(config.budgets))
        };
        Self {
            programs: Programs::new(root.clone(), config.following.clone()),
            controller: Controller::new(ranges),
            account,
            host: Host::new(config.budgets),
            config,
            root,
            room,
            pages,
            samplers,
            frames,
            gathering: None,
            vcpus,
        }
    }

    /// Records all that the controller hears and decides, in a new file. To be called before the first epoch.
    ///
    /// # Errors
    /// If the file cannot be made, or epochs ended already.
    pub fn record(&mut self, file: &Path) -> Result<()> {
        self.controller.record(file)
    }

    /// Shows rounds of gathering that go on beside it.
    pub fn show_gathering(&mut self, gathering: Background) {
        self.gathering = Some(gathering);
    }

    /// Writes out what is left of the log, if one is written.
    ///
    /// # Errors
    /// If it could not be written.
    pub fn finish(&mut self) -> Result<()> {
        self.controller.finish()
    }

    /// Runs one epoch.
    pub fn step(&mut self) {
        self.follow_gathering();
        if self.host.names() {
            self.follow_programs();
        }
        let gathers =
            || self.samplers.clears_accessed_bits() && gather::accessed_bits_are_held(&self.root);
        if self.host.rests() || gathers() {
            // Sources clear accessed bits; others may want them now.
            self.samplers.rest();
            return;
        }
        self.follow_programs();
        let targets = self.programs.targets();
        self.sample(&targets);
        self.tell(RangesEvent::EpochEnded);
    }

    /// Writes down a round of gathering that ended.
    fn follow_gathering(&mut self) {
        let round = self.gathering.as_mut().and_then(Background::take_round);
        if let Some(round) = round {
            let text = format!(
                "gathered {} pages, {} went home: {} blocks of 2 MiB hot before, {} after",
                round.moved_pages,
                round.returned_pages,
                round.before.hot_blocks,
                round.after.hot_blocks
            );
            self.account.journal.tell(self.controller.epoch(), text);
        }
    }

    fn follow_programs(&mut self) {
        let (now, epoch) = (self.controller.now(), self.controller.coming_epoch());
        let journal = &mut self.account.journal;
        for event in self.programs.follow(now, epoch, journal) {
            self.tell(event);
        }
    }

    /// Passes an event to the controller, and does what it asks for.
    fn tell(&mut self, event: RangesEvent) {
        let mut event = Some(event);
        while let Some(heard) = event.take() {
            for action in self.controller.hear(heard) {
                event = self.carry_out(action);
            }
        }
    }

    /// Does what the controller asks for. Returns the answer, if the action has one.
    fn carry_out(&mut self, action: RangesAction) -> Option<RangesEvent> {
        match action {
            RangesAction::ReadFree => Some(RangesEvent::Free(self.room.free())),
            RangesAction::Survey(survey) => {
                let surveyed = self.programs.survey(&survey, self.pages.as_ref());
                Some(RangesEvent::Surveyed(surveyed))
            }
            RangesAction::Migrate(migration) if migration.process == FRAMES => {
                Some(self.migrate_frames(&migration))
            }
            RangesAction::Migrate(migration) => {
                let (migrated, refused) = kernel::migrate(self.pages.as_ref(), &migration);
                if let Some(text) = refused {
                    self.account.record_refusal(migration.process, text);
                }
                Some(RangesEvent::Migrated(migrated))
            }
            RangesAction::Swap(swap) => {
                let swapped = kernel::swap(self.pages.as_ref(), &swap);
                self.account.swapped(&swap, swapped.pairs, swapped.refused);
                Some(RangesEvent::Migrated(swapped.outcome))
            }
            RangesAction::EpochOver(summary) => {
                self.account.epoch_over(&summary, &self.programs);
                None
            }
        }
    }

    fn migrate_frames(&mut self, migration: &Migration) -> RangesEvent {
        let moved = kernel::migrate_frames(self.pages.as_ref(), migration);
        self.frames.answered(migration, &moved.statuses);
        if let Some(text) = moved.refused {
            self.account.record_refusal(FRAMES, text);
        }
        RangesEvent::Migrated(moved.outcome)
    }

    fn params(&self) -> Params {
        self.config.params(self.samplers.params(self.vcpus))
    }

    /// Hands the samples over to the controller. If the source changed, the old one's counts mean nothing to the new
    /// one.
    fn sample(&mut self, targets: &[Target]) {
        let now = self.controller.now();
        let controller = &mut self.controller;
        let mut seen = Vec::new();
        let mut sink = |sample: Sample| {
            seen.push(RangeSample {
                process: sample.pid,
                page: sample.range.start,
                pages: sample.range.pages(),
                accesses: sample.accesses,
            });
            if seen.len() == MAX_BATCH {
                controller.count(now, std::mem::take(&mut seen));
            }
        };
        let drained = self.samplers.sample(targets, &mut sink);
        if !seen.is_empty() {
            self.tell(RangesEvent::Sampled(seen));
        }
        self.account.count_losses(drained);
        if let Some(text) = self.samplers.take_news() {
            let epoch = self.controller.coming_epoch();
            match self.samplers.name() {
                Some(_) => self.account.journal.tell(epoch, text),
                None => self.account.journal.warn(epoch, text),
            }
            self.tell(RangesEvent::Restarted(self.params()));
        }
    }

    /// Speaks with the host and takes its instructions.
    pub fn speak(&mut self, link: &mut HostLink) {
        link.beat(self.controller.now(), &self.report());
        if let Some(hot) = link.take_hot() {
            self.hear_hot(&hot);
        }
        self.host.counted(link.counts());
        self.follow(link.take_instructions());
        let epoch = self.controller.epoch();
        let journal = &mut self.account.journal;
        self.host.linked(&link.state(), epoch, journal);
    }

    /// Writes down hot pages that the host named, for the rounds of gathering beside this.
    fn hear_hot(&mut self, hot: &HotFrames) {
        if let Err(error) = gather::write_hot(&self.root, hot) {
            let text = format!("hot pages that the host named are lost: {error:#}");
            let epoch = self.controller.epoch();
            self.account.journal.tell_once(epoch, text);
        }
    }

    /// Follows instructions from now on.
    pub fn follow(&mut self, instructions: Instructions) {
        let epoch = self.controller.epoch();
        if let Some(budgets) = self.host.follow(instructions, epoch, &mut self.account) {
            self.tell(RangesEvent::Budget(budget(budgets)));
        }
        let frames = self.host.take_frames();
        if !self.host.names() {
            self.frames.forget();
            self.account.totals.frames_refused.left += frames.len();
            return;
        }
        if !frames.is_empty() {
            self.move_named(&frames);
        } else if self.frames.is_under_way() {
            self.refresh_frames();
        }
    }

    /// Moves what the host named: by its frame number if the guest can, else as far as managed processes have it.
    fn move_named(&mut self, frames: &FrameRequests) {
        let begin = self.controller.now();
        let (mut taken, mut left) = (0, NotMoved::default());
        let mut rest = frames.clone();
        if self.account.no_migrate.is_none() {
            let named = self.frames.by_number(frames);
            self.tell(RangesEvent::Named(named));
            let (tiers, stopped) = (self.room.tiers(), self.account.stopped);
            let outcome = self.frames.take_outcome(&tiers, stopped);
            (taken, left, rest) = (outcome.taken, outcome.not_moved, outcome.rest);
        }
        if !rest.is_empty() {
            let (more, staying) = self.move_by_pages(&rest);
            taken += more;
            left.add(staying);
        }
        let epoch = self.controller.epoch();
        self.account.named(epoch, taken, left, self.frames.size());
        let took = self.controller.now().since(begin).as_nanos();
        self.account.totals.frames_last.1 = u64::try_from(took).unwrap_or(u64::MAX);
    }

    /// Moves frames by the addresses of their pages, as far as managed processes have them. Returns how many arrived, and why
    /// the others did not.
    fn move_by_pages(&mut self, frames: &FrameRequests) -> (u64, NotMoved) {
        self.refresh_frames();
        let located = self.frames.locate(frames, self.pages.as_ref());
        if !located.named.up.is_empty() || !located.named.down.is_empty() {
            self.tell(RangesEvent::Named(located.named.clone()));
        }
        let arrived = frames::arrived(&located, &self.room.tiers(), self.pages.as_ref());
        let mut left = located.not_moved;
        // All others: the host waits until each frame was counted.
        left.left += frames.len().saturating_sub(arrived + left.all());
        (arrived, left)
    }

    fn refresh_frames(&mut self) {
        let percent = self.host.instructions().budgets.cpu_percent();
        let targets = self.programs.targets();
        self.frames
            .refresh(self.controller.now(), &targets, percent);
    }

    /// The agent as it is now.
    #[must_use]
    pub fn status(&self) -> Status {
        self.parts().status()
    }

    /// The report for the host.
    #[must_use]
    pub fn report(&self) -> Report {
        report(&self.parts(), &self.root)
    }

    fn parts(&self) -> AgentParts<'_> {
        AgentParts {
            moves: self.config.moves,
            room: &self.room,
            samplers: &self.samplers,
            ranges: self.controller.ranges(),
            programs: &self.programs,
            account: &self.account,
            host: &self.host,
            gathering: self.gathering.as_ref(),
            frames: self.frames.size(),
        }
    }

    /// Length of an epoch.
    #[must_use]
    pub fn epoch_length(&self) -> Duration {
        self.config.sampling.epoch
    }
}

/// The limits of the controller's spending.
fn budget(budgets: Budgets) -> RangesBudget {
    RangesBudget {
        bytes_per_s: budgets.bytes_per_s(),
        cpu_percent: budgets.cpu_percent().into(),
    }
}
