//! The host's nodes from which a tier's memory comes once it went through a HyperFlex balloon.
//!
//! L1 is the host here: all its processors are on node 0, so that a page without a policy comes from there. The guest
//! is played by `lab-front`; L1's kernel reports where its pages are.

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use terrace_lab_programs::pages::Placement;

use crate::control::daemon::VM;
use crate::control::lab::Lab;
use crate::programs;
use crate::tests::test::{Boot, Needs, Test};

const MIB: u64 = 1 << 20;

/// Bytes of a tier, and the pages of the half of it that goes through the balloon.
const TIER_BYTES: u64 = 64 * MIB;
const GIVEN: u64 = TIER_BYTES / 4096 / 2;

pub const TESTS: &[Test] = &[Test {
    name: "refaulted_pages_land_on_the_tiers_host_node",
    needs: Needs::Nothing,
    boot: Boot::L1(refaulted_pages_land_on_the_tiers_host_node),
}];

/// The nodes of a tier's pages, as `lab-front` saw them.
#[derive(Debug, Deserialize)]
struct Tier {
    before: Placement,
    given: Placement,
    #[serde(rename = "kept")]
    retained: Placement,
}

#[derive(Deserialize)]
struct Seen {
    tiers: [Tier; 2],
}

fn refaulted_pages_land_on_the_tiers_host_node(lab: &mut Lab) -> Result<()> {
    lab.end_vm(VM)?;
    lab.check("echo 0 >/proc/sys/kernel/numa_balancing")?;
    let device = programs::build_hyperflex()?;
    lab.push(&device, "/bin/terrace-hyperflex")?;
    programs::build_lab()?;
    lab.push(&programs::program("lab-front")?, "/bin/lab-front")?;
    // Without a node, to see that the test could fail; then each tier on a node of its own, and the other way round.
    for host in [None, Some([0, 1]), Some([1, 0])] {
        let tiers = go_through_the_balloons(lab, host)?;
        for (index, tier) in tiers.iter().enumerate() {
            let wanted = host.map_or(0, |host| host[index]);
            println!("{host:?}, tier {index}: {tier:?}");
            ensure!(
                tier.given.on(wanted) == GIVEN,
                "of {GIVEN} pages of tier {index} that came back, {} are on node {wanted}",
                tier.given.on(wanted)
            );
            // Pages from before stay where they were.
            ensure!(tier.before.on(0) == 2 * GIVEN && tier.retained.on(0) == GIVEN);
        }
    }
    Ok(())
}

fn go_through_the_balloons(lab: &mut Lab, host: Option<[i32; 2]>) -> Result<[Tier; 2]> {
    let mut tiers = String::new();
    for node in 0..2 {
        tiers.push_str(&format!(" --tier node={node},size={TIER_BYTES}"));
        if let Some(host) = host {
            tiers.push_str(&format!(",host-node={}", host[node]));
        }
    }
    let answer = lab.check(&format!(
        "mkdir -p /run/flex && cd /run/flex && rm -f *
         setsid terrace-hyperflex --socket guest --control control --nobody-pins{tiers} </dev/null >log 2>&1 &
         cd /run/flex
         for i in $(seq 600); do [ -S guest ] && break; sleep 0.1; done
         lab-front guest {TIER_BYTES} {TIER_BYTES} 2>&1 || (cat log; exit 1)"
    ))?;
    let seen: Seen = serde_json::from_str(&answer).with_context(|| answer.clone())?;
    Ok(seen.tiers)
}
