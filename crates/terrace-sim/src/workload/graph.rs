//! `graph`: breadth-first search, PageRank and betweenness centrality on a skewed graph.
//!
//! The graph is a Kronecker graph in compressed sparse rows that is never stored, but computed when it is read.
//! Each bit of a vertex's number is 0 with chance 3/4 (Graph500 takes 0.76), so few vertices, those with low numbers,
//! have most of the edges. The edges of a vertex begin at the sum of the degrees of the vertices below it, and the
//! neighbour at an edge is a hash of the edge. The same bits rule at every scale: a smaller graph is a larger one
//! with neighbours taken together.
//!
//! Memory is the offsets, the edges, and two properties of each vertex, 8 bytes each. A run builds the graph
//! (offsets and edges are written once), does its iterations, and starts again.

use serde::Deserialize;

use super::draw::{Permutation, Random, access};
use super::sequential::slice;
use super::source::{Operate, Operations};
use super::values;
use super::{Context, Endlessly, WorkloadError};
use crate::base::access::{Access, LINE, LINES_PER_PAGE};
use crate::base::number::multiply_high;
use crate::base::random::{Purpose, mix};

/// Elements of 8 bytes in a line.
const PER_LINE: u64 = LINE / 8;

/// Vertices that a vCPU takes at a time: hubs and leaves are dealt evenly.
const CHUNK: u64 = 64;

/// Edges or lines per operation, so that no batch is large.
const STEP: u64 = 64;

/// The keys of `graph`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Graph {
    algorithm: Algorithm,
    #[serde(deserialize_with = "vertices")]
    vertices: u64,
    #[serde(deserialize_with = "degree")]
    degree: u64,
    #[serde(default = "eight", deserialize_with = "values::count")]
    iterations: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Algorithm {
    Bfs,
    Pagerank,
    Bc,
}

fn eight() -> u64 {
    8
}

fn vertices<'de, D: serde::Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    up_to(values::count(from)?, 1 << 32)
}

fn degree<'de, D: serde::Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    up_to(values::count(from)?, 65_536)
}

fn up_to<E: serde::de::Error>(value: u64, most: u64) -> Result<u64, E> {
    if value > most {
        return Err(E::custom(format!(
            "{value} is out of bounds: allowed is 1 to {most}"
        )));
    }
    Ok(value)
}

/// The graph in compressed sparse rows, and the first lines of its parts.
#[derive(Clone, Copy)]
struct Csr {
    vertices: u64,
    edges: u64,
    degree: u64,
    bits: u32,
    /// The chance, of 2^64, that a number of `bits` bits, each 0 with chance 3/4, is that of a vertex.
    measure: u64,
    seed: u64,
    edge_lines: u64,
    properties: [u64; 2],
    end: u64,
}

impl Csr {
    fn new(vertices: u64, degree: u64, seed: u64) -> Self {
        let edges = vertices * degree;
        let bits = 64 - (vertices - 1).leading_zeros();
        let edge_lines = (vertices + 1).div_ceil(PER_LINE);
        let first = edge_lines + edges.div_ceil(PER_LINE);
        let second = first + vertices.div_ceil(PER_LINE);
        Self {
            vertices,
            edges,
            degree,
            bits,
            measure: measure(vertices, bits),
            seed,
            edge_lines,
            properties: [first, second],
            end: second + vertices.div_ceil(PER_LINE),
        }
    }

    /// Number of edges of the vertices below `vertex`.
    fn edges_below(&self, vertex: u64) -> u64 {
        let share = u128::from(measure(vertex, self.bits)) * u128::from(self.edges);
        u64::try_from(share / u128::from(self.measure)).map_or(self.edges, |e| e.min(self.edges))
    }

    /// The vertex at the other end of an edge, and independent random bits.
    fn neighbour(&self, edge: u64) -> (u64, u64) {
        let mut hash = mix(self.seed ^ edge);
        loop {
            let vertex = hash & hash >> 32 & ((1 << self.bits) - 1);
            hash = mix(hash);
            if vertex < self.vertices {
                return (vertex, hash);
            }
        }
    }
}

