//! Workloads of L1 itself, which the tests of the agent take for granted.

use anyhow::{Context, Result, ensure};
use terrace_lab_programs::native::{HotSet, Load};

use crate::control::daemon::FAST;
use crate::control::lab::Lab;
use crate::tests::test::{Boot, Needs, Test};

const SLOW: u32 = 1;

pub const TESTS: &[Test] = &[Test {
    name: "programs_of_l1_start_in_slow_memory_and_survive_move_pages",
    needs: Needs::Nothing,
    boot: Boot::L1(programs_of_l1_start_in_slow_memory_and_survive_move_pages),
}];

fn programs_of_l1_start_in_slow_memory_and_survive_move_pages(lab: &mut Lab) -> Result<()> {
    lab.become_a_guest()?;
    let specs = [
        HotSet::default(),
        HotSet {
            name: "heap".to_owned(),
            region_mib: 64,
            hot_mib: 8,
            heap: true,
            ..HotSet::default()
        },
        HotSet {
            name: "huge".to_owned(),
            region_mib: 64,
            hot_mib: 8,
            thp: true,
            ..HotSet::default()
        },
    ];
    for spec in &specs {
        lab.start_hot_set(spec)?;
        expect_it_moves(lab, &spec.name)?;
        lab.end_workload(&spec.name)?;
    }
    let load = Load::default();
    lab.start_redis(&load, SLOW)?;
    expect_it_moves(lab, &load.name)?;
    let requests = lab.ask(&load.name, "stats")?["passes"]
        .as_u64()
        .context("the load counts no requests")?;
    println!("redis answered {requests} requests");
    Ok(())
}

/// Expects a workload's hot pages to start slow, to go where they are moved, and to lose nothing on the way.
fn expect_it_moves(lab: &mut Lab, name: &str) -> Result<()> {
    let before = lab.native_on_fast(name)?;
    ensure!(
        before.fast == 0 && before.hot > 500,
        "{name} does not start in slow memory: {before}"
    );
    lab.check(&format!("lab-native ask {name} idle"))?;
    lab.check(&format!(
        "lab-native ask {name} truth | lab-native move {FAST}"
    ))?;
    let after = lab.native_on_fast(name)?;
    println!("{name}: {after}");
    ensure!(after.fast == after.hot, "{name}: {after}");
    lab.check(&format!("lab-native ask {name} run"))?;
    lab.expect_native_intact(name)?;
    lab.check(&format!("lab-native ask {name} move 5"))?;
    let moved = lab.native_on_fast(name)?;
    ensure!(
        moved.fast * 2 < moved.hot,
        "{name}: another hot set is in fast memory already: {moved}"
    );
    lab.expect_native_intact(name)
}
