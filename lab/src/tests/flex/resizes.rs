//! Fixture memory as an operator uses it: `terrace resize` and `terrace show` on a guest whose programs work on.
//!
//! The guest's programs check what they read, and all of their memory if a test asks; how much memory the guest
//! and this machine have is the word of their kernels.

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use terrace_lab_programs::native::HotSet;

use super::sizes::{SLACK, Sizes, expect_free, sizes};
use crate::control::agent::AgentSetup;
use crate::control::daemon::HotOnFast;
use crate::guests::beside::{Daemon, Tier};
use crate::guests::flex::device::{CONTROL, Device, FOLDER};
use crate::guests::flex::guest::{FlexGuest, PATIENCE};
use crate::guests::flex::machine::NAME;
use crate::guests::flex::product::Hyperflex;
use crate::guests::flex::shape::{BASE, HUGE, PAGE, Shape};
use crate::guests::tiered::{MIB, TIERS};
use crate::places;
use crate::progress::say;

/// A shape of which half of the fast node and of the slow one may be given away; the VM's owner pays for 1 GiB.
const SHAPE: Shape = Shape {
    node_bytes: [512 * MIB, 1024 * MIB],
    orders: BASE | HUGE,
    total_bytes: Some(1024 * MIB),
    is_tiered: false,
    has_balloon: false,
    is_leased: false,
};

/// Programs, one for each node.
const PROGRAMS: [(&str, usize); TIERS] = [("on-fast", 48), ("on-slow", 128)];

/// A guest that has 512 MiB of each tier, its daemon, and the number of passes that its programs had made.
struct Fixture {
    guest: FlexGuest<Hyperflex>,
    daemon: Daemon,
    passes: Vec<(String, u64)>,
}

impl Fixture {
    fn start(shape: Shape) -> Result<Self> {
        let mut guest = FlexGuest::<Hyperflex>::start_as(shape)?;
        guest.lab.install_native()?;
        // Nothing moves pages but what a test starts.
        guest.lab.check("echo 0 >/proc/sys/kernel/numa_balancing")?;
        guest.insert()?;
        let mut daemon = Daemon::prepare(NAME, &places::lab("run")?.join(FOLDER))?;
        let control = daemon.path(CONTROL);
        daemon.start(&format!("hyperflex = \"{control}\""))?;
        guest.until("the daemon has seen the device", |_| {
            Ok(daemon.tiers().is_ok_and(|tiers| tiers.len() == TIERS))
        })?;
        let mut fixture = Self {
            guest,
            daemon,
            passes: Vec::new(),
        };
        fixture.resize(None, Some(512))?;
        Ok(fixture)
    }

    fn work(&mut self, spec: &HotSet) -> Result<()> {
        self.guest.lab.start_hot_set(spec)?;
        self.passes.push((spec.name.clone(), 0));
        Ok(())
    }

    /// Orders sizes in MiB by `terrace resize`.
    fn order(&self, fast: Option<u64>, slow: Option<u64>) -> Result<()> {
        self.daemon.resize(fast, slow).map(drop)
    }

    /// Orders sizes in MiB, and waits until it is done.
    fn resize(&mut self, fast: Option<u64>, slow: Option<u64>) -> Result<()> {
        self.daemon.resize_and_wait(fast, slow)?;
        self.wait_until_met(fast, slow)
    }

    /// Waits until `terrace show` shows that these sizes are met, and that the host has what was given back.
    fn wait_until_met(&mut self, fast: Option<u64>, slow: Option<u64>) -> Result<()> {
        let daemon = &self.daemon;
        let met = self.guest.until("the sizes are as ordered", |_| {
            let tiers = daemon.tiers()?;
            let is_met = |(tier, mib): (&Tier, Option<u64>)| {
                let wanted = mib.map_or(tier.target_bytes, |mib| mib * MIB);
                // Pages that were given back have no memory behind them, and no others are counted.
                (tier.target_bytes, tier.size_bytes, tier.verified_ratio)
                    == (wanted, wanted, Some(1.0))
                    && tier.present_bytes <= Some(wanted)
            };
            Ok(tiers.iter().zip([fast, slow]).all(is_met))
        });
        met.with_context(|| daemon.show().unwrap_or_default())
    }

