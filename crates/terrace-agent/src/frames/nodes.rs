//! The node that a frame lies on, by the kernel's zones.

use std::ops::Range;

use terrace_proto::{Gfn, PAGE_SIZE};
use terrace_sys::HostRoot;
use terrace_sys::topology::node_memory;

/// The frames of each node.
#[derive(Debug)]
pub(super) struct NodeFrames<'a> {
    root: &'a HostRoot,
    nodes: Vec<(u32, Range<u64>)>,
    /// Bytes of what can be plugged in and out; 0 if the kernel does not say.
    block_bytes: u64,
}

impl<'a> NodeFrames<'a> {
    pub(super) fn read(root: &'a HostRoot) -> Self {
        let nodes = node_memory(root).unwrap_or_default();
        let block = root.read("sys/devices/system/memory/block_size_bytes");
        let block = block.map(|text| u64::from_str_radix(text.trim(), 16).unwrap_or(0));
        Self {
            root,
            nodes: nodes
                .into_iter()
                .map(|(node, memory)| (node.0, memory.frames))
                .collect(),
            block_bytes: block.unwrap_or(0),
        }
    }

    /// The node of a frame; `None` if the kernel does not say.
    pub(super) fn of(&self, gfn: Gfn) -> Option<u32> {
        let spanning: Vec<u32> = self
            .nodes
            .iter()
            .filter(|(_, frames)| frames.contains(&gfn.0))
            .map(|(node, _)| *node)
            .collect();
        match spanning[..] {
            [node] => Some(node),
            // Memory that was plugged in may lie between that of other nodes.
            _ => self.by_block(gfn, &spanning),
        }
    }

    fn by_block(&self, gfn: Gfn, nodes: &[u32]) -> Option<u32> {
        let block = gfn
            .0
            .checked_mul(PAGE_SIZE)?
            .checked_div(self.block_bytes)?;
        let mut having = nodes.iter().copied().filter(|node| {
            let link = format!("sys/devices/system/node/node{node}/memory{block}");
            self.root.join(link).exists()
        });
        having.next().filter(|_| having.next().is_none())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_frame_is_on_the_node_whose_zone_has_it() {
        let dir = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let zone = |node: u32, first: u64, pages: u64| {
            format!("Node {node}, zone Normal\n  spanned {pages}\n  start_pfn: {first}\n")
        };
        put(
            "proc/zoneinfo",
            &(zone(0, 1, 0x10_0000) + &zone(1, 0x8000, 0x8000)),
        );
        let root = HostRoot::new(dir.path());
        let of = |frame| NodeFrames::read(&root).of(Gfn(frame));
        assert_eq!(
            [of(0), of(1), of(0x7fff), of(0x20_0000)],
            [None, Some(0), Some(0), None]
        );
        assert_eq!(of(0x8000), None, "two nodes span it");
        put("sys/devices/system/memory/block_size_bytes", "8000000\n");
        put("sys/devices/system/node/node1/memory1/state", "online");
        assert_eq!(of(0x8000), Some(1));
        put("sys/devices/system/node/node0/memory1/state", "online");
        assert_eq!(of(0x8000), None, "a block of both");
    }
}
