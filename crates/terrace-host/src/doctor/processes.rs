//! Findings about every QEMU of the host from procfs alone: no daemon is asked, and no monitor.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use terrace_proto::printable::{excerpt, is_vm_name};

use super::vm::{GUEST_RAM, accelerator, bound_to, confinement, unaligned, unscannable};
use crate::memory_map::Unscannable;
use crate::qemu::who::Rules;
use crate::qemu::{Backend, Machine, Unasked, unasked};
use crate::topology::{Topology, parse_list};
use crate::{Finding, HostRoot};

/// Most characters of a backend's id in a sentence.
const MAX_ID: usize = 64;
/// QEMU's name for RAM that has no backend, on most machines.
const DEFAULT_RAM: &str = "pc.ram";

/// The checks of processes.
#[derive(Debug, Default)]
pub struct Processes {
    /// QEMU processes that are not taken for VMs, and those that cannot be inspected.
    pub others: Vec<Finding>,
    /// Findings about processes that may be VMs, by the VM's name; by the process if the VM has none, or another one
    /// has it too.
    pub vms: BTreeMap<String, Vec<Finding>>,
}

/// Inspects every QEMU process, and reports what its command line lacks or why it is no VM, in the daemon's words.
#[must_use]
pub fn processes(root: &HostRoot, topology: &Topology, rules: &Rules) -> Processes {
    let (found, others) = unasked(root, rules);
    let mut names = BTreeSet::new();
    let names: Vec<String> = found
        .iter()
        .map(|vm| {
            let pid = vm.hypervisor.pid;
            let name = vm.hypervisor.name.clone().filter(|name| is_vm_name(name));
            let name = name.filter(|name| names.insert(name.clone()));
            name.unwrap_or_else(|| format!("process {pid}"))
        })
        .collect();
    let findings = found.iter().map(|vm| of_one(root, topology, vm));
    Processes {
        others,
        vms: names.into_iter().zip(findings).collect(),
    }
}

fn of_one(root: &HostRoot, topology: &Topology, vm: &Unasked) -> Vec<Finding> {
    let pid = vm.hypervisor.pid;
    let mut findings = vm.findings.clone();
    findings.push(accelerator(vm.machine.kvm == Some(true)));
    findings.extend(ram(root, vm));
    findings.push(confinement(root, topology, pid));
    let nodes = |backend: &Backend| Some((backend.bound.clone()?, binds(topology, backend)?));
    let bound = vm.machine.ram().find_map(nodes);
    if let Some((nodes, true)) = bound {
        findings.push(bound_to(&excerpt(&nodes, MAX_ID)));
    }
    findings
}

/// Whether a backend's memory may not come from the nodes of all tiers; `None` if it is bound to none.
fn binds(topology: &Topology, backend: &Backend) -> Option<bool> {
    let allowed = parse_list(backend.bound.as_deref()?)?;
    let mut nodes = topology.tiers.iter().flat_map(|tier| &tier.nodes);
    Some(!nodes.all(|node| allowed.contains(&node.0)))
}

fn ram(root: &HostRoot, vm: &Unasked) -> Vec<Finding> {
    if let Some(why) = why_unscannable(root, vm) {
        // As by default (tracker = "auto").
        let damon = why.has_addresses();
        return vec![unscannable(&why, damon)];
    }
    let mut findings = vec![Finding::ok(
        GUEST_RAM,
        "shared by its command line: it can be scanned",
    )];
    // QEMU places other shared memory by itself.
    let is_unaligned = |b: &Backend| b.kind == "file" && !b.align.as_deref().is_some_and(is_huge);
    if vm.machine.ram().any(is_unaligned) {
        findings.push(unaligned());
    }
    findings
}

/// Whether QEMU's `align=` is a multiple of 2 MiB.
fn is_huge(align: &str) -> bool {
    let digits = align.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &align[digits.len()..] {
        "" | "B" | "b" => 0,
        "K" | "k" => 10,
        "M" | "m" => 20,
        "G" | "g" => 30,
        _ => return false,
    };
    let bytes = digits
        .parse::<u64>()
        .ok()
        .and_then(|n| n.checked_mul(1 << unit));
    bytes.is_some_and(|bytes| bytes > 0 && bytes.is_multiple_of(2 << 20))
}

/// The first thing that keeps its RAM from being scanned, in the order in which the daemon checks.
fn why_unscannable(root: &HostRoot, vm: &Unasked) -> Option<Unscannable> {
    let machine = &vm.machine;
    if let Some(kind) = &vm.encryption {
        return Some(Unscannable::Encrypted(excerpt(kind, MAX_ID)));
    }
    if let Some(driver) = &machine.passed_through {
        return Some(Unscannable::Vfio(excerpt(driver, MAX_ID)));
    }
    if machine.ram().next().is_none() {
        return Some(without_backend(root, machine));
    }
    machine.ram().find_map(|backend| {
        let id = excerpt(&backend.id, MAX_ID);
        let path = backend.path.as_deref().unwrap_or_default();
        if backend.is_hugetlb || is_hugetlbfs(root, path) {
            Some(Unscannable::Hugetlbfs(id))
        } else if !backend.is_shared {
            Some(Unscannable::PrivateRam(id))
        } else if backend.kind == "ram" {
            Some(Unscannable::NoDescriptor(id))
        } else {
            None
        }
    })
}

fn without_backend(root: &HostRoot, machine: &Machine) -> Unscannable {
    let path = machine.mem_path.as_deref().unwrap_or_default();
    if is_hugetlbfs(root, path) {
        Unscannable::Hugetlbfs(DEFAULT_RAM.into())
    } else {
        Unscannable::PrivateRam(DEFAULT_RAM.into())
    }
}

/// Whether a path of the host is on hugetlbfs, by its list of mounts.
fn is_hugetlbfs(root: &HostRoot, path: &str) -> bool {
    let mounts = root.read("proc/mounts").unwrap_or_default();
    let mut of_kind = mounts.lines().filter_map(|line| {
        let mut fields = line.split_whitespace().skip(1);
        let (place, kind) = (fields.next()?, fields.next()?);
        (kind == "hugetlbfs").then_some(place)
    });
    of_kind.any(|place| Path::new(path).starts_with(place))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_alignment_of_whole_huge_pages_is_known_in_every_unit() {
        for good in ["2M", "2097152", "2048K", "1G", "4m"] {
            assert!(is_huge(good), "{good}");
        }
        for bad in ["", "M", "0", "4K", "1M", "2T", "99999999999999999999G"] {
            assert!(!is_huge(bad), "{bad}");
        }
    }
}
