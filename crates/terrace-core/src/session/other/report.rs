//! The report of a replay with another policy.

use serde::Serialize;

/// A replay with another policy.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ReplayReport {
    /// The policy that it was replayed with.
    pub policy: String,
    /// The policy that recorded it.
    pub recorded_policy: String,
    /// Time resolution: length of a window, s. When within it a page was accessed is not known.
    pub window_s: f64,
    /// Length of the log's own windows, s.
    pub recorded_window_s: f64,
    /// Time from the first to the last record, s.
    pub log_s: f64,
    /// Records of unknown kinds.
    pub skipped: u64,
    /// The log ended in the middle of a record.
    pub cut_off: bool,
    /// Why the recording was given up before its time, if the log has it.
    pub given_up: Option<String>,
    /// Notes that qualify the figures.
    pub notes: Vec<String>,
    /// VM by VM, in order of arrival.
    pub vms: Vec<VmReport>,
}

/// One VM's part. Pages are of 4 KiB; units are what is ranked and moved as one, 4 KiB or 2 MiB.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct VmReport {
    /// The VM's name.
    pub name: String,
    /// Time that lies in its windows, s: of the rest nothing is known.
    pub observed_s: f64,
    /// Share of the mapped units' windows in which it is known whether the unit was accessed; none
    /// without a window.
    pub coverage: Option<f64>,
    /// Mapped units times windows.
    pub unit_windows: u64,
    /// Known accesses: units times windows in which they were accessed.
    pub accesses: u64,
    /// Under the other policy.
    pub other: Outcome,
    /// As recorded.
    pub recorded: Outcome,
    /// Rounds of the log that the other policy could not follow because its moves were still under way.
    pub missed_rounds: u64,
}

/// The outcome of one policy.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outcome {
    /// Rounds that ran to their end.
    pub rounds: u64,
    /// Pages that went to a faster tier.
    pub promoted_pages: u64,
    /// Pages that went to a slower tier.
    pub demoted_pages: u64,
    /// Share of the known accesses that were to pages in the first tier; none without an access.
    pub fast_share: Option<f64>,
}

/// A part of a whole, to six digits.
pub(super) fn share(part: u64, whole: u64) -> Option<f64> {
    let millionths = (u128::from(part) * 1_000_000).checked_div(u128::from(whole))?;
    u32::try_from(millionths).ok().map(|n| f64::from(n) / 1e6)
}

/// Nanoseconds as seconds.
pub(super) fn seconds(ns: u64) -> f64 {
    std::time::Duration::from_nanos(ns).as_secs_f64()
}
