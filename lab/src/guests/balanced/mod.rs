//! Two plain guests that share memory: each has one node, a stock device that resizes it, a balloon whose driver reports
//! statistics, and a swap device; the daemon is beside them.

use std::fs::{self, File};
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use terrace_lab_programs::native::HotSet;
use terrace_lab_programs::port;

use crate::control::lab::Lab;
use crate::guests::beside::{Daemon, MONITORS};
use crate::guests::tiered::MIB;
use crate::machine::cpio::Image;
use crate::machine::emulator;
use crate::machine::kernel::Kernel;
use crate::machine::options::{CONSOLE_LOG, QMP, RESETS_LOG};
use crate::machine::process::{Lifetime, Process};
use crate::progress::Wait;
use crate::{host, places, programs};

/// The guest that needs memory, and the one that does not.
pub const BUSY: &str = "busy";
pub const IDLE: &str = "idle";

/// The device of a stock QEMU that resizes both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    Balloon,
    VirtioMem,
}

/// Memory of a guest that a virtio-mem device plugs, MiB, beside its floor: whole blocks of the guest's kernel.
const PLUGGED_MIB: u64 = 384;

/// RAM of each guest, MiB, and memory that both may have together.
pub const RAM_MIB: u64 = 512;
pub const CAPACITY_MIB: u64 = 704;
/// The most that the busy guest has until a test lets it have more, MiB: the other one has the rest.
pub const CEILING_MIB: u64 = 256;
/// The least that each is left, MiB.
pub const FLOOR_MIB: u64 = 192;

/// Time after which what was taken is judged, ms: a test does not wait for half a minute.
pub const REVIEW_MS: u64 = 10_000;

/// Size of a guest's swap device, MiB.
const SWAP_MIB: u64 = 512;
/// Size of the device with a guest's files, MiB.
pub const FILES_MIB: u64 = 176;
/// That device, as the guest names it.
pub const FILES: &str = "vdb";

const FOLDER: &str = "balanced-daemon";

/// Longest time until memory has moved, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(300);

/// The line of the kernel's log after which a test reads it.
pub const MARK: &str = "the-test-begins";

/// The two guests and the daemon.
pub struct Balanced {
    pub busy: Lab,
    pub idle: Lab,
    pub daemon: Daemon,
}

impl Balanced {
    /// Boots both guests and starts the daemon beside them.
    pub fn start(by: By) -> Result<Self> {
        Self::start_with(by, "")
    }

    /// The same with these lines of configuration about the idle guest, and what follows them.
    pub fn start_with(by: By, about_idle: &str) -> Result<Self> {
        host::install_missing()?;
        let folder = places::lab("run")?.join(FOLDER);
        if folder.exists() {
            fs::remove_dir_all(&folder)?;
        }
        let mut daemon = Daemon::prepare(BUSY, &folder)?;
        fs::create_dir_all(folder.join(MONITORS))?;
        let [busy, idle] = [BUSY, IDLE].map(|name| boot(by, name, &folder));
        let (mut busy, mut idle) = (busy?, idle?);
        for guest in [&mut busy, &mut idle] {
            guest.check(&format!("echo {MARK} >/dev/kmsg"))?;
        }
        daemon.start(&format!(
            "memory_floor = \"{FLOOR_MIB}MiB\"\nmemory_ceiling = \"{CEILING_MIB}MiB\"\n\
             [vm.{IDLE}]\nnobody_pins = true\nmemory_floor = \"{FLOOR_MIB}MiB\"\n{about_idle}\n\
             [[tier]]\nname = \"dram\"\nnodes = [0]\ncapacity = \"{CAPACITY_MIB}MiB\"\n\
             [balance]\nmode = \"on\"\nleast_shrink = \"32MiB\"\ncycle_ms = 2000\nvalley_ms = 4000\nturn_ms = 4000\n\
             settle_ms = 4000\nboot_ms = 0\nreview_ms = {REVIEW_MS}\nage_window_ms = 1000\nretry_factor = 3\nlend_again_ms = {REVIEW_MS}"
        ))?;
        Ok(Self { busy, idle, daemon })
    }

