//! Findings about one VM.

use terrace_pagetable::Paging;
use terrace_proto::Readings;

use crate::memory_map::{GuestMemory, MemoryMapError, Unscannable};
use crate::qemu::{QemuError, Uncounted};
use crate::topology::{Topology, parse_list};
use crate::vm::VmIdentity;
use crate::{Finding, HostRoot};

pub(super) const GUEST_RAM: &str = "guest-ram";
const COARSE: &str =
    "DAMON watches regions of it: heat that lies together is found, scattered heat is not";

/// The answers of [`crate::vm::Vm`].
#[derive(Clone, Copy, Debug)]
pub struct VmFacts<'a> {
    /// The VM's identity.
    pub identity: &'a VmIdentity,
    /// The VM's RAM.
    pub memory: Result<&'a GuestMemory, &'a MemoryMapError>,
    /// The readings that a scan would start from.
    pub readings: Result<&'a Readings, &'a QemuError>,
    /// The parts of the worker's sandbox that this kernel lacks; empty if the worker was not started.
    pub sandbox_gaps: &'a [String],
    /// The reason why its worker's memory is not charged to its cgroup.
    pub uncharged: Option<&'a str>,
    /// DAMON watches it instead of its page tables.
    pub damon: bool,
}

/// Findings about one VM: whether it can be scanned and moved.
#[must_use]
pub fn vm(root: &HostRoot, topology: &Topology, facts: &VmFacts<'_>) -> Vec<Finding> {
    let mut findings = vec![accelerator(facts.identity.kvm)];
    findings.extend(ram(facts));
    findings.push(paging(facts.readings));
    findings.push(confinement(root, topology, facts.identity.pid));
    if let Ok(memory) = facts.memory {
        findings.push(binding(root, topology, facts.identity.pid, memory));
    }
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
    if let Some(why) = facts.uncharged {
        findings.push(Finding::degraded(
            "worker-memory",
            format!("what its worker maps is charged to Terrace and not to the VM's cgroup: {why}"),
            "let Terrace write cgroup.procs of the VM's cgroup, or leave it so: scans work all the same",
        ));
    }
    findings
}

pub(super) fn accelerator(kvm: bool) -> Finding {
    if kvm {
        Finding::ok("accelerator", "runs under KVM")
    } else {
        Finding::degraded(
            "accelerator",
            "is emulated (TCG), whose software TLB hides accesses to the hottest pages",
            "boot the guest with pti=on, or run it under KVM",
        )
    }
}

