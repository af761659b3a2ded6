//! VMs whose memory an agent in the guest manages: which side is in force, and the thread that reads the agents'
//! messages.
//!
//! While the agent is trusted, the VM is not known to the engine at all: it has no worker, no tracker and no threads,
//! so nothing here can read its memory. When the agent is silent or lies, the discoverer is asked to make the VM
//! ready as if there were no agent; when it is trusted again, all of that is ended first. The actions themselves are
//! left to `daemon`.

mod links;

use terrace_config::Fallback;
use terrace_host::agent::{AgentState, AgentView, Verdict};
use terrace_proto::agent::Pressure;
use terrace_proto::{AgentMemory, GuestNode, PAGE_SIZE, ProviderId};

pub use links::Agents;
pub use terrace_core::naming::{Counted, NamedPlans};

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

/// An agent's counters of the frames that were named to it.
pub fn counted(view: &AgentView) -> Counted {
    let beat = view.heartbeat.as_ref();
    beat.map_or(Counted::default(), |beat| Counted {
        taken: beat.report().frames_taken,
        refused: beat.report().frames_refused,
    })
}

/// Bytes of a guest's nodes in each of so many tiers.
pub fn bytes_by_tier(nodes: &[GuestNode], tiers: usize) -> Vec<u64> {
    let mut bytes = vec![0_u64; tiers];
    for node in nodes {
        if let Some(tier) = bytes.get_mut(node.tier.index()) {
            *tier = tier.saturating_add(node.pages.saturating_mul(PAGE_SIZE));
        }
    }
    bytes
}

/// Free memory of a guest's nodes in each tier, bytes, by its agent's word. `tiers`: bytes of its nodes as QEMU has them, or why they
/// are not tiers.
///
/// # Errors
/// If its guest cannot move pages between tiers; the error is the reason.
pub fn guest_free(
    view: Option<&AgentView>,
    tiers: &Result<Vec<u64>, String>,
) -> Result<Vec<u64>, String> {
    // QEMU has to be started anew for these, so they come first.
    let bytes = tiers.as_ref().map_err(Clone::clone)?;
    let view = view.ok_or("its agent was not heard yet")?;
    if view.verdict != Verdict::Trusted {
        return Err("its agent is not heard".to_owned());
    }
    let report = view.heartbeat.as_ref().map(|beat| beat.report());
    let nodes = report.map_or(&[][..], |report| report.nodes.as_slice());
    let (mut free, mut all) = (vec![0_u64; bytes.len()], vec![0_u64; bytes.len()]);
    for node in nodes {
        let at = node.tier.index();
        let (Some(free), Some(all)) = (free.get_mut(at), all.get_mut(at)) else {
            return Err(format!(
                "its guest has a tier {} and the host none",
                node.tier.0
            ));
        };
        *free = free.saturating_add(node.free_bytes);
        *all = all.saturating_add(node.total_bytes);
    }
    for (tier, (said, is)) in all.iter().zip(bytes).enumerate() {
        if *said == 0 {
            return Err(format!(
                "its guest has no node in tier {tier} (a node for each tier: docs/agent.md)"
            ));
        }
        if *said > is.saturating_add(is / 16) {
            return Err(format!(
                "its guest has {} MiB in tier {tier}, and QEMU {} MiB: the guest's tiers are not the host's ([[tier]] in agent.toml)",
                said >> 20,
                is >> 20
            ));
        }
    }
    Ok(free)
}

/// News for people about an agent to which hot pages are named, and nothing else, or not.
pub fn news_of_gathering(before: Option<Verdict>, now: Verdict) -> Option<String> {
    match (before, now) {
        (Some(Verdict::Trusted), Verdict::Trusted) => None,
        (Some(Verdict::Fallback(_)), Verdict::Fallback(_)) | (_, Verdict::Waiting) => None,
        (_, Verdict::Trusted) => {
            Some("its agent answers: hot pages are named to it, which the guest gathers".to_owned())
        }
        (_, Verdict::Fallback(why)) => Some(format!("{why}; no hot pages are named to it")),
    }
}

/// The host's part in coordinated mode while the guest does not move pages, in words.
pub fn instead_of_guest(fallback: Fallback) -> &'static str {
    match fallback {
        Fallback::Host => "the host continues alone",
        Fallback::Observe => "the host watches it and moves nothing",
    }
}

/// News for people about an agent that moves what the host names (coordinated mode), or does not.
pub fn news_beside_host(
    before: Option<Verdict>,
    now: Verdict,
    fallback: Fallback,
) -> Option<String> {
    match (before, now) {
        (Some(Verdict::Trusted), Verdict::Trusted) => None,
        (Some(Verdict::Fallback(_)), Verdict::Fallback(_)) | (_, Verdict::Waiting) => None,
        (_, Verdict::Trusted) => Some(
            "its agent answers: the host counts accesses, the guest moves what the host names"
                .to_owned(),
        ),
        (_, Verdict::Fallback(why)) => Some(format!("{why}; {}", instead_of_guest(fallback))),
    }
}

#[cfg(test)]
mod tests {
    use terrace_host::agent::Lie;
    use terrace_proto::agent::{Heartbeat, NodeMemory, Report, SwapSpace};
    use terrace_proto::{Tick, TierId};

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

    fn with_nodes(nodes: &[(u8, u64, u64)]) -> AgentView {
        let nodes = (0..)
            .zip(nodes)
            .map(|(node, (tier, total, free))| NodeMemory {
                node,
                tier: TierId(*tier),
                total_bytes: *total,
                free_bytes: *free,
            });
        let report = Report {
            nodes: nodes.collect(),
            ..Report::default()
        };
        AgentView {
            state: AgentState::Speaking,
            verdict: Verdict::Trusted,
            program: None,
            heartbeat: Heartbeat::new(1, Tick(1), report).ok(),
            heartbeats: 1,
            unknown: 0,
            garbage_bytes: 0,
        }
    }

    #[test]
    fn a_guest_whose_nodes_are_the_hosts_tiers_says_what_is_free() {
        let tiers = Ok(vec![100, 400]);
        let view = with_nodes(&[(0, 60, 5), (1, 380, 70), (0, 30, 2)]);
        assert_eq!(guest_free(Some(&view), &tiers), Ok(vec![7, 70]));
    }

    #[test]
    fn a_guest_with_one_node_or_reversed_tiers_is_refused() {
        let tiers = Ok(vec![100, 400]);
        for (nodes, said) in [
            (&[(0, 90, 5)][..], "no node in tier 1"),
            (&[], "no node in tier 0"),
            (
                &[(1, 90, 5), (0, 380, 9)],
                "the guest's tiers are not the host's",
            ),
            (
                &[(0, 90, 5), (1, 300, 5), (2, 9, 9)],
                "a tier 2 and the host none",
            ),
        ] {
            let why = guest_free(Some(&with_nodes(nodes)), &tiers).unwrap_err();
            assert!(why.contains(said), "{why}");
        }
        let view = with_nodes(&[(0, 90, 5), (1, 380, 9)]);
        let mixed = Err("its nodes lie anywhere".to_owned());
        assert_eq!(
            guest_free(Some(&view), &mixed),
            Err("its nodes lie anywhere".to_owned())
        );
        let silent = AgentView {
            verdict: Verdict::Fallback("silent".to_owned()),
            ..view
        };
        assert!(guest_free(Some(&silent), &tiers).is_err() && guest_free(None, &tiers).is_err());
    }
}
