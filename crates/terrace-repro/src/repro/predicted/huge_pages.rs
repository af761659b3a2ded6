//! vTMM §4.8 and §4.9.2: VMs whose guest and host have huge pages. The text at hand names systems and set-up, and breaks
//! off before the results.

use super::{FAST, Policy, Program, all_fast, predicted, program, slowdowns, under};
use crate::repro::row::{Input, Row};
use crate::repro::runs::Results;
use crate::repro::{Experiment, ExperimentKind, File, Paper};

/// Length of a run: two rounds.
const SECONDS: u64 = 120;

/// 2^28 vertices with edge factor 16: 70 GiB.
const LARGE: [Program; 3] = [
    (
        "pagerank",
        "kind = \"graph\", preset = \"vtmm-graph500\", vertices = 268435456, algorithm = \"pagerank\"",
        None,
    ),
    (
        "bc",
        "kind = \"graph\", preset = \"vtmm-graph500\", vertices = 268435456, algorithm = \"bc\"",
        None,
    ),
    (
        "redis",
        "kind = \"kv\", preset = \"vtmm-redis\", keys = 13107200",
        Some(1),
    ),
];

const POLICIES_ALONE: [Policy; 5] = [
    ("vtmm-paper", "\"vtmm-paper\""),
    ("vtmm", "\"vtmm\""),
    ("memory-mode", "\"memory-mode\""),
    ("nimble", "\"nimble\""),
    ("autonuma", "\"autonuma\""),
];

const POLICIES_TOGETHER: [Policy; 4] = [
    ("vtmm-paper", "\"vtmm-paper\""),
    ("vtmm", "\"vtmm\""),
    ("nimble", "\"nimble\""),
    ("autonuma", "\"autonuma\""),
];

/// One VM with huge pages.
pub const ALONE: Experiment = Experiment {
    paper: Paper::Vtmm,
    name: "vtmm/4.8-huge-pages",
    title: "Slowdown of large programs in a VM with huge pages",
    kind: ExperimentKind::Prediction,
    file: Some(File {
        name: "vtmm-4.8-huge-pages",
        text: include_str!("../../../../../scenarios/vtmm-4.8-huge-pages.toml"),
    }),
    inputs: &[
        Input {
            what: "16 vCPUs; 32 GB of DRAM, all of which memory mode takes as its cache; DRAM and PMem of table 1; \
                   Nimble and AutoNUMA in the guest",
            from: "§4.1, §4.2",
        },
        Input {
            what: "PageRank and BC on a graph of 2^28 vertices with edge factor 16 (70 GiB here); redis with 50 GiB of \
                   4 KB values, which serves by one vCPU; 120 s, which are two rounds; PMem of 224 GiB, \
                   most of it unused, because a VM needs 1,024 pages at this scale",
            from: "our choice: the text at hand has no more of §4.8",
        },
    ],
    runs: |load| {
        let of = |one: Program| {
            let prefix = format!("{}, ", one.0);
            let base = program(load, one, SECONDS);
            let mut runs = under(&POLICIES_ALONE, &prefix, &base);
            runs.push(all_fast(&prefix, &base));
            runs
        };
        LARGE.into_iter().flat_map(of).collect()
    },
    rows: |results| {
        let of = |(name, ..): Program| {
            let prefix = format!("{name}, ");
            let fast = format!("{prefix}{FAST}");
            slowdowns(results, &POLICIES_ALONE, &prefix, &fast)
        };
        LARGE.into_iter().flat_map(of).collect()
    },
    why: &[],
};

/// Two VMs with huge pages.
pub const TOGETHER: Experiment = Experiment {
    name: "vtmm/4.9.2-huge-pages",
    title: "Slowdown of two VMs with huge pages side by side",
    file: Some(File {
        name: "vtmm-4.9.2-huge-pages",
        text: include_str!("../../../../../scenarios/vtmm-4.9.2-huge-pages.toml"),
    }),
    inputs: &[
        Input {
            what: "two VMs of 16 vCPUs with 16 GB of DRAM and 64 GB of PMem each; redis of 50 GB, graph500 of 76 GB \
                   (2^28 vertices, 70 GiB here)",
            from: "§4.1, §4.9.2",
        },
        Input {
            what: "redis serves by one vCPU; a VM keeps its own DRAM; 120 s, which are two rounds; PMem of 112 GB, of which no more \
                   is used than of 64, because a VM needs 1,024 pages at this scale",
            from: "our choice",
        },
    ],
    runs: |load| {
        let mut scenario = load.base().clone();
        scenario.vms[0].vcpus = 1;
        let base = Ok(scenario);
        let mut runs = under(&POLICIES_TOGETHER, "", &base);
        runs.push(all_fast("", &base));
        runs
    },
    rows: together,
    ..ALONE
};

fn together(results: &Results) -> Vec<Row> {
    let mut rows = Vec::new();
    let fast = match results.get(FAST) {
        Ok(fast) => fast,
        Err(why) => return vec![predicted(FAST.into(), "%", Err(why))],
    };
    for (policy, _) in POLICIES_TOGETHER {
        for (at, alone) in fast.result.vms.iter().enumerate() {
            let slower = results.get(policy).map(|run| {
                let vm = &run.result.vms[at];
                (alone.ops_per_s / vm.ops_per_s - 1.0) * 100.0
            });
            let what = format!("{policy}, {}: slower than all-fast", alone.name);
            rows.push(predicted(what, "%", slower));
        }
    }
    rows
}
