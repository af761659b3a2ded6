//! A guest with its device, started on this machine.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::device::{self, Device};
use super::machine::{self, CONFIG_BYTES, NAME, QUEUE_SIZE, QUEUES, VIRTIO_ID};
use super::shape::Shape;
use crate::control::lab::Lab;
use crate::guests::tiered::{self, TIERS};
use crate::machine::emulator;
use crate::machine::options::RESETS_LOG;
use crate::machine::process::{Lifetime, Process};
use crate::progress::Wait;
use crate::{modules, places};

/// Path of the driver in the guest.
const DRIVER: &str = "/hyperflex.ko";

/// Longest time for the driver to follow its target, on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// The guest and its device.
pub struct FlexGuest<D> {
    pub lab: Lab,
    pub device: D,
}

/// The cause of a reboot: the guest itself, or its reset button.
#[derive(Clone, Copy)]
pub enum Reboot {
    Guest,
    Button,
}

/// The driver's counters of a tier, in pages.
#[derive(Clone, Copy, Debug)]
pub struct DriverTier {
    pub base: u64,
    pub huge: u64,
    pub in_flight: u64,
    pub given_back: u64,
    pub refused: u64,
    pub moved: u64,
    /// The queues that are dead, as bits: 1 the one for inflation, 2 the one for deflation.
    pub dead: u64,
    /// Pages that are out of use because of a dead queue.
    pub lost: u64,
    /// Answers that came after their queue was given up.
    pub late: u64,
}

impl<D: Device> FlexGuest<D> {
    /// Boots a guest of the usual shape whose device offers these page orders, and puts the driver into it.
    pub fn start(orders: u32) -> Result<Self> {
        Self::start_as(Shape::of_orders(orders))
    }

    /// Boots a guest, and puts the driver into it.
    pub fn start_as(shape: Shape) -> Result<Self> {
        let device = D::start(&shape)?;
        let mut qemu = emulator::command_with_vhost_user()?;
        qemu.args(machine::options(&shape)?);
        let process = Process::start_command(NAME, qemu, Lifetime::Task)?;
        let lab = Lab::without_guests(process)?;
        let mut guest = Self { lab, device };
        guest.bring_driver()?;
        Ok(guest)
    }

    /// Stores the driver in the guest.
    fn bring_driver(&mut self) -> Result<()> {
        let modules = modules::build()?;
        let driver = modules.iter().find(|file| file.ends_with("hyperflex.ko"));
        let driver = driver.context("no module hyperflex was built")?;
        self.lab.push(driver, DRIVER)
    }

    /// Loads the driver.
    pub fn insert(&mut self) -> Result<()> {
        self.lab.check(&format!("insmod {DRIVER}")).map(drop)
    }

    /// A number from a node's `meminfo`, in bytes.
    pub fn meminfo(&mut self, node: usize, name: &str) -> Result<u64> {
        tiered::meminfo(&mut self.lab, node, name)
    }

    /// Free memory of a node, bytes.
    pub fn free_bytes(&mut self, node: usize) -> Result<u64> {
        tiered::free_bytes(&mut self.lab, node)
    }

    /// The driver's table, a row for each tier.
    pub fn driver(&mut self) -> Result<Vec<DriverTier>> {
        let table = self
            .lab
            .check("cat /sys/kernel/debug/hyperflex-*/tiers | tail -n +2")?;
        let mut tiers = Vec::new();
        for line in table.lines() {
            let numbers: Result<Vec<u64>, _> = line.split(' ').map(str::parse).collect();
            let numbers = numbers.with_context(|| format!("the driver's table: {line}"))?;
            ensure!(numbers.len() == 16, "the driver's table: {line}");
            tiers.push(DriverTier {
                base: numbers[3],
                huge: numbers[4],
                in_flight: numbers[5] + numbers[6],
                given_back: numbers[7],
                refused: numbers[9],
                moved: numbers[11],
                dead: numbers[13],
                lost: numbers[14],
                late: numbers[15],
            });
        }
        Ok(tiers)
    }

    /// Sets targets and waits until driver and device agree that they are met.
    pub fn resize(&mut self, pages: [u64; TIERS]) -> Result<()> {
        self.device.set_targets(pages)?;
        self.wait_for(pages)
    }

    pub fn wait_for(&mut self, pages: [u64; TIERS]) -> Result<()> {
        let mut last = String::new();
        let met = self.until("the balloons are at their targets", |guest| {
            let (driver, actual) = (guest.driver()?, guest.device.actual()?);
            last = format!("{driver:?} {actual:?}");
            let sizes = driver
                .iter()
                .map(|tier| (tier.base + tier.huge, tier.in_flight));
            let met = sizes.eq(pages.map(|pages| (pages, 0)));
            Ok(met && actual == pages)
        });
        met.with_context(|| format!("wanted {pages:?}: {last}"))
    }