    /// Expects each program to have gone on since the last time, and nothing that it ever wrote to be lost.
    fn expect_work(&mut self, what: &str) -> Result<()> {
        for (name, passes) in &mut self.passes {
            let before = *passes;
            let (lab, mut now) = (&mut self.guest.lab, Value::Null);
            lab.wait_until("the program goes on", PATIENCE, |lab| {
                now = lab.ask(name, "stats")?;
                Ok((now["passes"].as_u64() > Some(before)).then_some(()))
            })?;
            *passes = now["passes"].as_u64().unwrap_or(before);
            ensure!(
                now["errors"] == 0,
                "{name} read what it did not write: {now}"
            );
            say(&format!("{what}: {name} made {} passes", *passes - before));
            lab.expect_native_intact(name)?;
        }
        Ok(())
    }

    /// Waits until `terrace show` shows how much the host has behind each node. A guest that ran short a moment ago
    /// may still be giving back again.
    fn expect_shown_as_held(&mut self) -> Result<()> {
        let daemon = &self.daemon;
        let mut last = String::new();
        let agree = self.guest.until("the host holds what is shown", |guest| {
            let (held, tiers) = (guest.host_bytes()?, daemon.tiers()?);
            last = format!("the host holds {held:?} bytes: {tiers:?}");
            let is_so = |(held, tier): (&u64, &Tier)| {
                let present = tier.present_bytes;
                present.is_some_and(|present| present.abs_diff(*held) <= SLACK)
            };
            Ok(held.iter().zip(&tiers).all(is_so))
        });
        agree.context(last)
    }

    /// Pages that the guest's kernel has moved up and down by itself.
    fn moves(&mut self) -> Result<[u64; 2]> {
        let mut moves = [0; 2];
        for (moves, name) in moves.iter_mut().zip(["pgpromote_success", "pgdemote_"]) {
            let count = self.guest.lab.check(&format!(
                "awk '/^{name}/ {{ n += $2 }} END {{ print n }}' /proc/vmstat"
            ))?;
            *moves = count.trim().parse()?;
        }
        Ok(moves)
    }

    /// Lets the guest's kernel move pages to its slower tier if it would have to reclaim them.
    fn let_the_kernel_demote(&mut self) -> Result<()> {
        let tiers = self.guest.lab.check(
            "echo 1 >/sys/kernel/mm/numa/demotion_enabled && \
             ls -d /sys/devices/virtual/memory_tiering/memory_tier*",
        )?;
        ensure!(
            tiers.lines().count() == 2,
            "the kernel's memory tiers: {tiers}"
        );
        Ok(())
    }

    /// Prints how much of the hot set is in fast memory.
    fn say_placement(&mut self, what: &str) -> Result<HotOnFast> {
        let now = self.guest.lab.native_on_fast(HOT)?;
        let [promoted, demoted] = self.moves()?;
        say(&format!(
            "{what}: {now}; by the kernel {promoted} pages up, {demoted} down"
        ));
        Ok(now)
    }

    /// Gives the program a hot set that is mostly in slow memory; returns how many pages of it are there.
    fn move_hot_set_to_slow(&mut self) -> Result<u64> {
        for seed in 2..40 {
            self.guest.lab.ask(HOT, &format!("move {seed}"))?;
            let now = self.guest.lab.native_on_fast(HOT)?;
            if now.fast * 2 < now.hot {
                say(&format!("hot set {seed}: {now}"));
                return Ok(now.hot - now.fast);
            }
        }
        bail!("each new hot set is in fast memory already")
    }

    fn wait_until_hot_is_fast(&mut self) -> Result<()> {
        let mut last = None;
        let done = self
            .guest
            .lab
            .wait_until("the hot set is in fast memory", PATIENCE, |lab| {
                let now = lab.native_on_fast(HOT)?;
                last = Some(now);
                Ok((now.fast * 10 >= now.hot * 9).then_some(()))
            });
        done.with_context(|| format!("{last:?}"))
    }

    fn finish(mut self) -> Result<()> {
        self.expect_work("at the end")?;
        self.guest.device.expect_no_wrong_request()?;
        self.guest.expect_a_quiet_kernel()
    }
}

