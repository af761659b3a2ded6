//! The daemon's state of a VM while the engine knows it.

use std::collections::VecDeque;
use std::sync::Arc;

use terrace_host::Finding;
use terrace_proto::VmId;
use terrace_proto::snapshot::Round;

/// Rounds of a VM that are stored.
const MAX_ROUNDS: usize = 64;

/// The daemon's state of a VM that the engine knows.
#[derive(Clone)]
pub struct Managed {
    /// The VM's id in the engine.
    pub id: VmId,
    /// The reason for the size of the VM's unit.
    pub unit_reason: String,
    /// Number of the engine's last reason that was made an event.
    pub last_reason: u64,
    /// The last rounds, oldest first.
    pub history: VecDeque<Arc<Round>>,
    /// The state of the VM's tracker.
    pub tracking: Tracking,
    /// Findings about the VM's last moves, for `doctor`.
    pub move_findings: Vec<Finding>,
}

/// The state of a VM's tracker and of its source of writes, in words.
#[derive(Clone, Debug, Default)]
pub struct Tracking {
    /// The reason why DAMON watches the VM and not its page tables; `None` if it does not.
    pub damon: Option<String>,
    /// The source of writes in words; `None` if none is configured.
    pub writes: Option<String>,
    /// The reason why the tracker sees less of the VM than it could; `None` if it sees all.
    pub shortfall: Option<String>,
}

/// A change of one part of a [`Tracking`].
#[derive(Debug)]
pub enum TrackingNews {
    /// The source of writes in words.
    Writes(String),
    /// The reason why the tracker sees less of the VM than it could; `None` if it sees all.
    Shortfall(Option<String>),
}

impl Tracking {
    /// Replaces the part that the news is about.
    pub fn hear(&mut self, news: TrackingNews) {
        match news {
            TrackingNews::Writes(text) => self.writes = Some(text),
            TrackingNews::Shortfall(text) => self.shortfall = text,
        }
    }

    /// The VM's tracker, source of writes and shortfall in one sentence; `engine` names the tracker unless it is
    /// DAMON.
    pub fn text(&self, engine: &str) -> String {
        let tracker = match &self.damon {
            None => engine.to_owned(),
            Some(why) => format!("damon (vaddr), regions instead of pages: {why}"),
        };
        let writes = self.writes.iter().map(|w| format!("; writes: {w}"));
        let shortfall = self.shortfall.iter().map(|w| format!("; {w}"));
        writes
            .chain(shortfall)
            .fold(tracker, |all, more| all + &more)
    }
}

impl Managed {
    /// The state of a VM of which no reason was logged yet.
    pub fn new(id: VmId, unit_reason: String) -> Self {
        Self {
            id,
            unit_reason,
            last_reason: 0,
            history: VecDeque::new(),
            tracking: Tracking::default(),
            move_findings: Vec::new(),
        }
    }

    /// Keeps the last round that ended, once.
    pub fn keep_round(&mut self, last: Option<&Round>) {
        let newest = self.history.back().map(|round| round.number);
        let Some(last) = last.filter(|last| newest < Some(last.number)) else {
            return;
        };
        if self.history.len() == MAX_ROUNDS {
            self.history.pop_front();
        }
        self.history.push_back(Arc::new(last.clone()));
    }
}
