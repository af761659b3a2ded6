//! The blueprint of a lab: made once, started many times.

use std::hash::{DefaultHasher, Hasher};

use anyhow::Result;
use terrace_lab_programs::vm::VmSpec;

use super::kernel::Kernel;
use super::options::Machine;
use super::{emulator, images, snapshot};
use crate::{host, places, programs};

/// A lab that can be started.
#[derive(Clone)]
pub struct Blueprint {
    pub machine: Machine,
    /// The guest that runs in it from the start.
    pub vm: VmSpec,
    /// Shell commands that L1 runs before the guest starts.
    pub before_vm: String,
    /// QEMU's options that are no part of a snapshot.
    pub extra: Vec<String>,
    /// Name of the snapshot; changes with anything that is part of it.
    pub key: String,
}

impl Blueprint {
    /// Installs, fetches and builds missing parts. `refresh` searches for a newer kernel.
    pub fn prepare(vm: &VmSpec, refresh: bool) -> Result<Self> {
        let _lock = places::lock("images")?;
        host::install_missing()?;
        let kernel = Kernel::get(refresh)?;
        let initrd = images::build(&kernel, programs::build_lab()?)?;
        let machine = Machine::new(kernel.image(), &initrd);
        let key = key(&machine, vm, "")?;
        Ok(Self {
            machine,
            vm: vm.clone(),
            before_vm: String::new(),
            extra: Vec::new(),
            key,
        })
    }

    /// The same lab, whose emulator gets options that are no part of a snapshot.
    pub fn with_extra(self, extra: Vec<String>) -> Self {
        Self { extra, ..self }
    }

    /// The same lab, whose host is set up by these commands before the guest starts.
    pub fn with_before_vm(self, commands: &str) -> Result<Self> {
        let key = key(&self.machine, &self.vm, commands)?;
        Ok(Self {
            before_vm: commands.to_owned(),
            key,
            ..self
        })
    }

    /// Whether the lab can start from a snapshot.
    pub fn has_snapshot(&self) -> Result<bool> {
        Ok(snapshot::path(&self.key)?.exists())
    }
}

fn key(machine: &Machine, vm: &VmSpec, before_vm: &str) -> Result<String> {
    // A snapshot can only be read by the QEMU that wrote it.
    let qemu = emulator::name()?;
    let mut hasher = DefaultHasher::new();
    for part in machine.options() {
        hasher.write(part.as_bytes());
        hasher.write_u8(0);
    }
    hasher.write(serde_json::to_string(vm)?.as_bytes());
    hasher.write(before_vm.as_bytes());
    hasher.write(qemu.as_bytes());
    Ok(format!("{:016x}", hasher.finish()))
}
