//! The node to gather on is empty when the guest boots; its memory is plugged in later, as a DIMM and by virtio-mem.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::{
    FILE, LIST, MARK, MODULE, configure, expect_gathered, expect_on_node, finish, list, sparse,
    undo,
};
use crate::control::agent::PATIENCE;
use crate::control::lab::Lab;
use crate::guests::module::{self, More, PLUGGED_MIB};
use crate::guests::tiered::{self, MIB};
use crate::machine::kernel::Kernel;
use crate::places;

/// The driver of virtio-mem.
const DRIVER: &str = "virtio_mem";
/// The node.
const NODE: usize = 1;

/// Hot pages come together there all the same.
pub fn plugged() -> Result<()> {
    let kernel = Kernel::get(false)?;
    let mut guest = module::start_with(MODULE, &kernel, More::EmptyNode)?;
    guest.check(&format!("echo {MARK} >/dev/kmsg"))?;
    guest.install_agent()?;
    guest.install_native()?;
    guest.check("echo madvise >/sys/kernel/mm/transparent_hugepage/enabled")?;
    guest.start_hot_set(&sparse())?;
    configure(&mut guest, "node = 1")?;
    list(&mut guest)?;
    let said = guest.run(
        &format!("terrace-agent gather --once --config {FILE} --pages {LIST}"),
        PATIENCE,
    )?;
    ensure!(
        said.exit != 0 && said.stderr.contains("this guest has no node 1"),
        "{said:?}"
    );
    plug_dimm(&mut guest)?;
    gathers(&mut guest, "a DIMM")?;
    unplug_dimm(&mut guest)?;
    load_driver(&mut guest, &kernel)?;
    // Pages that went home lie closer together than they did.
    guest.ask(&sparse().name, "move 300")?;
    resize(&mut guest, PLUGGED_MIB)?;
    gathers(&mut guest, "virtio-mem")?;
    resize(&mut guest, 0)?;
    finish(&mut guest)
}

/// Hot pages come together in what was plugged in, and leave it again.
fn gathers(guest: &mut Lab, what: &str) -> Result<()> {
    let said = guest.check(&format!("terrace-agent doctor --config {FILE} || true"))?;
    ensure!(
        said.contains("hot pages come together on node 1"),
        "{what}: {said}"
    );
    list(guest)?;
    expect_gathered(guest, what, &format!("--pages {LIST}"))?;
    expect_on_node(guest)?;
    undo(guest)
}

fn qmp(guest: &Lab, command: &str, arguments: &Value) -> Result<Value> {
    guest.qmp()?.execute(command, arguments)
}

fn plug_dimm(guest: &mut Lab) -> Result<()> {
    let size = PLUGGED_MIB * MIB;
    let memory = json!({"qom-type": "memory-backend-ram", "id": "d0", "size": size});
    qmp(guest, "object-add", &memory)?;
    let dimm = json!({"driver": "pc-dimm", "id": "dimm0", "memdev": "d0", "node": NODE});
    qmp(guest, "device_add", &dimm)?;
    wait_for(guest, size)
}

fn unplug_dimm(guest: &mut Lab) -> Result<()> {
    qmp(guest, "device_del", &json!({"id": "dimm0"}))?;
    guest.wait_until("the DIMM is out", PATIENCE, |guest| {
        let there = qmp(guest, "query-memory-devices", &json!({}))?;
        let there = there.as_array().context("no list")?;
        let is_dimm = |device: &&Value| device["type"] == "dimm";
        Ok((!there.iter().any(|device| is_dimm(&device))).then_some(()))
    })
}

fn load_driver(guest: &mut Lab, kernel: &Kernel) -> Result<()> {
    let folder = places::lab("module")?;
    for (name, bytes) in kernel.modules(&[DRIVER])? {
        let (file, path) = (folder.join(&name), format!("/{name}.ko"));
        fs::write(&file, bytes)?;
        guest.push(&file, &path)?;
        guest.check(&format!("insmod {path}"))?;
    }
    Ok(())
}

/// Has virtio-mem plug so much in, or take it out.
fn resize(guest: &mut Lab, mib: u64) -> Result<()> {
    let size = mib * MIB;
    let property =
        json!({"path": "/machine/peripheral/vm1", "property": "requested-size", "value": size});
    qmp(guest, "qom-set", &property)?;
    wait_for(guest, size)
}

/// Waits until the node has that much memory.
fn wait_for(guest: &mut Lab, bytes: u64) -> Result<()> {
    guest.wait_until("the node has its memory", PATIENCE, |guest| {
        let there = guest.check(&format!(
            "ls -d /sys/devices/system/node/node{NODE} || true"
        ))?;
        let now = match there.trim().is_empty() {
            true => 0,
            false => tiered::meminfo(guest, NODE, "MemTotal")?,
        };
        Ok((now == bytes).then_some(()))
    })
}
