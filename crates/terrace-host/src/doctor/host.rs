//! Findings about the host.

use std::path::Path;

use terrace_sys::{Pagemap, move_pages_supported, opener};

use crate::topology::{Tier, TierSource, Topology};
use crate::{Finding, HostRoot};

const CAP_SYS_PTRACE: u32 = 19;
const CAP_SYS_NICE: u32 = 23;
/// Most threads of this process that are inspected.
const MAX_THREADS: usize = 1 << 14;

/// Findings about the host: kernel, capabilities of this process, tiers, and who else moves pages.
#[must_use]
pub fn host(root: &HostRoot, topology: &Topology) -> Vec<Finding> {
    let mut findings = vec![move_pages(), huge_pages(root)];
    findings.extend(capabilities(root));
    findings.push(tiers(topology));
    findings.extend(topology.findings.iter().cloned());
    findings.push(numa_balancing(root));
    findings.push(demotion(root));
    findings.push(transparent_huge_pages(root));
    findings.push(swap(root));
    findings
}

fn move_pages() -> Finding {
    if move_pages_supported() {
        Finding::ok("move-pages", "the kernel moves pages between nodes")
    } else {
        Finding::missing(
            "move-pages",
            "the kernel does not move pages: it lacks CONFIG_MIGRATION and CONFIG_NUMA, or a seccomp \
             filter forbids move_pages",
            "run the distribution's standard kernel; in a container, allow move_pages",
        )
    }
}

fn huge_pages(root: &HostRoot) -> Finding {
    match Pagemap::open(&root.join("proc/self/pagemap")) {
        Ok(map) if map.sees_huge_pages() => Finding::ok(
            "pagemap",
            "the kernel distinguishes huge pages from base pages",
        ),
        Ok(_) => Finding::degraded(
            "pagemap",
            "the kernel has no PAGEMAP_SCAN: huge pages are not recognised and VMs on them are treated \
             as if they had base pages",
            "run Linux 6.7 or later",
        ),
        Err(error) => Finding::degraded(
            "pagemap",
            format!("{error}: huge pages are not recognised"),
            "mount procfs, run a kernel with CONFIG_PROC_PAGE_MONITOR",
        ),
    }
}

/// The capabilities that some thread of this process has or may take up: each has but what its work needs.
fn held(root: &HostRoot) -> u64 {
    let set = |file: &Path| {
        let status = opener::read(file).ok()?;
        let status = String::from_utf8_lossy(&status);
        let line = status.lines().find_map(|l| l.strip_prefix("CapPrm:"))?;
        u64::from_str_radix(line.trim(), 16).ok()
    };
    let threads = opener::entries(&root.join("proc/self/task"), MAX_THREADS).unwrap_or_default();
    let threads = threads.iter().map(|thread| thread.join("status"));
    let sets = threads.filter_map(|file| set(&file));
    sets.fold(0, |held, set| held | set)
}

fn capabilities(root: &HostRoot) -> [Finding; 2] {
    let held = held(root);
    let has = |bit: u32| held >> bit & 1 == 1;
    let nice = if has(CAP_SYS_NICE) {
        Finding::ok(
            "cap-sys-nice",
            "pages that several processes map can be moved",
        )
    } else {
        Finding::degraded(
            "cap-sys-nice",
            "without CAP_SYS_NICE, pages that the scanning worker or a vhost-user process maps too stay \
             where they are",
            "run the daemon by its systemd unit, or give it the capability",
        )
    };
    let ptrace = if has(CAP_SYS_PTRACE) {
        Finding::ok("cap-sys-ptrace", "VMs of all users can be read")
    } else {
        Finding::degraded(
            "cap-sys-ptrace",
            "without CAP_SYS_PTRACE, only VMs of the daemon's own user can be read",
            "run the daemon by its systemd unit, or as the VMs' user",
        )
    };
    [nice, ptrace]
}

fn tiers(topology: &Topology) -> Finding {
    let tier = |tier: &Tier| {
        let nodes: Vec<String> = tier.nodes.iter().map(|n| n.0.to_string()).collect();
        let gib = tier.total_bytes >> 30;
        let s = if nodes.len() == 1 { "" } else { "s" };
        format!("{} (node{s} {}, {gib} GiB)", tier.name, nodes.join(", "))
    };
    // A host of one tier has a second one for the engine alone.
    let real = topology.tiers.iter().filter(|tier| !tier.nodes.is_empty());
    let mut tiers: Vec<String> = real.map(tier).collect();
    if tiers.len() == 1 {
        tiers.push("no second tier".into());
    }
    let source = match topology.source {
        TierSource::Operator => "as configured",
        TierSource::Hmat => "by the firmware's latencies and bandwidths",
        TierSource::KernelTiers => "by the kernel's memory tiers",
        TierSource::Distance => "by CPUs and distances",
    };
    Finding::ok("topology", format!("{}; {source}", tiers.join(", ")))
}

fn numa_balancing(root: &HostRoot) -> Finding {
    let name = "numa-balancing";
    match root
        .read("proc/sys/kernel/numa_balancing")
        .as_deref()
        .map(str::trim)
    {
        Ok("0") => Finding::ok(name, "the kernel's NUMA balancing is off"),
        Ok(mode) => Finding::degraded(
            name,
            format!(
                "the kernel's NUMA balancing is on (mode {mode}) and moves pages by its own rules"
            ),
            "sysctl kernel.numa_balancing=0",
        ),
        Err(_) => Finding::ok(name, "the kernel has no NUMA balancing"),
    }
}

