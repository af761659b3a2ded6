//! Replaying a log with another policy than the one that recorded it.
//!
//! Responsible for: the accesses that a log's scans saw, window by window; what of them is
//! known; where pages would be under the other policy; and refusing what a log cannot supply. It leaves
//! to others: replays with the recorded policy ([`super::replay`]), and opening files.
//!
//! **What drives what.** The other engine gets what came from outside: arrivals, limits, an operator's
//! commands, the tiers' memory. Its rounds are where the log's rounds are, because nothing is known of the
//! time between them; its questions are answered from the log, and its moves succeed at once.

mod drive;
mod observed;
mod places;
mod report;
mod vm;

use std::io::Read;

use terrace_proto::log::LogError;

use crate::policy::PolicyChoice;

use super::replay::{ReplayError, open};

pub use report::{Outcome, ReplayReport, VmReport};

/// The options of a replay with another policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Other {
    /// The policy of every VM.
    pub policy: PolicyChoice,
    /// Length of a window, ms: a multiple of the log's, whose windows are then taken together. None: the
    /// log's own.
    pub window_ms: Option<u64>,
}

/// A log that cannot be replayed with that policy.
#[derive(Debug, thiserror::Error)]
pub enum OtherError {
    /// The log cannot be read, or the policy does not exist.
    #[error(transparent)]
    Log(#[from] ReplayError),
    /// The log has more than one start.
    #[error("record {0}: a second start; a log has one, so this is two logs in one file")]
    SecondStart(u64),
    /// The log lacks what the replay needs.
    #[error(transparent)]
    Refused(#[from] Refused),
}

/// Things that a log cannot supply.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// No window was observed.
    #[error(
        "the log has no scan of a whole window, so nothing is known about accesses: record with a policy \
         that observes (as vtmm), for a round or more"
    )]
    NoScans,
    /// No report said where pages are.
    #[error(
        "the log never says where the pages of {0} are, so there is nothing to start from: record from \
         the daemon's start on"
    )]
    NoPlacement(String),
    /// The policy reads other tables.
    #[error(
        "policy {policy} observes {wanted}, and the log has what {had} said about {vm}: give a policy with \
         observe = \"{instead}\""
    )]
    OtherTables {
        /// As asked for.
        policy: String,
        /// The tables that it takes.
        wanted: &'static str,
        /// The tables that the log's policy took.
        had: &'static str,
        /// The VM's name.
        vm: String,
        /// The policies that can be replayed.
        instead: &'static str,
    },
    /// One of the two policies has windows of its own.
    #[error(
        "policy {policy} cannot be replayed on a log of policy {had} of {vm}: rounds of hmvisor and of terrace have \
         windows of their own, and what the log's windows saw does not say what those would have seen; \
         record with {policy}, or simulate it"
    )]
    OtherEpochs {
        /// As asked for.
        policy: String,
        /// The log's.
        had: &'static str,
        /// The VM's name.
        vm: String,
    },
    /// Both policies have windows of their own.
    #[error(
        "the log of {vm} is of policy {had} already, and what its windows saw does not say what those of other \
         parameters would have seen: replay it without naming a policy, which checks each decision, or simulate \
         {policy}"
    )]
    SameEpochs {
        /// As asked for.
        policy: String,
        /// The log's.
        had: &'static str,
        /// The VM's name.
        vm: String,
    },
    /// The other policy's windows are finer than the log's.
    #[error(
        "windows of {asked} ms are finer than the log's of {had} ms, and when within a window a page was \
         accessed is not known: allowed are multiples of {had} ms that divide its rounds of {windows} \
         windows"
    )]
    FinerWindows {
        /// As asked for.
        asked: u64,
        /// The log's.
        had: u64,
        /// Windows in a round.
        windows: u8,
    },
    /// Windows that do not make whole rounds.
    #[error(
        "windows of {asked} ms do not divide the log's rounds of {windows} windows of {had} ms: allowed \
         are multiples of {had} ms that do"
    )]
    UnevenWindows {
        /// As asked for.
        asked: u64,
        /// The log's.
        had: u64,
        /// Windows in a round.
        windows: u8,
    },
    /// Regions instead of pages.
    #[error(
        "{0} was watched by DAMON, whose regions don't say which of their pages were accessed: record with \
         tracker = \"page-tables\""
    )]
    Damon(String),
    /// The log's windows were not of the same time.
    #[error(
        "the log's rounds looked at {0} parts of memory in turn, and what their windows saw does not say what those of \
         another policy would have seen: record with engine.scan_parts = 1"
    )]
    Parts(u16),
}

/// Replays a log with another policy.
///
/// # Errors
/// If it cannot be read, or does not have what that takes.
pub fn replay_with(input: impl Read, other: &Other) -> Result<ReplayReport, OtherError> {
    let (mut reader, config) = open(input)?;
    if config.scan_parts > 1 {
        return Err(Refused::Parts(config.scan_parts).into());
    }
    let mut driver = drive::Driver::new(config, other)?;
    let mut records = 1;
    while let Some((at, record)) = reader.next_record().map_err(log)? {
        if !driver.take(at, record)? {
            return Err(OtherError::SecondStart(records + reader.skipped()));
        }
        records += 1;
    }
    Ok(driver.report(&reader)?)
}

fn log(error: LogError) -> OtherError {
    ReplayError::from(error).into()
}
