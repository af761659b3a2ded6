//! A guest with a node per tier and a HyperFlex device, started on this machine without an L1 around it.
//!
//! It runs the guest driver against the product's device, and against one of the lab's own that can be told to
//! misbehave.

mod bench;
mod device;
mod guest;
mod hostile;
mod product;
mod tests;

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::emulator;
use super::machine::RESETS_LOG;
use super::process::{Lifetime, Process};
use super::running::Lab;
use super::tiered::{self, TIERS};
use crate::progress::Wait;
use crate::{modules, places};
pub use bench::run as bench;
use device::Device;
use guest::Shape;
pub use tests::cost_of_leases;
pub use tests::{names, run};

/// Memory of each of the guest's nodes, where a test does not say otherwise.
const NODE_BYTES: u64 = 512 << 20;

/// Bytes of the guest's smallest page.
const PAGE: u64 = 4096;

/// The device by its ABI.
const VIRTIO_ID: u32 = 13;
const QUEUES: usize = 2 * TIERS + 2;
const QUEUE_SIZE: u32 = 128;
const CONFIG_BYTES: u32 = 128;

/// Name of the machine.
const NAME: &str = "flex";

/// Where the driver is in the guest.
const DRIVER: &str = "/hyperflex.ko";

/// Longest time for the driver to do as it is told, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// The guest and its device.
struct FlexGuest<D> {
    lab: Lab,
    device: D,
}

/// Who has a guest start anew.
#[derive(Clone, Copy)]
enum Reboot {
    Guest,
    Button,
}

/// What the driver says of a tier, in pages.
#[derive(Clone, Copy, Debug)]
struct DriverTier {
    base: u64,
    huge: u64,
    in_flight: u64,
    given_back: u64,
    refused: u64,
    moved: u64,
    /// Whether its queues are: 1 the one for inflation, 2 the one for deflation.
    dead: u64,
    /// Pages that are out of use because of it.
    lost: u64,
    /// Answers that came after it.
    late: u64,
}

impl<D: Device> FlexGuest<D> {
    /// Boots a guest of the usual shape whose device offers these page orders, and puts the driver into it.
    fn start(orders: u32) -> Result<Self> {
        Self::start_as(Shape::of_orders(orders))
    }

    /// Boots a guest, and puts the driver into it.
    fn start_as(shape: Shape) -> Result<Self> {
        let device = D::start(&shape)?;
        let mut qemu = emulator::command_with_vhost_user()?;
        qemu.args(guest::options(&shape)?);
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
    fn insert(&mut self) -> Result<()> {
        self.lab.check(&format!("insmod {DRIVER}")).map(drop)
    }

    /// A number from a node's `meminfo`, in bytes.
    fn meminfo(&mut self, node: usize, name: &str) -> Result<u64> {
        tiered::meminfo(&mut self.lab, node, name)
    }

    /// Free memory of a node, with what rests in the lists of each processor: up to an eighth of the node may stay
    /// there for a minute, and `MemFree` does not count it.
    fn free_bytes(&mut self, node: usize) -> Result<u64> {
        let pages = self.lab.check(&format!(
            "awk '/^Node/ {{ on = ($2 == \"{node},\") }} \
             on && ($1 == \"nr_free_pages\" || $1 == \"count:\") {{ n += $2 }} \
             END {{ print n }}' /proc/zoneinfo"
        ))?;
        let pages: u64 = pages.trim().parse().context("free pages in zoneinfo")?;
        Ok(pages * PAGE)
    }

    /// What the driver's table says.
    fn driver(&mut self) -> Result<Vec<DriverTier>> {
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
    fn resize(&mut self, pages: [u64; TIERS]) -> Result<()> {
        self.device.set_targets(pages)?;
        self.wait_for(pages)
    }

    fn wait_for(&mut self, pages: [u64; TIERS]) -> Result<()> {
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

    fn until(
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
    fn sleep_and_wake(&mut self) -> Result<()> {
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
    fn reboot(mut self, by: Reboot) -> Result<Self> {
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

    /// Takes the device out of the guest and puts it in again, connected anew: this is how a QEMU whose generic
    /// device does not connect again gets a device that was restarted.
    fn replug(&mut self) -> Result<()> {
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

    /// Bytes of this machine's memory behind each node of the guest, by the kernel's count.
    fn host_bytes(&self) -> Result<[u64; TIERS]> {
        let bytes = tiered::host_bytes(NAME)?;
        let count = bytes.len();
        let bytes = bytes.try_into().ok();
        bytes.with_context(|| format!("{count} files of memory, not {TIERS}"))
    }

    /// Fails where the guest's kernel complained.
    fn expect_a_quiet_kernel(&mut self) -> Result<()> {
        tiered::expect_a_quiet_kernel(&mut self.lab, "out-of-tree")
    }
}

/// How often processors of the machine were reset.
fn resets() -> Result<usize> {
    let log = places::lab("run")?.join(NAME).join(RESETS_LOG);
    Ok(fs::read_to_string(log)?.matches("CPU Reset").count())
}
