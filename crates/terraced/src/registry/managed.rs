//! What the daemon keeps of a VM while the engine knows it.

use std::collections::VecDeque;
use std::sync::Arc;

use terrace_host::Finding;
use terrace_proto::VmId;
use terrace_proto::snapshot::Round;

/// Rounds of a VM that are remembered.
const ROUNDS_KEPT: usize = 64;

/// A VM that the engine knows.
#[derive(Clone)]
pub struct Managed {
    /// Its id in the engine.
    pub id: VmId,
    /// Why its unit is what it is.
    pub unit_reason: String,
    /// Last reason of the engine that was made an event.
    pub reasons_told: u64,
    /// The last rounds, oldest first.
    pub history: VecDeque<Arc<Round>>,
    /// What its tracker says of itself.
    pub tracking: Tracking,
    /// What its last moves showed, for `doctor`.
    pub move_findings: Vec<Finding>,
}

/// What a VM's tracker says of itself, for people.
#[derive(Clone, Debug, Default)]
pub struct Tracking {
    /// Why DAMON watches it and not its page tables, where it does.
    pub damon: Option<String>,
    /// What its source of writes does, where one is configured.
    pub writes: Option<String>,
    /// Why its tracker sees less of it than it could, if so.
    pub shortfall: Option<String>,
}

/// What became of one part of a [`Tracking`].
#[derive(Debug)]
pub enum TrackingNews {
    /// What its source of writes does.
    Writes(String),
    /// Why it sees less of the VM than it could, if so.
    Shortfall(Option<String>),
}

impl Tracking {
    /// Takes news in.
    pub fn hear(&mut self, news: TrackingNews) {
        match news {
            TrackingNews::Writes(words) => self.writes = Some(words),
            TrackingNews::Shortfall(words) => self.shortfall = words,
        }
    }

    /// What observes the VM: the host's word where it is not the engine's tables, and the source of writes.
    pub fn words(&self, engine: &str) -> String {
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
    /// A VM of which nothing was told yet.
    pub fn new(id: VmId, unit_reason: String) -> Self {
        Self {
            id,
            unit_reason,
            reasons_told: 0,
            history: VecDeque::new(),
            tracking: Tracking::default(),
            move_findings: Vec::new(),
        }
    }

    /// Remembers the last round that ended, once.
    pub fn keep_round(&mut self, last: Option<&Round>) {
        let newest = self.history.back().map(|round| round.number);
        let Some(last) = last.filter(|last| newest < Some(last.number)) else {
            return;
        };
        if self.history.len() == ROUNDS_KEPT {
            self.history.pop_front();
        }
        self.history.push_back(Arc::new(last.clone()));
    }
}
