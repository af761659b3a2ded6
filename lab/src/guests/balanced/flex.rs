//! HyperFlex devices of guests that share memory.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::{By, FOLDER, RAM_MIB};
use crate::control::lab::Lab;
use crate::guests::beside::Daemon;
use crate::guests::flex::device::{CONTROL, GUEST, Running};
use crate::guests::flex::machine::{
    CONFIG_BYTES, QUEUE_SIZE, QUEUES_BESIDE, QUEUES_OF_TIERS, VIRTIO_ID,
};
use crate::guests::tiered::MIB;
use crate::{modules, programs};

/// Path of the driver in the guest.
const DRIVER: &str = "/hyperflex.ko";

/// The name of a guest's device's folder, in the folder of the daemon.
fn folder(name: &str) -> String {
    format!("{name}-device")
}

/// Starts the device of a guest.
pub fn start(by: By, name: &str, beside: &Path) -> Result<Running> {
    let program = programs::build_hyperflex()?;
    let place = beside.join(folder(name));
    fs::create_dir_all(&place)?;
    let mut arguments = format!(
        "--socket {GUEST} --control {CONTROL} --state state --statistics 1 --pages 4KiB,2MiB --nobody-pins"
    );
    for node in 0..by.nodes() {
        let bytes = RAM_MIB * MIB / by.nodes();
        arguments.push_str(&format!(" --tier node={node},size={bytes}"));
    }
    let arguments: Vec<String> = arguments.split(' ').map(str::to_owned).collect();
    let device = Running::start_in(place, &program, &arguments)?;
    device.connect()?;
    Ok(device)
}

/// Orders sizes of a guest's tiers, in MiB, of its device.
pub fn resize(device: &Running, mib: &[u64]) -> Result<()> {
    let bytes: Vec<u64> = mib.iter().map(|mib| mib * MIB).collect();
    let mut stream = device.connect()?;
    writeln!(stream, "{}", json!({"resize": {"size_bytes": bytes}}))?;
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer)?;
    ensure!(!answer.contains("error"), "{mib:?} MiB: {answer}");
    Ok(())
}

/// QEMU's options for it.
pub fn options(by: By, name: &str) -> String {
    let queues = QUEUES_OF_TIERS * by.nodes() + QUEUES_BESIDE;
    format!(
        "-device pcie-root-port,id=flex-port -chardev socket,id=flex,path=../{FOLDER}/{}/{GUEST} \
         -device vhost-user-test-device-pci,id=flex,bus=flex-port,chardev=flex,virtio-id={VIRTIO_ID},num_vqs={queues},\
         vq_size={QUEUE_SIZE},config_size={CONFIG_BYTES}",
        folder(name)
    )
}

/// The line of the daemon's configuration about a guest's device.
pub fn line(daemon: &Daemon, name: &str) -> String {
    let control = daemon.path(&format!("{}/{CONTROL}", folder(name)));
    format!("hyperflex = \"{control}\"\n")
}

/// Brings the driver into a guest and loads it.
pub fn bring_driver(guest: &mut Lab) -> Result<()> {
    let modules = modules::build()?;
    let driver = modules.iter().find(|file| file.ends_with("hyperflex.ko"));
    guest.push(driver.context("no module hyperflex was built")?, DRIVER)?;
    guest.check(&format!("insmod {DRIVER}")).map(drop)
}
