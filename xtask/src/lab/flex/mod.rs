//! A guest with a node per tier and a HyperFlex device, started on this machine without an L1 around it.
//!
//! It runs the guest driver against a device of the lab's own, which can be told to misbehave.

mod device;
mod tests;

use std::fs::File;
use std::io::BufWriter;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::json;
use terrace_lab::port;

use super::cpio::Image;
use super::emulator;
use super::kernel::Kernel;
use super::machine::{CONSOLE_LOG, QMP, RESETS_LOG};
use super::process::{Lifetime, Process};
use super::programs;
use super::running::Lab;
use crate::progress::Wait;
use crate::{host, modules, places};
use device::Device;
pub use tests::{names, run};

/// Fast and slow.
const TIERS: usize = 2;

/// Memory of each of the guest's nodes.
const NODE_BYTES: u64 = 512 << 20;

/// Where the driver is in the guest.
const DRIVER: &str = "/hyperflex.ko";

/// Longest time for the driver to do as it is told, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// The guest and its device.
struct FlexGuest {
    lab: Lab,
    device: Device,
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
}

impl FlexGuest {
    /// Boots a guest whose device offers these page orders, and puts the driver into it.
    fn start(orders: u32) -> Result<Self> {
        let driver = modules::build()?;
        let driver = driver
            .iter()
            .find(|file| file.ends_with("hyperflex.ko"))
            .context("no module hyperflex was built")?;
        let device = Device::start(orders)?;
        let mut qemu = emulator::command_with_vhost_user()?;
        qemu.args(options(&initrd()?)?);
        let process = Process::start_command("flex", qemu, Lifetime::Task)?;
        let mut lab = Lab::without_guests(process)?;
        lab.push(driver, DRIVER)?;
        Ok(Self { lab, device })
    }

    /// Loads the driver.
    fn insert(&mut self) -> Result<()> {
        self.lab.check(&format!("insmod {DRIVER}")).map(drop)
    }

    /// A number from a node's `meminfo`, in bytes.
    fn meminfo(&mut self, node: usize, name: &str) -> Result<u64> {
        let path = format!("/sys/devices/system/node/node{node}/meminfo");
        let text = self.lab.check(&format!("cat {path}"))?;
        let line = text.lines().find(|line| line.contains(name));
        let number = line.and_then(|line| line.split_whitespace().nth(3));
        let kib: u64 = number
            .with_context(|| format!("no {name} in {path}"))?
            .parse()?;
        Ok(kib << 10)
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
            ensure!(numbers.len() == 13, "the driver's table: {line}");
            tiers.push(DriverTier {
                base: numbers[3],
                huge: numbers[4],
                in_flight: numbers[5] + numbers[6],
                given_back: numbers[7],
                refused: numbers[9],
                moved: numbers[11],
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
            let (driver, state) = (guest.driver()?, guest.device.state()?);
            last = format!("{driver:?} {:?}", state.tiers);
            let sizes = driver
                .iter()
                .map(|tier| (tier.base + tier.huge, tier.in_flight));
            let met = sizes.eq(pages.map(|pages| (pages, 0)));
            Ok(met && state.tiers.iter().map(|tier| tier.actual).eq(pages))
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
        self.lab.check("true").map(drop)
    }

    /// Fails where the guest's kernel complained.
    fn expect_a_quiet_kernel(&mut self) -> Result<()> {
        let log = self.lab.check("dmesg | sed 1,/out-of-tree/d")?;
        for word in [
            "BUG",
            "WARNING",
            "Oops",
            "Bad page",
            "Out of memory",
            "hung",
        ] {
            if let Some(line) = log.lines().find(|line| line.contains(word)) {
                bail!("the guest's kernel: {line}\n{log}");
            }
        }
        Ok(())
    }
}

fn initrd() -> Result<PathBuf> {
    let mut image = Image::default();
    image
        .console()
        .bytes("init", include_bytes!("init.sh"))
        .copy("bin/busybox", &host::find("bin/busybox")?)
        .copy("bin/lab-host", &programs::build_lab()?.host);
    let path = places::lab("flex")?.join("initrd");
    image.write(&mut BufWriter::new(File::create(&path)?))?;
    Ok(path)
}

fn options(initrd: &std::path::Path) -> Result<Vec<String>> {
    let mut text = format!(
        "-nodefaults -no-reboot -display none -machine q35 -accel tcg,thread=multi,tb-size=256 \
         -cpu EPYC-Rome -smp 2 -m {} -serial file:{CONSOLE_LOG} -d cpu_reset -D {RESETS_LOG} \
         -qmp unix:{QMP},server=on,wait=off -device virtio-serial-pci \
         -chardev socket,id=control,path={control},server=on,wait=off \
         -device virtserialport,chardev=control,name={control} \
         -chardev socket,id=flex,path={socket} \
         -device vhost-user-test-device-pci,chardev=flex,virtio-id=13,num_vqs={queues},vq_size=128,config_size=128",
        (TIERS as u64 * NODE_BYTES) >> 20,
        control = port::CONTROL,
        socket = device::SOCKET,
        queues = 2 * TIERS + 2,
    );
    for (node, cpus) in [(0, ",cpus=0-1"), (1, "")] {
        text.push_str(&format!(
            " -object memory-backend-memfd,id=m{node},size={NODE_BYTES},share=on \
             -numa node,nodeid={node},memdev=m{node}{cpus}"
        ));
    }
    let mut options: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
    let kernel = Kernel::get(false)?.image().display().to_string();
    let initrd = initrd.display().to_string();
    for (name, value) in [
        ("-kernel", kernel.as_str()),
        ("-initrd", &initrd),
        ("-append", "console=ttyS0 panic=-1 quiet"),
    ] {
        options.extend([name.to_owned(), value.to_owned()]);
    }
    Ok(options)
}