pub fn under_a_working_program() -> Result<()> {
    let mut fixture = Fixture::start(SHAPE)?;
    for (node, (name, mib)) in (0..).zip(PROGRAMS) {
        fixture.work(&HotSet {
            name: name.to_owned(),
            region_mib: mib,
            hot_mib: 8,
            node,
            processor: node as usize,
            ..HotSet::default()
        })?;
    }
    // All that the host could hold of the fast node, it holds.
    touch(&mut fixture, 0, 280)?;
    let before = sizes(&mut fixture.guest)?;
    fixture.resize(Some(256), Some(768))?;
    fixture.expect_work("fast 256, slow 768 MiB")?;
    expect_sizes(&mut fixture, &before, [-256, 256])?;
    println!("{}", fixture.daemon.show()?);
    // The slow node has more than it ever had.
    touch(&mut fixture, 1, 480)?;
    let held = fixture.guest.host_bytes()?;
    ensure!(held[0] <= 256 * MIB && held[1] > 560 * MIB, "{held:?}");
    fixture.expect_shown_as_held()?;
    fixture.resize(Some(512), Some(512))?;
    fixture.expect_work("back")?;
    expect_sizes(&mut fixture, &before, [0, 0])?;
    let held = fixture.guest.host_bytes()?;
    ensure!(held[1] <= 512 * MIB, "{held:?}");
    for (fast, slow, change) in [
        (Some(256), None, [-256, 0]),
        (None, Some(768), [-256, 256]),
        (Some(512), None, [0, 256]),
    ] {
        fixture.resize(fast, slow)?;
        expect_sizes(&mut fixture, &before, change)?;
    }
    fixture.expect_work("one tier at a time")?;
    replaced_under_way(&mut fixture)?;
    under_pressure(&mut fixture)?;
    fixture.resize(Some(512), Some(512))?;
    fixture.expect_work("back again")?;
    // The kernel may have given up more than was its own before.
    for node in 0..TIERS {
        let total = fixture.guest.meminfo(node, "MemTotal")?;
        let free = fixture.guest.free_bytes(node)?;
        ensure!(total == before.total[node] && free + SLACK > before.free[node]);
    }
    fixture.expect_shown_as_held()?;
    fixture.finish()
}

/// A guest whose kernel has memory tiers, and a program that has more memory than fast memory will be left.
const TIERED: Shape = Shape {
    is_tiered: true,
    ..SHAPE
};

const HOT: &str = "hot";

fn tiered() -> HotSet {
    HotSet {
        name: HOT.to_owned(),
        region_mib: 288,
        hot_mib: 32,
        elsewhere: 0,
        node: 0,
        ..HotSet::default()
    }
}

pub fn beside_numab2() -> Result<()> {
    let mut fixture = Fixture::start(TIERED)?;
    fixture.let_the_kernel_demote()?;
    fixture.guest.lab.check(
        "echo 2 >/proc/sys/kernel/numa_balancing && cd /sys/kernel/debug/sched/numa_balancing && \
         echo 100 >scan_delay_ms && echo 200 >scan_period_min_ms && echo 1000 >scan_period_max_ms",
    )?;
    fixture.work(&tiered())?;
    fixture.resize(Some(256), Some(768))?;
    let [_, demoted] = fixture.moves()?;
    fixture.say_placement("fast memory is halved")?;
    ensure!(
        demoted > 10_000,
        "only {demoted} pages were demoted to make room"
    );
    fixture.expect_work("fast 256, slow 768 MiB")?;
    let away = fixture.move_hot_set_to_slow()?;
    fixture.resize(Some(512), Some(512))?;
    fixture.wait_until_hot_is_fast()?;
    let [promoted, _] = fixture.moves()?;
    fixture.say_placement("fast memory is whole again")?;
    ensure!(
        promoted * 2 > away,
        "only {promoted} pages were promoted, {away} were away"
    );
    fixture.finish()
}

pub fn beside_the_agent() -> Result<()> {
    let mut fixture = Fixture::start(TIERED)?;
    fixture.let_the_kernel_demote()?;
    fixture.work(&tiered())?;
    fixture.guest.lab.install_agent()?;
    fixture.guest.lab.start_agent(AgentSetup {
        // More than there is: what the node has room for is all that counts.
        fast: "1GiB",
        ..AgentSetup::SEEDED
    })?;
    fixture.resize(Some(256), Some(768))?;
    fixture.say_placement("fast memory is halved")?;
    fixture.expect_work("fast 256, slow 768 MiB")?;
    fixture.move_hot_set_to_slow()?;
    fixture.wait_until_hot_is_fast()?;
    fixture.say_placement("the hot set has moved")?;
    // More than fits.
    fixture
        .guest
        .lab
        .ask(HOT, &format!("hot {}", 264 * MIB / PAGE))?;
    let epoch = fixture.guest.lab.agent_status()?.epochs()?;
    fixture.guest.lab.wait_for_epoch(epoch + 20)?;
    let part = fixture.say_placement("the hot set is larger than fast memory")?;
    ensure!(
        part.fast * 5 < part.hot * 4,
        "264 MiB are in 256 MiB: {part}"
    );
    fixture.resize(Some(512), Some(512))?;
    fixture.wait_until_hot_is_fast()?;
    fixture.say_placement("fast memory is whole again")?;
    fixture.guest.lab.finish_agent()?;
    fixture.finish()
}

