//! Coordinated mode: the host counts a nested guest's accesses and names pages, the guest's agent moves them between the
//! guest's nodes, each of which lies on a node of L1.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use terrace_lab_programs::vm::{VmSpec, events_path};

use super::agent_nested::{GUEST, on_fast, push_agent, start_scattered, two_nodes};
use crate::control::daemon::{HotOnFast, Setup, VM};
use crate::control::lab::Lab;
use crate::tests::test::{Boot, Needs, Test};

const PATIENCE: Duration = Duration::from_secs(400);
/// Hot pages that are to be in fast memory, percent.
const PLACED: u64 = 95;

pub const TESTS: &[Test] = &[Test {
    name: "the_guest_moves_what_the_host_names",
    needs: Needs::Product,
    boot: Boot::L1(the_guest_moves_what_the_host_names),
}];

pub const LONG_TESTS: &[Test] = &[Test {
    name: "a_guest_with_huge_pages_moves_what_the_host_names",
    needs: Needs::Product,
    boot: Boot::L1(a_guest_with_huge_pages_moves_what_the_host_names),
}];

const COORDINATED: Setup = Setup {
    defaults: "",
    sections: "[vm.tiered]\nmode = \"coordinated\"\nscan = true\n\
               [log]\nfile = \"/run/terrace/coordinated.trlog\"\nlimit = \"64MiB\"\nrecord = \"full\"",
    ..Setup::DEFAULT
};

fn the_guest_moves_what_the_host_names(lab: &mut Lab) -> Result<()> {
    start_scattered(lab)?;
    let before = on_fast(lab)?;
    ensure!(
        before.fast == 0 && before.hot > 1000,
        "the hot set does not start in slow memory: {before}"
    );
    lab.guest_of(GUEST, "agent start")?;
    lab.configure(COORDINATED)?;
    lab.launch_daemon()?;
    expect_in_force(lab, "both: the host counts")?;
    expect_placed(lab)?;
    lab.guest_of(GUEST, "move 5")?;
    expect_placed(lab)?;
    lab.expect_intact(GUEST)?;
    let vm = lab.vm(GUEST)?.context("the daemon forgot the guest")?;
    println!("{}", lab.check(&format!("terrace show {GUEST}"))?);
    ensure!(
        vm["promoted_pages"].as_u64() > Some(before.hot / 2),
        "not by the host's words: {vm}"
    );
    lab.guest_of(GUEST, "agent kill")?;
    expect_in_force(lab, "the host by itself: ")?;
    lab.guest_of(GUEST, "agent start")?;
    expect_in_force(lab, "both: the host counts")?;
    expect_never_stopped(lab)?;
    lab.expect_intact(GUEST)?;
    // What was decided follows from what was heard, to the byte.
    lab.end_daemon()?;
    let replayed = lab.check("terrace sim replay /run/terrace/coordinated.trlog")?;
    println!("{replayed}");
    ensure!(replayed.contains("All actions are equal"), "{replayed}");
    Ok(())
}

/// 512 frames of one page of the guest's are named, and counted: an honest guest is not taken for one that is silent.
fn a_guest_with_huge_pages_moves_what_the_host_names(lab: &mut Lab) -> Result<()> {
    lab.end_vm(VM)?;
    push_agent(lab)?;
    lab.start_vm(&VmSpec {
        thp: true,
        ..two_nodes(true)
    })?;
    let before = on_fast(lab)?;
    ensure!(before.fast == 0, "not in slow memory: {before}");
    lab.configure(COORDINATED)?;
    lab.launch_daemon()?;
    lab.guest_of(GUEST, "agent start")?;
    expect_in_force(lab, "both: the host counts")?;
    for seed in [5, 6, 7] {
        expect_placed(lab)?;
        lab.guest_of(GUEST, &format!("move {seed}"))?;
    }
    expect_placed(lab)?;
    expect_in_force(lab, "both: the host counts")?;
    let events = lab.check("terrace events")?;
    println!("{events}");
    ensure!(
        !events.contains("does not say what became") && !events.contains("as before"),
        "an honest guest is doubted"
    );
    lab.expect_intact(GUEST)
}

/// Expects the machine to have run all the time, by its monitor's events.
pub fn expect_never_stopped(lab: &mut Lab) -> Result<()> {
    let said = lab.check(&format!("cat {}", events_path(GUEST)))?;
    ensure!(
        said.contains("\"return\"") && !said.contains("\"STOP\""),
        "the machine was stopped, or its monitor said nothing: {said}"
    );
    Ok(())
}

pub fn expect_in_force(lab: &mut Lab, wanted: &str) -> Result<()> {
    let agent = lab.wait_until(wanted, PATIENCE, |lab| {
        let vm = lab.vm(GUEST)?.map(|mut vm| vm["agent"].take());
        let is_it = |agent: &Value| {
            agent["in_force"]
                .as_str()
                .is_some_and(|is| is.starts_with(wanted))
        };
        Ok(vm.filter(is_it))
    })?;
    println!("in force: {}", agent["in_force"]);
    Ok(())
}

fn expect_placed(lab: &mut Lab) -> Result<()> {
    let mut last: Option<HotOnFast> = None;
    let now = lab.wait_until("the hot set is in fast memory", PATIENCE, |lab| {
        let now = on_fast(lab)?;
        if last.as_ref().is_none_or(|last| last.fast != now.fast) {
            println!("{now}");
            last = Some(now);
        }
        std::thread::sleep(Duration::from_millis(500));
        let now = on_fast(lab)?;
        Ok((now.fast * 100 >= now.hot * PLACED).then_some(now))
    });
    if now.is_err() {
        println!("{}", lab.check("terrace events | tail -n 30")?);
        println!("{}", lab.check(&format!("terrace show {GUEST}"))?);
        println!("{}", lab.guest_of(GUEST, "agent log")?);
        println!("{}", lab.guest_of(GUEST, "agent status")?);
    }
    println!("{}", now?);
    Ok(())
}
