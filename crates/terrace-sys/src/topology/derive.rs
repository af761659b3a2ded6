//! Tiers formed from nodes.

use std::collections::BTreeSet;

use terrace_proto::TierId;

use super::{Node, NodeId, Performance, Tier, TierDefinition, TierSource, Topology, TopologyError};
use crate::Finding;

/// Ratio of costs within which nodes are of one tier. The kernel's own tiers are 128/576 = 22 % wide.
const SAME_TIER_RATIO: f64 = 1.22;

const NAME: &str = "tiers";
/// Advice if several nodes have memory.
const DEFINE: &str = "define every tier, fastest first, by a [[tier]] section each: see dist/terrace.toml, in a guest \
     dist/terrace-agent.toml";
/// Advice if one has.
const ADD_A_NODE: &str = "give the machine a second node with memory (a guest: docs/agent.md, A guest with two tiers); until then accesses \
     are only observed";

/// Tiers as the operator defines them.
pub(super) fn defined(
    nodes: Vec<Node>,
    kernel_tiers: &[Vec<NodeId>],
    definitions: &[TierDefinition],
) -> Result<Topology, TopologyError> {
    check(&nodes, definitions)?;
    let groups: Vec<Vec<NodeId>> = definitions.iter().map(|d| d.nodes.clone()).collect();
    let mut findings = kernel_findings(&groups, kernel_tiers);
    let used: BTreeSet<NodeId> = groups.iter().flatten().copied().collect();
    for node in with_memory(&nodes).filter(|n| !used.contains(&n.id)) {
        findings.push(Finding::degraded(
            NAME,
            format!(
                "{} has memory but is in no tier: pages there count as absent",
                node.id
            ),
            "add it to a tier in the configuration",
        ));
    }
    if groups.len() == 1 {
        findings.push(one_tier("the configuration defines one tier only", DEFINE));
    }
    let names = definitions.iter().map(|d| d.name.clone()).collect();
    Ok(topology(
        nodes,
        groups,
        names,
        TierSource::Operator,
        findings,
    ))
}

fn check(nodes: &[Node], definitions: &[TierDefinition]) -> Result<(), TopologyError> {
    let fail = |what: String| Err(TopologyError::Definition(what));
    if definitions.len() > TierId::MAX {
        return fail(format!(
            "{} tiers, at most {}",
            definitions.len(),
            TierId::MAX
        ));
    }
    let mut seen = BTreeSet::new();
    for tier in definitions {
        if tier.nodes.is_empty() {
            return fail(format!("'{}' has no nodes", tier.name));
        }
        for id in &tier.nodes {
            if !with_memory(nodes).any(|node| node.id == *id) {
                return fail(format!(
                    "'{}' names {id}, which is offline or has no memory",
                    tier.name
                ));
            }
            if !seen.insert(*id) {
                return fail(format!("{id} is in more than one place"));
            }
        }
    }
    Ok(())
}

/// Tiers by the host's own description: HMAT, else the kernel's tiers, else CPUs and distances.
pub(super) fn derived(
    nodes: Vec<Node>,
    kernel_tiers: &[Vec<NodeId>],
) -> Result<Topology, TopologyError> {
    if with_memory(&nodes).next().is_none() {
        return Err(TopologyError::NoMemory);
    }
    let (mut groups, source) = match by_performance(&nodes) {
        Some(groups) if groups.len() > 1 => (groups, TierSource::Hmat),
        _ => match of_nodes_with_memory(&nodes, kernel_tiers) {
            groups if groups.len() > 1 => (groups, TierSource::KernelTiers),
            _ => (by_distance(&nodes), TierSource::Distance),
        },
    };
    let mut findings = kernel_findings(&groups, kernel_tiers);
    if groups.len() == 1 {
        findings.push(match with_memory(&nodes).count() {
            1 => one_tier("this machine has one node with memory", ADD_A_NODE),
            _ => one_tier("nothing on this host distinguishes its nodes", DEFINE),
        });
    }
    if groups.len() > TierId::MAX {
        findings.push(Finding::degraded(
            NAME,
            format!(
                "{} classes of memory, of which the slowest are taken together",
                groups.len()
            ),
            DEFINE,
        ));
        let rest: Vec<NodeId> = groups.drain(TierId::MAX - 1..).flatten().collect();
        groups.push(rest);
    }
    let names = names(groups.len());
    Ok(topology(nodes, groups, names, source, findings))
}

fn with_memory(nodes: &[Node]) -> impl Iterator<Item = &Node> {
    nodes.iter().filter(|node| node.total_bytes > 0)
}

