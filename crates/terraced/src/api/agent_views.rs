//! A guest's agent in the API's types, and its findings for `doctor`.

use terrace_api::types as api;
use terrace_host::Finding;
use terrace_host::agent::AgentState;
use terrace_proto::agent::Report;

use crate::agent_mode::instead_of_guest;
use crate::registry::{Agent, Entry, Gathers, InForce};
use terrace_config::{Fallback, VmMode};

/// The API's view of an agent.
pub fn agent(agent: &Agent, moves: bool) -> api::Agent {
    let view = agent.view.as_ref();
    let mut in_force = in_force(agent);
    if agent.mode == VmMode::Coordinated && !moves {
        in_force += "; no page is moved (moves = false)";
    }
    api::Agent {
        mode: agent.mode.name().into(),
        in_force,
        fallback: agent.fallback().map(str::to_owned),
        state: view.map_or("not heard yet".into(), |v| v.state.to_string()),
        version: view.and_then(|v| v.program.clone()),
        socket: agent.socket.display().to_string(),
        heartbeats: view.map_or(0, |v| v.heartbeats),
        report: last(agent).map(report),
        gather: agent.gathers.and_then(Gathers::last),
    }
}

fn last(agent: &Agent) -> Option<&Report> {
    let heartbeat = agent.view.as_ref()?.heartbeat.as_ref()?;
    Some(heartbeat.report())
}

fn in_force(agent: &Agent) -> String {
    match &agent.in_force {
        InForce::Waiting => "nothing yet: the agent has not answered".into(),
        InForce::Guest => "the agent in the guest; the host neither scans nor moves".into(),
        InForce::Fallback(_) => agent.fallback_text().into(),
        InForce::Returning(_) => "the agent, as soon as the host's threads have ended".into(),
        InForce::Host if agent.mode == VmMode::Host => {
            "the host; it names hot pages to the guest, which gathers them".into()
        }
        InForce::Host => match &agent.moves {
            Ok(()) => "both: the host counts accesses and names pages, the agent moves them".into(),
            Err(why) if agent.fallback == Fallback::Observe => {
                format!("nobody, as the host only observes: {why}")
            }
            Err(why) => format!("the host by itself: {why}"),
        },
    }
}

fn report(r: &Report) -> api::AgentReport {
    api::AgentReport {
        mode: r.mode.to_string(),
        paused: r.paused,
        mechanism: r.mechanism.clone(),
        nodes: r.nodes.clone(),
        pressure_some_avg10_hundredths: r.pressure.map(|p| p.some_avg10_hundredths),
        pressure_full_avg10_hundredths: r.pressure.map(|p| p.full_avg10_hundredths),
        major_faults: r.faults.major,
        swap_in_pages: r.faults.swap_in_pages,
        swap_out_pages: r.faults.swap_out_pages,
        cost: r.cost,
        budget_bytes_per_s: r.budgets.bytes_per_s(),
        budget_cpu_percent: r.budgets.cpu_percent(),
        activity: r.activity,
    }
}

/// Mode and reason of a VM that the engine does not know.
pub fn mode(entry: &Entry) -> (api::Mode, String) {
    let Some(agent) = &entry.agent else {
        return (api::Mode::Ignored, entry.reason.clone());
    };
    match &agent.in_force {
        InForce::Guest | InForce::Waiting if agent.paused => {
            (api::Mode::Paused, "an operator paused its agent".into())
        }
        InForce::Fallback(why) if agent.scan => {
            let mode = api::Mode::Ignored;
            (mode, format!("{why}; it is being made ready for the host"))
        }
        InForce::Fallback(why) => {
            let text = agent.fallback_text();
            (api::Mode::Ignored, format!("{why}; {text}"))
        }
        _ => (api::Mode::Guest, in_force(agent)),
    }
}