    /// The size of a guest by `terrace show`, MiB; `None` before it is known.
    pub fn size_mib(&self, vm: &str) -> Result<Option<u64>> {
        let provisioning = self.provisioning(vm)?;
        let size = provisioning["tiers"][0]["size_bytes"].as_u64();
        Ok(size.map(|bytes| bytes / MIB))
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

fn boot(by: By, name: &str, folder: &Path) -> Result<Lab> {
    let mut qemu = emulator::command()?;
    qemu.args(options(by, name, folder)?);
    Lab::without_guests(Process::start_command(name, qemu, Lifetime::Task)?)
}

/// QEMU's options about memory: what a guest is started with, and the device that resizes it.
fn memory(by: By) -> String {
    let boot = match by {
        By::Balloon => RAM_MIB,
        By::VirtioMem => FLOOR_MIB,
    };
    let more = match by {
        By::Balloon => String::new(),
        By::VirtioMem => format!(
            ",slots=1,maxmem=2G -object memory-backend-memfd,id=plugged,size={PLUGGED_MIB}M,share=on,reserve=off \
             -device virtio-mem-pci,id=plug,memdev=plugged,node=0,requested-size={PLUGGED_MIB}M"
        ),
    };
    format!("-object memory-backend-memfd,id=ram,size={boot}M,share=on -m {boot}M{more}")
}

fn options(by: By, name: &str, folder: &Path) -> Result<Vec<String>> {
    let kernel = Kernel::get(false)?;
    let text = format!(
        "-nodefaults -no-reboot -display none -name {name} -machine q35,memory-backend=ram \
         {memory} -accel tcg,thread=single,tb-size=128 -cpu EPYC-Rome,-svm -smp 1 -serial file:{CONSOLE_LOG} -d cpu_reset -D {RESETS_LOG} \
         -qmp unix:{QMP},server=on,wait=off -qmp unix:{monitor},server=on,wait=off -device virtio-serial-pci \
         -chardev socket,id=control,path={control},server=on,wait=off \
         -device virtserialport,chardev=control,name={control} -device virtio-balloon-pci,deflate-on-oom=on \
         -drive file={swap},if=none,id=swap,format=raw,cache=unsafe -device virtio-blk-pci,drive=swap \
         -drive file={files},if=none,id=files,format=raw,cache=unsafe -device virtio-blk-pci,drive=files",
        memory = memory(by),
        monitor = format_args!("../{FOLDER}/{MONITORS}/{name}"),
        control = port::CONTROL,
        swap = swap(name, folder)?.display(),
        files = files(name, folder)?.display(),
    );
    let mut options: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
    let image = kernel.image().display().to_string();
    let initrd = initrd(&kernel)?.display().to_string();
    for (name, value) in [
        ("-kernel", image.as_str()),
        ("-initrd", &initrd),
        (
            "-append",
            "console=ttyS0 panic=-1 quiet memhp_default_state=online_movable",
        ),
    ] {
        options.extend([name.to_owned(), value.to_owned()]);
    }
    Ok(options)
}

/// A file with an empty swap area.
fn swap(name: &str, folder: &Path) -> Result<PathBuf> {
    let path = folder.join(format!("{name}.swap"));
    File::create(&path)?.set_len(SWAP_MIB * MIB)?;
    let done = host::output(host::program("sbin/mkswap")?.arg(&path));
    done.with_context(|| format!("mkswap {}", path.display()))?;
    Ok(path)
}

/// A file for what a guest reads.
fn files(name: &str, folder: &Path) -> Result<PathBuf> {
    let path = folder.join(format!("{name}.files"));
    File::create(&path)?.set_len(FILES_MIB * MIB)?;
    Ok(path)
}

fn initrd(kernel: &Kernel) -> Result<PathBuf> {
    let built = programs::build_lab()?;
    let mut image = Image::default();
    image
        .console()
        .bytes("init", include_bytes!("init.sh"))
        .copy("bin/busybox", &host::find("bin/busybox")?)
        .copy("bin/lab-host", &built.host)
        .copy("bin/lab-native", &built.native);
    for module in ["virtio_blk", "virtio_balloon", "virtio_mem"] {
        image.bytes(&format!("{module}.ko"), &kernel.module(module)?);
    }
    let path = places::lab("balanced")?.join("initrd");
    image.write(&mut BufWriter::new(File::create(&path)?))?;
    Ok(path)
}