/// Writes files that take memory of a node and removes them.
fn touch(fixture: &mut Fixture, node: usize, mib: u64) -> Result<()> {
    let file = format!("/node{node}/touch");
    fixture.guest.lab.check(&format!(
        "dd if=/dev/zero of={file} bs=1M count={mib} 2>/dev/null && rm {file}"
    ))?;
    Ok(())
}

/// Expects each node to have as much more or less than before, in total and free.
fn expect_sizes(fixture: &mut Fixture, before: &Sizes, change: [i64; TIERS]) -> Result<()> {
    let guest = &mut fixture.guest;
    for (node, mib) in change.into_iter().enumerate() {
        let changed = |bytes: u64| bytes.saturating_add_signed(mib * MIB.cast_signed());
        expect_free(guest, node, changed(before.free[node]))?;
        // The device counts what is taken back before the guest does.
        let (mut total, wanted) = (0, changed(before.total[node]));
        let arrives = guest.until("the node has its size", |guest| {
            total = guest.meminfo(node, "MemTotal")?;
            Ok(total == wanted)
        });
        arrives.with_context(|| format!("node {node}: {total} bytes, not {wanted}"))?;
    }
    Ok(())
}

/// Checks that a newer order replaces one that is under way, which cannot be met while a file has the memory.
fn replaced_under_way(fixture: &mut Fixture) -> Result<()> {
    fixture.resize(Some(512), Some(512))?;
    let lab = &mut fixture.guest.lab;
    lab.check("dd if=/dev/zero of=/node0/held bs=1M count=280 2>/dev/null")?;
    fixture.order(Some(256), Some(768))?;
    let daemon = &fixture.daemon;
    fixture.guest.until("the fast tier is under way", |_| {
        let tiers = daemon.tiers()?;
        let [fast, slow] = tiers.as_slice() else {
            bail!("not two tiers: {tiers:?}");
        };
        let [fast_is, slow_is] = [fast, slow].map(|tier| tier.size_bytes / MIB);
        ensure!(
            fast_is > 256,
            "the file's memory is in the balloon: {fast:?}"
        );
        let ordered = [fast, slow].map(|tier| tier.target_bytes / MIB) == [256, 768];
        Ok(ordered && fast_is < 480 && slow_is == 768)
    })?;
    fixture.order(Some(448), Some(576))?;
    fixture.wait_until_met(Some(448), Some(576))?;
    fixture.expect_work("replaced under way")?;
    fixture.guest.lab.check("rm /node0/held").map(drop)
}

/// Orders sizes while the guest runs short of memory. Pages that come back because of that go again once they can.
fn under_pressure(fixture: &mut Fixture) -> Result<()> {
    let mib = 850;
    let given = |guest: &mut FlexGuest<Hyperflex>| -> Result<u64> {
        Ok(guest.driver()?.iter().map(|tier| tier.given_back).sum())
    };
    let before = given(&mut fixture.guest)?;
    fixture.guest.lab.check(&format!(
        "mkdir /hog && mount -t tmpfs -o size={mib}M hog /hog && \
         (dd if=/dev/zero of=/hog/file bs=1M count={mib} 2>/dev/null; echo $? >/run/eaten) \
         </dev/null >/dev/null 2>&1 &"
    ))?;
    fixture.order(Some(384), Some(640))?;
    fixture.expect_work("while memory is short")?;
    fixture.guest.until("the eater is done", |guest| {
        Ok(guest.lab.run("cat /run/eaten", PATIENCE)?.exit == 0)
    })?;
    let eaten = fixture.guest.lab.check("cat /run/eaten")?;
    ensure!(eaten.trim() == "0", "not all of {mib} MiB were to be had");
    let given = given(&mut fixture.guest)? - before;
    say(&format!("{given} pages came back under pressure"));
    ensure!(given > 0, "nothing was given back");
    fixture.expect_work("with all memory eaten")?;
    fixture.guest.lab.check("rm /hog/file")?;
    fixture.wait_until_met(Some(384), Some(640))
}
