//! The host's memory behind VMs that change size.

use terrace_core::Engine;
use terrace_host::host_memory::host_swap_bytes;
use terrace_host::topology::Topology;
use terrace_host::{Finding, HostRoot, node_memory};
use terrace_proto::Tick;
use terrace_proto::provision::NodeMemory;

/// Free memory of each node, with page cache that was not used lately, and of the pools that VMs' memory comes from.
pub fn host_memory(root: &HostRoot, topology: &Topology, engine: &Engine) -> Vec<NodeMemory> {
    let plain = node_memory::available(root, topology);
    let plain = plain.into_iter().map(|(node, bytes)| (node, 0, bytes));
    let pools = engine.provision().pools().into_iter();
    let huge = pools.flat_map(|page| {
        let nodes = node_memory::available_huge(root, topology, page);
        nodes
            .into_iter()
            .map(move |(node, bytes)| (node, page, bytes))
    });
    let each = plain.chain(huge);
    each.map(|(node, page_bytes, free_bytes)| NodeMemory {
        node: node.0,
        tier: topology.tier_of(node),
        page_bytes,
        free_bytes,
    })
    .collect()
}

/// The finding of `doctor` about the host's own memory, if VMs share theirs.
pub fn shortage_finding(engine: &Engine, now: Tick) -> Option<Finding> {
    let found = engine.shortage(now)?;
    let advice = "end something on this host, or move a VM away; host_reserve_percent and host_waits_percent under \
                  [balance] are the bounds";
    Some(Finding::degraded("balance", found, advice))
}

/// The finding about a host that swaps: what its VMs lack shows late.
pub fn swap_finding(root: &HostRoot) -> Option<Finding> {
    let bytes = host_swap_bytes(root).filter(|bytes| *bytes > 0)?;
    Some(Finding::degraded(
        "balance-host-swap",
        format!(
            "the host has {} of swap: it may swap out guests' memory, which no guest sees and no figure here tells",
            super::provider::size(bytes)
        ),
        "switch it off (swapoff), or keep QEMUs out of it (memory.swap.max=0 of their cgroup)",
    ))
}

/// The findings of `doctor` about the host's memory behind these VMs.
pub fn host_findings(engine: &Engine, memory: &[NodeMemory]) -> Vec<Finding> {
    let over = engine.provision().overcommitted(memory);
    if over.is_empty() {
        let found =
            "the host has enough free memory for all that VMs with resizable memory may still take";
        return vec![Finding::ok("provisioning", found)];
    }
    let advice =
        "shrink VMs (`terrace resize`), or load the driver in the guests that are counted whole";
    let each = over.into_iter();
    each.map(|found| Finding::degraded("provisioning", found, advice))
        .collect()
}
