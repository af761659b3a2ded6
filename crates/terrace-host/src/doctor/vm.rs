//! Findings about one VM.

use terrace_pagetable::Paging;
use terrace_proto::PagingRegisters;

use crate::memory_map::{GuestMemory, MemoryMapError};
use crate::qemu::{QemuError, VmIdentity};
use crate::topology::{Topology, parse_list};
use crate::{Finding, HostRoot};

/// What [`crate::qemu::Vm`] answered.
#[derive(Clone, Copy, Debug)]
pub struct VmFacts<'a> {
    /// Who it is.
    pub identity: &'a VmIdentity,
    /// Its RAM.
    pub memory: Result<&'a GuestMemory, &'a MemoryMapError>,
    /// Its virtual CPUs' registers.
    pub registers: Result<&'a [PagingRegisters], &'a QemuError>,
    /// What its worker's sandbox could not do; empty where it was not started.
    pub sandbox_gaps: &'a [String],
    /// DAMON watches it instead of its page tables.
    pub damon: bool,
}

/// Findings about one VM: whether it can be scanned and moved.
#[must_use]
pub fn vm(root: &HostRoot, topology: &Topology, facts: &VmFacts<'_>) -> Vec<Finding> {
    let mut findings = vec![accelerator(facts.identity)];
    findings.extend(ram(facts.memory, facts.damon));
    findings.push(paging(facts.registers));
    findings.push(confinement(root, topology, facts.identity.pid));
    if !facts.sandbox_gaps.is_empty() {
        findings.push(Finding::degraded(
            "sandbox",
            format!(
                "its worker could not lock itself in fully: {}",
                facts.sandbox_gaps.join("; ")
            ),
            "run a kernel with CONFIG_SECCOMP_FILTER",
        ));
    }
    findings
}

fn accelerator(identity: &VmIdentity) -> Finding {
    if identity.kvm {
        Finding::ok("accelerator", "runs under KVM")
    } else {
        Finding::degraded(
            "accelerator",
            "is emulated (TCG), whose software TLB hides accesses to the hottest pages",
            "boot the guest with pti=on, or run it under KVM",
        )
    }
}

fn ram(memory: Result<&GuestMemory, &MemoryMapError>, damon: bool) -> Vec<Finding> {
    let name = "guest-ram";
    let coarse =
        "DAMON watches regions of it: heat that lies together is found, scattered heat is not";
    let memory = match memory {
        Ok(_) if damon => {
            let advice =
                "set tracker = \"auto\": this RAM is shared and can be scanned page by page";
            return vec![Finding::degraded(name, coarse, advice)];
        }
        Err(error @ MemoryMapError::Unscannable(_)) if damon => {
            let advice =
                "restart the VM with the option named above to have it scanned page by page";
            return vec![Finding::degraded(
                name,
                format!("{error}. {coarse}"),
                advice,
            )];
        }
        Ok(memory) => memory,
        Err(error) => {
            let advice = match error {
                MemoryMapError::Unscannable(_) => "restart the VM with the option named above",
                MemoryMapError::Qemu(_) => "see to its monitor",
                MemoryMapError::Read(_) => {
                    "give the daemon CAP_SYS_PTRACE, or run it as the VM's user"
                }
                MemoryMapError::Inconsistent(_) => "report this QEMU's version and 'info mtree -f'",
            };
            return vec![Finding::missing(name, error.to_string(), advice)];
        }
    };
    let mib = memory.ranges().iter().map(|r| r.len).sum::<u64>() >> 20;
    let mut findings = vec![Finding::ok(
        name,
        format!("{mib} MiB of shared RAM can be scanned"),
    )];
    if !memory.is_huge_aligned() {
        findings.push(Finding::degraded(
            "alignment",
            "guest RAM does not begin at a multiple of 2 MiB in QEMU, so the host cannot map it by huge \
             pages",
            "add align=2M to its memory backend",
        ));
    }
    findings
}

