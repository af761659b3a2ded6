//! The guest agent in a nested guest with a node per tier, and the daemon of its host.

use anyhow::{Context, Result, ensure};
use terrace_lab::pages::Placement;
use terrace_lab::vm::{GUEST_FAST_NODE, VmSpec, truth_port};

use super::LabTest;
use crate::lab::Lab;
use crate::lab::agent::{AgentSetup, AgentStatus};
use crate::lab::daemon::{HotOnFast, VM};

const GUEST: &str = "tiered";

pub const TESTS: &[LabTest] = &[LabTest {
    name: "agent_of_a_nested_guest_places_its_pages_and_the_host_hears_of_it",
    needs_product: true,
    run: agent_of_a_nested_guest_places_its_pages_and_the_host_hears_of_it,
}];

fn agent_of_a_nested_guest_places_its_pages_and_the_host_hears_of_it(lab: &mut Lab) -> Result<()> {
    lab.end_vm(VM)?;
    lab.push_agent_files(AgentSetup {
        process: "lab-guest",
        fast: "40MiB",
        sections: "[host]\nchannel = true",
        ..AgentSetup::SEEDED
    })?;
    lab.start_vm(&VmSpec {
        name: GUEST.to_owned(),
        truth_port: truth_port(2),
        memory_mib: 448,
        fast_mib: 160,
        region_mib: 160,
        clustered: true,
        agent: true,
        ..VmSpec::default()
    })?;
    let before = on_fast(lab)?;
    println!("before: {before}");
    ensure!(before.fast == 0 && before.hot > 1000, "{before}");
    println!("{}", lab.guest_of(GUEST, "agent start")?);
    std::thread::sleep(std::time::Duration::from_secs(3));
    println!("{}", lab.guest_of(GUEST, "agent log")?);
    println!("{}", status(lab)?.cost()?);
    lab.expect_intact(GUEST)
}

/// Where the guest's hot pages are among its own nodes, by the word of its own kernel.
fn on_fast(lab: &mut Lab) -> Result<HotOnFast> {
    let placement: Placement = serde_json::from_value(lab.guest_of(GUEST, "placement")?)?;
    Ok(HotOnFast {
        fast: placement.on(GUEST_FAST_NODE),
        hot: placement.total(),
    })
}

fn status(lab: &mut Lab) -> Result<AgentStatus> {
    let answer = lab.guest_of(GUEST, "agent status")?;
    let status = answer.get("answer").filter(|status| status.is_object());
    let status = status.with_context(|| format!("the guest's agent: {answer}"))?;
    Ok(AgentStatus(status.clone()))
}