/// The mechanism of each stage of a VM that its agent manages, by the agent's own word.
pub fn stages(agent: &Agent) -> Vec<api::Stage> {
    let Some(r) = last(agent).filter(|_| matches!(agent.in_force, InForce::Guest)) else {
        return Vec::new();
    };
    let in_guest = |what: &str| match what {
        "" => "nothing (in the guest)".to_owned(),
        what => format!("{what} (in the guest)"),
    };
    let m = &r.mechanism;
    let stage = |stage: &str, mechanism: String| api::Stage {
        stage: stage.into(),
        mechanism,
    };
    vec![
        stage("observe", in_guest(m.sampler.as_str())),
        stage("estimate", in_guest(m.policy.as_str())),
        stage("share", "the sizes of the guest's nodes".into()),
        stage("place", in_guest(m.policy.as_str())),
        stage("move", in_guest(m.mover.as_str())),
    ]
}

/// The findings about an agent, for `doctor`.
pub fn findings(agent: &Agent) -> Vec<Finding> {
    let state = agent.view.as_ref().map(|v| &v.state);
    let said = state.map_or("not heard yet".to_owned(), AgentState::to_string);
    let by = in_force(agent);
    let mut found = vec![match (&agent.in_force, state) {
        (InForce::Fallback(why), _) => {
            Finding::missing("agent", format!("{why}; {by}"), advice(agent, state))
        }
        (InForce::Guest | InForce::Host, Some(AgentState::Speaking)) => {
            Finding::ok("agent", format!("{said}; manages it: {by}"))
        }
        _ => Finding::degraded(
            "agent",
            format!("{said}; manages it: {by}"),
            advice(agent, state),
        ),
    }];
    if agent.mode == VmMode::Coordinated {
        found.push(match &agent.moves {
            Ok(()) => Finding::ok("coordinated", "its guest moves the pages that the host names"),
            Err(why) => Finding::degraded(
                "coordinated",
                format!("its guest does not move pages, so {}: {why}", instead_of_guest(agent.fallback)),
                "an agent in the guest, and a node for each tier (docs/coordinated.md); mode = \"host\" needs no agent",
            ),
        });
    }
    found.extend(agent.gathers.map(gathering));
    let nodes = last(agent).map(|r| r.nodes.len());
    // A guest that only gathers needs no tiers.
    if let Some(nodes) = nodes.filter(|n| *n < 2 && agent.mode != VmMode::Host) {
        found.push(Finding::degraded(
            "guest-nodes",
            format!(
                "the guest sees {nodes} memory node: its agent has no second node to move pages to"
            ),
            "start the VM with a NUMA node per tier, or use mode = \"host\"",
        ));
    }
    found
}

/// The finding about hot pages that are named to a guest.
fn gathering(gathers: Gathers) -> Finding {
    match gathers.last() {
        Some(named) => Finding::ok(
            "gather",
            format!(
                "round {} named {} of {} hot pages, in {} blocks of 2 MiB",
                named.round, named.named_pages, named.hot_pages, named.hot_blocks
            ),
        ),
        None => Finding::degraded(
            "gather",
            "no hot page was named to its guest yet: no round ended while its agent was believed, or its pages are not seen one by one",
            "wait for a round (engine.period_ms) and start terrace-agent in the guest, with [gather] heat = \"host\"; under DAMON no page is \
             seen by itself (tracker = \"page-tables\")",
        ),
    }
}

fn advice(agent: &Agent, state: Option<&AgentState>) -> String {
    match state {
        Some(AgentState::Lying(_)) => {
            "inspect the guest; `terrace resume VM` makes the host accept its agent again".into()
        }
        Some(AgentState::Refused(_)) => "install the same version in guest and host".into(),
        Some(AgentState::Absent(_)) | None => format!(
            "start the VM with -chardev socket,id=terrace,path={},server=on,wait=off -device \
             virtio-serial-pci -device virtserialport,chardev=terrace,name=org.terrace.agent.0",
            agent.socket.display()
        ),
        _ => "start terrace-agent in the guest".into(),
    }
}
