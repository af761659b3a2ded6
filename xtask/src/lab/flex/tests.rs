//! What the guest driver must do, and what it must live through.

use std::time::Instant;

use anyhow::{Context, Result, ensure};

use super::{FlexGuest, NODE_BYTES, TIERS};
use crate::lab::guests::Outcome;
use crate::progress::say;

const MIB: u64 = 1 << 20;
const PAGE: u64 = 4096;
const BASE: u32 = 1;
const HUGE: u32 = 1 << 9;

/// What the guest's kernel may use for itself while a test looks.
const SLACK: u64 = 24 * MIB;

type Test = (&'static str, fn() -> Result<()>);

const TESTS: [Test; 7] = [
    (
        "a_resize_takes_from_its_tier_alone_and_the_host_gets_it",
        resize,
    ),
    ("a_newer_target_replaces_one_that_is_under_way", replaced),
    (
        "memory_comes_back_under_pressure_and_nobody_is_killed",
        pressure,
    ),
    ("a_driver_that_goes_gives_everything_back", removal),
    ("a_device_that_misbehaves_does_not_harm_the_guest", manners),
    ("a_guest_that_sleeps_wakes_with_all_of_its_memory", sleep),
    (
        "compaction_moves_pages_of_the_balloon_within_their_node",
        compaction,
    ),
];

/// The names of the tests that contain `only`.
pub fn names(only: Option<&str>) -> Vec<&'static str> {
    chosen(only).map(|(name, _)| *name).collect()
}

/// Runs the tests whose names contain `only`, each on a fresh guest.
pub fn run(only: Option<&str>) -> Outcome {
    let mut outcome = Outcome::default();
    for (name, test) in chosen(only) {
        println!("test {name} …");
        let begin = Instant::now();
        let result = test();
        let seconds = begin.elapsed().as_secs_f64();
        match result {
            Ok(()) => {
                outcome.passed += 1;
                println!("test {name} ok ({seconds:.1} s)");
            }
            Err(error) => {
                outcome.failed += 1;
                println!("test {name} FAILED ({seconds:.1} s)\n{error:#}");
            }
        }
    }
    outcome
}

fn chosen(only: Option<&str>) -> impl Iterator<Item = &'static Test> {
    let wanted = move |test: &&Test| only.is_none_or(|part| test.0.contains(part));
    TESTS.iter().filter(wanted)
}

/// What must not change but for the tier that is resized.
struct Sizes {
    free: [u64; TIERS],
    total: [u64; TIERS],
    /// Of the host, once the device knows the guest's memory.
    host: Vec<u64>,
}

fn sizes(guest: &mut FlexGuest) -> Result<Sizes> {
    let mut sizes = Sizes {
        free: [0; TIERS],
        total: [0; TIERS],
        host: guest.device.state()?.allocated_bytes,
    };
    for node in 0..TIERS {
        sizes.free[node] = guest.meminfo(node, "MemFree")?;
        sizes.total[node] = guest.meminfo(node, "MemTotal")?;
    }
    Ok(sizes)
}

fn expect_about(what: &str, value: u64, wanted: u64) -> Result<()> {
    let is_about = value.abs_diff(wanted) <= SLACK;
    ensure!(
        is_about,
        "{what}: {} MiB, not {}",
        value / MIB,
        wanted / MIB
    );
    Ok(())
}

/// A node's free memory gets there; what was freed rests for a while in lists of each processor.
fn expect_free(guest: &mut FlexGuest, node: usize, wanted: u64) -> Result<()> {
    let mut free = 0;
    let arrives = guest.until("freed memory is counted", |guest| {
        free = guest.meminfo(node, "MemFree")?;
        Ok(free.abs_diff(wanted) <= SLACK)
    });
    arrives.with_context(|| {
        let [free, wanted] = [free, wanted].map(|bytes| bytes / MIB);
        format!("node {node} has {free} MiB free, not {wanted}")
    })
}

/// Files on each node, whose pages cannot go elsewhere; the rest of memory has been touched once.
fn fill(guest: &mut FlexGuest) -> Result<String> {
    for node in 0..TIERS {
        guest.lab.check(&format!(
            "dd if=/dev/urandom of=/node{node}/kept bs=1M count=64 2>/dev/null; \
             dd if=/dev/zero of=/node{node}/touch bs=1M count=300 2>/dev/null; rm /node{node}/touch"
        ))?;
    }
    checksums(guest)
}

fn checksums(guest: &mut FlexGuest) -> Result<String> {
    guest.lab.check("md5sum /node0/kept /node1/kept")
}

