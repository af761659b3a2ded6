//! Admission: whether a VM may have more memory. The memory that it adds must fit into its node beside what others
//! may still take.
//!
//! The bytes that a VM may still take of a tier are the counted ones less those that are really there already. The
//! whole tier is counted until the guest's driver has inflated: before that nothing keeps the guest from touching all
//! of it. A tier of unknown node is counted against every node.

use std::collections::BTreeMap;

use terrace_proto::PAGE_SIZE;

use super::text::size;

/// The claim of one tier of a VM on the host's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The VM's name.
    pub vm: String,
    /// The tier's index, from 0 for the fastest.
    pub tier: usize,
    /// The tier's name, for people.
    pub name: &'static str,
    /// The host's nodes behind the tier; empty: not known.
    pub nodes: Vec<u32>,
    /// Bytes counted for the tier.
    pub counted_bytes: u64,
    /// Bytes of the tier that are there already.
    pub present_bytes: u64,
    /// Whether the guest's driver has inflated.
    pub is_inflated: bool,
    /// The page size of the pool that the tier's memory comes from; 0: none. Claims of different pools do not meet:
    /// the caller gives those of one pool.
    pub pool: u64,
}

impl Claim {
    /// The bytes that the VM may still take for the tier.
    #[must_use]
    pub fn may_take(&self) -> u64 {
        self.counted_bytes.saturating_sub(self.present_bytes)
    }

    fn meets(&self, nodes: &[u32]) -> bool {
        // A tier of unknown node may be anywhere: it meets every other one.
        self.nodes.is_empty()
            || nodes.is_empty()
            || self.nodes.iter().any(|node| nodes.contains(node))
    }

    fn is(&self, other: &Self) -> bool {
        self.vm == other.vm && self.tier == other.tier
    }
}

/// Free memory of each node that VMs may have, bytes, less what the operator keeps back.
pub type Free = BTreeMap<u32, u64>;

/// Checks whether `growing`, with its wanted size as the counted bytes, has room among `all` claims. The memory that
/// it has already (`size_bytes`) stays its own.
///
/// # Errors
/// If they do not fit: the reason with its figures.
pub fn admit(growing: &Claim, size_bytes: u64, all: &[Claim], free: &Free) -> Result<(), String> {
    let available = available(&growing.nodes, free);
    let others: Vec<&Claim> = all
        .iter()
        .filter(|claim| !claim.is(growing) && claim.meets(&growing.nodes))
        .collect();
    let taken = sum(&others);
    // Saturating, as the figures come from devices: a sum that wraps would admit anything.
    if growing.may_take().saturating_add(taken) <= available {
        return Ok(());
    }
    let room = available
        .saturating_sub(taken)
        .saturating_add(growing.present_bytes);
    // Never less than the VM has: a refusal to grow takes nothing away.
    let most = (room / PAGE_SIZE * PAGE_SIZE).max(size_bytes);
    let beside = match text(&others) {
        text if text.is_empty() => String::new(),
        text => format!(", of which {text}"),
    };
    Err(format!(
        "{} {} free for VMs{beside}; at most {} of {} can be given now{}",
        nodes_have(&growing.nodes),
        size(available),
        size(most),
        growing.name,
        unknown(growing),
    ))
}

/// The nodes (or the host as a whole) of which VMs may together take more than is free, in sentences.
#[must_use]
pub fn overcommitted(all: &[Claim], free: &Free) -> Vec<String> {
    let mut said = Vec::new();
    let mut check = |nodes: &[u32], claims: Vec<&Claim>| {
        let (may_take, available) = (sum(&claims), available(nodes, free));
        if may_take > available {
            said.push(format!(
                "{} {} free for VMs, which may together take {}: {}",
                nodes_have(nodes),
                size(available),
                size(may_take),
                text(&claims)
            ));
        }
    };
    for node in free.keys() {
        // Only claims that name the node: one of unknown node would be reported at every node.
        let here = all.iter().filter(|claim| claim.nodes.contains(node));
        check(&[*node], here.collect());
    }
    // Beside the nodes' own sentences only if some claim is in none of them.
    if all.iter().any(|claim| claim.nodes.is_empty()) {
        check(&[], all.iter().collect());
    }
    said
}

fn available(nodes: &[u32], free: &Free) -> u64 {
    let here = free
        .iter()
        .filter(|(node, _)| nodes.is_empty() || nodes.contains(node));
    here.map(|(_, bytes)| *bytes).fold(0, u64::saturating_add)
}

fn sum(claims: &[&Claim]) -> u64 {
    let each = claims.iter().map(|claim| claim.may_take());
    each.fold(0, u64::saturating_add)
}

fn nodes_have(nodes: &[u32]) -> String {
    match nodes {
        [] => "the host has".into(),
        [node] => format!("node {node} has"),
        nodes => {
            let nodes: Vec<String> = nodes.iter().map(u32::to_string).collect();
            format!("nodes {} have", nodes.join(", "))
        }
    }
}

