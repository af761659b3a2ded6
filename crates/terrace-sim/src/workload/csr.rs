//! A skewed graph in compressed sparse rows that is never stored, but computed when it is read.
//!
//! It is a Kronecker graph: each bit of a vertex's number is 0 with the law's chance, at both ends of an edge, so few
//! vertices have most of the edges. The edges of a vertex begin at the sum of the degrees of the vertices before it, and
//! the neighbour at an edge is a hash of the edge. The same law rules at every scale: a smaller graph is a larger one
//! with neighbours taken together.

use std::sync::Arc;

use super::draw::{Permutation, to_f64, to_u64};
use crate::base::access::LINE;
use crate::base::number::{multiply_high, to_usize};
use crate::base::random::mix;

/// Elements of 8 bytes in a line.
pub(super) const PER_LINE: u64 = LINE / 8;

/// Bits of the chance of a 1: enough that Graph500's 0.24 is met to 0.0003.
const CHANCE_BITS: u32 = 10;

/// Most sums of degrees that a shuffled graph keeps: 8 MiB.
const MOST_SUMS: u64 = 1 << 20;

/// The law of a vertex's number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Law {
    /// Bits of a vertex's number.
    bits: u32,
    /// The chance of a 1 in each bit, of 2^[`CHANCE_BITS`].
    ones: u64,
}

impl Law {
    /// The law for so many vertices; each bit is 0 with chance `skew`, 0.5 or more and less than 1.
    pub(super) fn new(vertices: u64, skew: f64) -> Self {
        let all = to_f64(1 << CHANCE_BITS);
        Self {
            bits: 64 - (vertices - 1).leading_zeros(),
            ones: to_u64((1.0 - skew) * all + 0.5).max(1),
        }
    }

    /// The chance of a number below `vertex`, of 2^64.
    fn below(self, vertex: u64) -> u64 {
        if vertex >> self.bits > 0 {
            return u64::MAX;
        }
        let one = self.ones << (64 - CHANCE_BITS);
        let (mut below, mut width) = (0, u64::MAX);
        for bit in (0..self.bits).rev() {
            let zero = width - multiply_high(width, one);
            if vertex >> bit & 1 == 1 {
                below += zero;
                width -= zero;
            } else {
                width = zero;
            }
        }
        below
    }

    /// A number by the law from random bits, and other random bits. Bits of the chance join random words one after
    /// another, the lowest first: each halves what came before it, and a 1 adds a half.
    fn draw(self, hash: u64) -> (u64, u64) {
        let (mut hash, mut spare) = (hash, None);
        let mut number = 0;
        for bit in self.ones.trailing_zeros()..CHANCE_BITS {
            let word = match spare.take() {
                Some(word) => word,
                None => {
                    let word = hash;
                    spare = Some(hash >> 32);
                    hash = mix(hash);
                    word
                }
            };
            number = if self.ones >> bit & 1 == 1 {
                number | word
            } else {
                number & word
            };
        }
        (number & ((1 << self.bits) - 1), hash)
    }

    /// Vertices, as a power of 2, that stay together when a graph at this scale is shuffled. A page of properties then
    /// differs from others in heat as at full size: with m = 2 (p² + q²) the second moment of n vertices' heat is
    /// m^log₂(n), so of 2^j together it is m^(log₂(n) − j) × 2^j for each page, which j = log₂(scale) × ln m / ln (2 / m)
    /// keeps.
    fn together(self, scale: u64) -> u32 {
        let one = to_f64(self.ones) / to_f64(1 << CHANCE_BITS);
        let zero = 1.0 - one;
        let moment = 2.0 * (zero * zero + one * one);
        let power = libm::log2(to_f64(scale)) * libm::log(moment) / libm::log(2.0 / moment);
        let power = u32::try_from(to_u64(power + 0.5)).unwrap_or(0);
        power.min(self.bits)
    }
}

/// The places of a graph's parts in memory, in lines.
#[derive(Clone, Copy)]
pub(super) struct Layout {
    pub(super) vertices: u64,
    pub(super) degree: u64,
    /// The first line of the edges, after the offsets.
    pub(super) edges: u64,
    /// The first lines of the vertices' two properties.
    pub(super) properties: [u64; 2],
    /// The line after the last.
    pub(super) end: u64,
}

impl Layout {
    pub(super) fn new(vertices: u64, degree: u64) -> Self {
        let edges = (vertices + 1).div_ceil(PER_LINE);
        let first = edges + (vertices * degree).div_ceil(PER_LINE);
        let second = first + vertices.div_ceil(PER_LINE);
        Self {
            vertices,
            degree,
            edges,
            properties: [first, second],
            end: second + vertices.div_ceil(PER_LINE),
        }
    }
}

