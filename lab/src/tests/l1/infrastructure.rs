//! Tests of the lab itself, whose results every other test takes for granted.

use std::fs::File;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use terrace_lab_programs::pages::total;

use crate::control::lab::Lab;
use crate::host;
use crate::tests::test::{Boot, Needs, Test};

const SHORT: Duration = Duration::from_secs(60);

const VM: &str = "vm1";
const FAST: i32 = 0;
const SLOW: i32 = 1;

pub const TESTS: &[Test] = &[
    Test {
        name: "l2_starts_wholly_in_slow_memory",
        needs: Needs::Nothing,
        boot: Boot::L1(l2_starts_wholly_in_slow_memory),
    },
    Test {
        name: "guest_checksums_survive_move_pages",
        needs: Needs::Nothing,
        boot: Boot::L1(guest_checksums_survive_move_pages),
    },
    Test {
        name: "hot_set_moves_on_request",
        needs: Needs::Nothing,
        boot: Boot::L1(hot_set_moves_on_request),
    },
    Test {
        name: "pushed_program_arrives_intact",
        needs: Needs::Nothing,
        boot: Boot::L1(pushed_program_arrives_intact),
    },
    Test {
        name: "endless_command_is_killed_and_the_lab_goes_on",
        needs: Needs::Nothing,
        boot: Boot::L1(endless_command_is_killed_and_the_lab_goes_on),
    },
];

fn l2_starts_wholly_in_slow_memory(lab: &mut Lab) -> Result<()> {
    let hot = lab.hot_pages(VM)?;
    let placement = lab.placement(VM, &hot)?;
    ensure!(total(&hot) > 1000, "only {} pages are hot", total(&hot));
    ensure!(
        placement.on(SLOW) * 100 >= total(&hot) * 99,
        "the hot pages are not on node {SLOW}: {placement:?}"
    );
    let all = lab.residents(VM)?;
    ensure!(
        all.on(SLOW) * 100 >= all.total() * 99,
        "the guest's RAM is not on node {SLOW}: {all:?}"
    );
    Ok(())
}

fn guest_checksums_survive_move_pages(lab: &mut Lab) -> Result<()> {
    let hot = lab.hot_pages(VM)?;
    lab.move_pages(VM, &hot, FAST)?;
    let placement = lab.placement(VM, &hot)?;
    println!(
        "hot pages on fast: {} of {}",
        placement.on(FAST),
        total(&hot)
    );
    ensure!(placement.on(FAST) == total(&hot), "{placement:?}");
    expect_intact(lab)
}

fn hot_set_moves_on_request(lab: &mut Lab) -> Result<()> {
    let before = lab.hot_pages(VM)?;
    let stats = lab.guest("move 99")?;
    ensure!(stats["seed"] == 99, "{stats}");
    let after = lab.hot_pages(VM)?;
    ensure!(before != after, "the hot set is still the same");
    ensure!(total(&before) == total(&after), "its size has changed");
    let old: Vec<u64> = before.iter().flat_map(|range| range.frames()).collect();
    let both = after
        .iter()
        .flat_map(|range| range.frames())
        .filter(|frame| old.binary_search(frame).is_ok())
        .count();
    // A tenth of a tenth is hot in both by chance.
    ensure!(
        both * 5 < old.len(),
        "{both} of {} pages stayed hot",
        old.len()
    );
    expect_intact(lab)
}

fn pushed_program_arrives_intact(lab: &mut Lab) -> Result<()> {
    // This very program, also if cargo has replaced the file meanwhile.
    let program = std::path::Path::new("/proc/self/exe").to_owned();
    lab.push(&program, "/tmp/folder/program")?;
    let there = lab.check("sha256sum </tmp/folder/program && test -x /tmp/folder/program")?;
    let here = host::output(Command::new("sha256sum").stdin(File::open(&program)?))?;
    ensure!(here == there, "the sums differ: {here} here, {there} there");
    Ok(())
}

fn endless_command_is_killed_and_the_lab_goes_on(lab: &mut Lab) -> Result<()> {
    let mut lines = Vec::new();
    let endless = lab.stream(
        "echo started; sleep 1000 & wait",
        Duration::from_secs(2),
        |line| lines.push(line.to_owned()),
    );
    ensure!(
        endless.is_err() && lines == ["started"],
        "{endless:?} {lines:?}"
    );
    let output = lab.run("pidof sleep; echo out; echo err >&2; exit 3", SHORT)?;
    ensure!(
        (output.stdout.as_str(), output.stderr.as_str(), output.exit) == ("out\n", "err\n", 3),
        "{output:?}"
    );
    Ok(())
}

fn expect_intact(lab: &mut Lab) -> Result<()> {
    let verified = lab.guest("verify")?;
    ensure!(
        verified["bad"] == 0 && verified["errors"] == 0,
        "the guest's memory is damaged: {verified}"
    );
    Ok(())
}
