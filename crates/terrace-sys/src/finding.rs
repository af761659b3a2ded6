//! What is good, weaker than it could be, or missing, and what to change.

use serde::Serialize;
use terrace_proto::printable::{MOST_WORDS, excerpt};

/// How well something works.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// As it should be.
    Ok,
    /// Works, with a loss that the finding names.
    Degraded,
    /// Does not work.
    Missing,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Short and stable, such as `guest-ram`.
    pub name: &'static str,
    /// How well it works.
    pub status: Status,
    /// What was found.
    pub why: String,
    /// What to change, where something is to be gained.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub change: Option<String>,
}

impl Finding {
    /// All is well.
    #[must_use]
    pub fn ok(name: &'static str, why: impl Into<String>) -> Self {
        Self {
            name,
            status: Status::Ok,
            why: words(why),
            change: None,
        }
    }

    /// Works, with a loss.
    #[must_use]
    pub fn degraded(name: &'static str, why: impl Into<String>, change: impl Into<String>) -> Self {
        Self {
            name,
            status: Status::Degraded,
            why: words(why),
            change: Some(words(change)),
        }
    }

    /// Does not work.
    #[must_use]
    pub fn missing(name: &'static str, why: impl Into<String>, change: impl Into<String>) -> Self {
        Self {
            status: Status::Missing,
            ..Self::degraded(name, why, change)
        }
    }
}

/// What others said stands in findings too: names, paths, a monitor's words.
fn words(said: impl Into<String>) -> String {
    excerpt(&said.into(), MOST_WORDS)
}
