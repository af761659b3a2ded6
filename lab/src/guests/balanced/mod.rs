//! Two plain guests that share memory: each has one node, a device that resizes it, a driver that reports statistics, and a swap
//! device; the daemon is beside them.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use terrace_lab_programs::native::HotSet;

use crate::control::lab::Lab;
use crate::guests::beside::{Daemon, MONITORS};
use crate::guests::flex::device::Running;
use crate::guests::tiered::MIB;
use crate::progress::Wait;
use crate::{host, places};

mod flex;
mod machine;

/// The guest that needs memory, and the one that does not.
pub const BUSY: &str = "busy";
pub const IDLE: &str = "idle";

/// The device that resizes both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    Balloon,
    /// The same, and the guest reports free pages to it.
    Reporting,
    /// A balloon, and RAM that is QEMU's own: its pages can be huge.
    Private,
    /// Beside a balloon, which reports statistics.
    VirtioMem,
    HyperFlex,
    /// Guests have two nodes, of a fast and a slow tier.
    Tiers,
}

impl By {
    /// Whether it is a device of ours, of an emulator that can have one.
    fn is_flex(self) -> bool {
        matches!(self, Self::HyperFlex | Self::Tiers)
    }

    /// The number of nodes of a guest.
    fn nodes(self) -> u64 {
        match self {
            Self::Tiers => 2,
            _ => 1,
        }
    }
}

/// RAM of each guest, MiB, and memory that both may have together.
pub const RAM_MIB: u64 = 512;
pub const CAPACITY_MIB: u64 = 704;
/// The most that the busy guest has until a test lets it have more, MiB: the other one has the rest.
pub const CEILING_MIB: u64 = 256;
/// The least that each is left, MiB.
pub const FLOOR_MIB: u64 = 192;

/// Time after which what was taken is judged, ms: a test does not wait for half a minute.
pub const REVIEW_MS: u64 = 10_000;

/// Size of the device with a guest's files, MiB.
pub const FILES_MIB: u64 = 176;
/// That device, as the guest names it.
pub const FILES: &str = "vdb";

const FOLDER: &str = "balanced-daemon";

/// Longest time until memory has moved, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(300);

/// The line of the kernel's log after which a test reads it.
pub const MARK: &str = "the-test-begins";

/// The way in which two guests are started.
struct Setup<'a> {
    by: By,
    /// Lines of configuration: about each guest, and what follows them.
    about_busy: &'a str,
    about_idle: &'a str,
    about_host: &'a str,
    /// Memory of each tier that the busy guest has at first, MiB; `None`: all.
    busy_mib: Option<[u64; 2]>,
}

impl Setup<'_> {
    fn of(by: By) -> Self {
        Self {
            by,
            about_busy: "",
            about_idle: "",
            about_host: "",
            busy_mib: None,
        }
    }
}

/// The two guests and the daemon.
pub struct Balanced {
    pub busy: Lab,
    pub idle: Lab,
    pub daemon: Daemon,
    /// They end with this value.
    _devices: Vec<Running>,
}

impl Balanced {
    /// Boots both guests and starts the daemon beside them: they share what a host has that is short of memory.
    pub fn start(by: By) -> Result<Self> {
        Self::start_with(by, "")
    }

    /// The same with these lines of configuration about the idle guest, and what follows them.
    pub fn start_with(by: By, about_idle: &str) -> Result<Self> {
        let capacity =
            format!("[[tier]]\nname = \"dram\"\nnodes = [0]\ncapacity = \"{CAPACITY_MIB}MiB\"\n");
        Self::start_as(&Setup {
            by,
            about_busy: &format!("memory_ceiling = \"{CEILING_MIB}MiB\"\n"),
            about_idle,
            about_host: &(capacity + "[balance]\nmode = \"on\""),
            busy_mib: None,
        })
    }

    /// The same where memory is not shared.
    pub fn start_alone(by: By) -> Result<Self> {
        Self::start_as(&Setup {
            about_host: "[balance]\nmode = \"off\"\ncollapse_per_s = \"64MiB\"",
            ..Setup::of(by)
        })
    }

    /// Two guests with two nodes that trade at this price; the busy one has so much of each tier at first, MiB.
    pub fn start_trading(ratio: u64, busy_mib: [u64; 2]) -> Result<Self> {
        let trade = format!("[balance]\nmode = \"on\"\nshare = \"trade\"\nprice_ratio = {ratio}.0");
        Self::start_as(&Setup {
            about_host: &trade,
            busy_mib: Some(busy_mib),
            ..Setup::of(By::Tiers)
        })
    }