fn resize() -> Result<()> {
    let mut guest = FlexGuest::start(BASE | HUGE)?;
    guest.insert()?;
    let kept = fill(&mut guest)?;
    let before = sizes(&mut guest)?;
    let mut last = sizes(&mut guest)?;
    let moved = 256 * MIB;
    // Each tier alone, both, and neither; at last a number that is no multiple of a block.
    for wanted in [
        [0, moved],
        [moved, 0],
        [moved / 2, moved / 4],
        [0, 0],
        [77 * PAGE, 1001 * PAGE],
    ] {
        let begin = Instant::now();
        guest.resize(wanted.map(|bytes| bytes / PAGE))?;
        let seconds = begin.elapsed().as_secs_f64();
        let now = sizes(&mut guest)?;
        say(&format!(
            "balloons of {:?} MiB after {seconds:.2} s: free {:?} MiB, host {:?} MiB",
            wanted.map(|bytes| bytes / MIB),
            now.free.map(|bytes| bytes / MIB),
            now.host.iter().map(|bytes| bytes / MIB).collect::<Vec<_>>()
        ));
        for (tier, wanted) in wanted.into_iter().enumerate() {
            expect_free(&mut guest, tier, before.free[tier] - wanted)?;
            ensure!(now.total[tier] == before.total[tier] - wanted);
            // Nothing of the balloon is with the host, and what is not in it stays there.
            let host = now.host[tier];
            ensure!(
                host <= NODE_BYTES - wanted && host + wanted + SLACK >= last.host[tier],
                "the host holds {} MiB of tier {tier}, {} before",
                host / MIB,
                last.host[tier] / MIB
            );
        }
        last = now;
    }
    ensure!(checksums(&mut guest)? == kept, "files have changed");
    let state = guest.device.state()?;
    for tier in &state.tiers {
        ensure!(
            tier.inflated_huge > 50 && tier.inflated_base > 0,
            "{state:?}"
        );
        ensure!(tier.wrong == 0, "{state:?}");
    }
    statistics(&mut guest)?;
    guest.expect_a_quiet_kernel()
}

/// The statistics queue says what the guest's own files say.
fn statistics(guest: &mut FlexGuest) -> Result<()> {
    guest.device.ask_for_statistics()?;
    guest.device.ask_for_statistics()?;
    let mut said = Vec::new();
    guest.until("statistics arrive", |guest| {
        said = guest.device.state()?.statistics;
        Ok(said.contains(&(2, 1, 1001)))
    })?;
    for node in 0..TIERS {
        let value = |tag: u16| {
            said.iter()
                .find(|(t, n, _)| *t == tag && usize::from(*n) == node)
        };
        let (_, _, free) = value(0).context("no free bytes")?;
        expect_about("free bytes", *free, guest.meminfo(node, "MemFree")?)?;
        let (_, _, pages) = value(2).context("no pages of the balloon")?;
        let (_, _, total) = value(1).context("no total bytes")?;
        ensure!(*total == guest.meminfo(node, "MemTotal")? + pages * PAGE);
        ensure!(value(4).is_some_and(|(.., stuck)| *stuck == 0), "{said:?}");
    }
    ensure!(
        (5..=7).all(|tag| said.iter().any(|(t, ..)| *t == tag)),
        "{said:?}"
    );
    Ok(())
}

fn replaced() -> Result<()> {
    let mut guest = FlexGuest::start(BASE)?;
    guest.insert()?;
    for round in 1..=10 {
        guest.device.set_targets([90_000, 90_000])?;
        guest.device.set_targets([0, 90_000])?;
        guest.device.set_targets([90_000, 100 * round])?;
        guest.resize([1000 * round, 7])?;
    }
    guest.resize([0, 0])?;
    let state = guest.device.state()?;
    ensure!(state.tiers.iter().all(|tier| tier.wrong == 0), "{state:?}");
    guest.expect_a_quiet_kernel()
}

fn pressure() -> Result<()> {
    let mut guest = FlexGuest::start(BASE | HUGE)?;
    guest.insert()?;
    let target = 340 * MIB / PAGE;
    guest.resize([target, target])?;
    // Pages that can go nowhere, more of them than are left outside of the balloons.
    let mib = 600;
    guest.lab.check(&format!(
        "mkdir /hog && mount -t tmpfs -o size={mib}M hog /hog && \
         dd if=/dev/zero of=/hog/file bs=1M count={mib} 2>/dev/null",
    ))?;
    let given: u64 = guest.driver()?.iter().map(|tier| tier.given_back).sum();
    say(&format!(
        "{} MiB came back under pressure",
        given * PAGE / MIB
    ));
    ensure!(given > 0, "nothing was given back");
    ensure!(
        guest
            .driver()?
            .iter()
            .map(|tier| tier.base + tier.huge)
            .sum::<u64>()
            < 2 * target,
        "the balloons are as they were"
    );
    guest.expect_a_quiet_kernel()?;
    // The target stands: once memory is free, it is met.
    guest.lab.check("rm /hog/file")?;
    guest.wait_for([target, target])?;
    // What leaves for a new target does not count as given back.
    let given = |guest: &mut FlexGuest| -> Result<u64> {
        Ok(guest.driver()?.iter().map(|tier| tier.given_back).sum())
    };
    let before = given(&mut guest)?;
    guest.resize([0, 0])?;
    ensure!(given(&mut guest)? == before);
    Ok(())
}

