//! The section `[gather]` of the configuration.

use std::time::Duration;

use anyhow::{Result, bail, ensure};
use serde::Deserialize;
use terrace_core::gather::{BLOCK_PAGES, Cl};

/// Most larger pages that a round splits: 32 GiB.
const MAX_SPLIT: usize = 1 << 14;

/// Choice of the source of hot pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HeatChoice {
    /// The first that works in this guest.
    #[default]
    Auto,
    /// The host's scans.
    Host,
}

/// The section as people write it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RawGather {
    rounds: bool,
    heat: HeatChoice,
    split: usize,
    node: Option<u32>,
    cl: RawCl,
    gain: u16,
    window_s: u64,
    rest_s: u64,
}

/// A number or `auto`.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "gather.cl: allowed is \"auto\", or 2 to 512")]
enum RawCl {
    Below(u16),
    Text(String),
}

impl Default for RawGather {
    fn default() -> Self {
        Self {
            rounds: false,
            heat: HeatChoice::Auto,
            split: 0,
            node: None,
            cl: RawCl::Text("auto".into()),
            gain: 1,
            window_s: 10,
            rest_s: 60,
        }
    }
}

/// How hot pages are gathered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gathering {
    /// Whether `terrace-agent run` has rounds go on beside it.
    pub rounds: bool,
    /// The source of hot pages.
    pub heat: HeatChoice,
    /// Most of the guest's own pages of 2 MiB that a round splits.
    pub split: usize,
    /// The node whose memory takes them; `None`: the guest module does, within each node.
    pub node: Option<u32>,
    /// The limit of a block's hot pages.
    pub cl: Cl,
    /// Length of a window of which it is asked whether a page was accessed.
    pub window: Duration,
    /// Pause between two rounds.
    pub rest: Duration,
}

impl RawGather {
    /// Whether the host names hot pages.
    #[must_use]
    pub fn is_by_host(&self) -> bool {
        self.heat == HeatChoice::Host
    }

    /// Checks the section.
    ///
    /// # Errors
    /// If a key is out of range; the message names it and what is allowed.
    pub fn check(self) -> Result<Gathering> {
        ensure!(
            (1..BLOCK_PAGES).contains(&self.gain),
            "gather.gain = {} is out of range: allowed is 1 to {}",
            self.gain,
            BLOCK_PAGES - 1
        );
        let cl = match self.cl {
            RawCl::Text(text) if text == "auto" => Cl::Auto { gain: self.gain },
            RawCl::Below(cl) if (2..=BLOCK_PAGES).contains(&cl) => Cl::Below(cl),
            RawCl::Below(cl) => {
                bail!(
                    "gather.cl = {cl} is out of range: allowed is \"auto\", or 2 to {BLOCK_PAGES}"
                )
            }
            RawCl::Text(text) => {
                bail!("gather.cl = {text:?}: allowed is \"auto\", or 2 to {BLOCK_PAGES}")
            }
        };
        for (key, value) in [("window_s", self.window_s), ("rest_s", self.rest_s)] {
            ensure!(
                (1..=3600).contains(&value),
                "gather.{key} = {value} is out of range: allowed is 1 to 3600"
            );
        }
        ensure!(
            self.split <= MAX_SPLIT,
            "gather.split = {} is out of range: allowed is 0 to {MAX_SPLIT}",
            self.split
        );
        Ok(Gathering {
            rounds: self.rounds,
            heat: self.heat,
            split: self.split,
            node: self.node,
            cl,
            window: Duration::from_secs(self.window_s),
            rest: Duration::from_secs(self.rest_s),
        })
    }
}
