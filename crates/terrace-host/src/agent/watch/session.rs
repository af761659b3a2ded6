//! One run of an agent over one connection.

use terrace_proto::Tick;
use terrace_proto::agent::{Heartbeat, Hello, Versions};

use super::lie::{self, Lie, Possible};

/// The messages of one run of an agent: those since the connection began, or since the last hello.
#[derive(Debug, Default)]
pub(super) struct Session {
    /// The version of the channel; `None` until both ends agreed on one.
    version: Option<u16>,
    /// The last heartbeat that was believed, and when it came.
    last: Option<(Heartbeat, Tick)>,
}

impl Session {
    /// The session that a hello begins; without a version if none is common.
    pub(super) fn of(hello: &Hello) -> Self {
        Self {
            version: hello.versions.common(Versions::OURS),
            last: None,
        }
    }

    pub(super) fn version(&self) -> Option<u16> {
        self.version
    }

    pub(super) fn heartbeat(&self) -> Option<&Heartbeat> {
        self.last.as_ref().map(|(beat, _)| beat)
    }

    /// Checks whether a heartbeat is possible, by itself and after the one before it.
    pub(super) fn judge(&self, now: Tick, beat: &Heartbeat, possible: Possible) -> Result<(), Lie> {
        lie::judge(beat.report(), possible)?;
        match &self.last {
            Some((before, at)) => lie::judge_after(before, beat, now.since(*at), possible),
            None => Ok(()),
        }
    }

    pub(super) fn believe(&mut self, now: Tick, beat: Heartbeat) {
        self.last = Some((beat, now));
    }
}
