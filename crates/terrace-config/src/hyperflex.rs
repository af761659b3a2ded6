//! The configuration of a VM's HyperFlex device.

use std::path::PathBuf;

use anyhow::{Result, ensure};

use crate::raw::RawVm;

/// A VM's HyperFlex device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hyperflex {
    /// The device's control socket; `None` if the VM has no such device.
    pub socket: Option<PathBuf>,
    /// The host's node behind each tier of the device; empty if the device itself says it.
    pub nodes: Vec<u32>,
}

impl Hyperflex {
    /// Whether the VM has such a device.
    #[must_use]
    pub fn is_configured(&self) -> bool {
        self.socket.is_some()
    }
}

/// The device of a VM by the VM's own section. The defaults cannot name one.
pub(super) fn of_vm(own: &RawVm, all: &RawVm) -> Result<Hyperflex> {
    if let Some(socket) = &own.hyperflex {
        ensure!(
            socket.is_absolute(),
            "hyperflex = \"{}\" is not an absolute path: it names the control socket of this VM's device",
            socket.display()
        );
    }
    ensure!(
        all.hyperflex.is_none() && all.hyperflex_nodes.is_none(),
        "hyperflex and hyperflex_nodes are about the device of one VM: they belong under [vm.NAME], not [defaults]"
    );
    Ok(Hyperflex {
        socket: own.hyperflex.clone(),
        nodes: own.hyperflex_nodes.clone().unwrap_or_default(),
    })
}
