//! A guest with two nodes, for modules that need no device.

use std::fs::File;
use std::io::BufWriter;
use std::path::PathBuf;

use anyhow::{Context, Result};
use terrace_lab_programs::port;

use crate::control::lab::Lab;
use crate::machine::cpio::Image;
use crate::machine::emulator;
use crate::machine::kernel::Kernel;
use crate::machine::options::{self, CONSOLE_LOG, QMP, RESETS_LOG};
use crate::machine::process::{Lifetime, Process};
use crate::{host, modules, places, programs};

/// Name of the machine.
const NAME: &str = "module";
/// Memory of each of the guest's two nodes, MiB.
const NODE_MIB: u64 = 256;

/// Boots the guest and stores a module in it, `/NAME.ko`, and that module's test of itself, `/selftest`.
pub fn start(module: &str) -> Result<Lab> {
    let mut qemu = emulator::command()?;
    qemu.args(options()?);
    let mut guest = Lab::without_guests(Process::start_command(NAME, qemu, Lifetime::Task)?)?;
    let built = modules::build()?;
    let file = format!("{module}.ko");
    let object = built.iter().find(|path| path.ends_with(&file));
    let object = object.with_context(|| format!("no module {module} was built"))?;
    guest.push(object, &format!("/{file}"))?;
    guest.push(&modules::selftest(module)?, "/selftest")?;
    Ok(guest)
}

fn options() -> Result<Vec<String>> {
    let text = format!(
        "-nodefaults -no-reboot -display none -name {NAME} -machine q35 -accel tcg,thread=multi,tb-size=128 \
         -cpu EPYC-Rome,-svm -smp 2 -m {ram} \
         -object memory-backend-ram,id=m0,size={NODE_MIB}M -numa node,nodeid=0,memdev=m0,cpus=0-1 \
         -object memory-backend-ram,id=m1,size={NODE_MIB}M -numa node,nodeid=1,memdev=m1 -serial file:{CONSOLE_LOG} -d cpu_reset -D {RESETS_LOG} \
         -qmp unix:{QMP},server=on,wait=off -device virtio-serial-pci \
         -chardev socket,id=control,path={control},server=on,wait=off \
         -device virtserialport,chardev=control,name={control}",
        ram = 2 * NODE_MIB,
        control = port::CONTROL,
    );
    let kernel = Kernel::get(false)?;
    Ok(options::of_guest(
        &text,
        &kernel.image(),
        &initrd()?,
        "console=ttyS0 panic=-1 quiet",
    ))
}

fn initrd() -> Result<PathBuf> {
    let mut image = Image::default();
    image
        .console()
        .bytes("init", include_bytes!("module.sh"))
        .copy("bin/busybox", &host::find("bin/busybox")?)
        .copy("bin/lab-host", &programs::build_lab()?.host);
    let path = places::lab("module")?.join("initrd");
    image.write(&mut BufWriter::new(File::create(&path)?))?;
    Ok(path)
}