/// The graph.
#[derive(Clone)]
pub(super) struct Csr {
    pub(super) layout: Layout,
    edges: u64,
    law: Law,
    /// The chance of the number of a vertex, of 2^64.
    measure: u64,
    seed: u64,
    shuffle: Option<Shuffle>,
}

impl Csr {
    /// A graph whose vertices are numbered by the law.
    pub(super) fn new(layout: Layout, law: Law, seed: u64) -> Self {
        Self {
            layout,
            edges: layout.vertices * layout.degree,
            measure: law.below(layout.vertices),
            law,
            seed,
            shuffle: None,
        }
    }

    /// The same graph with its vertices in random order, but for those that stay together at this scale.
    pub(super) fn shuffled(self, scale: u64) -> Self {
        let together = self.law.together(scale);
        let shuffle = Shuffle::new(self.law, self.layout.vertices, together, mix(!self.seed));
        Self {
            shuffle: Some(shuffle),
            ..self
        }
    }

    /// The edges of a vertex: the first, and the one after the last.
    pub(super) fn edges_of(&self, vertex: u64) -> (u64, u64) {
        let (below, width) = match &self.shuffle {
            Some(shuffle) => shuffle.span(self.law, vertex),
            None => {
                let below = self.law.below(vertex);
                (below, self.law.below(vertex + 1) - below)
            }
        };
        (self.part(below), self.part(below + width))
    }

    /// The part of the edges that a chance of 2^64 is.
    fn part(&self, chance: u64) -> u64 {
        let share = u128::from(chance) * u128::from(self.edges);
        u64::try_from(share / u128::from(self.measure)).map_or(self.edges, |e| e.min(self.edges))
    }

    /// The vertex at the other end of an edge, and independent random bits.
    pub(super) fn neighbour(&self, edge: u64) -> (u64, u64) {
        let mut hash = mix(self.seed ^ edge);
        loop {
            let (number, rest) = self.law.draw(hash);
            hash = rest;
            if number < self.layout.vertices {
                let place = |shuffle: &Shuffle| shuffle.place(number);
                return (self.shuffle.as_ref().map_or(number, place), hash);
            }
        }
    }
}

/// A random order of a graph's vertices. Blocks of 2^`together` numbers change places; a last block that is smaller stays.
#[derive(Clone)]
struct Shuffle {
    together: u32,
    /// Whole blocks.
    blocks: u64,
    /// The number of the block that is at a place.
    order: Permutation,
    /// Places from one sum to the next.
    step: u64,
    /// The law's measure of the blocks before each so-manieth place.
    sums: Arc<[u64]>,
}

impl Shuffle {
    fn new(law: Law, vertices: u64, together: u32, seed: u64) -> Self {
        let blocks = vertices >> together;
        let mut shuffle = Self {
            together,
            blocks,
            order: Permutation::new(blocks.max(1), seed),
            step: blocks.div_ceil(MOST_SUMS).max(1),
            sums: Arc::default(),
        };
        let (mut sums, mut sum) = (Vec::new(), 0);
        for place in 0..blocks {
            if place.is_multiple_of(shuffle.step) {
                sums.push(sum);
            }
            sum += shuffle.width(law, place);
        }
        shuffle.sums = sums.into();
        shuffle
    }

    /// The law's measure of the block at a place.
    fn width(&self, law: Law, place: u64) -> u64 {
        let block = self.order.apply(place);
        law.below((block + 1) << self.together) - law.below(block << self.together)
    }

    /// The law's measure of the vertices before one, and of that one itself.
    fn span(&self, law: Law, vertex: u64) -> (u64, u64) {
        let place = vertex >> self.together;
        if place >= self.blocks {
            let below = law.below(vertex);
            return (below, law.below(vertex + 1) - below);
        }
        let sum = place / self.step;
        let others = (sum * self.step..place).map(|place| self.width(law, place));
        let before: u64 = self.sums[to_usize(sum)] + others.sum::<u64>();
        let start = self.order.apply(place) << self.together;
        let number = start | vertex & ((1 << self.together) - 1);
        let below = law.below(number);
        let width = law.below(number + 1) - below;
        (before + (below - law.below(start)), width)
    }

