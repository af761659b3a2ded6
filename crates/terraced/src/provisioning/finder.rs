//! The finder of the providers that this host has.

use std::sync::Arc;

use terrace_host::qemu::who::HypervisorConfig;

use super::provider::{Finder, Provider};
use super::{hyperflex, qemu};

/// The finder of a host whose VMs are of these users: the device that is configured, else the provider of the VM's
/// QEMU. The monitor of a VM that is neither opted in nor balanced may be another program's: it is not queried before an operator wants
/// that VM resized.
pub fn finder(hypervisors: HypervisorConfig) -> Finder {
    Arc::new(move |context| {
        let Some(control) = context.config.hyperflex.socket.clone() else {
            let config = &context.config;
            let is_wanted = config.is_opted_in() || config.balance.takes_part();
            return (is_wanted || context.is_asked_for).then(|| qemu::find(context));
        };
        let nodes = context.config.hyperflex.nodes.clone();
        let (root, hypervisors) = (context.root.clone(), hypervisors.clone());
        Some(Box::new(move || {
            let device = hyperflex::Device::new(&control, &nodes, &root, &hypervisors);
            Ok(Some(Box::new(device) as Box<dyn Provider>))
        }))
    })
}
