//! A guest with the daemon beside it, and a program in it that checks its memory.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use terrace_lab_programs::native::HotSet;

use super::machine::{self, Means, NAME};
use crate::control::lab::Lab;
use crate::guests::beside::Daemon;
use crate::guests::tiered::{self, MIB, TIERS};
use crate::machine::emulator;
use crate::machine::process::{Lifetime, Process};
use crate::places;
use crate::progress::Wait;

/// The folder of the daemon, and the guest's monitor in it as seen from the machine's folder.
const FOLDER: &str = "stock-daemon";
const MONITOR: &str = "../stock-daemon/monitors/qmp";

/// Longest time for a guest to reach its target, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(180);

/// Most memory that the guest's kernel may use for itself while a test measures, bytes.
pub const SLACK: u64 = 24 * MIB;

/// The line of the kernel's log after which a test reads it: complaints about the emulated machine come before.
pub const MARK: &str = "the-test-begins";

/// Lines of the daemon's configuration: rounds are short and come more often than once a minute.
const SCANNED_OFTEN: &str = "scan = true\n[engine]\npolicy = \"vtmm\"\nperiod_ms = 2000\nhuge_period_ms = 2000\nwindows = 4\n\
                          window_ms = 200";

/// The guest and who resizes it.
pub struct StockGuest {
    pub lab: Lab,
    pub daemon: Daemon,
    means: Means,
    /// The program whose memory must stay what it wrote.
    pub writer: HotSet,
}

/// The sizes that must not change except for the tier that is resized, by the guest's word.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    pub free: [u64; TIERS],
    pub total: [u64; TIERS],
}

impl StockGuest {
    /// Boots a guest and starts the daemon beside it; the guest's driver is not loaded yet.
    pub fn start(means: Means) -> Result<Self> {
        let folder = places::lab("run")?.join(FOLDER);
        if folder.exists() {
            fs::remove_dir_all(&folder)?;
        }
        let mut daemon = Daemon::prepare(NAME, &folder)?;
        let mut qemu = emulator::command()?;
        qemu.args(machine::options(means, MONITOR)?);
        let process = Process::start_command(NAME, qemu, Lifetime::Task)?;
        let mut lab = Lab::without_guests(process)?;
        lab.check(&format!("echo {MARK} >/dev/kmsg"))?;
        // A program that scans a guest holds its monitor.
        daemon.start(match means {
            Means::VirtioMem => "scan = true",
            Means::Balloon => "scan = false",
            Means::Dimm => SCANNED_OFTEN,
        })?;
        let writer = HotSet {
            name: "writer".to_owned(),
            region_mib: 160,
            hot_mib: 48,
            ..HotSet::default()
        };
        Ok(Self {
            lab,
            daemon,
            means,
            writer,
        })
    }

    /// Loads the driver.
    pub fn insert(&mut self) -> Result<()> {
        let module = self.means.module().context("a guest without a driver")?;
        let driver = machine::driver(module);
        self.lab.check(&format!("insmod {driver}")).map(drop)
    }

    /// Starts the program that writes to its memory and knows what must be there.
    pub fn start_writer(&mut self, node: u32) -> Result<()> {
        self.writer.node = node;
        self.lab.start_hot_set(&self.writer)
    }

    /// Expects the program to have gone on since the last time, and all of its memory to be what it wrote.
    pub fn expect_writer_intact(&mut self) -> Result<()> {
        let passes = |guest: &mut Self| -> Result<Option<u64>> {
            let stats = guest.lab.ask(&guest.writer.name, "stats")?;
            Ok(stats["passes"].as_u64())
        };
        let before = passes(self)?;
        self.until("the program goes on", |guest| Ok(passes(guest)? > before))?;
        let name = self.writer.name.clone();
        self.lab.expect_native_intact(&name)
    }

    pub fn sizes(&mut self) -> Result<Sizes> {
        let mut sizes = Sizes {
            free: [0; TIERS],
            total: [0; TIERS],
        };
        for node in 0..TIERS {
            sizes.free[node] = self.meminfo(node, "MemFree")?;
            sizes.total[node] = self.meminfo(node, "MemTotal")?;
        }
        Ok(sizes)
    }

    /// A number from a node's `meminfo`, in bytes.
    pub fn meminfo(&mut self, node: usize, name: &str) -> Result<u64> {
        tiered::meminfo(&mut self.lab, node, name)
    }

    /// Waits until each tier (or the whole) has that many MiB by `terrace show`.
    pub fn wait_for(&mut self, mib: &[u64]) -> Result<()> {
        let mut last = Vec::new();
        let met = self.until("the sizes are what was ordered", |guest| {
            last = guest.daemon.tiers()?;
            let sizes = last.iter().map(|tier| (tier.size_bytes, tier.target_bytes));
            Ok(sizes.eq(mib.iter().map(|mib| (mib * MIB, mib * MIB))))
        });
        met.with_context(|| format!("wanted {mib:?} MiB: {last:?}"))
    }

    pub fn until(
        &mut self,
        what: &str,
        mut condition: impl FnMut(&mut Self) -> Result<bool>,
    ) -> Result<()> {
        let mut wait = Wait::begin_silently(what, PATIENCE);
        while !condition(self)? {
            wait.go_on()?;
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(())
    }

    /// Touches all of the node's memory that can be had, so that the host has given it.
    pub fn touch(&mut self, node: usize) -> Result<()> {
        let free = self.meminfo(node, "MemFree")?.saturating_sub(2 * SLACK) / MIB;
        ensure!(free > 0, "node {node} is full");
        self.lab.check(&format!(
            "dd if=/dev/zero of=/node{node}/touch bs=1M count={free} 2>/dev/null; rm /node{node}/touch"
        ))?;
        Ok(())
    }
}