fn demotion(root: &HostRoot) -> Finding {
    let name = "demotion";
    match root
        .read("sys/kernel/mm/numa/demotion_enabled")
        .as_deref()
        .map(str::trim)
    {
        Ok("true" | "1") => Finding::degraded(
            name,
            "the kernel demotes pages by its own choice when a fast node runs full",
            "echo 0 > /sys/kernel/mm/numa/demotion_enabled, or keep it as a last resort under pressure",
        ),
        Ok(_) => Finding::ok(name, "the kernel's own demotion is off"),
        Err(_) => Finding::ok(name, "the kernel has no demotion of its own"),
    }
}

/// Guest RAM that can be scanned is shared memory, which has a setting of its own.
fn transparent_huge_pages(root: &HostRoot) -> Finding {
    let name = "thp";
    let setting = root.read("sys/kernel/mm/transparent_hugepage/shmem_enabled");
    let chosen = setting.as_deref().ok().and_then(|text| {
        let (_, rest) = text.split_once('[')?;
        Some(rest.split_once(']')?.0)
    });
    match chosen {
        Some(never @ ("never" | "deny")) => Finding::degraded(
            name,
            format!(
                "shared memory gets no huge pages (shmem_enabled = {never}): guests miss the TLB more often"
            ),
            "echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled and give memory backends \
             align=2M, if guests are large",
        ),
        Some(other) => Finding::ok(
            name,
            format!("shared memory may get huge pages (shmem_enabled = {other}); they move whole"),
        ),
        None => Finding::ok(name, "the kernel has no huge pages for shared memory"),
    }
}

fn swap(root: &HostRoot) -> Finding {
    let name = "swap";
    let text = root.read("proc/swaps").unwrap_or_default();
    // The first line is a header.
    let areas = text
        .lines()
        .skip(1)
        .filter_map(|line| line.split_whitespace().next());
    let areas: Vec<&str> = areas.collect();
    if areas.is_empty() {
        return Finding::ok(name, "the host does not swap");
    }
    Finding::degraded(
        name,
        format!(
            "the host may swap guest RAM out to {}: such pages are in no tier, and come back to a node of the \
             kernel's choice",
            areas.join(", ")
        ),
        "swapoff -a, or memory.swap.max = 0 in the VMs' cgroup; or keep it as a last resort under pressure",
    )
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::Health;

    /// The finding of this name on a host of these files.
    fn found(name: &str, files: &[(&str, &str)]) -> Finding {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let topology = Topology {
            nodes: vec![],
            tiers: vec![],
            source: TierSource::Operator,
            findings: vec![],
        };
        let findings = host(&HostRoot::new(dir.path()), &topology);
        findings.into_iter().find(|f| f.name == name).unwrap()
    }

    #[test]
    fn numa_balancing_that_moves_pages_beside_us_is_told() {
        let file = "proc/sys/kernel/numa_balancing";
        let on = found("numa-balancing", &[(file, "1\n")]);
        assert_eq!(on.health, Health::Degraded);
        assert_eq!(on.advice.as_deref(), Some("sysctl kernel.numa_balancing=0"));
        assert_eq!(found("numa-balancing", &[(file, "0\n")]).health, Health::Ok);
    }

    #[test]
    fn shared_memory_without_huge_pages_is_told() {
        let about = |text: &str| {
            found(
                "thp",
                &[("sys/kernel/mm/transparent_hugepage/shmem_enabled", text)],
            )
        };
        let never = about("always within_size advise [never] deny force\n");
        assert_eq!(never.health, Health::Degraded);
        assert!(never.found.contains("shmem_enabled = never"));
        let advise = about("always within_size [advise] never deny force\n");
        assert_eq!(advise.health, Health::Ok);
        assert_eq!(about("nonsense").health, Health::Ok);
    }

    #[test]
    fn swap_that_takes_pages_out_of_all_tiers_is_told() {
        let header = "Filename\t\t\t\tType\t\tSize\tUsed\tPriority\n";
        let used = format!("{header}/dev/zram0 partition\t8388604\t0\t100\n");
        let finding = found("swap", &[("proc/swaps", &used)]);
        assert_eq!(finding.health, Health::Degraded);
        assert!(finding.found.contains("/dev/zram0"));
        assert_eq!(found("swap", &[("proc/swaps", header)]).health, Health::Ok);
        assert_eq!(found("swap", &[]).health, Health::Ok);
    }

    #[test]
    fn a_bare_host_and_a_rival_kernel_are_told() {
        let dir = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        put("proc/self/task/1/status", "CapPrm:\t0000000000000000\n");
        put(
            "proc/self/task/2/status",
            "Name:\tx\nCapPrm:\t0000000000080000\n",
        );
        put("proc/self/pagemap", "");
        put("proc/sys/kernel/numa_balancing", "2\n");
        put("sys/kernel/mm/numa/demotion_enabled", "true\n");
        let topology = Topology {
            nodes: vec![],
            tiers: vec![],
            source: TierSource::Operator,
            findings: vec![],
        };
        let findings = host(&HostRoot::new(dir.path()), &topology);
        let status = |name: &str| findings.iter().find(|f| f.name == name).unwrap().health;
        assert_eq!(status("cap-sys-ptrace"), Health::Ok);
        for degraded in ["cap-sys-nice", "numa-balancing", "demotion", "pagemap"] {
            assert_eq!(status(degraded), Health::Degraded);
        }
        let json = serde_json::to_string(&findings).unwrap();
        assert!(json.contains(r#""health":"degraded""#));
    }
}
