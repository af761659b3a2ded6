//! The agent's loop: once per epoch samples become ranges, ranges a plan, a plan an exchange.
//!
//! Responsible for: the order of things, budgets, and what `status` tells. It leaves to others: sampling,
//! the tree and the plan (`terrace_core::hyperplace`), moving, the channel.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use terrace_core::hyperplace::{Held, Params, Plan, RangeTree, Ranked, rank};
use terrace_proto::{PAGE_SIZE, TierId};
use terrace_sys::{HostRoot, MonotonicClock, thread_cpu_time};

use crate::channel::Wishes;
use crate::config::Config;
use crate::exchange::{Exchange, Outcome, Pages, Piece};
use crate::managed::Managed;
use crate::mappings::Layout;
use crate::pick::{Picker, going_down, size};
use crate::processes::{self, Found};
use crate::report::own_wishes;
use crate::room::{Free, Room};
use crate::sampler::{Drained, Samplers};
use crate::status::{ChannelStatus, Journal, Totals};

/// While pages were never looked at, looking may take so many times its share of the CPU.
const FIRST_LOOK: u32 = 4;
/// Epochs in which text, data and stacks are tried to be brought up.
const PINNED_TRIES: u32 = 8;
/// Epochs for which a process is left alone whose pages the kernel refuses to move.
const REFUSED: u32 = 120;
/// Pages that may travel at once, however small the budget is: a huge page each way.
const LEAST_BUDGET: u64 = 1024;
/// Part of the headroom that is made free again in an epoch. What went down frees more than the kernel tells
/// at once (pages in lists of each CPU), so a large step would send down too much.
const HEADROOM_STEP: u64 = 8;

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
    /// Pages that may still travel.
    allowance: u64,
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
            allowance: 0,
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
        let managed: BTreeSet<u32> = self.managed.keys().copied().collect();
        let found = match processes::find(&self.root, &self.config.wanted, &managed) {
            Ok(found) => found,
            Err(error) => {
                self.journal.tell(self.epoch, format!("/proc: {error}"));
                return;
            }
        };
        self.managed
            .retain(|pid, _| found.iter().any(|found| found.pid == *pid));
        let pids: Vec<u32> = found.iter().map(|found| found.pid).collect();
        let mut layouts = Layout::read_all(&self.root, &pids);
        for found in found {
            // A process that ends meanwhile is no longer of interest.
            if let Some(layout) = layouts.remove(&found.pid) {
                self.follow_process(&found, layout);
            }
        }
    }

    fn follow_process(&mut self, found: &Found, layout: Layout) {
        let choice = self.config.root;
        if let Some(managed) = self.managed.get_mut(&found.pid)
            && !layout.is_of_another_program(&managed.layout)
        {
            managed.name.clone_from(&found.name);
            managed.follow(layout, choice);
            return;
        }
        let params = self.params();
        match Managed::open(&self.root, found, layout, choice, params) {
            Ok(managed) => {
                let words = format!("{} ({}) is managed", found.name, found.pid);
                self.journal.tell(self.epoch, words);
                self.managed.insert(found.pid, managed);
            }
            Err(error) => {
                self.managed.remove(&found.pid);
                let words = format!("{} is left alone: {error}", found.name);
                self.journal.tell_once(self.epoch, words);
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

    /// Asks the kernel where pages are, within the share of the CPU: each process in turn, those with pages
    /// that were never looked at first.
    fn look(&mut self) {
        let percent = u32::from(self.wishes.budgets.cpu_percent());
        let unseen = |managed: &Managed| managed.extents.any_unseen();
        let first = self.managed.values().any(unseen);
        let share = self.config.epoch * percent * if first { FIRST_LOOK } else { 1 } / 100;
        let begin = thread_cpu_time();
        let mut pids: Vec<u32> = self.managed.keys().copied().collect();
        let turn = usize::try_from(self.epoch).unwrap_or(0);
        if !pids.is_empty() {
            let begin = turn % pids.len();
            pids.rotate_left(begin);
        }
        let mut more = true;
        while more && thread_cpu_time().saturating_sub(begin) < share {
            more = false;
            for pid in &pids {
                let Some(managed) = self.managed.get_mut(pid) else {
                    continue;
                };
                if first && !managed.extents.any_unseen() {
                    continue;
                }
                let Some(at) = managed.extents.stale(self.epoch) else {
                    continue;
                };
                // A process that ended is dropped at the next epoch.
                let looked = managed.look(at, self.pages.as_mut(), &self.room, self.epoch);
                more |= looked.is_ok();
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
        let moved =
            self.config.moves && self.carry_out(&pids, &ranked, &held, &plan, excess, &mut free);
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
        managed.map_or(Held::default(), |managed| {
            managed.held(ranked.leaf.range, self.epoch)
        })
    }

    fn carry_out(
        &mut self,
        pids: &[u32],
        ranked: &[Ranked],
        held: &[Held],
        plan: &Plan,
        excess: u64,
        free: &mut Free,
    ) -> bool {
        self.save_up();
        let each_way = self.allowance / 2;
        let mut picker = Picker {
            managed: &self.managed,
            pids,
            ranked,
            pages: self.pages.as_mut(),
            room: &self.room,
            epoch: self.epoch,
            touched: BTreeSet::new(),
        };
        let mut up: Vec<Piece> = picker.pinned(each_way);
        let pinned = size(&up);
        up.extend(picker.shares(&plan.promote, false, each_way.saturating_sub(pinned)));
        // What is too much goes down, and where something shall come up, what others took of the headroom.
        let wanted = if up.is_empty() {
            0
        } else {
            free.deficit(pinned)
        };
        let more = (excess + wanted.min(pinned + free.headroom() / HEADROOM_STEP)).min(each_way);
        let going = going_down(plan, held, more);
        let down = picker.shares(&going, true, each_way);
        let touched = picker.touched;
        if up.is_empty() && down.is_empty() {
            self.look_again(&touched, &[], &Outcome::default());
            self.forget_pinned(each_way > 0);
            return false;
        }
        let into_free = plan.promoted().saturating_sub(plan.demoted()) + pinned;
        let exchange = Exchange::new(self.pages.as_mut(), &self.room, free);
        let outcome = exchange.run(&up, &down, into_free, more);
        self.forget_pinned(pinned == 0);
        up.extend(down);
        self.look_again(&touched, &up, &outcome);
        self.count(&outcome);
        outcome.promoted + outcome.demoted > 0
    }

    /// What may travel in this epoch is added to what was not used of the last ones: at most one epoch's, or as
    /// much as a huge page takes.
    fn save_up(&mut self) {
        let per_s = self.wishes.budgets.bytes_per_s();
        let epoch_ms = u64::try_from(self.config.epoch.as_millis()).unwrap_or(500);
        let more = per_s.saturating_mul(epoch_ms) / 1000 / PAGE_SIZE;
        self.allowance = self.allowance.saturating_add(more);
        self.allowance = self.allowance.min(more.max(LEAST_BUDGET));
    }

    /// Text, data and stacks are brought up once, all that is left of them after a few tries; later the kernel
    /// and the program decide.
    fn forget_pinned(&mut self, all: bool) {
        for managed in self.managed.values_mut() {
            managed.pinned_tries += 1;
            if all || managed.pinned_tries >= PINNED_TRIES {
                managed.pinned.clear();
            }
        }
    }

    /// Where pages are now, only the kernel says. What could not be moved is left alone for a while.
    fn look_again(&mut self, touched: &BTreeSet<(u32, usize)>, tried: &[Piece], outcome: &Outcome) {
        let epoch = self.epoch;
        let stuck: BTreeSet<(u32, u64)> = outcome.stuck.iter().copied().collect();
        for (pid, at) in touched {
            let Some(managed) = self.managed.get_mut(pid) else {
                continue;
            };
            let Some(range) = managed.extents.get(*at).map(|extent| extent.range()) else {
                continue;
            };
            // A process that ended is dropped at the next epoch.
            let _ = managed.look(*at, self.pages.as_mut(), &self.room, epoch);
            let inside = |pid_of: u32, address: u64| {
                let page = address / PAGE_SIZE;
                pid_of == *pid && range.start <= page && page < range.end
            };
            let tried = tried
                .iter()
                .filter(|piece| inside(piece.pid, piece.address));
            let (from, to) = (range.start * PAGE_SIZE, range.end * PAGE_SIZE);
            let failed = stuck.range((*pid, from)..(*pid, to)).count();
            if failed > 0 {
                managed.extents.tried(*at, tried.count(), failed, epoch);
            }
        }
        for (pid, why) in &outcome.refused {
            if let Some(managed) = self.managed.get_mut(pid) {
                managed.rests_until = epoch.saturating_add(REFUSED);
                let words = format!("{} is left where it is for a while: {why}", managed.name);
                self.journal.tell(epoch, words);
            }
        }
    }

    fn count(&mut self, outcome: &Outcome) {
        let moved = outcome.promoted + outcome.demoted;
        self.allowance = self.allowance.saturating_sub(moved);
        let totals = &mut self.totals;
        totals.promoted_pages += outcome.promoted;
        totals.demoted_pages += outcome.demoted;
        totals.busy_pages += outcome.busy;
        totals.failed_pages += outcome.failed;
        let mut words = format!("{} pages up, {} down", outcome.promoted, outcome.demoted);
        if let Some(stopped) = &outcome.stopped {
            words.push_str(&format!("; ended early: {stopped}"));
        }
        if moved > 0 {
            self.journal.tell(self.epoch, words);
        } else {
            self.journal.tell_once(self.epoch, words);
        }
    }

    /// Length of an epoch.
    #[must_use]
    pub fn epoch_length(&self) -> Duration {
        self.config.epoch
    }
}