fn removal() -> Result<()> {
    let mut guest = FlexGuest::start(BASE | HUGE)?;
    let kept = fill(&mut guest)?;
    let before = sizes(&mut guest)?;
    let target = [20_000, 50_001];
    guest.device.set_targets(target)?;
    guest.insert()?;
    // Targets of before the driver came.
    guest.wait_for(target)?;
    for round in 0..3 {
        if round == 1 {
            guest.device.set_manner("silent")?;
            guest.device.set_targets([60_000, 60_000])?;
            guest.until("requests are on their way", |guest| {
                Ok(guest.driver()?.iter().all(|tier| tier.in_flight > 0))
            })?;
        }
        guest.lab.check("rmmod hyperflex")?;
        guest.device.set_manner("good")?;
        guest.device.set_targets(target)?;
        let after = sizes(&mut guest)?;
        for node in 0..TIERS {
            expect_free(&mut guest, node, before.free[node])?;
            ensure!(after.total[node] == before.total[node]);
        }
        guest.insert()?;
        guest.wait_for(target)?;
    }
    ensure!(checksums(&mut guest)? == kept, "files have changed");
    guest.expect_a_quiet_kernel()?;
    drop(guest);
    left_alone()
}

/// A device that offers nothing the driver knows.
fn left_alone() -> Result<()> {
    let mut guest = FlexGuest::start(1 << 4)?;
    guest.lab.check("insmod /hyperflex.ko")?;
    let log = guest.lab.check("dmesg | grep hyperflex")?;
    ensure!(log.contains("not for this driver"), "{log}");
    guest.lab.check("rmmod hyperflex")?;
    guest.expect_a_quiet_kernel()
}

fn manners() -> Result<()> {
    let mut guest = FlexGuest::start(BASE)?;
    guest.insert()?;
    let kept = fill(&mut guest)?;
    let before = sizes(&mut guest)?;
    for manner in ["refuse", "short"] {
        guest.device.set_manner(manner)?;
        guest.device.set_targets([10_000, 10_000])?;
        guest.until("refusals are counted", |guest| {
            Ok(guest.driver()?.iter().all(|tier| tier.refused > 1000))
        })?;
        ensure!(guest.driver()?.iter().all(|tier| tier.base == 0));
        guest.device.set_manner("good")?;
        guest.resize([0, 0])?;
    }
    guest.device.set_manner("boast")?;
    guest.resize([10_000, 10_000])?;
    guest.resize([0, 0])?;
    guest.device.set_manner("refuse-half")?;
    guest.device.set_targets([10_000, 10_000])?;
    guest.until("the driver has what it can get", |guest| {
        Ok(guest.driver()?.iter().all(|tier| tier.base == 10_000))
    })?;
    guest.resize([0, 0])?;
    guest.device.set_manner("silent")?;
    guest.device.set_targets([10_000, 10_000])?;
    guest.until("requests are on their way", |guest| {
        Ok(guest.driver()?.iter().all(|tier| tier.in_flight > 0))
    })?;
    ensure!(checksums(&mut guest)? == kept, "files have changed");
    guest.device.set_manner("good")?;
    guest.resize([10_000, 10_000])?;
    guest.resize([0, 0])?;
    let after = sizes(&mut guest)?;
    for node in 0..TIERS {
        expect_free(&mut guest, node, before.free[node])?;
        ensure!(after.total[node] == before.total[node]);
    }
    guest.expect_a_quiet_kernel()
}

fn sleep() -> Result<()> {
    let mut guest = FlexGuest::start(BASE | HUGE)?;
    guest.insert()?;
    let kept = fill(&mut guest)?;
    let target = [30_000, 60_000];
    guest.resize(target)?;
    guest.sleep_and_wake()?;
    // The device has forgotten what was in the balloons, and the driver too.
    guest.wait_for(target)?;
    ensure!(checksums(&mut guest)? == kept, "files have changed");
    guest.resize([0, 0])?;
    let state = guest.device.state()?;
    ensure!(state.tiers.iter().all(|tier| tier.wrong == 0), "{state:?}");
    guest.expect_a_quiet_kernel()
}

fn compaction() -> Result<()> {
    let mut guest = FlexGuest::start(BASE)?;
    guest.insert()?;
    let kept = fill(&mut guest)?;
    let target = [60_000, 60_000];
    guest.resize(target)?;
    // Holes among the balloon's pages, then memory is made whole.
    for round in 0..5 {
        guest.resize([60_000 - 7000 * round, 60_000 - 9000 * round])?;
        guest.lab.check("echo 1 >/proc/sys/vm/compact_memory")?;
        guest.resize(target)?;
    }
    let driver = guest.driver()?;
    let moved: u64 = driver.iter().map(|tier| tier.moved).sum();
    say(&format!("the kernel moved {moved} pages of the balloons"));
    ensure!(moved > 0, "no page was moved: {driver:?}");
    guest.wait_for(target)?;
    ensure!(checksums(&mut guest)? == kept, "files have changed");
    guest.resize([0, 0])?;
    let state = guest.device.state()?;
    ensure!(state.tiers.iter().all(|tier| tier.wrong == 0), "{state:?}");
    guest.expect_a_quiet_kernel()
}
