//! The tiers that the nodes of a guest lie in: QEMU's memory tree, its backends, and the host's nodes that they name.
//!
//! A kernel in a guest moves pages between its own nodes. That is a move between tiers only if the memory of each node comes from
//! host nodes of one tier.

use terrace_proto::{Gfn, GuestNode, PAGE_SIZE, TierId};

use super::layout::{Layout, Piece};
use crate::qemu::Memdev;
use crate::topology::{NodeId, Topology};

/// Advice for each refusal.
const CHANGE: &str = "give QEMU a memory backend for each tier (-object memory-backend-…,host-nodes=N,policy=bind and -numa node,memdev=…)";

/// The tier of each run of guest memory.
///
/// # Errors
/// If some run's tier is not certain, or there is one tier alone; the error has the reason, and what to change.
pub fn guest_nodes(
    layout: &Layout,
    memdevs: &[Memdev],
    topology: &Topology,
) -> Result<Vec<GuestNode>, String> {
    let mut nodes: Vec<GuestNode> = Vec::new();
    for piece in &layout.pieces {
        let tier = tier_of(piece, memdevs, topology)?;
        let (start, pages) = (Gfn(piece.gpa / PAGE_SIZE), piece.len / PAGE_SIZE);
        match nodes.last_mut() {
            Some(last) if last.tier == tier && last.start.0 + last.pages == start.0 => {
                last.pages += pages;
            }
            _ => nodes.push(GuestNode { start, pages, tier }),
        }
    }
    match nodes.first() {
        Some(first) if nodes.iter().any(|node| node.tier != first.tier) => Ok(nodes),
        _ => Err(format!("all of its memory lies in one tier; {CHANGE}")),
    }
}

fn tier_of(piece: &Piece, memdevs: &[Memdev], topology: &Topology) -> Result<TierId, String> {
    let region = &piece.region;
    let memdev = memdevs.iter().find(|memdev| memdev.id == *region);
    let nodes = memdev.map_or(&[][..], |memdev| memdev.host_nodes.as_slice());
    let has = |tier: &crate::topology::Tier| nodes.iter().all(|n| tier.nodes.contains(&NodeId(*n)));
    match topology.tiers.iter().find(|tier| has(tier)) {
        _ if nodes.is_empty() => Err(format!(
            "its memory '{region}' is bound to no node of the host; {CHANGE}"
        )),
        Some(tier) => Ok(tier.id),
        None => Err(format!(
            "its memory '{region}' is bound to the host's nodes {nodes:?}, which are not of one tier; {CHANGE}"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::super::layout::Held;
    use super::*;
    use crate::topology::{Tier, TierSource};

    const MIB: u64 = 1 << 20;

    fn layout(pieces: &[(&str, u64, u64)]) -> Layout {
        let piece = |(region, gpa, mib): &(&str, u64, u64)| Piece {
            gpa: gpa * MIB,
            len: mib * MIB,
            hva: 0,
            region: (*region).to_owned(),
            held: Held {
                file: super::super::procfs::FileId {
                    major: 0,
                    minor: 0,
                    inode: 1,
                },
                offset: None,
                shared: true,
                read_write: true,
            },
        };
        Layout {
            pieces: pieces.iter().map(piece).collect(),
        }
    }

    fn memdev(id: &str, nodes: &[u32]) -> Memdev {
        Memdev {
            id: id.to_owned(),
            size: MIB,
            share: true,
            host_nodes: nodes.to_vec(),
        }
    }

    fn topology() -> Topology {
        let tier = |id: u8, nodes: &[u32]| Tier {
            id: TierId(id),
            name: String::new(),
            nodes: nodes.iter().copied().map(NodeId).collect(),
            total_bytes: 0,
        };
        Topology {
            nodes: vec![],
            tiers: vec![tier(0, &[0, 1]), tier(1, &[2])],
            source: TierSource::Operator,
            findings: vec![],
        }
    }

    #[test]
    fn the_tier_of_a_node_follows_from_its_backend() {
        let memdevs = [memdev("m0", &[1]), memdev("m1", &[2])];
        let layout = layout(&[("m0", 0, 8), ("m0", 8, 8), ("m1", 16, 4), ("m1", 4096, 32)]);
        let nodes = guest_nodes(&layout, &memdevs, &topology()).unwrap();
        let node = |mib: u64, size: u64, tier| GuestNode {
            start: Gfn(mib * 256),
            pages: size * 256,
            tier: TierId(tier),
        };
        assert_eq!(nodes, [node(0, 16, 0), node(16, 4, 1), node(4096, 32, 1)]);
    }

    #[test]
    fn a_vm_with_one_node_is_refused() {
        let memdevs = [memdev("m0", &[0])];
        let why = guest_nodes(&layout(&[("m0", 0, 8)]), &memdevs, &topology()).unwrap_err();
        assert!(
            why.starts_with("all of its memory lies in one tier; give QEMU"),
            "{why}"
        );
        let why = guest_nodes(&layout(&[]), &[], &topology()).unwrap_err();
        assert!(why.contains("one tier"), "{why}");
    }

    #[test]
    fn nodes_on_mixed_tiers_are_refused() {
        let layout = layout(&[("m0", 0, 8), ("m1", 8, 8)]);
        for (nodes, said) in [
            (
                &[1, 2][..],
                "the host's nodes [1, 2], which are not of one tier",
            ),
            (&[7][..], "the host's nodes [7], which are not of one tier"),
            (&[][..], "'m1' is bound to no node of the host"),
        ] {
            let memdevs = [memdev("m0", &[0]), memdev("m1", nodes)];
            let why = guest_nodes(&layout, &memdevs, &topology()).unwrap_err();
            assert!(why.contains(said), "{why}");
        }
        let unknown = guest_nodes(&layout, &[memdev("m0", &[0])], &topology()).unwrap_err();
        assert!(unknown.contains("'m1' is bound to no node"), "{unknown}");
    }
}
