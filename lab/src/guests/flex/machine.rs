//! The guest's machine: its initial file system and QEMU's options.

use std::fs::File;
use std::io::BufWriter;
use std::path::PathBuf;

use anyhow::Result;
use terrace_lab_programs::port;

use super::device;
use super::shape::Shape;
use crate::guests::tiered::{self, TIERS};
use crate::machine::cpio::Image;
use crate::machine::kernel::Kernel;
use crate::machine::options::{self, CONSOLE_LOG, QMP, RESETS_LOG};
use crate::{host, places, programs};

/// Name of the machine.
pub const NAME: &str = "flex";

/// The device's numbers by its ABI.
pub const VIRTIO_ID: u32 = 13;
/// Queues of each tier, and beside them.
pub const QUEUES_OF_TIERS: u64 = 2;
pub const QUEUES_BESIDE: u64 = 2;
pub const QUEUES: u64 = QUEUES_OF_TIERS * TIERS as u64 + QUEUES_BESIDE;
pub const QUEUE_SIZE: u32 = 128;
pub const CONFIG_BYTES: u32 = 128;

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

/// QEMU's options for a guest of this shape.
pub fn options(shape: &Shape) -> Result<Vec<String>> {
    let mut text = format!(
        "-nodefaults -no-reboot -display none -name {NAME} -machine q35,hmat={hmat} \
         -accel tcg,thread=multi,tb-size=256 \
         -cpu EPYC-Rome,-svm -smp 2 -m {mib} -serial file:{CONSOLE_LOG} -d cpu_reset -D {RESETS_LOG} \
         -qmp unix:{QMP},server=on,wait=off -qmp unix:{monitor},server=on,wait=off \
         -device virtio-serial-pci \
         -chardev socket,id=control,path={control},server=on,wait=off \
         -device virtserialport,chardev=control,name={control} \
         -device pcie-root-port,id=flex-port \
         -chardev socket,id=flex,path={socket} \
         -device vhost-user-test-device-pci,id=flex,bus=flex-port,chardev=flex,virtio-id={VIRTIO_ID},num_vqs={QUEUES},\
         vq_size={QUEUE_SIZE},config_size={CONFIG_BYTES}",
        hmat = if shape.is_tiered { "on" } else { "off" },
        mib = shape.node_bytes.iter().sum::<u64>() >> 20,
        monitor = device::MONITOR,
        control = port::CONTROL,
        socket = device::SOCKET,
    );
    for (node, bytes) in shape.node_bytes.into_iter().enumerate() {
        let place = nodes(shape.is_tiered, node);
        text.push_str(&format!(
            " -object memory-backend-memfd,id=m{node},size={bytes},share=on \
             -numa node,nodeid={node},memdev=m{node}{place}"
        ));
    }
    if shape.has_balloon {
        text.push_str(" -device virtio-balloon-pci,id=balloon");
    }
    if shape.is_tiered {
        text.push_str(&tiered::distances());
    }
    let kernel = Kernel::get(false)?;
    Ok(options::of_guest(
        &text,
        &kernel.image(),
        &initrd()?,
        "console=ttyS0 panic=-1 quiet",
    ))
}

/// Options of a node. Processors are on the first node.
fn nodes(is_tiered: bool, node: usize) -> &'static str {
    match (is_tiered, node) {
        (true, 0) => ",cpus=0-1,initiator=0",
        (true, _) => ",initiator=0",
        (false, 0) => ",cpus=0-1",
        (false, _) => "",
    }
}
