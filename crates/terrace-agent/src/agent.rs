//! The agent's loop: once per epoch samples become ranges, ranges a plan, a plan an exchange.
//!
//! Responsible for: the order of things, budgets, and what `status` tells. It leaves to others: sampling,
//! the tree and the plan (`terrace_core::hyperplace`), moving, the channel.

use std::collections::BTreeMap;
use std::time::Duration;

use terrace_core::hyperplace::{Held, Params, Plan, RangeTree, Ranked, rank};
use terrace_proto::{PAGE_SIZE, TierId};
use terrace_sys::{HostRoot, MonotonicClock, thread_cpu_time};

use crate::channel::Wishes;
use crate::config::Config;
use crate::exchange::{Exchange, Outcome, Pages, Piece};
use crate::managed::Managed;
use crate::mappings::{Claimed, Layout};
use crate::pick::Picker;
use crate::processes;
use crate::report::own_wishes;
use crate::room::{Free, Room};
use crate::sampler::{Drained, Samplers};
use crate::status::{ChannelStatus, Journal, Totals};

/// While pages were never looked at, looking may take so many times its share of the CPU.
const FIRST_LOOK: u32 = 4;

/// The agent.
pub struct Agent {
    pub(crate) config: Config,
    pub(crate) root: HostRoot,
    pub(crate) room: Room,
    pages: Box<dyn Pages>,
    pub(crate) samplers: Samplers,
    pub(crate) managed: BTreeMap<u32, Managed>,
    pub(crate) epoch: u32,
    pub(crate) clock: MonotonicClock,
    looked_at: Option<terrace_proto::Tick>,
    pub(crate) totals: Totals,
    pub(crate) journal: Journal,
    pub(crate) wishes: Wishes,
    /// How the channel to the host is.
    pub channel: ChannelStatus,
    /// The last ranking, for `top`.
    pub(crate) ranked: Vec<(u32, Ranked, Held)>,
    /// Ranges of it that fit into fast memory.
    pub(crate) fits: usize,
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
        Self {
            root,
            room,
            pages,
            samplers,
            managed: BTreeMap::new(),
            epoch: 0,
            clock: MonotonicClock::start(),
            looked_at: None,
            totals: Totals::default(),
            journal: Journal::default(),
            wishes: own_wishes(config.budgets()),
            config,
            channel: ChannelStatus::default(),
            ranked: Vec::new(),
            fits: 0,
            vcpus: u32::try_from(vcpus).unwrap_or(1),
        }
    }

    /// One epoch.
    pub fn step(&mut self) {
        if self.rests() {
            // Sources clear accessed bits; others may want them now.
            self.samplers.rest();
            return;
        }
        self.epoch = self.epoch.saturating_add(1);
        self.follow_processes();
        let targets: Vec<_> = self.managed.values().map(Managed::target).collect();
        self.sample(&targets);
        for managed in self.managed.values_mut() {
            managed.tree.end_epoch();
        }
        self.look();
        let moved = self.place();
        self.totals.quiet_epochs = if moved {
            0
        } else {
            self.totals.quiet_epochs + 1
        };
        for managed in self.managed.values_mut() {
            managed.tree.decay();
        }
    }

    /// New processes and mappings, every now and then; those that ended, at once.
    fn follow_processes(&mut self) {
        self.managed.retain(|_, managed| managed.is_alive());
        let now = self.clock.now();
        let due = |at| now.since(at) >= self.config.look_every;
        if !self.looked_at.is_none_or(due) {
            return;
        }
        self.looked_at = Some(now);
        let found = match processes::find(&self.root, &self.config.wanted) {
            Ok(found) => found,
            Err(error) => {
                self.journal.tell(self.epoch, format!("/proc: {error}"));
                return;
            }
        };
        self.managed
            .retain(|pid, _| found.iter().any(|found| found.pid == *pid));
        let params = self.params();
        let mut claimed = Claimed::new();
        for found in found {
            // A process that ends meanwhile is no longer of interest.
            let Ok(layout) = Layout::read(&self.root, found.pid, &mut claimed) else {
                continue;
            };
            let choice = self.config.root;
            if let Some(managed) = self.managed.get_mut(&found.pid) {
                managed.follow(layout, choice);
                continue;
            }
            match Managed::open(&self.root, &found, layout, choice, params) {
                Ok(managed) => {
                    let words = format!("{} ({}) is managed", found.name, found.pid);
                    self.journal.tell(self.epoch, words);
                    self.managed.insert(found.pid, managed);
                }
                Err(error) => self
                    .journal
                    .tell_once(self.epoch, format!("{} is left alone: {error}", found.name)),
            }
        }
    }

    fn params(&self) -> Params {
        self.config.params(self.samplers.params(self.vcpus))
    }

    /// Counts what was seen. Where the source changed, counts of the old one mean nothing to the new one.
    fn sample(&mut self, targets: &[crate::sampler::Target]) {
        let managed = &mut self.managed;
        let mut sink = |sample: crate::sampler::Sample| {
            if let Some(managed) = managed.get_mut(&sample.pid) {
                managed.tree.count_range(sample.range, sample.accesses);
            }
        };
        let Drained { lost, malformed } = self.samplers.sample(targets, &mut sink);
        self.totals.lost_samples += lost;
        self.totals.malformed_samples += malformed;
        if let Some(words) = self.samplers.take_news() {
            self.journal.tell(self.epoch, words);
            let params = self.params();
            for managed in self.managed.values_mut() {
                managed.restart_tree(params, self.config.root);
            }
        }
    }

    /// Asks the kernel where pages are, within the share of the CPU.
    fn look(&mut self) {
        let percent = u32::from(self.wishes.budgets.cpu_percent());
        let unseen = self.managed.values().any(|m| m.extents.any_unseen());
        let share = self.config.epoch * percent * if unseen { FIRST_LOOK } else { 1 } / 100;
        let begin = thread_cpu_time();
        for managed in self.managed.values_mut() {
            while thread_cpu_time().saturating_sub(begin) < share {
                let Some(at) = managed.extents.stale(self.epoch) else {
                    break;
                };
                // A process that ended is dropped at the next epoch.
                if managed
                    .look(at, self.pages.as_mut(), &self.room, self.epoch)
                    .is_err()
                {
                    break;
                }
            }
        }
    }

    /// Ranks, plans and moves; says whether anything moved.
    fn place(&mut self) -> bool {
        let pids: Vec<u32> = self.managed.keys().copied().collect();
        let trees: Vec<&RangeTree> = self.managed.values().map(|managed| &managed.tree).collect();
        let ranked = rank(&trees);
        let held: Vec<Held> = ranked
            .iter()
            .map(|ranked| self.held(&pids, ranked))
            .collect();
        let mut free = self.room.free();
        let in_fast: u64 = held.iter().map(|held| held.fast).sum();
        let most = self.config.capacity_bytes.map(|bytes| bytes / PAGE_SIZE);
        let room = free.pages(TierId::FAST);
        let room = most.map_or(room, |most| room.min(most.saturating_sub(in_fast)));
        let excess = most.map_or(0, |most| in_fast.saturating_sub(most));
        let plan = Plan::new(&ranked, &held, in_fast - excess + room, room);
        self.fits = plan.fits;
        let moved = self.config.moves && self.carry_out(&pids, &ranked, &plan, excess, &mut free);
        let pid_of = |ranked: &Ranked| pids.get(ranked.tree).copied().unwrap_or(0);
        self.ranked = ranked
            .iter()
            .zip(&held)
            .map(|(ranked, held)| (pid_of(ranked), *ranked, *held))
            .collect();
        moved
    }

    fn held(&self, pids: &[u32], ranked: &Ranked) -> Held {
        let managed = pids.get(ranked.tree).and_then(|pid| self.managed.get(pid));
        managed.map_or(Held::default(), |managed| managed.held(ranked.leaf.range))
    }

    fn carry_out(
        &mut self,
        pids: &[u32],
        ranked: &[Ranked],
        plan: &Plan,
        excess: u64,
        free: &mut Free,
    ) -> bool {
        let budget = self.budget_pages();
        let mut picker = Picker {
            managed: &self.managed,
            pids,
            ranked,
            pages: self.pages.as_mut(),
            room: &self.room,
            budget,
        };
        let pinned = picker.pinned();
        let mut up: Vec<Piece> = pinned.clone();
        up.extend(picker.shares(&plan.promote, false));
        let mut down = picker.shares(&plan.demote, true);
        // Text and stacks come up whatever ranges say, and what is too much goes: the coldest first. So
        // does what somebody else took of the headroom.
        let pinned_pages: u64 = pinned.iter().map(|piece| u64::from(piece.pages)).sum();
        let extra = excess + free.deficit(pinned_pages);
        down.extend(picker.coldest(extra, &plan.demote));
        let into_free = plan.promoted().saturating_sub(plan.demoted()) + pinned_pages;
        if up.is_empty() && down.is_empty() {
            self.forget_pinned();
            return false;
        }
        let exchange = Exchange::new(self.pages.as_mut(), &self.room, free);
        let outcome = exchange.run(&up, &down, into_free);
        self.forget_pinned();
        self.look_again(&up, &down);
        self.count(&outcome);
        outcome.promoted + outcome.demoted > 0
    }

    /// Pages that may travel in this epoch.
    fn budget_pages(&self) -> u64 {
        let per_s = self.wishes.budgets.bytes_per_s();
        let epoch_ms = u64::try_from(self.config.epoch.as_millis()).unwrap_or(500);
        per_s.saturating_mul(epoch_ms) / 1000 / PAGE_SIZE
    }

    /// They are brought up once; later the kernel and the program decide.
    fn forget_pinned(&mut self) {
        for managed in self.managed.values_mut() {
            managed.pinned.clear();
        }
    }

    /// Where pages are now, only the kernel says.
    fn look_again(&mut self, up: &[Piece], down: &[Piece]) {
        let mut touched: Vec<(u32, u64)> = up
            .iter()
            .chain(down)
            .map(|piece| (piece.pid, piece.address / PAGE_SIZE))
            .collect();
        touched.sort_unstable();
        for of_one in touched.chunk_by(|a, b| a.0 == b.0) {
            let Some(managed) = of_one
                .first()
                .and_then(|(pid, _)| self.managed.get_mut(pid))
            else {
                continue;
            };
            let mut last = None;
            for (_, page) in of_one {
                let at = managed.extents.place_of(*page);
                if at.is_some() && at != last {
                    last = at;
                    // A process that ended is dropped at the next epoch.
                    let _ =
                        managed.look(at.unwrap_or(0), self.pages.as_mut(), &self.room, self.epoch);
                }
            }
        }
    }

    fn count(&mut self, outcome: &Outcome) {
        let totals = &mut self.totals;
        totals.promoted_pages += outcome.promoted;
        totals.demoted_pages += outcome.demoted;
        totals.busy_pages += outcome.busy;
        totals.failed_pages += outcome.failed;
        let mut words = format!("{} pages up, {} down", outcome.promoted, outcome.demoted);
        if let Some(stopped) = &outcome.stopped {
            words.push_str(&format!("; ended early: {stopped}"));
        }
        self.journal.tell(self.epoch, words);
    }

    /// Length of an epoch.
    #[must_use]
    pub fn epoch_length(&self) -> Duration {
        self.config.epoch
    }
}