/// The chance of a number below `vertex` whose `bits` bits are each 0 with chance 3/4, of 2^64.
fn measure(vertex: u64, bits: u32) -> u64 {
    if vertex >> bits > 0 {
        return u64::MAX;
    }
    let (mut below, mut width) = (0, u64::MAX);
    for bit in (0..bits).rev() {
        let zero = width - width / 4;
        if vertex >> bit & 1 == 1 {
            below += zero;
            width -= zero;
        } else {
            width = zero;
        }
    }
    below
}

impl Graph {
    fn csr(&self, scale: u64, seed: u64) -> Csr {
        Csr::new(self.vertices.div_ceil(scale), self.degree, seed)
    }
}

impl Endlessly for Graph {
    type Generator = Operations<Walk>;

    fn pages(&self, scale: u64) -> Result<u64, WorkloadError> {
        Ok(self.csr(scale, 0).end.div_ceil(LINES_PER_PAGE))
    }

    fn generator(&self, context: &Context, vcpu: u32) -> Result<Self::Generator, WorkloadError> {
        let mut layout = Random::new(context, 0, Purpose::Layout);
        let csr = self.csr(context.scale, layout.bits());
        let least = CHUNK * u64::from(context.vcpus);
        if csr.vertices < least {
            return Err(WorkloadError(format!(
                "workload of kind \"graph\": vertices = {} are {} at scale {}: {} vCPUs need {least} or more",
                self.vertices, csr.vertices, context.scale, context.vcpus
            )));
        }
        let build = slice(csr.properties[0], vcpu, context.vcpus);
        let queue = slice(csr.vertices.div_ceil(PER_LINE), vcpu, context.vcpus);
        Ok(Operations::new(Walk {
            algorithm: self.algorithm,
            iterations: self.iterations,
            order: Permutation::new(csr.vertices, layout.bits()),
            csr,
            vcpu: vcpu.into(),
            vcpus: context.vcpus.into(),
            build,
            queue,
            queued: 0,
            iteration: 0,
            backward: false,
            at: At::Building(build.0),
        }))
    }
}

/// The position of a vCPU.
#[derive(Clone, Copy)]
enum At {
    /// Writing a line of the graph.
    Building(u64),
    /// Before a vertex, by its place in the vCPU's order.
    Vertex(u64),
    /// Within a vertex: its place in the order, its number, its next edge, the end of its edges.
    Edges(u64, u64, u64, u64),
}

/// The walk of one vCPU. vCPUs do not wait for each other.
#[derive(Clone)]
pub(super) struct Walk {
    algorithm: Algorithm,
    iterations: u64,
    /// The order in which a search meets the vertices.
    order: Permutation,
    csr: Csr,
    vcpu: u64,
    vcpus: u64,
    build: (u64, u64),
    /// This vCPU's part of the search's queue, which lies in the second property.
    queue: (u64, u64),
    queued: u64,
    iteration: u64,
    /// Whether `bc` goes back after its search.
    backward: bool,
    at: At,
}

impl Walk {
    /// The vertex at a place of this vCPU's order; `None` behind the last.
    fn vertex(&self, place: u64) -> Option<u64> {
        let chunk = place / CHUNK * self.vcpus + self.vcpu;
        let place = chunk * CHUNK + place % CHUNK;
        if place >= self.csr.vertices {
            return None;
        }
        Some(match (self.algorithm, self.backward) {
            (Algorithm::Pagerank, _) => place,
            (_, false) => self.order.apply(place),
            (_, true) => self.order.apply(self.csr.vertices - 1 - place),
        })
    }

    /// The property that is read at neighbours, and the one that is written.
    fn properties(&self) -> (u64, u64) {
        let [first, second] = self.csr.properties;
        let swapped = match self.algorithm {
            Algorithm::Pagerank => self.iteration % 2 == 1,
            Algorithm::Bfs | Algorithm::Bc => self.backward,
        };
        if swapped {
            (second, first)
        } else {
            (first, second)
        }
    }

    fn next_pass(&mut self) {
        self.at = At::Vertex(0);
        if self.algorithm == Algorithm::Bc && !self.backward {
            self.backward = true;
            return;
        }
        self.backward = false;
        self.iteration += 1;
        if self.iteration == self.iterations {
            self.iteration = 0;
            self.at = At::Building(self.build.0);
        }
    }

