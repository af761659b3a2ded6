//! Faults while hot pages are gathered: nothing is lost, and it is said if something was not done.

use std::time::Duration;

use anyhow::{Result, ensure};
use terrace_lab_programs::native::HotSet;

use super::{
    BLOCKS, FILE, LIST, configure, expect_gathered, expect_on_node, finish, list, on_node_1,
    sparse, start, start_with, undo,
};
use crate::control::lab::{Lab, Output};
use crate::machine::kernel::Kernel;
use crate::tests::test::Test;

/// Longest time of a command.
const PATIENCE: Duration = Duration::from_secs(120);
/// Processes that come and go.
const SHORT_LIVED: u32 = 12;
/// Hot pages of 2 MiB, if they are many: several batches.
const MANY: usize = 40;
/// A configuration by which few bytes are copied in a second.
const SLOW: &str = "/run/slow.toml";
/// Page cache that fills the guest, MiB.
const CACHED_MIB: u64 = 150;
const POOL: &str = "/sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages";

pub const TESTS: &[Test] = &[
    Test::on_guest("gathering_without_a_free_block_says_so", full),
    Test::on_guest("processes_exit_and_fork_while_pages_are_gathered", exits),
    Test::on_guest("a_cpuset_without_the_node_keeps_its_pages", cpuset),
    Test::on_guest("gathering_goes_on_after_a_kill", killed),
    Test::on_guest("gathering_is_undone_whatever_stands_in_the_way", undone),
    Test::on_guest("programs_may_use_the_huge_pages_of_gathering", huge_pages),
    Test::on_guest(
        "page_cache_does_not_take_the_place_of_hot_pages",
        page_cache,
    ),
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
         mkdir only && echo 0 >only/cpuset.mems && head -n 1 {LIST} | cut -d ' ' -f 1 >only/cgroup.procs"
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

/// NUMA balancing came on, the configuration names no node any more, and the node had huge pages of somebody else's: those
/// stay, and all the rest is as before.
fn undone() -> Result<()> {
    let mut guest = start()?;
    // A node that is named by mistake has its programs' pages, and keeps them.
    configure(&mut guest, "node = 0")?;
    let said = guest.check(&format!("terrace-agent gather --undo --config {FILE}"))?;
    ensure!(
        said.contains("nothing to undo") && on_node_1(&mut guest)? == 0,
        "{said}"
    );
    configure(&mut guest, "node = 1")?;
    guest.check(&format!("echo 2 >{POOL}; grep -qx 2 {POOL}"))?;
    list(&mut guest)?;
    expect_gathered(&mut guest, "beside huge pages", &format!("--pages {LIST}"))?;
    guest.check("echo 1 >/proc/sys/kernel/numa_balancing")?;
    configure(&mut guest, "")?;
    let said = guest.check(&format!("terrace-agent gather --undo --config {FILE}"))?;
    print!("{said}");
    ensure!(on_node_1(&mut guest)? == 0, "{said}");
    guest.check(&format!("grep -qx 2 {POOL}"))?;
    finish(&mut guest)
}

/// A program takes all blocks that are left: nothing more can be gathered, and no command waits for them.
fn huge_pages() -> Result<()> {
    let mut guest = start()?;
    list(&mut guest)?;
    expect_gathered(&mut guest, "before", &format!("--pages {LIST}"))?;
    guest.check(&format!(
        "mkdir -p /run/huge && mount -t hugetlbfs none /run/huge && fallocate -l $(($(cat {POOL}) * 2))M /run/huge/all"
    ))?;
    let watermarks = guest.check("cat /proc/sys/vm/min_free_kbytes")?;
    guest
        .check("echo $((4 * $(cat /proc/sys/vm/min_free_kbytes))) >/proc/sys/vm/min_free_kbytes")?;
    guest.ask(&sparse().name, "move 800")?;
    list(&mut guest)?;
    let said = gather(&mut guest, "--once")?;
    ensure!(
        said.exit != 0 && said.stderr.contains("node 1 has no free block of 2 MiB"),
        "{said:?}"
    );
    guest.check(&format!(
        "rm /run/huge/all && umount /run/huge && echo {} >/proc/sys/vm/min_free_kbytes",
        watermarks.trim()
    ))?;
    let said = gather(&mut guest, "--once")?;
    print!("{}", said.stdout);
    ensure!(said.exit == 0, "{said:?}");
    expect_on_node(&mut guest)?;
    undo(&mut guest)?;
    finish(&mut guest)
}

/// Page cache takes all memory that is free, again and again, while hot pages go to the node, leave it, and go there.
fn page_cache() -> Result<()> {
    let mut guest = start()?;
    guest.check(
        "(while :; do dd if=/dev/nvme0n1 of=/dev/null bs=1M 2>/dev/null; done) </dev/null >/dev/null 2>&1 & echo $! >/run/reader",
    )?;
    guest.wait_until("page cache has filled the guest", PATIENCE, |guest| {
        let cached = guest
            .check("awk '/^Cached|^Buffers/ {n += $2} END {print int(n / 1024)}' /proc/meminfo")?;
        Ok((cached.trim().parse::<u64>()? >= CACHED_MIB).then_some(()))
    })?;
    for seed in [500, 600, 700] {
        guest.ask(&sparse().name, &format!("move {seed}"))?;
        list(&mut guest)?;
        let options = format!("--pages {LIST}");
        expect_gathered(&mut guest, "beside page cache", &options)?;
        expect_on_node(&mut guest)?;
    }
    guest.check("kill $(cat /run/reader)")?;
    undo(&mut guest)?;
    finish(&mut guest)
}

/// An agent that is killed between two batches leaves its pool and the pages that it has moved; the next one goes on with
/// both, and undoes all.
fn killed() -> Result<()> {
    let mut guest = start_with(
        &HotSet {
            sparse: MANY,
            ..sparse()
        },
        &Kernel::get(false)?,
    )?;
    list(&mut guest)?;
    let hot = BLOCKS * MANY as u64;
    guest.check(&format!(
        "(sed 's/rest_s = 1$/rest_s = 60/' {FILE}; echo '[budget]'; echo 'moves_per_s = \"1MiB\"') >{SLOW}"
    ))?;
    // A block may rest in a processor's list, which the pool gets nothing from.
    guest.check("echo 100000 >/proc/sys/vm/percpu_pagelist_high_fraction")?;
    guest.check(&format!(
        "terrace-agent gather --once --config {SLOW} --pages {LIST} </dev/null >/run/rounds 2>&1 & echo $! >/run/pid"
    ))?;
    let some = guest.wait_until("some pages were moved", PATIENCE, |guest| {
        let some = on_node_1(guest)?;
        Ok((some > 0).then_some(some))
    })?;
    guest.check("kill -9 $(cat /run/pid)")?;
    let left: u64 = guest.check(&format!("cat {POOL}"))?.trim().parse()?;
    println!("killed: {some} of {hot} pages on the node, {left} blocks in the pool");
    ensure!(some < hot && left > 0, "killed too late: {some}, {left}");
    let said = gather(&mut guest, "--once")?;
    print!("{}", said.stdout);
    let now = on_node_1(&mut guest)?;
    ensure!(
        said.exit == 0 && now * 100 >= hot * 95,
        "{now} of {hot}: {said:?}"
    );
    undo(&mut guest)?;
    finish(&mut guest)
}
