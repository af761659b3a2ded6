//! Obstacles to huge pages: how long a VM waits for one to pass, and when it waits no longer.

use std::time::Duration;

use terrace_proto::Tick;

/// Time until it is tried again at first. It doubles as long as something is in the way: each try has the monitor and the
/// process's files read.
const WAIT: Duration = Duration::from_secs(5);
/// Greatest such time.
const LONGEST_WAIT: Duration = Duration::from_secs(300);
/// Time for which something may be in the way without a break: what lasts longer is not waited for.
const PATIENCE: Duration = Duration::from_secs(3600);
/// Time until it is tried again if it was not possible at all: an operator may have changed a setting.
const LASTING: Duration = Duration::from_secs(600);

/// The obstacle in the way of a VM's steps since the last one that had none.
#[derive(Debug, Default)]
pub(super) struct Obstacle {
    /// Waits in a row.
    waits: u32,
    /// When the first of these began.
    since: Option<Tick>,
    /// Until when it is not tried again, if it was not possible at all.
    lasts_until: Option<Tick>,
    /// Whether that was said: what an operator switches on and off again is not said each time.
    is_said: bool,
}

impl Obstacle {
    /// Takes in that something is in the way for now. Returns the time of the next try; `None` if it has waited for too long.
    pub fn wait(&mut self, now: Tick) -> Option<Tick> {
        self.lasts_until = None;
        let since = *self.since.get_or_insert(now);
        if now.since(since) >= PATIENCE {
            return None;
        }
        let pause = WAIT.saturating_mul(1 << self.waits.min(6));
        self.waits = self.waits.saturating_add(1);
        Some(now.after(pause.min(LONGEST_WAIT)))
    }

    /// Takes in that it is not possible at all. Returns the time of the next try, and whether it is to be said.
    pub fn last(&mut self, now: Tick) -> (Tick, bool) {
        let until = now.after(LASTING);
        (self.waits, self.since, self.lasts_until) = (0, None, Some(until));
        (until, !std::mem::replace(&mut self.is_said, true))
    }

    /// Nothing was in the way.
    pub fn pass(&mut self) {
        (self.waits, self.since, self.lasts_until) = (0, None, None);
    }

    /// The VM grew: it is tried as soon as others are, unless it was not possible at all.
    pub fn begin_again(&mut self) {
        (self.waits, self.since) = (0, None);
    }

    /// Until when it is not tried again, if it was not possible at all.
    pub fn lasts_until(&self) -> Option<Tick> {
        self.lasts_until
    }
}
