//! A VM whose RAM the host backs with huge pages: ranked and moved as 2 MiB.

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use terrace_lab_programs::vm::{VmSpec, truth_port};

use crate::control::daemon::Setup;
use crate::control::lab::Lab;
use crate::tests::test::{Boot, Needs, Test};

const HUGE: &str = "huge";

pub const TESTS: &[Test] = &[Test {
    name: "huge_pages_of_the_host_are_ranked_and_moved_whole",
    needs: Needs::Product,
    boot: Boot::L1(huge_pages_of_the_host_are_ranked_and_moved_whole),
}];

fn huge_pages_of_the_host_are_ranked_and_moved_whole(lab: &mut Lab) -> Result<()> {
    lab.start_vm(&VmSpec {
        name: HUGE.to_owned(),
        truth_port: truth_port(2),
        host_thp: true,
        clustered: true,
        ..VmSpec::default()
    })?;
    let before = huge_mib(lab)?;
    ensure!(
        before > 300,
        "only {before} MiB of the guest's RAM are huge pages"
    );
    lab.start_daemon(Setup {
        defaults: "ceiling = { fast = \"32MiB\" }",
        ..Setup::DEFAULT
    })?;
    lab.wait_until_managed(HUGE)?;
    let shown: Value = serde_json::from_str(&lab.check(&format!("terrace show {HUGE} --json"))?)
        .context("terrace show --json")?;
    ensure!(
        shown["unit_bytes"] == 2 << 20,
        "ranked by units of {} bytes: {}",
        shown["unit_bytes"],
        shown["unit_reason"]
    );
    println!("ranked as 2 MiB: {}", shown["unit_reason"]);
    ensure!(
        lab.converges(HUGE)?,
        "the hot set is not in fast memory after many rounds"
    );
    lab.guest_of(HUGE, "move 99")?;
    ensure!(
        lab.converges(HUGE)?,
        "the moved hot set is not in fast memory after many rounds"
    );
    let after = huge_mib(lab)?;
    println!("huge pages before {before} MiB, after {after} MiB");
    ensure!(after == before, "moving split huge pages");
    lab.expect_intact(HUGE)
}

/// RAM of the guest that the host maps by huge pages, MiB.
fn huge_mib(lab: &mut Lab) -> Result<u64> {
    let kib = lab.check(&format!(
        "awk '/ShmemPmdMapped/ {{sum += $2}} END {{print sum}}' /proc/$(cat /run/lab/{HUGE}.pid)/smaps"
    ))?;
    Ok(kib.trim().parse::<u64>().context("ShmemPmdMapped")? >> 10)
}
