//! VMs whose memory an agent in the guest manages: which side is in force, and the thread that reads the agents'
//! messages.
//!
//! While the agent is trusted, the VM is not known to the engine at all: it has no worker, no tracker and no threads,
//! so nothing here can read its memory. When the agent is silent or lies, the discoverer is asked to make the VM
//! ready as if there were no agent; when it is trusted again, all of that is ended first. The actions themselves are
//! left to `daemon`.

mod links;

use terrace_host::agent::Verdict;

pub use links::Agents;

use crate::registry::InForce;

/// The consequence of a verdict on an agent that is to manage its VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// The host takes over, or neither side does, for this reason.
    FallBack(String),
    /// The reason for the fallback changed, as from silence to a lie.
    Reword(String),
    /// The agent begins to manage the VM.
    Begin,
    /// The host ends all that it does for the VM.
    GiveBack,
    /// The host's work has ended, and the agent continues.
    GoOn,
}

/// The next step, if the verdict requires one.
pub fn next(in_force: &InForce, verdict: Verdict) -> Option<Step> {
    match (in_force, verdict) {
        (InForce::Waiting | InForce::Guest | InForce::Returning(_), Verdict::Fallback(why)) => {
            Some(Step::FallBack(why))
        }
        (InForce::Fallback(before), Verdict::Fallback(why)) if *before != why => {
            Some(Step::Reword(why))
        }
        (InForce::Waiting, Verdict::Trusted) => Some(Step::Begin),
        (InForce::Fallback(_), Verdict::Trusted) => Some(Step::GiveBack),
        (InForce::Returning(threads), Verdict::Trusted) if threads.strong_count() == 0 => {
            Some(Step::GoOn)
        }
        _ => None,
    }
}

/// News for people about an agent beside which the host manages the VM anyway (coordinated mode).
pub fn news_beside_host(before: Option<Verdict>, now: Verdict) -> Option<String> {
    match (before, now) {
        (Some(Verdict::Trusted), Verdict::Trusted) => None,
        (Some(Verdict::Fallback(_)), Verdict::Fallback(_)) | (_, Verdict::Waiting) => None,
        (_, Verdict::Trusted) => Some(
            "its agent answers; the engine has no coordinated policy yet, so the host continues alone".to_owned(),
        ),
        (_, Verdict::Fallback(why)) => Some(format!("{why}; the host continues alone")),
    }
}
