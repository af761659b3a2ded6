//! The guest's machine: QEMU's options.

use std::fs::File;
use std::io::BufWriter;
use std::path::PathBuf;

use anyhow::Result;
use terrace_lab_programs::port;

use crate::guests::tiered::TIERS;
use crate::machine::cpio::Image;
use crate::machine::kernel::Kernel;
use crate::machine::options::{self, CONSOLE_LOG, QMP, RESETS_LOG};
use crate::{host, places, programs};

/// Name of the machine and of the guest.
pub const NAME: &str = "stock";

/// The means of a stock QEMU to resize a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Means {
    /// A virtio-mem device of 1 GiB per node, half of a node's memory being plugged by it.
    VirtioMem,
    /// One balloon.
    Balloon,
    /// No device: memory is plugged in as DIMMs.
    Dimm,
}

impl Means {
    /// The guest's driver.
    pub fn module(self) -> Option<&'static str> {
        match self {
            Self::VirtioMem => Some("virtio_mem"),
            Self::Balloon => Some("virtio_balloon"),
            Self::Dimm => None,
        }
    }

    /// Memory with which each node is started, MiB.
    pub fn boot_mib(self) -> u64 {
        match self {
            Self::VirtioMem => 256,
            Self::Balloon | Self::Dimm => 512,
        }
    }
}

/// Path of a driver in the guest.
pub fn driver(module: &str) -> String {
    format!("/{module}.ko")
}

/// QEMU's options; `monitor` is a second monitor, for the program that manages the guest.
pub fn options(means: Means, monitor: &str) -> Result<Vec<String>> {
    let boot = means.boot_mib();
    let mut text = format!(
        "-nodefaults -no-reboot -display none -name {NAME} -machine q35 -accel tcg,thread=multi,tb-size=256 \
         -cpu EPYC-Rome,-svm -smp 2 -m {all}M,slots=2,maxmem=4G -serial file:{CONSOLE_LOG} -d cpu_reset -D {RESETS_LOG} \
         -qmp unix:{QMP},server=on,wait=off -qmp unix:{monitor},server=on,wait=off -device virtio-serial-pci \
         -chardev socket,id=control,path={control},server=on,wait=off \
         -device virtserialport,chardev=control,name={control}",
        all = TIERS as u64 * boot,
        control = port::CONTROL,
    );
    for (node, cpus) in [(0, ",cpus=0-1"), (1, "")] {
        text.push_str(&format!(
            " -object memory-backend-memfd,id=m{node},size={boot}M,share=on \
             -numa node,nodeid={node},memdev=m{node}{cpus}"
        ));
    }
    match means {
        Means::Dimm => {}
        Means::Balloon => text.push_str(" -device virtio-balloon-pci,id=balloon"),
        Means::VirtioMem => (0..TIERS).for_each(|node| {
            text.push_str(&format!(
                " -object memory-backend-memfd,id=v{node},size=1G,share=on,reserve=off \
                 -device virtio-mem-pci,id=vm{node},memdev=v{node},node={node},requested-size=256M"
            ));
        }),
    }
    let kernel = Kernel::get(false)?;
    Ok(options::of_guest(
        &text,
        &kernel.image(),
        &initrd(&kernel, means)?,
        // Plugged memory shall be free of memory that cannot be moved.
        "console=ttyS0 panic=-1 quiet memhp_default_state=online_movable",
    ))
}

fn initrd(kernel: &Kernel, means: Means) -> Result<PathBuf> {
    let built = programs::build_lab()?;
    let mut image = Image::default();
    image
        .console()
        .bytes("init", include_bytes!("init.sh"))
        .copy("bin/busybox", &host::find("bin/busybox")?)
        .copy("bin/lab-host", &built.host)
        .copy("bin/lab-native", &built.native);
    if let Some(module) = means.module() {
        let path = driver(module);
        image.bytes(path.trim_start_matches('/'), &kernel.module(module)?);
    }
    let path = places::lab("stock")?.join("initrd");
    image.write(&mut BufWriter::new(File::create(&path)?))?;
    Ok(path)
}
