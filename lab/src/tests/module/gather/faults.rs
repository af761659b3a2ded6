//! What may go wrong while hot pages are gathered: nothing is lost, and what was not done is said.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::{
    BLOCKS, EACH, FILE, LIST, expect_gathered, expect_on_node, finish, list, on_node_1, sparse,
    start, undo,
};
use crate::control::lab::{Lab, Output};
use crate::tests::test::Test;

/// Longest time of a command.
const PATIENCE: Duration = Duration::from_secs(120);
/// Processes that come and go.
const SHORT_LIVED: u32 = 12;
const POOL: &str = "/sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages";

pub const TESTS: &[Test] = &[
    Test::on_guest("gathering_without_a_free_block_says_so", full),
    Test::on_guest("processes_exit_and_fork_while_pages_are_gathered", exits),
    Test::on_guest("a_cpuset_without_the_node_keeps_its_pages", cpuset),
    Test::on_guest("gathering_goes_on_after_a_kill", killed),
];

fn gather(guest: &mut Lab, options: &str) -> Result<Output> {
    guest.run(
        &format!("terrace-agent gather --config {FILE} --pages {LIST} {options}"),
        PATIENCE,
    )
}

/// The node is full and the pool gets nothing: an error, and no page moves. With room for a few blocks only as many
/// pages move as fit.
fn full() -> Result<()> {
    let mut guest = start()?;
    list(&mut guest)?;
    guest.check("swapoff -a; echo 100000 >/proc/sys/vm/percpu_pagelist_high_fraction")?;
    guest.fill_node(1, 0)?;
    let said = gather(&mut guest, "--once")?;
    ensure!(
        said.exit != 0 && said.stderr.contains("node 1 has no free block of 2 MiB"),
        "{said:?}"
    );
    ensure!(on_node_1(&mut guest)? == 0, "{said:?}");
    finish(&mut guest)
}

/// Programs start, fork and end while rounds are made of lists that name them.
fn exits() -> Result<()> {
    let mut guest = start()?;
    list(&mut guest)?;
    guest.check(&format!(
        "terrace-agent gather --config {FILE} --pages {LIST} --json </dev/null >/run/rounds 2>&1 & echo $! >/run/pid"
    ))?;
    guest.ask(&sparse().name, "churn 1")?;
    for number in 0..SHORT_LIVED {
        // Its pages are named while it ends.
        guest.check(&format!(
            "sh -c 'x=$(head -c 200000 /dev/zero | tr \"\\0\" x); for i in 1 2 3 4 5 6 7 8; do (:); done' & p=$!; \
             for a in $(sed -n \"s/^\\([0-9a-f]*\\)-.* rw-p .*/0x\\1/p\" /proc/$p/maps 2>/dev/null); do echo $p $a; done \
             >>{LIST}; echo {number}"
        ))?;
    }
    guest.ask(&sparse().name, "churn 0")?;
    guest.wait_until("three rounds were made", PATIENCE, |guest| {
        let rounds = guest.check("grep -c moved_pages /run/rounds || true")?;
        Ok((rounds.trim().parse::<u32>()? >= 3).then_some(()))
    })?;
    print!("{}", guest.check("tail -n 3 /run/rounds")?);
    guest.check(
        "kill $(cat /run/pid); while kill -0 $(cat /run/pid) 2>/dev/null; do sleep 0.1; done",
    )?;
    expect_on_node(&mut guest)?;
    finish(&mut guest)
}

/// The kernel refuses pages of a process whose cpuset lacks the node; that is said, and the pages stay.
fn cpuset() -> Result<()> {
    let mut guest = start()?;
    list(&mut guest)?;
    guest.check(&format!(
        "mkdir -p /run/cgroup && mount -t cgroup2 none /run/cgroup && cd /run/cgroup && echo +cpuset >cgroup.subtree_control && \
         mkdir kept && echo 0 >kept/cpuset.mems && head -n 1 {LIST} | cut -d ' ' -f 1 >kept/cgroup.procs"
    ))?;
    let said = gather(&mut guest, "--once --json")?;
    println!("{}", said.stdout);
    ensure!(
        said.exit == 0 && said.stdout.contains("move_pages on process"),
        "{said:?}"
    );
    ensure!(on_node_1(&mut guest)? == 0, "{said:?}");
    finish(&mut guest)
}

/// A killed agent leaves its pool; the next one goes on with it, and undoes all.
fn killed() -> Result<()> {
    let mut guest = start()?;
    list(&mut guest)?;
    guest.check(&format!(
        "terrace-agent gather --once --config {FILE} --pages {LIST} </dev/null >/run/rounds 2>&1 & p=$!; \
         while [ $(cat {POOL}) = 0 ]; do :; done; kill -9 $p; wait $p || true"
    ))?;
    let pool: u64 = guest.check(&format!("cat {POOL}"))?.trim().parse()?;
    let on_node = on_node_1(&mut guest)?;
    println!("killed: {pool} blocks in the pool, {on_node} pages on the node");
    ensure!(pool > 0, "killed too late");
    if on_node == 0 {
        expect_gathered(&mut guest, "after a kill", &format!("--pages {LIST}"))?;
    } else {
        gather(&mut guest, "--once")?;
        ensure!(
            on_node_1(&mut guest)? * 100 >= BLOCKS * EACH * 95,
            "of {}",
            BLOCKS * EACH
        );
    }
    undo(&mut guest)?;
    finish(&mut guest)
}
