//! Physical addresses: the frame of its node in which each page lies.
//!
//! Pages that were touched one after another lie side by side at first, as in a guest that has just booted. A page that
//! moves takes the frame of its new node that was freed last, as the kernel's lists of free pages do.

use crate::base::number::{index, low};
use crate::mechanisms::{Context, Setup, Unit};

/// No unit.
const NONE: u32 = u32::MAX;

/// A node's frames, of a unit each.
#[derive(Debug, Default)]
struct Node {
    units: Vec<u32>,
    /// Free frames; the last one is taken next.
    free: Vec<u32>,
}

/// The frames of all nodes.
#[derive(Debug)]
pub(super) struct Frames {
    nodes: Vec<Node>,
    /// The node and frame of each unit.
    of: Vec<(u8, u32)>,
}

impl Frames {
    /// Nodes without frames.
    pub(super) fn new(setup: &Setup) -> Self {
        Self {
            nodes: (0..setup.tiers).map(|_| Node::default()).collect(),
            of: vec![(0, NONE); index(setup.units)],
        }
    }

    /// Gives each page a frame of its node, in the order of addresses.
    pub(super) fn fill(&mut self, context: &Context) {
        for unit in 0..context.units() {
            let tier = context.tier(unit).unwrap_or(0);
            let node = &mut self.nodes[usize::from(tier)];
            self.of[index(unit)] = (tier, low(node.units.len() as u64));
            node.units.push(unit);
        }
        for (tier, node) in (0_u8..).zip(&mut self.nodes) {
            let used = low(node.units.len() as u64);
            let all = low(context.node(tier)).max(used);
            node.units.resize(index(all), NONE);
            node.free = (used..all).rev().collect();
        }
    }

    /// Number of frames of a node.
    pub(super) fn len(&self, tier: u8) -> u32 {
        low(self.nodes[usize::from(tier)].units.len() as u64)
    }

    /// The page in a frame.
    pub(super) fn unit(&self, tier: u8, frame: u32) -> Option<Unit> {
        let units = &self.nodes[usize::from(tier)].units;
        units.get(index(frame)).copied().filter(|u| *u != NONE)
    }

    /// The node of a page.
    pub(super) fn tier(&self, unit: Unit) -> u8 {
        self.of[index(unit)].0
    }

    /// Gives a page a frame of a node, if it is on another one. The last node has frames for all that it is given.
    pub(super) fn put(&mut self, unit: Unit, tier: u8) {
        let (before, frame) = self.of[index(unit)];
        if before == tier {
            return;
        }
        let node = &mut self.nodes[usize::from(before)];
        node.units[index(frame)] = NONE;
        node.free.push(frame);
        let node = &mut self.nodes[usize::from(tier)];
        let frame = node.free.pop().unwrap_or_else(|| {
            node.units.push(NONE);
            low(node.units.len() as u64 - 1)
        });
        node.units[index(frame)] = unit;
        self.of[index(unit)] = (tier, frame);
    }

    pub(super) fn heap_bytes(&self) -> usize {
        let of_node = |node: &Node| 4 * (node.units.capacity() + node.free.capacity());
        let nodes: usize = self.nodes.iter().map(of_node).sum();
        nodes + self.of.capacity() * size_of::<(u8, u32)>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_that_moves_takes_the_frame_freed_last() {
        let mut frames = Frames::new(&Setup::of_units(3));
        frames.nodes[0].units = vec![0, 1, 2];
        frames.nodes[1].units = vec![NONE; 2];
        frames.nodes[1].free = vec![1, 0];
        frames.of = vec![(0, 0), (0, 1), (0, 2)];
        frames.put(2, 1);
        frames.put(0, 1);
        assert_eq!((frames.unit(1, 0), frames.unit(1, 1)), (Some(2), Some(0)));
        frames.put(2, 0);
        // Frame 0 of the first node was freed after frame 2.
        assert_eq!((frames.unit(0, 0), frames.tier(2)), (Some(2), 0));
        frames.put(1, 1);
        frames.put(2, 1);
        assert_eq!((frames.unit(1, 0), frames.len(1)), (Some(1), 3));
    }
}
