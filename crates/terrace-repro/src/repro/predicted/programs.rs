//! HyperTier §6.5: seven real programs. The text at hand names the fields that they are from, and breaks off before it.

use super::{FAST, Policy, Program, all_fast, program, slowdowns, under};
use crate::repro::row::{Input, Row};
use crate::repro::runs::{Load, Results, Run};
use crate::repro::{Experiment, ExperimentKind, File, Paper};

/// Length of a run, s: HyperPlace halves a hot range each half second from 40 TiB on, so it takes a quarter of this.
const SECONDS: u64 = 60;

/// Programs of a size that a VM of 16 GiB holds, as GUPS's.
const PROGRAMS: [Program; 7] = [
    (
        "database (ycsb c)",
        "kind = \"ycsb\", preset = \"c\", size = \"14GiB\", compute_ns = 50",
        None,
    ),
    ("b-tree", "kind = \"btree\", size = \"14GiB\"", None),
    ("xsbench", "kind = \"xsbench\", size = \"14GiB\"", None),
    (
        "stencil",
        "kind = \"stencil\", size = \"14GiB\", parallelism = 2.8",
        None,
    ),
    (
        "graph500",
        "kind = \"graph\", preset = \"vtmm-graph500\", vertices = 33554432",
        None,
    ),
    (
        "pagerank",
        "kind = \"graph\", preset = \"gap-twitter\", algorithm = \"pagerank\"",
        None,
    ),
    ("linear", "kind = \"linear\", size = \"14GiB\"", None),
];

const POLICIES: [Policy; 6] = [
    ("hyperplace", "\"hyperplace\""),
    (
        "hyperplace by the letter",
        "{ base = \"hyperplace\", literal = true }",
    ),
    ("memtis", "\"memtis\""),
    ("tpp", "\"tpp\""),
    ("nomad", "\"nomad\""),
    ("first-touch", "\"first-touch\""),
];

/// Seven programs on DRAM and PMem.
pub const PMEM: Experiment = Experiment {
    paper: Paper::Hypertier,
    name: "hypertier/6.5-pmem",
    title: "Slowdown of seven programs on DRAM and PMem",
    kind: ExperimentKind::Prediction,
    file: Some(File {
        name: "hypertier-6.5-pmem",
        text: include_str!("../../../../../scenarios/hypertier-6.5-pmem.toml"),
    }),
    inputs: &[
        Input {
            what: "a VM of 4 vCPUs and 16 GiB, a fifth of it DRAM; latencies and bandwidths of table 2; programs from \
                   databases, scientific computing, graph processing and machine learning",
            from: "§1, §3.2, §6.1",
        },
        Input {
            what: "hyperplace is our agent, which departs from the text in some places; \"by the letter\" is what the text says",
            from: "§4.2; docs/baselines/hyperplace.md",
        },
        Input {
            what: "the seven: reads of YCSB C by a library in the program's process, B-tree look-ups, XSBench, a stencil, \
                   Graph500 on 2^25 vertices (8.8 GiB), PageRank on GAP's Twitter graph (12.4 GiB), training of a linear model; \
                   14 GiB where nothing else is said; 60 s",
            from: "our choice: the text at hand has no more of §6.5",
        },
    ],
    runs,
    rows,
    why: &[],
};

/// Seven programs on local and remote DRAM.
pub const REMOTE: Experiment = Experiment {
    name: "hypertier/6.5-remote",
    title: "Slowdown of seven programs on local and remote DRAM, which stands for CXL memory",
    file: Some(File {
        name: "hypertier-6.5-remote",
        text: include_str!("../../../../../scenarios/hypertier-6.5-remote.toml"),
    }),
    ..PMEM
};

fn runs(load: &Load) -> Vec<Run> {
    let of = |one: Program| {
        let prefix = format!("{}, ", one.0);
        let base = program(load, one, SECONDS);
        let mut runs = under(&POLICIES, &prefix, &base);
        runs.push(all_fast(&prefix, &base));
        runs
    };
    PROGRAMS.into_iter().flat_map(of).collect()
}

fn rows(results: &Results) -> Vec<Row> {
    let of = |(name, ..): Program| {
        let prefix = format!("{name}, ");
        slowdowns(results, &POLICIES, &prefix, &format!("{prefix}{FAST}"))
    };
    PROGRAMS.into_iter().flat_map(of).collect()
}