    fn start_as(setup: &Setup<'_>) -> Result<Self> {
        let by = setup.by;
        host::install_missing()?;
        let folder = places::lab("run")?.join(FOLDER);
        if folder.exists() {
            fs::remove_dir_all(&folder)?;
        }
        let mut daemon = Daemon::prepare(BUSY, &folder)?;
        fs::create_dir_all(folder.join(MONITORS))?;
        let mut devices = Vec::new();
        if by.is_flex() {
            for name in [BUSY, IDLE] {
                devices.push(flex::start(by, name, &folder)?);
            }
        }
        let [busy, idle] = [BUSY, IDLE].map(|name| machine::boot(by, name, &folder));
        let (mut busy, mut idle) = (busy?, idle?);
        for guest in [&mut busy, &mut idle] {
            if by.is_flex() {
                flex::bring_driver(guest)?;
            }
            guest.check(&format!("echo {MARK} >/dev/kmsg"))?;
        }
        if let (Some(sizes), Some(device)) = (setup.busy_mib, devices.first()) {
            flex::resize(device, &sizes)?;
        }
        let [flex_of_busy, flex_of_idle] = [BUSY, IDLE].map(|name| match by.is_flex() {
            true => flex::line(&daemon, name),
            false => String::new(),
        });
        let Setup {
            about_busy,
            about_idle,
            about_host,
            ..
        } = setup;
        daemon.start(&format!(
            "{flex_of_busy}memory_floor = \"{FLOOR_MIB}MiB\"\n{about_busy}\
             [vm.{IDLE}]\nnobody_pins = true\n{flex_of_idle}memory_floor = \"{FLOOR_MIB}MiB\"\n{about_idle}\n\
             {about_host}\nleast_shrink = \"32MiB\"\ncycle_ms = 2000\nvalley_ms = 4000\nturn_ms = 4000\n\
             settle_ms = 4000\nboot_ms = 0\nreview_ms = {REVIEW_MS}\nage_window_ms = 1000\nretry_factor = 3\n\
             lend_again_ms = {REVIEW_MS}"
        ))?;
        Ok(Self {
            busy,
            idle,
            daemon,
            _devices: devices,
        })
    }

    /// Kills the idle guest and boots another one in its place; of guests with stock devices.
    pub fn replace_idle(self, by: By) -> Result<Self> {
        let Self {
            busy,
            idle,
            daemon,
            _devices,
        } = self;
        drop(idle);
        let folder = places::lab("run")?.join(FOLDER);
        let mut idle = machine::boot(by, IDLE, &folder)?;
        idle.check(&format!("echo {MARK} >/dev/kmsg"))?;
        Ok(Self {
            busy,
            idle,
            daemon,
            _devices,
        })
    }

    /// The size of a guest by `terrace show`, MiB; `None` before it is known.
    pub fn size_mib(&self, vm: &str) -> Result<Option<u64>> {
        let sizes = self.sizes_mib(vm)?;
        Ok((!sizes.is_empty()).then(|| sizes.iter().sum()))
    }

    /// The sizes of its tiers; empty before they are known.
    pub fn sizes_mib(&self, vm: &str) -> Result<Vec<u64>> {
        let provisioning = self.provisioning(vm)?;
        let tiers = provisioning["tiers"].as_array();
        let sizes = tiers.into_iter().flatten();
        let sizes = sizes.filter_map(|tier| tier["size_bytes"].as_u64());
        Ok(sizes.map(|bytes| bytes / MIB).collect())
    }

    /// The resizable memory of a guest by `terrace show --json`.
    pub fn provisioning(&self, vm: &str) -> Result<Value> {
        Ok(self.daemon.show_json(vm)?["provisioning"].take())
    }

    /// Orders that the arbiter gave to both so far.
    pub fn orders(&self) -> Result<u64> {
        let of = |vm| Ok(self.provisioning(vm)?["orders"]["by_arbiter"].as_u64());
        let both: Result<[Option<u64>; 2]> = of(BUSY).and_then(|busy| Ok([busy, of(IDLE)?]));
        Ok(both?.into_iter().flatten().sum())
    }

    /// Watches both for this long.
    pub fn watch(&mut self, time: Duration) -> Result<()> {
        let end = Instant::now() + time;
        while Instant::now() < end {
            self.expect_bounds()?;
            std::thread::sleep(Duration::from_secs(1));
        }
        Ok(())
    }

    /// Waits until the daemon knows the size of a guest that was started in another one's place.
    pub fn until_known(&self, vm: &str) -> Result<()> {
        let mut wait = Wait::begin_silently("the new guest is known", PATIENCE);
        // Until the daemon finds it, there is no such VM.
        while !self.size_mib(vm).is_ok_and(|size| size.is_some()) {
            wait.go_on()?;
            std::thread::sleep(Duration::from_millis(500));
        }
        Ok(())
    }

    /// Waits until something is so.
    pub fn until(
        &mut self,
        what: &str,
        mut condition: impl FnMut(&mut Self) -> Result<bool>,
    ) -> Result<()> {
        let mut wait = Wait::begin_silently(what, PATIENCE);
        while !condition(self)? {
            self.expect_bounds()?;
            let state = |guests: &Self, vm| guests.provisioning(vm).unwrap_or_default().to_string();
            wait.go_on().with_context(|| {
                format!(
                    "{BUSY}: {}\n{IDLE}: {}",
                    state(self, BUSY),
                    state(self, IDLE)
                )
            })?;
            std::thread::sleep(Duration::from_millis(500));
        }
        Ok(())
    }

    /// No guest is below its floor, by its own balloon.
    pub fn expect_bounds(&self) -> Result<()> {
        for vm in [BUSY, IDLE] {
            if let Some(size) = self.size_mib(vm)? {
                ensure!(
                    size >= FLOOR_MIB,
                    "{vm} has {size} MiB, less than its floor"
                );
            }
        }
        Ok(())
    }
}

/// A number of a guest's `/proc/vmstat`.
pub fn vmstat(guest: &mut Lab, name: &str) -> Result<u64> {
    let text = guest.check(&format!("grep '^{name} ' /proc/vmstat"))?;
    let number = text.split_whitespace().nth(1);
    Ok(number
        .with_context(|| format!("no {name}: {text}"))?
        .parse()?)
}

/// A program of this size, of which it keeps using a part.
pub fn program(name: &str, region_mib: usize, hot_mib: usize) -> HotSet {
    HotSet {
        name: name.to_owned(),
        region_mib,
        hot_mib,
        node: 0,
        processor: 0,
        ..HotSet::default()
    }
}
