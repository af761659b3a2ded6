//! `graph`: breadth-first search, PageRank and betweenness centrality on a skewed graph.
//!
//! The graph itself is in [`super::csr`].
//!
//! Memory is the offsets, the edges, and two properties of each vertex, 8 bytes each. A run builds the graph
//! (offsets and edges are written once), does its iterations, and starts again.

use serde::Deserialize;

use super::csr::{Csr, Law, Layout, PER_LINE};
use super::draw::{Permutation, Random, access};
use super::sequential::slice;
use super::source::{Endless, Operate, Operations};
use super::values;
use super::{Context, Endlessly, WorkloadError};
use crate::base::access::{Access, LINES_PER_PAGE, Pace, Source};
use crate::base::number::multiply_high;
use crate::base::random::Purpose;

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
    #[serde(default = "three_quarters", deserialize_with = "skew")]
    skew: f64,
    #[serde(default)]
    order: Order,
}

/// The order in which vertices are numbered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Order {
    /// By the law: those with most of the edges tend to have the lowest numbers.
    #[default]
    Skewed,
    /// At random.
    Shuffled,
}

fn three_quarters() -> f64 {
    0.75
}

fn skew<'de, D: serde::Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    let skew = f64::deserialize(from)?;
    if !(0.5..=0.95).contains(&skew) {
        return Err(serde::de::Error::custom(format!(
            "{skew} is out of bounds: allowed is 0.5 (all vertices alike) to 0.95"
        )));
    }
    Ok(skew)
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

impl Graph {
    fn layout(&self, scale: u64) -> Layout {
        Layout::new(self.vertices.div_ceil(scale), self.degree)
    }

    fn built(&self, context: &Context) -> Result<Built, WorkloadError> {
        let layout = self.layout(context.scale);
        let vertices = layout.vertices;
        let least = CHUNK * u64::from(context.vcpus);
        if vertices < least {
            return Err(WorkloadError(format!(
                "workload of kind \"graph\": vertices = {} are {vertices} at scale {}: {} vCPUs need {least} or more",
                self.vertices, context.scale, context.vcpus
            )));
        }
        let mut random = Random::new(context, 0, Purpose::Layout);
        let csr = Csr::new(layout, Law::new(vertices, self.skew), random.bits());
        Ok(Built {
            csr: match self.order {
                Order::Skewed => csr,
                Order::Shuffled => csr.shuffled(context.scale),
            },
            met: Permutation::new(vertices, random.bits()),
        })
    }

    fn walk(&self, context: &Context, built: &Built, vcpu: u32) -> Operations<Walk> {
        let layout = built.csr.layout;
        let build = slice(layout.properties[0], vcpu, context.vcpus);
        Operations::new(Walk {
            algorithm: self.algorithm,
            iterations: self.iterations,
            order: built.met.clone(),
            csr: built.csr.clone(),
            vcpu: vcpu.into(),
            vcpus: context.vcpus.into(),
            build,
            queue: slice(layout.vertices.div_ceil(PER_LINE), vcpu, context.vcpus),
            queued: 0,
            iteration: 0,
            backward: false,
            at: At::Building(build.0),
        })
    }
}

/// The graph, and the order in which a search meets its vertices.
struct Built {
    csr: Csr,
    met: Permutation,
}

impl Endlessly for Graph {
    type Generator = Operations<Walk>;

    fn pages(&self, scale: u64) -> Result<u64, WorkloadError> {
        Ok(self.layout(scale).end.div_ceil(LINES_PER_PAGE))
    }

    fn generator(&self, context: &Context, vcpu: u32) -> Result<Self::Generator, WorkloadError> {
        Ok(self.walk(context, &self.built(context)?, vcpu))
    }

    // The order of a shuffled graph is made once for all vCPUs.
    fn sources(
        &self,
        context: &Context,
        pace: Pace,
    ) -> Result<Vec<Box<dyn Source>>, WorkloadError> {
        let built = self.built(context)?;
        let source = |vcpu| {
            let generator = self.walk(context, &built, vcpu);
            Box::new(Endless { generator, pace }) as Box<dyn Source>
        };
        Ok((0..context.vcpus).map(source).collect())
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
        if place >= self.csr.layout.vertices {
            return None;
        }
        Some(match (self.algorithm, self.backward) {
            (Algorithm::Pagerank, _) => place,
            (_, false) => self.order.apply(place),
            (_, true) => self.order.apply(self.csr.layout.vertices - 1 - place),
        })
    }

    /// The property that is read at neighbours, and the one that is written.
    fn properties(&self) -> (u64, u64) {
        let [first, second] = self.csr.layout.properties;
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
        let found = searching && multiply_high(hash, self.csr.layout.degree) == 0;
        out.push(access(line, found));
        if found && self.queue.0 < self.queue.1 {
            if self.queued.is_multiple_of(PER_LINE) {
                let lines = self.queue.1 - self.queue.0;
                let line = self.queue.0 + self.queued / PER_LINE % lines;
                out.push(access(self.csr.layout.properties[1] + line, true));
            }
            self.queued += 1;
        }
    }

    /// Makes the accesses of some edges of a vertex; returns the position to continue from.
    fn edges(&mut self, place: u64, vertex: u64, next: u64, end: u64, out: &mut Vec<Access>) -> At {
        let stop = end.min(next + STEP);
        for edge in next..stop {
            if edge == next || edge.is_multiple_of(PER_LINE) {
                out.push(access(self.csr.layout.edges + edge / PER_LINE, false));
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
                    let (edge, end) = self.csr.edges_of(vertex);
                    self.at = At::Edges(place, vertex, edge, end);
                }
            },
            At::Edges(place, vertex, next, end) => {
                self.at = self.edges(place, vertex, next, end, out);
            }
        }
    }
}