/// Tiers by the firmware's figures; `None` if it is silent about some node.
fn by_performance(nodes: &[Node]) -> Option<Vec<Vec<NodeId>>> {
    let known = with_memory(nodes).map(|node| Some((node.id, node.performance?)));
    let known: Vec<(NodeId, Performance)> = known.collect::<Option<_>>()?;
    let reference = known.first()?.1;
    let mut costs: Vec<(NodeId, f64)> = known
        .iter()
        .map(|(id, p)| (*id, cost(p, &reference)))
        .collect();
    costs.sort_by(|a, b| a.1.total_cmp(&b.1).then(a.0.cmp(&b.0)));
    let mut groups: Vec<Vec<NodeId>> = Vec::new();
    let mut least = f64::MAX;
    for (id, cost) in costs {
        match groups.last_mut() {
            Some(group) if cost <= least * SAME_TIER_RATIO => group.push(id),
            _ => {
                groups.push(vec![id]);
                least = cost;
            }
        }
    }
    Some(groups)
}

/// The cost of a node relative to a reference, as the kernel's abstract distance: latency up, bandwidth down. A
/// figure that one of the two does not state does not count.
fn cost(node: &Performance, reference: &Performance) -> f64 {
    let ratio = |a: u64, b: u64| {
        if a == 0 || b == 0 {
            1.0
        } else {
            // Nanoseconds and MB/s are far below 2^52.
            #[allow(clippy::cast_precision_loss)]
            let ratio = a as f64 / b as f64;
            ratio
        }
    };
    let latency = |p: &Performance| p.read_latency_ns + p.write_latency_ns.max(p.read_latency_ns);
    let bandwidth = |p: &Performance| p.read_bandwidth_mbs + p.write_bandwidth_mbs;
    ratio(latency(node), latency(reference)) * ratio(bandwidth(reference), bandwidth(node))
}

fn of_nodes_with_memory(nodes: &[Node], tiers: &[Vec<NodeId>]) -> Vec<Vec<NodeId>> {
    let has = |id: &&NodeId| with_memory(nodes).any(|node| node.id == **id);
    let filtered = tiers
        .iter()
        .map(|tier| tier.iter().filter(has).copied().collect());
    filtered.filter(|tier: &Vec<_>| !tier.is_empty()).collect()
}

/// Tiers by CPUs and distances: nodes with CPUs are fast; nodes without are slow, further ones slower.
fn by_distance(nodes: &[Node]) -> Vec<Vec<NodeId>> {
    let fast: Vec<NodeId> = with_memory(nodes)
        .filter(|node| !node.cpus.is_empty())
        .map(|node| node.id)
        .collect();
    let cpu_places: Vec<usize> = (0..nodes.len())
        .filter(|i| !nodes[*i].cpus.is_empty())
        .collect();
    let mut slow: Vec<(u32, NodeId)> = with_memory(nodes)
        .filter(|node| node.cpus.is_empty())
        .map(|node| {
            let from_cpus = cpu_places.iter().filter_map(|i| node.distances.get(*i));
            (from_cpus.min().copied().unwrap_or(u32::MAX), node.id)
        })
        .collect();
    slow.sort_unstable();
    let mut groups = vec![fast];
    let classes = slow.chunk_by(|a, b| a.0 == b.0);
    groups.extend(classes.map(|class| class.iter().map(|(_, id)| *id).collect()));
    groups.retain(|group| !group.is_empty());
    groups
}

/// The kernel demotes and promotes by tiers of its own.
fn kernel_findings(groups: &[Vec<NodeId>], kernel_tiers: &[Vec<NodeId>]) -> Vec<Finding> {
    if groups.len() > 1 && kernel_tiers.len() == 1 {
        return vec![Finding::degraded(
            "kernel-tiers",
            "the kernel has all nodes in one tier of its own: it demotes nothing by itself when the fast \
             tier runs full",
            "nothing, if Terrace is to do it; else give the kernel HMAT or CDAT data (dax_kmem sets it for \
             CXL memory)",
        )];
    }
    Vec::new()
}

fn one_tier(why: &str, advice: &str) -> Finding {
    let found =
        format!("all memory is one tier, so no page is moved (balancing of VMs works): {why}");
    Finding::missing(NAME, found, advice)
}

fn names(count: usize) -> Vec<String> {
    let place = |i: usize| match i {
        0 => "fast".to_owned(),
        1 => "slow".to_owned(),
        i => format!("slow{i}"),
    };
    (0..count).map(place).collect()
}