    pub fn until(
        &mut self,
        what: &str,
        mut condition: impl FnMut(&mut Self) -> Result<bool>,
    ) -> Result<()> {
        let mut wait = Wait::begin_silently(what, PATIENCE);
        while !condition(self)? {
            wait.go_on()?;
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    /// Has the guest suspend to memory, and wakes it once it sleeps.
    pub fn sleep_and_wake(&mut self) -> Result<()> {
        // After the command's own end, or its answer would wait for the waking.
        let command = "(sleep 1; echo mem >/sys/power/state) </dev/null >/dev/null 2>&1 &";
        self.lab.check(command)?;
        let mut qmp = self.lab.qmp()?;
        let mut wait = Wait::begin_silently("waiting until the guest sleeps", PATIENCE);
        while qmp.status()? != "suspended" {
            wait.go_on()?;
            std::thread::sleep(Duration::from_millis(50));
        }
        qmp.execute("system_wakeup", &json!({}))?;
        drop(qmp);
        // The firmware of this machine forgets where the registers are by which it sleeps (PMBASE and ACPI_CNTL of
        // the LPC bridge), and a kernel that wants to sleep again would find that it has woken already.
        let bridge = "/sys/bus/pci/devices/0000:00:1f.0/config";
        let registers = "printf '\\001\\006\\000\\000\\200'";
        let restore = format!("{registers} | dd of={bridge} bs=1 seek=64 conv=notrunc 2>/dev/null");
        self.lab.check(&restore).map(drop)
    }

    /// Has the guest start anew, by itself or as its reset button would; the driver is not loaded then.
    pub fn reboot(mut self, by: Reboot) -> Result<Self> {
        const BOOT_ID: &str = "cat /proc/sys/kernel/random/boot_id";
        let before = self.lab.check(BOOT_ID)?;
        let resets = resets()?;
        let mut qmp = self.lab.qmp()?;
        qmp.execute("set-action", &json!({"reboot": "reset"}))?;
        match by {
            Reboot::Guest => {
                drop(qmp);
                // After the command's own end, or its answer would never come.
                let command = "(sleep 1; reboot -f) </dev/null >/dev/null 2>&1 &";
                self.lab.check(command)?;
            }
            Reboot::Button => qmp.execute("system_reset", &json!({})).map(drop)?,
        }
        self.until("the machine is reset", |_| Ok(self::resets()? > resets))?;
        self.lab = self.lab.after_a_reboot()?;
        ensure!(self.lab.check(BOOT_ID)? != before, "the guest runs on");
        self.bring_driver()?;
        Ok(self)
    }

    /// Takes the device out of the guest and puts it in again, connected anew: so a QEMU whose generic device does
    /// not connect again gets a device that was restarted.
    pub fn replug(&mut self) -> Result<()> {
        let mut qmp = self.lab.qmp()?;
        qmp.execute("device_del", &json!({"id": "flex"}))?;
        drop(qmp);
        self.until("the guest has let the device go", |guest| {
            let left = guest.lab.check("ls /sys/bus/virtio/drivers/hyperflex")?;
            Ok(!left.contains("virtio"))
        })?;
        let mut wait = Wait::begin_silently("waiting until the device is out", PATIENCE);
        let mut qmp = self.lab.qmp()?;
        // The character device is in use for as long as the device is.
        while let Err(error) = qmp.execute("chardev-remove", &json!({"id": "flex"})) {
            wait.go_on().with_context(|| format!("{error:#}"))?;
            std::thread::sleep(Duration::from_millis(50));
        }
        let address = json!({"type": "unix", "data": {"path": device::SOCKET}});
        let socket = json!({"addr": address, "server": false});
        let backend = json!({"type": "socket", "data": socket});
        qmp.execute("chardev-add", &json!({"id": "flex", "backend": backend}))?;
        let device = json!({
            "driver": "vhost-user-test-device-pci", "id": "flex", "bus": "flex-port", "chardev": "flex",
            "virtio-id": VIRTIO_ID, "num_vqs": QUEUES, "vq_size": QUEUE_SIZE,
            "config_size": CONFIG_BYTES,
        });
        qmp.execute("device_add", &device)?;
        drop(qmp);
        self.until("the guest has the device again", |guest| {
            let there = guest.lab.check("ls /sys/bus/virtio/drivers/hyperflex")?;
            Ok(there.contains("virtio"))
        })
    }

    /// Has nearly all memory used; returns how much of it the host has given, bytes.
    pub fn touch(&mut self) -> Result<u64> {
        self.lab.check(
            "mkdir -p /all && mount -t tmpfs -o size=800M all /all && \
             dd if=/dev/zero of=/all/touch bs=1M count=800 2>/dev/null && umount /all",
        )?;
        Ok(self.host_bytes()?.iter().sum())
    }

    /// Bytes of this machine's memory behind each node of the guest, by the kernel's count.
    pub fn host_bytes(&self) -> Result<[u64; TIERS]> {
        let bytes = tiered::host_bytes(NAME)?;
        let count = bytes.len();
        let bytes = bytes.try_into().ok();
        bytes.with_context(|| format!("{count} files of memory, not {TIERS}"))
    }

    /// Fails if the guest's kernel complained.
    pub fn expect_a_quiet_kernel(&mut self) -> Result<()> {
        tiered::expect_a_quiet_kernel(&mut self.lab, "out-of-tree")
    }
}

/// Number of resets of the machine's processors.
fn resets() -> Result<usize> {
    let log = places::lab("run")?.join(NAME).join(RESETS_LOG);
    Ok(fs::read_to_string(log)?.matches("CPU Reset").count())
}