fn unknown(claim: &Claim) -> String {
    if !claim.nodes.is_empty() {
        return String::new();
    }
    let Claim { vm, name, .. } = claim;
    format!(
        " (which node is behind {name} of {vm} is not known, so that all VMs count: say hyperflex_nodes under \
         [vm.{vm}])"
    )
}

/// `vm2 may still take 700 MiB, vm3 may still take 4 GiB (counted whole: its driver has not inflated yet)`.
fn text(claims: &[&Claim]) -> String {
    let mut by_vm: BTreeMap<&str, (u64, bool)> = BTreeMap::new();
    for claim in claims.iter().filter(|claim| claim.may_take() > 0) {
        let (bytes, is_whole) = by_vm.entry(&claim.vm).or_default();
        *bytes = bytes.saturating_add(claim.may_take());
        *is_whole |= !claim.is_inflated;
    }
    let each = by_vm.iter().map(|(vm, (bytes, is_whole))| {
        let whole = if *is_whole {
            " (counted whole: its driver has not inflated yet)"
        } else {
            ""
        };
        format!("{vm} may still take {}{whole}", size(*bytes))
    });
    each.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn claim(vm: &str, nodes: &[u32], counted: u64, present: u64) -> Claim {
        Claim {
            vm: vm.into(),
            tier: 0,
            name: "fast",
            nodes: nodes.to_vec(),
            counted_bytes: counted * GIB,
            present_bytes: present * GIB,
            is_inflated: true,
            pool: 0,
        }
    }

    fn free(bytes: [u64; 2]) -> Free {
        (0..).zip(bytes.map(|gib| gib * GIB)).collect()
    }

    #[test]
    fn what_others_may_still_take_is_not_given_away() {
        let all = [claim("vm1", &[1], 2, 2), claim("vm2", &[1], 4, 1)];
        let grown = claim("vm1", &[1], 5, 2);
        assert_eq!(admit(&grown, 2 * GIB, &all, &free([0, 6])), Ok(()));
        let refused = admit(&grown, 2 * GIB, &all, &free([9, 5])).unwrap_err();
        assert_eq!(
            refused,
            "node 1 has 5 GiB free for VMs, of which vm2 may still take 3 GiB; at most 4 GiB of fast can be \
             given now"
        );
    }

    #[test]
    fn memory_that_a_vm_has_not_touched_yet_is_its_own_to_take() {
        let all = [claim("vm1", &[0], 4, 1)];
        let grown = claim("vm1", &[0], 5, 1);
        assert!(admit(&grown, 4 * GIB, &all, &free([3, 9])).is_err());
        assert_eq!(admit(&grown, 4 * GIB, &all, &free([4, 9])), Ok(()));
    }

    #[test]
    fn a_full_node_takes_nothing_from_what_the_vm_has() {
        let all = [claim("vm1", &[0], 2, 1), claim("vm2", &[0], 9, 0)];
        let refused = admit(&claim("vm1", &[0], 3, 1), 2 * GIB, &all, &free([1, 9])).unwrap_err();
        assert!(refused.contains("at most 2 GiB"), "{refused}");
    }

    #[test]
    fn a_tier_of_unknown_node_counts_against_all_nodes() {
        let all = [claim("vm1", &[0], 1, 1), claim("vm2", &[], 3, 0)];
        let refused = admit(&claim("vm1", &[0], 7, 1), GIB, &all, &free([4, 4])).unwrap_err();
        assert!(refused.contains("vm2 may still take 3 GiB"), "{refused}");
        let all = [claim("vm1", &[], 1, 1), claim("vm2", &[1], 3, 0)];
        let grown = claim("vm1", &[], 9, 1);
        let refused = admit(&grown, GIB, &all, &free([4, 4])).unwrap_err();
        for has in [
            "the host has 8 GiB",
            "at most 6 GiB",
            "hyperflex_nodes under [vm.vm1]",
        ] {
            assert!(refused.contains(has), "no {has} in {refused}");
        }
    }

    #[test]
    fn vms_that_may_together_take_more_than_there_is_are_named() {
        let mut whole = claim("vm1", &[1], 8, 1);
        whole.is_inflated = false;
        let all = [whole, claim("vm2", &[1], 4, 3), claim("vm3", &[0], 1, 0)];
        assert_eq!(overcommitted(&all, &free([1, 8])), Vec::<String>::new());
        let said = overcommitted(&all, &free([1, 7]));
        assert_eq!(
            said,
            [
                "node 1 has 7 GiB free for VMs, which may together take 8 GiB: vm1 may still take 7 GiB (counted \
                 whole: its driver has not inflated yet), vm2 may still take 1 GiB"
            ]
        );
    }
}