    fn edge(&mut self, edge: u64, out: &mut Vec<Access>) {
        let (vertex, hash) = self.csr.neighbour(edge);
        let line = self.properties().0 + vertex / PER_LINE;
        // A search meets each vertex once: at one edge in `degree`.
        let searching = self.algorithm != Algorithm::Pagerank && !self.backward;
        let found = searching && multiply_high(hash, self.csr.degree) == 0;
        out.push(access(line, found));
        if found && self.queue.0 < self.queue.1 {
            if self.queued.is_multiple_of(PER_LINE) {
                let lines = self.queue.1 - self.queue.0;
                let line = self.queue.0 + self.queued / PER_LINE % lines;
                out.push(access(self.csr.properties[1] + line, true));
            }
            self.queued += 1;
        }
    }

    /// Makes the accesses of some edges of a vertex; returns the position to continue from.
    fn edges(&mut self, place: u64, vertex: u64, next: u64, end: u64, out: &mut Vec<Access>) -> At {
        let stop = end.min(next + STEP);
        for edge in next..stop {
            if edge == next || edge.is_multiple_of(PER_LINE) {
                out.push(access(self.csr.edge_lines + edge / PER_LINE, false));
            }
            self.edge(edge, out);
        }
        if stop < end {
            return At::Edges(place, vertex, stop, end);
        }
        let writes_result = self.algorithm == Algorithm::Pagerank || self.backward;
        // In order, 8 vertices share a line of results.
        let in_order = self.algorithm == Algorithm::Pagerank;
        if writes_result && (!in_order || vertex.is_multiple_of(PER_LINE)) {
            out.push(access(self.properties().1 + vertex / PER_LINE, true));
        }
        At::Vertex(place + 1)
    }
}

impl Operate for Walk {
    fn operate(&mut self, out: &mut Vec<Access>) {
        match self.at {
            At::Building(line) => {
                let stop = self.build.1.min(line + STEP);
                out.extend((line..stop).map(|line| access(line, true)));
                self.at = if stop == self.build.1 {
                    At::Vertex(0)
                } else {
                    At::Building(stop)
                };
            }
            At::Vertex(place) => match self.vertex(place) {
                None => self.next_pass(),
                Some(vertex) => {
                    let in_order = self.algorithm == Algorithm::Pagerank;
                    if !in_order || vertex.is_multiple_of(PER_LINE) {
                        out.push(access(vertex / PER_LINE, false));
                    }
                    let (edge, end) = (
                        self.csr.edges_below(vertex),
                        self.csr.edges_below(vertex + 1),
                    );
                    self.at = At::Edges(place, vertex, edge, end);
                }
            },
            At::Edges(place, vertex, next, end) => {
                self.at = self.edges(place, vertex, next, end, out);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_edge_belongs_to_one_vertex() {
        for (vertices, degree) in [(1, 3), (7, 5), (1000, 16), (1024, 16)] {
            let csr = Csr::new(vertices, degree, 1);
            let mut last = 0;
            for vertex in 0..=vertices {
                let below = csr.edges_below(vertex);
                assert!(below >= last, "vertex {vertex} of {vertices}");
                last = below;
            }
            assert_eq!(csr.edges_below(0), 0);
            assert_eq!(last, vertices * degree);
        }
    }

    /// Low numbers have most of the edges: three quarters belong to the lower half, nine sixteenths to the lowest
    /// quarter.
    #[test]
    fn edges_are_skewed_to_low_numbers_at_both_ends() {
        let csr = Csr::new(1 << 16, 16, 1);
        let share = |vertex, of: f64| super::super::draw::to_f64(csr.edges_below(vertex)) / of;
        assert!((share(1 << 15, 1_048_576.0) - 0.75).abs() < 1e-5);
        assert!((share(1 << 14, 1_048_576.0) - 0.5625).abs() < 1e-5);
        let low = (0..10_000)
            .filter(|edge| csr.neighbour(*edge).0 < 1 << 14)
            .count();
        assert!((5430..5820).contains(&low), "{low} of 10000, 5625 expected");
    }
}
