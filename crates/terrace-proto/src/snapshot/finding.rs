//! Findings: whether each thing that was inspected is good, weaker than it could be, or missing, and the change that is
//! advised.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::printable::{MAX_TEXT_CHARS, excerpt};

/// The health of a thing that was inspected: how well it works.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Health {
    /// As it should be.
    Ok,
    /// Works, with a loss that the finding names.
    Degraded,
    /// Does not work.
    Missing,
}

/// One thing that was inspected.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// Short and stable, such as `guest-ram`.
    pub name: Cow<'static, str>,
    /// The health of the thing.
    pub health: Health,
    /// The result, a sentence.
    pub found: String,
    /// The change that is advised, if there is anything to gain.
    pub advice: Option<String>,
}

impl Finding {
    /// All is well.
    #[must_use]
    pub fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            health: Health::Ok,
            found: text(found),
            advice: None,
        }
    }

    /// Works, with a loss.
    #[must_use]
    pub fn degraded(
        name: &'static str,
        found: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        Self {
            health: Health::Degraded,
            advice: Some(text(advice)),
            ..Self::ok(name, found)
        }
    }

    /// Does not work.
    #[must_use]
    pub fn missing(
        name: &'static str,
        found: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        Self {
            health: Health::Missing,
            ..Self::degraded(name, found, advice)
        }
    }
}

/// The words of a finding, cut and made printable: they may hold text of other programs, such as names, paths and a
/// monitor's words.
fn text(said: impl Into<String>) -> String {
    excerpt(&said.into(), MAX_TEXT_CHARS)
}