fn topology(
    nodes: Vec<Node>,
    groups: Vec<Vec<NodeId>>,
    names: Vec<String>,
    source: TierSource,
    findings: Vec<Finding>,
) -> Topology {
    let size = |id: &NodeId| {
        nodes
            .iter()
            .find(|n| n.id == *id)
            .map_or(0, |n| n.total_bytes)
    };
    let tiers = groups
        .into_iter()
        .zip(names)
        .zip(0..)
        .map(|((members, name), id)| Tier {
            id: TierId(id),
            name,
            total_bytes: members.iter().map(size).sum(),
            nodes: members,
        })
        .collect();
    Topology {
        nodes,
        tiers,
        source,
        findings,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(id: u32, cpus: &[u32], distances: &[u32], performance: Option<(u64, u64)>) -> Node {
        Node {
            id: NodeId(id),
            total_bytes: 1 << 30,
            cpus: cpus.to_vec(),
            distances: distances.to_vec(),
            performance: performance.map(|(latency, bandwidth)| Performance {
                read_latency_ns: latency,
                write_latency_ns: latency,
                read_bandwidth_mbs: bandwidth,
                write_bandwidth_mbs: bandwidth,
            }),
        }
    }

    fn tiers(topology: &Topology) -> Vec<Vec<u32>> {
        let ids = |t: &Tier| t.nodes.iter().map(|n| n.0).collect();
        topology.tiers.iter().map(ids).collect()
    }

    #[test]
    fn firmware_data_puts_both_sockets_above_cxl_and_hbm_above_both() {
        let nodes = vec![
            node(0, &[0], &[10, 21, 30, 12], Some((80, 120_000))),
            node(1, &[1], &[21, 10, 30, 22], Some((85, 120_000))),
            node(2, &[], &[30, 30, 10, 30], Some((200, 60_000))),
            node(3, &[], &[12, 22, 30, 10], Some((90, 400_000))),
        ];
        let topology = derived(nodes, &[]).unwrap();
        assert_eq!(tiers(&topology), [vec![3], vec![0, 1], vec![2]]);
        assert_eq!(topology.source, TierSource::Hmat);
        assert_eq!(topology.tier_of(NodeId(2)), Some(TierId(2)));
        assert!(topology.findings.is_empty());
    }

    #[test]
    fn without_firmware_data_the_kernels_tiers_and_then_cpus_decide() {
        let nodes = || {
            vec![
                node(0, &[0], &[10, 20], None),
                node(1, &[], &[20, 10], None),
            ]
        };
        let kernel = [vec![NodeId(1)], vec![NodeId(0), NodeId(7)]];
        let by_kernel = derived(nodes(), &kernel).unwrap();
        assert_eq!(tiers(&by_kernel), [vec![1], vec![0]]);
        assert_eq!(by_kernel.source, TierSource::KernelTiers);
        let by_cpus = derived(nodes(), &[vec![NodeId(0), NodeId(1)]]).unwrap();
        assert_eq!(tiers(&by_cpus), [vec![0], vec![1]]);
        assert_eq!(by_cpus.findings[0].name, "kernel-tiers");
    }

    #[test]
    fn further_nodes_without_cpus_are_slower() {
        let nodes = vec![
            node(0, &[0], &[10, 40, 20, 20], None),
            node(1, &[], &[40, 10, 40, 40], None),
            node(2, &[], &[20, 40, 10, 20], None),
            node(3, &[], &[20, 40, 20, 10], None),
        ];
        assert_eq!(
            tiers(&derived(nodes, &[]).unwrap()),
            [vec![0], vec![2, 3], vec![1]]
        );
    }

    #[test]
    fn one_node_is_one_tier_and_said_so() {
        let topology = derived(vec![node(0, &[0], &[10], None)], &[]).unwrap();
        assert_eq!(tiers(&topology), [vec![0]]);
        assert_eq!(topology.findings[0].health, crate::Health::Missing);
        let advice = topology.findings[0].advice.as_deref().unwrap();
        assert!(advice.contains("second node"), "{advice}");
        let alike = (0..2).map(|n| node(n, &[0], &[10, 10], None)).collect();
        let topology = derived(alike, &[]).unwrap();
        let advice = topology.findings[0].advice.as_deref().unwrap();
        assert!(advice.contains("[[tier]]"), "{advice}");
        assert!(matches!(derived(vec![], &[]), Err(TopologyError::NoMemory)));
    }

    #[test]
    fn more_than_four_classes_are_joined_at_the_slow_end() {
        let nodes = (0..6)
            .map(|i| node(i, &[], &[], Some((100 << i, 1000))))
            .collect();
        let topology = derived(nodes, &[]).unwrap();
        assert_eq!(tiers(&topology), [vec![0], vec![1], vec![2], vec![3, 4, 5]]);
        assert_eq!(topology.findings.len(), 1);
    }

    #[test]
    fn the_operators_tiers_hold_and_wrong_ones_are_refused() {
        let nodes = || {
            vec![
                node(0, &[0], &[], None),
                node(1, &[1], &[], None),
                node(2, &[], &[], None),
            ]
        };
        let tier = |name: &str, ids: &[u32]| TierDefinition {
            name: name.into(),
            nodes: ids.iter().map(|i| NodeId(*i)).collect(),
        };
        let good = defined(nodes(), &[], &[tier("far", &[1]), tier("near", &[0])]).unwrap();
        assert_eq!(tiers(&good), [vec![1], vec![0]]);
        assert_eq!(good.tiers[0].name, "far");
        assert!(good.findings[0].found.contains("node 2"));
        for (wrong, want) in [
            (vec![tier("a", &[])], "no nodes"),
            (vec![tier("a", &[9])], "offline"),
            (vec![tier("a", &[0]), tier("b", &[0])], "more than one"),
            (vec![tier("a", &[0]); 5], "at most 4"),
        ] {
            let error = defined(nodes(), &[], &wrong).unwrap_err().to_string();
            assert!(error.contains(want), "{error}");
        }
    }
}