fn paging(registers: Result<&[PagingRegisters], &QemuError>) -> Finding {
    let name = "paging";
    let registers = match registers {
        Ok(registers) => registers,
        Err(error) => {
            let what = format!("registers cannot be read: {error}");
            return Finding::missing(name, what, "see to its monitor");
        }
    };
    let readings = registers.iter().map(|r| Paging::from_registers(*r));
    let (good, bad): (Vec<_>, Vec<_>) = readings.partition(Result::is_ok);
    match (good.first(), bad.first()) {
        (Some(Ok(paging)), _) => Finding::ok(
            name,
            format!(
                "{} of {} virtual CPUs use {}-level tables",
                good.len(),
                registers.len(),
                paging.levels()
            ),
        ),
        (_, Some(Err(error))) => Finding::missing(
            name,
            error.to_string(),
            "wait until the guest has booted; 32-bit guests cannot be scanned",
        ),
        _ => Finding::missing(
            name,
            "no virtual CPU",
            "report this QEMU's 'info registers -a'",
        ),
    }
}

/// Whether QEMU may use the nodes of all tiers.
fn confinement(root: &HostRoot, topology: &Topology, pid: u32) -> Finding {
    let name = "cpuset";
    let status = match root.read(format!("proc/{pid}/status")) {
        Ok(status) => status,
        Err(error) => {
            return Finding::missing(name, error.to_string(), "nothing, where the VM ended");
        }
    };
    let allowed = status
        .lines()
        .find_map(|line| parse_list(line.strip_prefix("Mems_allowed_list:")?));
    let Some(allowed) = allowed else {
        return Finding::ok(name, "the kernel does not confine processes to nodes");
    };
    let nodes = topology.tiers.iter().flat_map(|tier| &tier.nodes);
    let forbidden: Vec<String> = nodes
        .filter(|node| !allowed.contains(&node.0))
        .map(|node| node.0.to_string())
        .collect();
    if forbidden.is_empty() {
        Finding::ok(name, "its process may use the nodes of all tiers")
    } else {
        Finding::missing(
            name,
            format!(
                "its process may not use nodes {}: pages cannot move there",
                forbidden.join(", ")
            ),
            "do not confine QEMU: widen cpuset.mems, drop libvirt's <numatune>",
        )
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use terrace_proto::TierId;

    use super::*;
    use crate::Status;
    use crate::memory_map::Unscannable;
    use crate::topology::{NodeId, Tier, TierSource};

    fn topology() -> Topology {
        let tier = |id: u8| Tier {
            id: TierId(id),
            name: String::new(),
            nodes: vec![NodeId(u32::from(id))],
            total_bytes: 0,
        };
        Topology {
            nodes: vec![],
            tiers: vec![tier(0), tier(1)],
            source: TierSource::Operator,
            findings: vec![],
        }
    }

    #[test]
    fn a_confined_emulated_vm_with_private_ram_in_early_boot_is_told_all_of_it() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("proc/7")).unwrap();
        fs::write(dir.path().join("proc/7/status"), "Mems_allowed_list:\t0\n").unwrap();
        let identity = VmIdentity {
            name: "vm".into(),
            uuid: None,
            socket: "/s".into(),
            pid: 7,
            start_time: 1,
            kvm: false,
        };
        let error = MemoryMapError::Unscannable(Unscannable::PrivateRam("pc.ram".into()));
        let facts = VmFacts {
            identity: &identity,
            memory: Err(&error),
            registers: Ok(&[PagingRegisters::default()]),
            sandbox_gaps: &["system call filter: not there".into()],
            damon: false,
        };
        let by_damon = VmFacts {
            damon: true,
            ..facts
        };
        let finding = &vm(&HostRoot::new(dir.path()), &topology(), &by_damon)[1];
        assert_eq!(
            (finding.name, finding.status),
            ("guest-ram", Status::Degraded)
        );
        assert!(finding.why.contains("share=on") && finding.why.contains("DAMON"));
        let findings = vm(&HostRoot::new(dir.path()), &topology(), &facts);
        let got: Vec<_> = findings.iter().map(|f| (f.name, f.status)).collect();
        use Status::{Degraded, Missing};
        assert_eq!(
            got,
            [
                ("accelerator", Degraded),
                ("guest-ram", Missing),
                ("paging", Missing),
                ("cpuset", Missing),
                ("sandbox", Degraded),
            ]
        );
        assert!(findings[1].why.contains("share=on"));
        assert!(findings[3].why.contains("nodes 1"));
    }
}
