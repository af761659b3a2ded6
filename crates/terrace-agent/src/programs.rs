//! The programs under management: who came, who ended, and what they have mapped.
//!
//! Responsible for: following `/proc`, and what the controller hears of it. It leaves to others: which processes are
//! wanted ([`crate::processes`]), and one process ([`crate::managed`]).

use std::collections::{BTreeMap, BTreeSet};

use terrace_proto::Tick;
use terrace_proto::ranges::{RangesEvent, Survey, Surveyed};
use terrace_sys::{HostRoot, Pages, thread_cpu_time};

use crate::config::Following;
use crate::journal::Journal;
use crate::managed::Managed;
use crate::mappings::Layout;
use crate::processes::{self, ProcessInfo};
use crate::sampler::Target;

/// The programs under management.
#[derive(Debug)]
pub struct Programs {
    root: HostRoot,
    following: Following,
    managed: BTreeMap<u32, Managed>,
    scanned_at: Option<Tick>,
}

/// News for the controller from one scan of `/proc`.
struct News<'a> {
    /// The number of the epoch that ends next.
    epoch: u32,
    journal: &'a mut Journal,
    events: Vec<RangesEvent>,
}

impl Programs {
    /// No programs yet; the first scan finds those that are wanted.
    #[must_use]
    pub fn new(root: HostRoot, following: Following) -> Self {
        Self {
            root,
            following,
            managed: BTreeMap::new(),
            scanned_at: None,
        }
    }

    /// The program of a process.
    #[must_use]
    pub fn get(&self, pid: u32) -> Option<&Managed> {
        self.managed.get(&pid)
    }

    /// All programs, by process.
    pub fn iter(&self) -> impl Iterator<Item = &Managed> {
        self.managed.values()
    }

    /// The programs as a sampler's targets.
    #[must_use]
    pub fn targets(&self) -> Vec<Target> {
        self.iter().map(Managed::target).collect()
    }

    /// Queries the kernel for where pages are. A process that ended is dropped at the next epoch.
    #[must_use]
    pub fn survey(&self, survey: &Survey, pages: &dyn Pages) -> Surveyed {
        let begin = thread_cpu_time();
        let managed = self.managed.get(&survey.process);
        let present = managed.and_then(|m| m.survey(survey.range, pages).ok());
        let cpu = thread_cpu_time().saturating_sub(begin);
        Surveyed {
            id: survey.id,
            present,
            cpu_ns: u64::try_from(cpu.as_nanos()).unwrap_or(u64::MAX),
        }
    }

    /// Searches for new processes and mappings every now and then, and for those that ended at once. Returns the events
    /// for the controller, in order; `epoch` is the number of the epoch that ends next.
    #[must_use]
    pub fn follow(&mut self, now: Tick, epoch: u32, journal: &mut Journal) -> Vec<RangesEvent> {
        let mut news = News {
            epoch,
            journal,
            events: Vec::new(),
        };
        self.keep(&mut news, Managed::is_alive);
        let due = |at| now.since(at) >= self.following.scan_interval;
        if self.scanned_at.is_none_or(due) {
            self.scanned_at = Some(now);
            self.scan(&mut news);
        }
        news.events
    }

    fn scan(&mut self, news: &mut News) {
        let managed: BTreeSet<u32> = self.managed.keys().copied().collect();
        let found = match processes::find(&self.root, &self.following.wanted, &managed) {
            Ok(found) => found,
            Err(error) => {
                news.journal.tell(news.epoch, format!("/proc: {error}"));
                return;
            }
        };
        self.keep(news, |managed| {
            found.iter().any(|found| found.pid == managed.pid())
        });
        let pids: Vec<u32> = found.iter().map(|found| found.pid).collect();
        let mut layouts = Layout::read_all(&self.root, &pids);
        for found in found {
            // A process that ends meanwhile is no longer of interest.
            if let Some(layout) = layouts.remove(&found.pid) {
                self.follow_process(news, &found, layout);
            }
        }
    }

    /// Forgets the processes that are not wanted.
    fn keep(&mut self, news: &mut News, wanted: impl Fn(&Managed) -> bool) {
        let gone = self.managed.extract_if(.., |_, managed| !wanted(managed));
        news.events
            .extend(gone.map(|(pid, _)| RangesEvent::Gone(pid)));
    }

    fn follow_process(&mut self, news: &mut News, found: &ProcessInfo, layout: Layout) {
        let choice = self.following.root;
        if let Some(managed) = self.managed.get_mut(&found.pid)
            && !layout.is_of_another_program(&managed.layout)
        {
            managed.name.clone_from(&found.name);
            if managed.layout != layout {
                managed.layout = layout;
                let mappings = managed.mappings(choice);
                news.events.push(RangesEvent::Mapped(mappings));
            }
            return;
        }
        if self.managed.remove(&found.pid).is_some() {
            news.events.push(RangesEvent::Gone(found.pid));
        }
        match Managed::open(&self.root, found, layout) {
            Ok(managed) => {
                let text = format!("{} ({}) is managed", found.name, found.pid);
                news.journal.tell(news.epoch, text);
                let mappings = managed.mappings(choice);
                self.managed.insert(found.pid, managed);
                news.events.push(RangesEvent::Mapped(mappings));
            }
            Err(error) => {
                let text = format!("{} is left alone: {error}", found.name);
                news.journal.tell_once(news.epoch, text);
            }
        }
    }
}
