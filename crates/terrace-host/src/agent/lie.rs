//! Claims that no honest agent makes.

use std::time::Duration;

use terrace_proto::PAGE_SIZE;
use terrace_proto::agent::{Heartbeat, Report};

/// The reason why an agent is not believed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Lie {
    /// The agent's nodes hold more than the VM has.
    #[error("its nodes are said to hold {claimed_bytes} bytes, but the VM has {ram_bytes}")]
    MoreThanRam {
        /// All nodes together.
        claimed_bytes: u64,
        /// The hypervisor's word.
        ram_bytes: u64,
    },
    /// More is free than there is.
    #[error("node {node} is said to have {free_bytes} bytes free of {total_bytes}")]
    FreeAboveTotal {
        /// The node.
        node: u32,
        /// Said to be free.
        free_bytes: u64,
        /// Said to be there.
        total_bytes: u64,
    },
    /// The number of a heartbeat did not rise.
    #[error("heartbeat {now} came after heartbeat {before}")]
    SequenceBackwards {
        /// The earlier one's.
        before: u64,
        /// The later one's.
        now: u64,
    },
    /// The guest's clock did not rise.
    #[error("its clock went from {before_ns} ns to {now_ns} ns")]
    TimeBackwards {
        /// The earlier reading, ns.
        before_ns: u64,
        /// The later reading, ns.
        now_ns: u64,
    },
    /// A counter fell.
    #[error("its count of {what} fell from {before} to {now}")]
    CounterFell {
        /// The counter's name.
        what: &'static str,
        /// The earlier value.
        before: u64,
        /// The later value.
        now: u64,
    },
    /// The agent moved more than memory can.
    #[error("it is said to have moved {pages} pages in {}", humantime(*.within))]
    TooFast {
        /// Pages of 4 KiB.
        pages: u64,
        /// Between two heartbeats.
        within: Duration,
    },
    /// Too many messages.
    #[error("it sends more than {per_s} messages a second")]
    Flood {
        /// The limit.
        per_s: u64,
    },
    /// Too many hellos.
    #[error("it says hello again and again")]
    HelloFlood,
    /// Bytes that are no messages.
    #[error("it sends garbage: {0}")]
    Garbage(String),
    /// A message whose values are out of bounds.
    #[error("a message of it has values out of bounds")]
    Malformed,
}

fn humantime(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

/// The limits of what a VM has and can do.
#[derive(Clone, Copy, Debug)]
pub(super) struct Possible {
    pub(super) ram_bytes: Option<u64>,
    pub(super) bytes_per_s: u64,
}

/// A heartbeat by itself.
pub(super) fn judge(report: &Report, possible: Possible) -> Result<(), Lie> {
    let mut claimed_bytes = 0_u64;
    for node in &report.nodes {
        if node.free_bytes > node.total_bytes {
            return Err(Lie::FreeAboveTotal {
                node: node.node,
                free_bytes: node.free_bytes,
                total_bytes: node.total_bytes,
            });
        }
        claimed_bytes = claimed_bytes.saturating_add(node.total_bytes);
    }
    match possible.ram_bytes {
        // The memory that the guest reports is never more than it was given; a DIMM that was plugged a moment ago
        // may be more than the hypervisor was asked about.
        Some(ram_bytes) if claimed_bytes > ram_bytes.saturating_add(ram_bytes / 16) => {
            Err(Lie::MoreThanRam {
                claimed_bytes,
                ram_bytes,
            })
        }
        _ => Ok(()),
    }
}

/// A heartbeat after another of the same session, `apart` by the host's clock.
pub(super) fn judge_after(
    before: &Heartbeat,
    now: &Heartbeat,
    apart: Duration,
    possible: Possible,
) -> Result<(), Lie> {
    if now.sequence() <= before.sequence() {
        return Err(Lie::SequenceBackwards {
            before: before.sequence(),
            now: now.sequence(),
        });
    }
    if now.time() < before.time() {
        return Err(Lie::TimeBackwards {
            before_ns: before.time().0,
            now_ns: now.time().0,
        });
    }
    let (was, is) = (before.report(), now.report());
    let mut counters = counters(was).into_iter().zip(counters(is));
    if let Some(((what, before), (_, now))) = counters.find(|((_, was), (_, is))| is < was) {
        return Err(Lie::CounterFell { what, before, now });
    }
    // By the guest's clock, but that may say anything. Messages wait on their way, so a second is given.
    let within = now.time().since(before.time()).min(apart) + Duration::from_secs(1);
    let moved = |r: &Report| {
        let a = r.activity;
        a.promoted_pages.saturating_add(a.demoted_pages)
    };
    let pages = moved(is).saturating_sub(moved(was));
    let possible_bytes = within.as_millis() * u128::from(possible.bytes_per_s) / 1000;
    if u128::from(pages) * u128::from(PAGE_SIZE) > possible_bytes {
        return Err(Lie::TooFast { pages, within });
    }
    Ok(())
}

/// Everything that only rises while an agent runs.
fn counters(r: &Report) -> [(&'static str, u64); 13] {
    let pressure = r.pressure.unwrap_or_default();
    [
        ("epochs", r.activity.epochs),
        ("promoted pages", r.activity.promoted_pages),
        ("demoted pages", r.activity.demoted_pages),
        ("failed pages", r.activity.failed_pages),
        ("major faults", r.faults.major),
        ("minor faults", r.faults.minor),
        ("pages read from swap", r.faults.swap_in_pages),
        ("pages written to swap", r.faults.swap_out_pages),
        ("CPU time", r.cost.cpu_ns),
        ("frames taken", r.frames_taken),
        ("frames refused", r.frames_refused),
        ("time under pressure", pressure.some_total_us),
        ("time under full pressure", pressure.full_total_us),
    ]
}