fn ram(facts: &VmFacts<'_>) -> Vec<Finding> {
    let (memory, damon) = (facts.memory, facts.damon);
    let name = GUEST_RAM;
    let coarse = COARSE;
    let memory = match memory {
        Ok(_) if damon => {
            let advice = if uncounted(facts.readings).is_some() {
                "fix what is reported about its paging: this RAM is shared and could be scanned page by page"
            } else {
                "set tracker = \"auto\": this RAM is shared and can be scanned page by page"
            };
            return vec![Finding::degraded(name, coarse, advice)];
        }
        Ok(memory) => memory,
        Err(MemoryMapError::Unscannable(why)) => return vec![unscannable(why, damon)],
        Err(error) => {
            let advice = match error {
                MemoryMapError::Unscannable(_) => "restart the VM with the option named above",
                MemoryMapError::Qemu(_) => "check its monitor",
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
        findings.push(unaligned());
    }
    findings
}

pub(super) fn unaligned() -> Finding {
    Finding::degraded(
        "alignment",
        "guest RAM does not begin at a multiple of 2 MiB in QEMU, so the host cannot map it by huge pages",
        "add align=2M to its memory backend",
    )
}

/// RAM that is no file that others may map; `damon`: it is watched all the same.
pub(super) fn unscannable(why: &Unscannable, damon: bool) -> Finding {
    if damon {
        let advice = "restart the VM with the option named above to have it scanned page by page";
        return Finding::degraded(GUEST_RAM, format!("{why}. {COARSE}"), advice);
    }
    let advice = match why {
        Unscannable::Encrypted(_) | Unscannable::Vfio(_) => {
            "set scan = false for this VM, or start it without encryption and passed-through devices"
        }
        _ => "restart the VM with the option named above",
    };
    Finding::missing(GUEST_RAM, why.to_string(), advice)
}

/// The reason why registers never count as long as the VM runs as it was started.
fn uncounted(readings: Result<&Readings, &QemuError>) -> Option<Uncounted> {
    match readings {
        Err(QemuError::Uncounted { source, .. }) if source.is_lasting() => Some(*source),
        _ => None,
    }
}

fn paging(readings: Result<&Readings, &QemuError>) -> Finding {
    let name = "paging";
    if let Some(why) = uncounted(readings) {
        let advice = "restart the VM so, or let its agent manage it (mode = \"guest\")";
        return Finding::missing(name, why.to_string(), advice);
    }
    let vcpus = match readings {
        Ok(readings) => &readings.vcpus,
        Err(error) => {
            let what = format!("registers cannot be read: {error}");
            return Finding::missing(name, what, "check its monitor");
        }
    };
    let counted = vcpus.iter().flatten();
    let readings = counted.map(|r| Paging::from_registers(*r));
    let (good, bad): (Vec<_>, Vec<_>) = readings.partition(Result::is_ok);
    if good.is_empty() && bad.is_empty() && !vcpus.is_empty() {
        let what = "every virtual CPU runs a nested guest now, whose registers do not count";
        return Finding::degraded(name, what, "nothing: the next scan tries again");
    }
    match (good.first(), bad.first()) {
        (Some(Ok(paging)), _) => Finding::ok(
            name,
            format!(
                "{} of {} virtual CPUs use {}-level tables",
                good.len(),
                vcpus.len(),
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
pub(super) fn confinement(root: &HostRoot, topology: &Topology, pid: u32) -> Finding {
    let name = "cpuset";
    let status = match root.read(format!("proc/{pid}/status")) {
        Ok(status) => status,
        Err(error) => {
            return Finding::missing(name, error.to_string(), "nothing, if the VM ended");
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

/// Whether a memory policy binds guest RAM to some nodes. Moves ignore it; what the kernel allocates
/// does not.
fn binding(root: &HostRoot, topology: &Topology, pid: u32, memory: &GuestMemory) -> Finding {
    let name = "memory-policy";
    let text = match root.read(format!("proc/{pid}/numa_maps")) {
        Ok(text) => text,
        Err(error) if error.is_not_found() => {
            return Finding::ok(name, "the kernel does not bind memory to nodes");
        }
        Err(error) => {
            return Finding::degraded(
                name,
                error.to_string(),
                "give the daemon CAP_SYS_PTRACE, or run it as the VM's user",
            );
        }
    };
    // `7f5c00000000 bind:0 file=/dev/shm/ram …`: only the beginning of a mapping is reported.
    let starts: Vec<(u64, &str)> = text
        .lines()
        .filter_map(|line| {
            let mut fields = line.split_whitespace();
            let start = u64::from_str_radix(fields.next()?, 16).ok()?;
            Some((start, fields.next()?))
        })
        .collect();
    let ends = starts.iter().skip(1).map(|(start, _)| *start);
    let bound = starts
        .iter()
        .zip(ends.chain([u64::MAX]))
        .find_map(|((start, policy), end)| {
            let holds_ram = |r: &crate::memory_map::Range| {
                r.hva.0 < end && *start < r.hva.0.saturating_add(r.len)
            };
            let nodes = policy.strip_prefix("bind")?.rsplit_once(':')?.1;
            let allowed = parse_list(nodes)?;
            let mut all = topology.tiers.iter().flat_map(|tier| &tier.nodes);
            let covers = all.all(|node| allowed.contains(&node.0));
            (!covers && memory.ranges().iter().any(holds_ram)).then_some(nodes)
        });
    match bound {
        None => Finding::ok(name, "no memory policy keeps its RAM from any tier"),
        Some(nodes) => bound_to(nodes),
    }
}

/// RAM of a guest whose nodes are tiers: each of them has to be bound (coordinated mode).
#[must_use]
pub fn bound_on_purpose() -> Finding {
    Finding::ok(
        "memory-policy",
        "each part of its RAM comes from the host's nodes that its backend names: its guest's nodes are tiers",
    )
}

/// RAM that may not be taken from all nodes.
pub(super) fn bound_to(nodes: &str) -> Finding {
    Finding::degraded(
        "memory-policy",
        format!(
            "its RAM is bound to nodes {nodes}: pages that the guest touches for the first time only \
                 ever land there, and if those are full its process is killed or swaps although other tiers have room"
        ),
        "start QEMU without numactl --membind and without host-nodes=,policy=bind on its memory \
             backend (libvirt: <numatune>); policy=preferred does no harm",
    )
}

#[cfg(test)]
mod tests {
    use std::fs;

    use terrace_proto::{Gpa, Hva, PagingRegisters, TierId};

    use super::*;
    use crate::Health;
    use crate::memory_map::Range;
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

    /// A tree in which process 7 is a VM under KVM that nothing confines.
    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("proc/7")).unwrap();
        fs::write(
            dir.path().join("proc/7/status"),
            "Mems_allowed_list:\t0-1\n",
        )
        .unwrap();
        for (name, text) in files {
            fs::write(dir.path().join("proc/7").join(name), text).unwrap();
        }
        dir
    }

    fn memory() -> GuestMemory {
        GuestMemory::of_ranges(vec![Range {
            gpa: Gpa(0),
            len: 4 << 20,
            hva: Hva(0x7f00_0020_0000),
            file_index: 0,
            file_offset: 0,
            shared: true,
        }])
    }

    /// The finding of this name about that VM.
    fn found(
        name: &str,
        files: &[(&str, &str)],
        memory: Result<&GuestMemory, &MemoryMapError>,
        registers: &[PagingRegisters],
    ) -> Finding {
        let readings = registers.to_vec().into();
        found_of(name, files, memory, Ok(&readings))
    }

    fn found_of(
        name: &str,
        files: &[(&str, &str)],
        memory: Result<&GuestMemory, &MemoryMapError>,
        readings: Result<&Readings, &QemuError>,
    ) -> Finding {
        let dir = tree(files);
        let identity = VmIdentity {
            name: "vm".into(),
            uuid: None,
            socket: "/s".into(),
            pid: 7,
            start_time: 1,
            kvm: true,
        };
        let facts = VmFacts {
            identity: &identity,
            memory,
            readings,
            sandbox_gaps: &[],
            uncharged: None,
            damon: false,
        };
        let findings = vm(&HostRoot::new(dir.path()), &topology(), &facts);
        let finding = findings.into_iter().find(|f| f.name == name);
        let finding = finding.unwrap_or_else(|| panic!("nothing is said about {name}"));
        let helps = finding.health == Health::Ok || finding.advice.is_some();
        assert!(helps, "what to change is missing: {finding:?}");
        finding
    }

    fn long_mode(cr4: u64) -> [PagingRegisters; 1] {
        [PagingRegisters {
            cr0: 0x8005_0033,
            cr3: 1 << 12,
            cr4,
            efer: 0xd01,
        }]
    }

    fn unscannable(why: Unscannable) -> Finding {
        let error = MemoryMapError::Unscannable(why);
        let finding = found("guest-ram", &[], Err(&error), &long_mode(0x20));
        assert_eq!(finding.health, Health::Missing);
        finding
    }

    #[test]
    fn vfio_passes_a_device_through_and_pins_all_ram() {
        let finding = unscannable(Unscannable::Vfio("/dev/vfio/17".into()));
        assert!(
            finding.found.contains("/dev/vfio/17") && finding.found.contains("-device vfio-pci")
        );
        assert!(finding.advice.unwrap().contains("scan = false"));
    }

    #[test]
    fn hugetlbfs_pages_do_not_move_one_by_one() {
        let finding = unscannable(Unscannable::Hugetlbfs("ram".into()));
        assert!(finding.found.contains("mem-path=/dev/shm/NAME,align=2M"));
    }

    #[test]
    fn private_ram_cannot_be_scanned() {
        let finding = unscannable(Unscannable::PrivateRam("pc.ram".into()));
        assert!(
            finding.found.contains("share=on") && finding.found.contains("<access mode='shared'/>")
        );
    }

    #[test]
    fn an_encrypted_guest_is_left_alone() {
        let finding = unscannable(Unscannable::Encrypted("sev-snp-guest".into()));
        assert!(finding.found.contains("encrypted (sev-snp-guest)"));
    }

    #[test]
    fn a_five_level_guest_can_be_scanned() {
        let finding = found("paging", &[], Ok(&memory()), &long_mode(0x1020));
        assert_eq!(finding.health, Health::Ok);
        assert!(finding.found.contains("5-level"), "{finding:?}");
    }

    #[test]
    fn a_processor_that_may_nest_unseen_is_named_with_the_option() {
        for (source, option) in [
            (Uncounted::Emulated, "-cpu MODEL,-svm"),
            (Uncounted::NoStatistics, "QEMU 7.1 or later"),
            (Uncounted::NoCounters, "Linux 5.14 or later"),
        ] {
            let error = QemuError::Uncounted {
                socket: "/s".into(),
                source,
            };
            let finding = found_of("paging", &[], Ok(&memory()), Err(&error));
            assert_eq!(finding.health, Health::Missing);
            assert!(finding.found.contains(option), "{finding:?}");
        }
    }

    #[test]
    fn virtual_cpus_in_a_nested_guest_are_no_fault() {
        let [own] = long_mode(0x20);
        let about = |vcpus: &[Option<PagingRegisters>]| {
            let readings = Readings {
                vcpus: vcpus.to_vec(),
                resets: 0,
            };
            found_of("paging", &[], Ok(&memory()), Ok(&readings))
        };
        let one = about(&[None, Some(own)]);
        assert_eq!(one.health, Health::Ok);
        assert!(one.found.contains("1 of 2 virtual CPUs"), "{one:?}");
        let none = about(&[None, None]);
        assert_eq!(none.health, Health::Degraded);
        assert!(none.found.contains("nested guest"), "{none:?}");
    }

    #[test]
    fn a_cpuset_that_leaves_a_tier_out_makes_moves_fail() {
        let files = [("status", "Mems_allowed_list:\t0\n")];
        let finding = found("cpuset", &files, Ok(&memory()), &long_mode(0x20));
        assert_eq!(finding.health, Health::Missing);
        assert!(
            finding.found.contains("nodes 1") && finding.advice.unwrap().contains("cpuset.mems")
        );
    }

    #[test]
    fn a_bound_memory_policy_keeps_new_pages_from_a_tier() {
        let about = |maps: &str| {
            let files = [("numa_maps", maps)];
            found("memory-policy", &files, Ok(&memory()), &long_mode(0x20))
        };
        // The mapping begins below guest RAM.
        let bound = about(
            "55d000000000 default heap\n7f0000000000 bind:0 file=/dev/shm/ram\n7fff00000000 default stack\n",
        );
        assert_eq!(bound.health, Health::Degraded);
        assert!(
            bound.found.contains("bound to nodes 0") && bound.advice.unwrap().contains("--membind")
        );
        for harmless in [
            "7f0000000000 bind:0-1 file=/dev/shm/ram\n",
            "7f0000000000 prefer:0 file=/dev/shm/ram\n",
            "7f0000000000 default file=/dev/shm/ram\n7f0000800000 bind:0 anon\n",
            "nonsense\n\nzz bind:\n",
        ] {
            assert_eq!(about(harmless).health, Health::Ok, "{harmless}");
        }
        let flags = about("7f0000000000 bind=static:1 file=/dev/shm/ram\n");
        assert!(flags.found.contains("bound to nodes 1"));
    }

    #[test]
    fn a_confined_private_emulated_vm_in_early_boot_hears_all_of_it() {
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
            readings: Ok(&vec![PagingRegisters::default()].into()),
            sandbox_gaps: &["system call filter: not there".into()],
            uncharged: Some("no cgroup2 is mounted"),
            damon: false,
        };
        let by_damon = VmFacts {
            damon: true,
            ..facts
        };
        let finding = &vm(&HostRoot::new(dir.path()), &topology(), &by_damon)[1];
        assert_eq!(
            (finding.name.as_ref(), finding.health),
            ("guest-ram", Health::Degraded)
        );
        assert!(finding.found.contains("share=on") && finding.found.contains("DAMON"));
        let findings = vm(&HostRoot::new(dir.path()), &topology(), &facts);
        let got: Vec<_> = findings
            .iter()
            .map(|f| (f.name.as_ref(), f.health))
            .collect();
        use Health::{Degraded, Missing};
        assert_eq!(
            got,
            [
                ("accelerator", Degraded),
                ("guest-ram", Missing),
                ("paging", Missing),
                ("cpuset", Missing),
                ("sandbox", Degraded),
                ("worker-memory", Degraded),
            ]
        );
        assert!(findings[1].found.contains("share=on"));
        assert!(findings[3].found.contains("nodes 1"));
    }
}
