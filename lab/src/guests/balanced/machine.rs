//! The machines of two guests that share memory: QEMU's options, swap devices, initial file system.

use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use terrace_lab_programs::port;

use super::{By, FILES_MIB, FLOOR_MIB, FOLDER, RAM_MIB, flex};
use crate::control::lab::Lab;
use crate::guests::beside::MONITORS;
use crate::guests::tiered::{self, MIB};
use crate::machine::cpio::Image;
use crate::machine::emulator;
use crate::machine::kernel::Kernel;
use crate::machine::options::{self, CONSOLE_LOG, QMP, RESETS_LOG};
use crate::machine::process::{Lifetime, Process};
use crate::{host, places, programs};

/// Memory of a guest that a virtio-mem device plugs, MiB, beside its floor: whole blocks of the guest's kernel.
const PLUGGED_MIB: u64 = 384;
/// Size of a guest's swap device, MiB.
const SWAP_MIB: u64 = 512;

/// The stock balloon.
const BALLOON: &str = "-device virtio-balloon-pci,deflate-on-oom=on";

/// Boots one of the guests.
pub fn boot(by: By, name: &str, folder: &Path) -> Result<Lab> {
    let mut qemu = match by.is_flex() {
        true => emulator::command_with_vhost_user()?,
        false => emulator::command()?,
    };
    qemu.args(options(by, name, folder)?);
    Lab::without_guests(Process::start_command(name, qemu, Lifetime::Task)?)
}

/// QEMU's options about memory: what a guest is started with, and the device that resizes it.
fn memory(by: By) -> String {
    match by {
        By::Balloon | By::Reporting | By::HyperFlex => of_one_node(RAM_MIB),
        By::Private => format!(
            "-machine q35,memory-backend=ram -object memory-backend-ram,id=ram,size={RAM_MIB}M -m {RAM_MIB}M"
        ),
        By::VirtioMem => format!(
            "{},slots=1,maxmem=2G \
             -object memory-backend-memfd,id=plugged,size={PLUGGED_MIB}M,share=on,reserve=off \
             -device virtio-mem-pci,id=plug,memdev=plugged,node=0,requested-size={PLUGGED_MIB}M",
            of_one_node(FLOOR_MIB)
        ),
        By::Tiers => of_two_nodes(),
    }
}

fn of_one_node(mib: u64) -> String {
    format!(
        "-machine q35,memory-backend=ram -object memory-backend-memfd,id=ram,size={mib}M,share=on -m {mib}M"
    )
}

/// Two nodes of which the firmware says that the second one is slower: the guest's kernel demotes.
fn of_two_nodes() -> String {
    let mut text = format!("-machine q35,hmat=on -m {RAM_MIB}M");
    for (node, place) in [(0, "cpus=0,"), (1, "")] {
        text.push_str(&format!(
            " -object memory-backend-memfd,id=m{node},size={}M,share=on \
             -numa node,nodeid={node},{place}initiator=0,memdev=m{node}",
            RAM_MIB / 2
        ));
    }
    text + &tiered::distances()
}

fn options(by: By, name: &str, folder: &Path) -> Result<Vec<String>> {
    let kernel = Kernel::get(false)?;
    let text = format!(
        "-nodefaults -no-reboot -display none -name {name} \
         {memory} -accel tcg,thread=single,tb-size=128 -cpu EPYC-Rome,-svm -smp 1 -serial file:{CONSOLE_LOG} -d cpu_reset -D {RESETS_LOG} \
         -qmp unix:{QMP},server=on,wait=off -qmp unix:{monitor},server=on,wait=off -device virtio-serial-pci \
         -chardev socket,id=control,path={control},server=on,wait=off \
         -device virtserialport,chardev=control,name={control} {device} \
         -drive file={swap},if=none,id=swap,format=raw,cache=unsafe -device virtio-blk-pci,drive=swap \
         -drive file={files},if=none,id=files,format=raw,cache=unsafe -device virtio-blk-pci,drive=files",
        memory = memory(by),
        device = match by {
            By::HyperFlex | By::Tiers => flex::options(by, name),
            By::Balloon | By::Private | By::VirtioMem => BALLOON.to_owned(),
            By::Reporting => format!("{BALLOON},free-page-reporting=on"),
        },
        monitor = format_args!("../{FOLDER}/{MONITORS}/{name}"),
        control = port::CONTROL,
        swap = swap(name, folder)?.display(),
        files = files(name, folder)?.display(),
    );
    Ok(options::of_guest(
        &text,
        &kernel.image(),
        &initrd(&kernel)?,
        "console=ttyS0 panic=-1 quiet memhp_default_state=online_movable",
    ))
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
