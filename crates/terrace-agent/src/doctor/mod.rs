//! The agent's findings about this machine: what works, what does not, and what to change.

mod module;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use serde::Serialize;
use terrace_sys::topology::Topology;
use terrace_sys::{Damon, Finding, Health, HostRoot, move_pages_supported};

use crate::config::{Config, SamplerChoice};
use crate::gather;
use crate::module::ModuleParts;
use crate::output;
use crate::processes;
use crate::sampler::{Samplers, pmu};

/// Examines everything that the agent needs.
#[must_use]
pub fn inspect(root: &HostRoot, config: &Config) -> Vec<Finding> {
    let mut findings = tiers(root, config);
    findings.extend(samplers(pmu::choose(root).finding, damon(root)));
    findings.push(sampler(root, config));
    findings.push(moves(root));
    findings.extend(module::inspect(root, config.module));
    findings.push(gather::inspect(root, config));
    findings.extend(balancing(root));
    findings.push(permitted(root, config));
    findings.push(port(root, config));
    findings
}

fn tiers(root: &HostRoot, config: &Config) -> Vec<Finding> {
    match Topology::read(root, &config.tiers) {
        Err(error) => vec![Finding::missing(
            "tiers",
            error.to_string(),
            match config.tiers.is_empty() {
                true => {
                    "a guest needs a NUMA node per tier; see docs/agent.md for the VM's options"
                }
                false => {
                    "correct the [[tier]] sections of the configuration, or remove all of them"
                }
            },
        )],
        Ok(topology) => {
            let names = topology.tiers.iter().map(|tier| {
                let nodes: Vec<String> = tier.nodes.iter().map(|n| n.0.to_string()).collect();
                format!("{} (node {})", tier.name, nodes.join(", "))
            });
            let text = names.collect::<Vec<_>>().join(" > ");
            let mut findings = topology.findings.clone();
            findings.extend(headroom(&topology, config));
            if topology.tiers.len() > 1 {
                findings.insert(0, Finding::ok("tiers", text));
            }
            findings
        }
    }
}

/// A warning if the headroom leaves nothing of the fast tier.
fn headroom(topology: &Topology, config: &Config) -> Option<Finding> {
    let fast = topology.tiers.first()?.total_bytes;
    let headroom = config.headroom_bytes;
    (topology.tiers.len() > 1 && headroom >= fast).then(|| {
        Finding::degraded(
            "headroom",
            format!(
                "headroom ({}) is no less than the fast tier ({}): nothing is promoted",
                bytesize::ByteSize(headroom),
                bytesize::ByteSize(fast)
            ),
            "lower headroom",
        )
    })
}

/// The findings about both sources of samples. One source is enough: what the other lacks is then only a loss.
fn samplers(pmu: Finding, damon: Finding) -> [Finding; 2] {
    let mut both = [pmu, damon];
    if both.iter().any(|finding| finding.health != Health::Missing) {
        for finding in &mut both {
            finding.health = finding.health.min(Health::Degraded);
        }
    }
    both
}

fn damon(root: &HostRoot) -> Finding {
    match Damon::of_agent(&root.join("")).available() {
        Ok(()) => Finding::ok(
            "damon",
            "regions of processes can be watched; hot pages scattered within 2 MiB cannot be distinguished",
        ),
        Err(error) => Finding::missing(
            "damon",
            error.to_string(),
            "run as root on a kernel with CONFIG_DAMON_VADDR and CONFIG_DAMON_SYSFS, and end other programs \
             that use DAMON",
        ),
    }
}

/// The source that `run` would take with this configuration.
fn sampler(root: &HostRoot, config: &Config) -> Finding {
    let module = ModuleParts::open(root, config.module);
    let mut samplers = Samplers::new(root, config.sampling.source, config.sampling.epoch, &module);
    samplers.sample(&[], &mut |_| ());
    match samplers.name() {
        Some(name) => Finding::ok(
            "sampler",
            format!("run would take {name}: {}", samplers.reason()),
        ),
        None => Finding::missing(
            "sampler",
            format!("run would have {}", samplers.reason()),
            match config.sampling.source {
                SamplerChoice::Auto => {
                    "make one of pmu, guest-module or damon work: their findings say what each lacks"
                }
                _ => {
                    "sampler = \"auto\" takes the best that works; the findings say what each lacks"
                }
            },
        ),
    }
}

