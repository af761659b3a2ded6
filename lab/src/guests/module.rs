//! A guest with two nodes, for modules that need no device.

use std::fs::File;
use std::io::BufWriter;
use std::path::PathBuf;

use anyhow::Result;
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
/// The same of a guest with a small second node, MiB.
const UNEQUAL_MIB: [u64; 2] = [512, 64];

/// Memory that can be plugged into an empty node, MiB.
pub const PLUGGED_MIB: u64 = 128;
/// Size of a disk, MiB.
const DISK_MIB: u64 = 256;
/// Writes that the disk for swap takes in a second.
const DISK_WRITES: u32 = 400;

/// Name of the socket behind the agent's port.
pub const AGENT: &str = "agent";

/// Modules that the control program needs where they are not part of the kernel.
const MODULES: [&str; 2] = ["virtio_pci", "virtio_console"];

/// Hardware beside that of each guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum More {
    Nothing,
    /// A disk for swap, `/dev/nvme0n1`, that takes few writes a second.
    SlowDisk,
    /// A port for the agent, [`AGENT`].
    AgentPort,
    /// A DIMM on node 1, whose memory the guest's kernel keeps movable.
    Dimm,
    /// A disk, `/dev/nvme0n1`, and node 0 is large and node 1 small: to gather hot pages on.
    SmallNode,
    /// Node 0 is large and node 1 empty; memory can be plugged into it as a DIMM and by a virtio-mem device, `vm1`.
    EmptyNode,
}

/// Boots the guest with a kernel and stores a module in it that was built for that, `/NAME.ko`, and that module's test of
/// itself, `/selftest`.
pub fn start(module: &str, kernel: &Kernel) -> Result<Lab> {
    start_with(module, kernel, More::Nothing)
}

/// The same, with more hardware.
pub fn start_with(module: &str, kernel: &Kernel, more: More) -> Result<Lab> {
    let mut qemu = emulator::command()?;
    qemu.args(options(kernel, more)?);
    let mut guest = Lab::without_guests(Process::start_command(NAME, qemu, Lifetime::Task)?)?;
    let object = modules::build_for(kernel, module)?;
    guest.push(&object, &format!("/{module}.ko"))?;
    guest.push(&modules::program(module, "selftest")?, "/selftest")?;
    Ok(guest)
}

fn options(kernel: &Kernel, more: More) -> Result<Vec<String>> {
    let [first, second] = match more {
        More::SmallNode => UNEQUAL_MIB,
        More::EmptyNode => [UNEQUAL_MIB[0], 0],
        _ => [NODE_MIB; 2],
    };
    let other = match second {
        0 => "-numa node,nodeid=1".to_owned(),
        _ => {
            format!("-object memory-backend-ram,id=m1,size={second}M -numa node,nodeid=1,memdev=m1")
        }
    };
    let agent = match more {
        More::AgentPort => format!(
            " -chardev socket,id=agent,path={AGENT},server=on,wait=off \
             -device virtserialport,chardev=agent,name=org.terrace.agent.0"
        ),
        _ => String::new(),
    };
    // The kernel would lie in the small node now and then, and leave few blocks of 2 MiB there.
    let place = match more {
        More::SmallNode => " nokaslr",
        _ => "",
    };
    let more = hardware(more)?;
    let text = format!(
        "-nodefaults -no-reboot -display none -name {NAME} -machine q35 -accel tcg,thread=multi,tb-size=128 \
         -cpu EPYC-Rome,-svm -smp 2 -m {ram} {more} \
         -object memory-backend-ram,id=m0,size={first}M -numa node,nodeid=0,memdev=m0,cpus=0-1 \
         {other} -serial file:{CONSOLE_LOG} -d cpu_reset -D {RESETS_LOG} \
         -qmp unix:{QMP},server=on,wait=off -device virtio-serial-pci \
         -chardev socket,id=control,path={control},server=on,wait=off \
         -device virtserialport,chardev=control,name={control}{agent}",
        ram = first + second,
        control = port::CONTROL,
    );
    Ok(options::of_guest(
        &text,
        &kernel.image(),
        &initrd(kernel)?,
        &format!("console=ttyS0 panic=-1 quiet memhp_default_state=online_movable{place}"),
    ))
}

fn hardware(more: More) -> Result<String> {
    Ok(match more {
        More::Nothing | More::AgentPort => String::new(),
        More::SmallNode => disk("")?,
        More::SlowDisk => disk(&format!(",throttling.iops-write={DISK_WRITES}"))?,
        More::EmptyNode => format!(
            "-m {ram},slots=1,maxmem=4G -object memory-backend-ram,id=v1,size={PLUGGED_MIB}M,reserve=off \
             -device virtio-mem-pci,id=vm1,memdev=v1,node=1,requested-size=0",
            ram = UNEQUAL_MIB[0]
        ),
        More::Dimm => format!(
            "-m {ram},slots=1,maxmem=2G -object memory-backend-ram,id=more,size={NODE_MIB}M \
             -device pc-dimm,id=dimm,memdev=more,node=1",
            ram = 2 * NODE_MIB
        ),
    })
}

fn disk(options: &str) -> Result<String> {
    let path = places::lab("module")?.join("disk");
    File::create(&path)?.set_len(DISK_MIB << 20)?;
    Ok(format!(
        "-drive file={},if=none,id=disk,format=raw,cache=unsafe{options} -device nvme,drive=disk,serial=disk",
        path.display()
    ))
}

fn initrd(kernel: &Kernel) -> Result<PathBuf> {
    let mut image = Image::default();
    image
        .console()
        .bytes("init", include_bytes!("module.sh"))
        .copy("bin/busybox", &host::find("bin/busybox")?)
        .copy("bin/lab-host", &programs::build_lab()?.host);
    for (number, (name, module)) in kernel.modules(&MODULES)?.into_iter().enumerate() {
        image.bytes(&format!("modules/{number:02}-{name}.ko"), &module);
    }
    let path = places::lab("module")?.join("initrd");
    image.write(&mut BufWriter::new(File::create(&path)?))?;
    Ok(path)
}
