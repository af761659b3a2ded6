//! The initial RAM disks of L1 and L2.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::cpio::Image;
use super::kernel::{Kernel, MODULES};
use crate::programs::LabPrograms;
use crate::progress::say;
use crate::{host, places};

const QEMU: &str = "usr/bin/qemu-system-x86_64";

/// All files that QEMU reads to start an L2 guest from a kernel image.
const FIRMWARE: [&str; 3] = [
    "usr/share/qemu/qboot.rom",
    "usr/share/qemu/kvmvapic.bin",
    "usr/share/qemu/linuxboot_dma.bin",
];

const LOADER: &str = "lib64/ld-linux-x86-64.so.2";

/// The loader's own default folder, to which the libraries of all folders go.
pub const LIBRARIES: &str = "lib/x86_64-linux-gnu";

/// Writes L1's initrd, which holds all of L2, unless one with this content is there.
pub fn build(kernel: &Kernel, programs: &LabPrograms) -> Result<PathBuf> {
    let image = l1(kernel, programs)?;
    let folder = places::lab("images")?;
    let path = folder.join(format!("l1-{}.cpio", image.key()?));
    if !path.exists() {
        say("writing L1's initrd …");
        remove_others(&folder)?;
        let partial = path.with_added_extension("partial");
        write(&image, &partial).with_context(|| format!("writing {}", partial.display()))?;
        fs::rename(&partial, &path)?;
    }
    Ok(path)
}

/// The initrd of a guest.
pub fn guest(programs: &LabPrograms) -> Result<Vec<u8>> {
    let mut image = Vec::new();
    l2(programs).write(&mut image)?;
    Ok(image)
}

fn l1(kernel: &Kernel, programs: &LabPrograms) -> Result<Image> {
    let mut image = Image::default();
    image
        .console()
        .bytes("init", include_bytes!("l1-init.sh"))
        .copy("bin/busybox", &host::find("bin/busybox")?)
        .copy("bin/lab-host", &programs.host)
        .copy("lab/vmlinuz", &kernel.image())
        .bytes("lab/l2.cpio", &guest(programs)?);
    for module in MODULES {
        image.bytes(&format!("lib/modules/{module}.ko"), &kernel.module(module)?);
    }
    add_qemu(&mut image)?;
    Ok(image)
}

fn l2(programs: &LabPrograms) -> Image {
    let mut image = Image::default();
    image.console().copy("init", &programs.guest);
    image
}

fn add_qemu(image: &mut Image) -> Result<()> {
    let qemu = host::find(QEMU)?;
    image.copy(QEMU, &qemu);
    for firmware in FIRMWARE {
        image.copy(firmware, &host::find(firmware)?);
    }
    for library in libraries(&qemu)? {
        let name = library.file_name().context("a library without a name")?;
        let name = name.to_string_lossy();
        if LOADER.ends_with(&*name) {
            image.copy(LOADER, &library);
        } else {
            image.copy(&format!("{LIBRARIES}/{name}"), &library);
        }
    }
    Ok(())
}

/// The shared libraries a program needs, and the loader.
pub fn libraries(program: &Path) -> Result<Vec<PathBuf>> {
    let mut ldd = std::process::Command::new("ldd");
    ldd.arg(program);
    if !program.starts_with("/usr") {
        ldd.env("LD_LIBRARY_PATH", host::own_libraries()?);
    }
    let listing = host::output(&mut ldd)?;
    let paths = listing
        .lines()
        .filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')));
    Ok(paths.map(PathBuf::from).collect())
}

fn write(image: &Image, path: &Path) -> Result<()> {
    let mut file = BufWriter::new(File::create(path)?);
    image.write(&mut file)?;
    Ok(file.flush()?)
}

fn remove_others(folder: &Path) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        fs::remove_file(entry?.path())?;
    }
    Ok(())
}
