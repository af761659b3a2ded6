//! VMs whose memory an agent in the guest manages: which side is in force, and the thread that reads the agents'
//! messages.
//!
//! While the agent is trusted, the VM is not known to the engine at all: it has no worker, no tracker and no threads,
//! so nothing here can read its memory. When the agent is silent or lies, the discoverer is asked to make the VM
//! ready as if there were no agent; when it is trusted again, all of that is ended first. The actions themselves are
//! left to `daemon`.

mod links;

use terrace_host::agent::{AgentState, AgentView, Verdict};
use terrace_proto::agent::Pressure;
use terrace_proto::{AgentMemory, ProviderId};

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

/// An agent's word on its guest's memory; `None` if it does not speak, or lied.
pub fn memory(view: &AgentView) -> Option<AgentMemory> {
    if view.state != AgentState::Speaking {
        return None;
    }
    let report = view.heartbeat.as_ref()?.report();
    let waited = |pressure: Pressure| pressure.some_total_us.saturating_mul(1000);
    Some(AgentMemory {
        provider: ProviderId::default(),
        used_swap_bytes: report.swap.map(|swap| swap.used_bytes),
        free_swap_bytes: report
            .swap
            .map(|swap| swap.total_bytes.saturating_sub(swap.used_bytes)),
        waited_ns: report.pressure.map(waited),
    })
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

#[cfg(test)]
mod tests {
    use terrace_host::agent::Lie;
    use terrace_proto::Tick;
    use terrace_proto::agent::{Heartbeat, Report, SwapSpace};

    use super::*;

    #[test]
    fn only_an_agent_that_speaks_and_did_not_lie_tells_of_memory() {
        let report = Report {
            pressure: Some(Pressure {
                some_total_us: 7,
                ..Pressure::default()
            }),
            swap: Some(SwapSpace {
                total_bytes: 9,
                used_bytes: 4,
            }),
            ..Report::default()
        };
        let mut view = AgentView {
            state: AgentState::Speaking,
            verdict: Verdict::Trusted,
            program: None,
            heartbeat: Heartbeat::new(1, Tick(1), report).ok(),
            heartbeats: 1,
            unknown: 0,
            garbage_bytes: 0,
        };
        let said = memory(&view).unwrap();
        assert_eq!(
            (said.used_swap_bytes, said.waited_ns),
            (Some(4), Some(7000))
        );
        for state in [
            AgentState::Silent(Tick(1)),
            AgentState::Lying(Lie::Malformed),
        ] {
            view.state = state;
            assert_eq!(memory(&view), None);
        }
    }
}
