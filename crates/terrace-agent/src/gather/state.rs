//! The state of gathering, for `status` and `top`.

use serde::{Deserialize, Serialize};

use super::by_host::NamedByHost;
use super::round::Round;

/// Gathering as it is now.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GatherStatus {
    /// `off`, `starting`, `watching`, `moving`, `resting`, `failed`, `ended`.
    pub state: String,
    /// The details, for people.
    pub detail: String,
    /// The source of hot pages; empty if none was found yet.
    pub heat: String,
    /// The frames that the host named last, if rounds go by its word.
    pub by_host: Option<NamedByHost>,
    /// Rounds that ended.
    pub rounds: u64,
    /// 4 KiB pages that came together.
    pub moved_pages: u64,
    /// Pages that were not hot any more and were sent home.
    pub returned_pages: u64,
    /// The last round.
    pub last: Option<Round>,
}

impl GatherStatus {
    /// One that does not gather.
    #[must_use]
    pub fn off() -> Self {
        Self {
            state: "off".into(),
            ..Self::default()
        }
    }

    /// Enters a state.
    pub fn enter(&mut self, state: &str, detail: String) {
        self.state = state.into();
        self.detail = detail;
    }

    /// Takes in a round that ended.
    pub fn count(&mut self, round: &Round) {
        self.rounds += 1;
        self.moved_pages += round.moved_pages;
        self.returned_pages += round.returned_pages;
        self.last = Some(round.clone());
    }
}