    /// The place of the vertex with this number.
    fn place(&self, number: u64) -> u64 {
        let block = number >> self.together;
        if block >= self.blocks {
            return number;
        }
        self.order.invert(block) << self.together | number & ((1 << self.together) - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCALE: u64 = 256;

    fn graph(vertices: u64, degree: u64, skew: f64) -> Csr {
        let law = Law::new(vertices, skew);
        Csr::new(Layout::new(vertices, degree), law, 1)
    }

    #[test]
    fn every_edge_belongs_to_one_vertex() {
        for (vertices, degree) in [(1, 3), (7, 5), (1000, 16), (1024, 16)] {
            for skew in [0.5, 0.75, 0.76] {
                let plain = graph(vertices, degree, skew);
                for csr in [
                    plain.clone(),
                    plain.clone().shuffled(1),
                    plain.shuffled(SCALE),
                ] {
                    let mut last = 0;
                    for vertex in 0..vertices {
                        let (first, end) = csr.edges_of(vertex);
                        assert_eq!(first, last, "vertex {vertex} of {vertices}");
                        assert!(end >= first, "vertex {vertex} of {vertices}");
                        last = end;
                    }
                    assert_eq!(last, vertices * degree);
                }
            }
        }
    }

    /// The edges that vertices have at their own end, and at the other end of all edges.
    fn degrees(csr: &Csr) -> (Vec<u64>, Vec<u64>) {
        let vertices = csr.layout.vertices;
        let edges = (0..vertices).map(|vertex| csr.edges_of(vertex));
        let own = edges.map(|(first, end)| end - first).collect();
        let mut others = vec![0; to_usize(vertices)];
        for edge in 0..csr.edges {
            others[to_usize(csr.neighbour(edge).0)] += 1;
        }
        (own, others)
    }

    /// Low numbers have most of the edges: three quarters belong to the lower half, nine sixteenths to the lowest
    /// quarter.
    #[test]
    fn edges_are_skewed_to_low_numbers_at_both_ends() {
        let csr = graph(1 << 16, 16, 0.75);
        let share = |vertex| to_f64(csr.edges_of(vertex).0) / 1_048_576.0;
        assert!((share(1 << 15) - 0.75).abs() < 1e-5);
        assert!((share(1 << 14) - 0.5625).abs() < 1e-5);
        let low = (0..10_000)
            .filter(|edge| csr.neighbour(*edge).0 < 1 << 14)
            .count();
        assert!((5430..5820).contains(&low), "{low} of 10000, 5625 expected");
    }

    #[test]
    fn the_skew_is_that_of_the_key_at_both_ends() {
        for skew in [0.5, 0.6, 0.75, 0.76, 0.9] {
            let (own, others) = degrees(&graph(1 << 12, 16, skew));
            for of in [own, others] {
                let low: u64 = of[..1 << 11].iter().sum();
                let share = to_f64(low) / 65_536.0;
                assert!((share - skew).abs() < 0.01, "{share} is not {skew}");
            }
        }
    }

    #[test]
    fn a_shuffled_graph_is_the_same_graph_with_other_numbers() {
        for scale in [1, SCALE] {
            let plain = graph(1000, 16, 0.76);
            let shuffled = plain.clone().shuffled(scale);
            let shuffle = shuffled.shuffle.clone().unwrap();
            let mut places: Vec<u64> = (0..1000).map(|v| shuffle.place(v)).collect();
            let ((own, others), (mine, theirs)) = (degrees(&plain), degrees(&shuffled));
            for (number, place) in places.iter().enumerate() {
                let place = to_usize(*place);
                assert_eq!(others[number], theirs[place]);
                assert!(
                    own[number].abs_diff(mine[place]) <= 1,
                    "{number} at {place}"
                );
            }
            assert!(places.iter().enumerate().any(|(v, p)| to_usize(*p) != v));
            places.sort_unstable();
            assert!(places.into_iter().eq(0..1000));
        }
    }

    /// Variance of the heat of pages of 512 vertices, relative to their mean.
    fn variance_of_pages(csr: &Csr) -> f64 {
        let pages: Vec<f64> = (0..csr.layout.vertices / 512)
            .map(|page| {
                let (first, last) = (csr.edges_of(page * 512), csr.edges_of(page * 512 + 511));
                to_f64(last.1 - first.0)
            })
            .collect();
        let count = to_f64(csr.layout.vertices / 512);
        let mean = pages.iter().sum::<f64>() / count;
        let square = |heat: &f64| (heat / mean - 1.0) * (heat / mean - 1.0);
        pages.iter().map(square).sum::<f64>() / count
    }

    #[test]
    fn shuffled_pages_differ_in_heat_at_scale_as_at_full_size() {
        let at = |bits: u32, scale| variance_of_pages(&graph(1 << bits, 16, 0.76).shuffled(scale));
        let (full, scaled) = (at(20, 1), at(14, 64));
        assert!((0.6..1.6).contains(&(scaled / full)), "{scaled} and {full}");
        let merged = at(14, 1);
        assert!(merged < 0.5 * full, "{merged} and {full}");
    }
}
