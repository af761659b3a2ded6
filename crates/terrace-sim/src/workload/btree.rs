//! `btree`: look-ups of random keys in a tree of nodes, from the root to a leaf.

use serde::Deserialize;

use super::draw::{Random, Writes, access};
use super::keys::at;
use super::source::{Operate, Operations};
use super::values;
use super::{Context, Endlessly, WorkloadError};
use crate::base::access::{Access, LINE, LINES_PER_PAGE};
use crate::base::random::Purpose;

/// Bytes of a key and a pointer.
const ENTRY: u64 = 16;

/// The keys of `btree`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Btree {
    #[serde(deserialize_with = "values::size")]
    size: u64,
    #[serde(default = "sixteen", deserialize_with = "fanout")]
    fanout: u64,
    #[serde(default, deserialize_with = "values::fraction")]
    write: f64,
}

fn sixteen() -> u64 {
    16
}

/// Deserializes the number of entries of a node, which is at most a page.
fn fanout<'de, D: serde::Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    let fanout = values::count(from)?;
    if !(2..=256).contains(&fanout) {
        return Err(serde::de::Error::custom(format!(
            "{fanout} is out of bounds: allowed is 2 to 256"
        )));
    }
    Ok(fanout)
}

/// The nodes of one height.
#[derive(Clone, Copy)]
struct Level {
    /// Number of nodes in the full-size tree.
    nodes: u64,
    /// The first line.
    start: u64,
}

impl Btree {
    fn node_lines(&self) -> u64 {
        (self.fanout * ENTRY).div_ceil(LINE)
    }

    /// The levels from the root, and the number of lines that they take: `scale` neighbours are one node, so that the
    /// tree is as high as in full size.
    fn levels(&self, leaves: u64, scale: u64) -> (Vec<Level>, u64) {
        let mut counts = vec![leaves.saturating_mul(scale)];
        while let Some(nodes) = counts.last().copied().filter(|nodes| *nodes > 1) {
            counts.push(nodes.div_ceil(self.fanout));
        }
        let mut start = 0;
        let mut levels = Vec::new();
        for nodes in counts.into_iter().rev() {
            levels.push(Level { nodes, start });
            start += nodes.div_ceil(scale) * self.node_lines();
        }
        (levels, start)
    }

    /// The levels of the largest tree that fits into so many lines.
    fn largest(&self, lines: u64, scale: u64) -> Option<Vec<Level>> {
        let (mut fits, mut too_many) = (0, lines / self.node_lines() + 1);
        while too_many - fits > 1 {
            let leaves = fits + (too_many - fits) / 2;
            if self.levels(leaves, scale).1 <= lines {
                fits = leaves;
            } else {
                too_many = leaves;
            }
        }
        (fits > 0).then(|| self.levels(fits, scale).0)
    }
}

impl Endlessly for Btree {
    type Generator = Operations<Lookups>;

    fn pages(&self, scale: u64) -> Result<u64, WorkloadError> {
        values::pages("size", self.size, scale)
    }

    fn generator(&self, context: &Context, vcpu: u32) -> Result<Self::Generator, WorkloadError> {
        let lines = self.pages(context.scale)? * LINES_PER_PAGE;
        let levels = self.largest(lines, context.scale).ok_or_else(|| {
            WorkloadError(format!(
                "workload of kind \"btree\": size = {} bytes has no room for a path from root to leaf \
                 at scale {}",
                self.size, context.scale
            ))
        })?;
        Ok(Operations::new(Lookups {
            random: Random::new(context, vcpu, Purpose::Accesses),
            writes: Writes::new(context, vcpu, self.write),
            node_lines: self.node_lines(),
            scale: context.scale,
            levels,
        }))
    }
}

/// The lookups of one vCPU.
#[derive(Clone)]
pub(super) struct Lookups {
    random: Random,
    writes: Writes,
    node_lines: u64,
    scale: u64,
    levels: Vec<Level>,
}

impl Operate for Lookups {
    /// Makes one look-up: a binary search in each node on the way.
    fn operate(&mut self, out: &mut Vec<Access>) {
        let key = self.random.bits();
        let mut leaf = 0;
        for level in &self.levels {
            let node = at(key, level.nodes) / self.scale;
            let start = level.start + node * self.node_lines;
            let wanted = at(key.wrapping_mul(level.nodes), self.node_lines);
            let (mut low, mut high) = (0, self.node_lines);
            while high - low > 1 {
                let middle = low + (high - low) / 2;
                if middle == wanted {
                    leaf = out.len();
                }
                out.push(access(start + middle, false));
                if wanted < middle {
                    high = middle;
                } else {
                    low = middle;
                }
            }
            // All others were read on the way.
            if wanted == 0 {
                leaf = out.len();
                out.push(access(start, false));
            }
        }
        if self.writes.draw() {
            out[leaf] = out[leaf].updating();
        }
    }
}