/// Whether pages of other users' processes may be moved: bit 23 of the effective capabilities, `CAP_SYS_NICE`.
fn may_move_others(root: &HostRoot) -> bool {
    let status = root.read("proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let bits = line.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok());
    bits.is_some_and(|bits| bits >> 23 & 1 == 1)
}

fn moves(root: &HostRoot) -> Finding {
    if !may_move_others(root) {
        return Finding::missing(
            "move-pages",
            "CAP_SYS_NICE is missing: pages of other users' processes cannot be moved",
            "run as root, or with CAP_SYS_NICE",
        );
    }
    if move_pages_supported() {
        Finding::ok(
            "move-pages",
            "move_pages(2) is there; it goes through free pages",
        )
    } else {
        Finding::missing(
            "move-pages",
            "this kernel has no move_pages(2), or a filter hides it",
            "run a kernel with CONFIG_NUMA and CONFIG_MIGRATION; in a container, allow move_pages in its \
             seccomp profile",
        )
    }
}

/// A warning if the kernel balances nodes by itself: two that move the same pages work against each other.
fn balancing(root: &HostRoot) -> Option<Finding> {
    let mode = root.read("proc/sys/kernel/numa_balancing").ok()?;
    let mode = mode.trim();
    (mode != "0").then(|| {
        Finding::degraded(
            "numa-balancing",
            format!(
                "the kernel moves pages between nodes by itself (kernel.numa_balancing = {mode})"
            ),
            "sysctl kernel.numa_balancing=0",
        )
    })
}

/// Whether the largest process can be inspected.
fn permitted(root: &HostRoot, config: &Config) -> Finding {
    let found = match processes::find(root, &config.following.wanted, &BTreeSet::new()) {
        Ok(found) => found,
        Err(error) => return Finding::missing("processes", error.to_string(), "mount /proc"),
    };
    let Some(largest) = found.first() else {
        return Finding::degraded(
            "processes",
            format!(
                "no process that the configuration selects has {} or more",
                bytesize::ByteSize(config.following.wanted.min_bytes)
            ),
            "lower processes.min, or check processes.names",
        );
    };
    match std::fs::File::open(root.process(largest.pid, "pagemap")) {
        Ok(_) => Finding::ok(
            "processes",
            format!("{} to manage, the largest is {}", found.len(), largest.name),
        ),
        Err(error) => Finding::missing(
            "processes",
            format!("{} ({}) cannot be read: {error}", largest.name, largest.pid),
            "run as root, or with CAP_SYS_PTRACE and CAP_SYS_NICE",
        ),
    }
}

fn port(root: &HostRoot, config: &Config) -> Finding {
    let Some(port) = &config.port else {
        return Finding::ok(
            "host",
            "the channel to the host is switched off (host.channel = false)",
        );
    };
    let ports = root.join("sys/class/virtio-ports");
    let named = |folder: &Path| {
        std::fs::read_to_string(folder.join("name")).is_ok_and(|name| name.trim() == port)
    };
    let there = std::fs::read_dir(ports)
        .is_ok_and(|entries| entries.flatten().any(|entry| named(&entry.path())));
    if there {
        Finding::ok("host", format!("the port {port} is there"))
    } else {
        Finding::degraded(
            "host",
            format!("no port {port}: the agent works alone, and the host gets no reports"),
            format!(
                "give the VM -device virtio-serial-pci -chardev \
                 socket,id=agent,path=/run/terrace/agent/NAME.sock,server=on,wait=off \
                 -device virtserialport,chardev=agent,name={port}"
            ),
        )
    }
}

/// A finding by the keys that `doctor --json` of the agent has.
#[derive(Serialize)]
struct Line<'a> {
    name: &'a str,
    status: Health,
    why: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    change: Option<&'a str>,
}

impl<'a> Line<'a> {
    fn of(finding: &'a Finding) -> Self {
        Self {
            name: &finding.name,
            status: finding.health,
            why: &finding.found,
            change: finding.advice.as_deref(),
        }
    }
}

/// Prints findings; exit code 1 if something that is needed is missing.
///
/// # Errors
/// If they cannot be written.
pub fn print(findings: &[Finding], json: bool) -> Result<ExitCode> {
    if json {
        let lines: Vec<Line> = findings.iter().map(Line::of).collect();
        output::print_line(serde_json::to_string_pretty(&lines)?)?;
    } else {
        for finding in findings {
            let word = match finding.health {
                Health::Ok => "ok",
                Health::Degraded => "weak",
                Health::Missing => "MISSING",
            };
            output::print_line(format_args!("{word:8} {}: {}", finding.name, finding.found))?;
            if let Some(change) = &finding.advice {
                output::print_line(format_args!("{:8} change: {change}", ""))?;
            }
        }
    }
    let missing = findings.iter().any(|f| f.health == Health::Missing);
    Ok(if missing {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_requested_source_that_is_absent_is_reported_missing() {
        let dir = tempfile::tempdir().unwrap();
        let root = HostRoot::new(dir.path());
        for choice in ["pebs", "damon"] {
            let config = Config::parse(&format!("sampler = \"{choice}\"")).unwrap();
            let finding = sampler(&root, &config);
            assert_eq!(finding.health, Health::Missing, "{finding:?}");
        }
    }

    #[test]
    fn doctors_json_keeps_its_keys() {
        let json = |finding: Finding| serde_json::to_value(Line::of(&finding)).unwrap();
        assert_eq!(
            json(Finding::degraded("pmu", "weak", "do this")),
            serde_json::json!({
                "name": "pmu", "status": "degraded", "why": "weak", "change": "do this",
            })
        );
        assert_eq!(
            json(Finding::ok("damon", "works")),
            serde_json::json!({"name": "damon", "status": "ok", "why": "works"})
        );
    }

    #[test]
    fn a_source_that_is_missing_is_only_a_loss_where_another_works() {
        let missing = |name| Finding::missing(name, "none", "get one");
        let statuses = |pmu, damon| samplers(pmu, damon).map(|finding| finding.health);
        let ok = Finding::ok("damon", "works");
        assert_eq!(statuses(missing("pmu"), ok), [Health::Degraded, Health::Ok]);
        assert_eq!(
            statuses(missing("pmu"), missing("damon")),
            [Health::Missing, Health::Missing]
        );
    }
}
