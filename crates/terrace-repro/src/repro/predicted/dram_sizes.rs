//! vTMM §4.7: single programs in a VM with little or much DRAM. The text at hand does not have that section.

use terrace_sim::Scenario;

use super::{Policy, Program, all_fast, program, slowdowns, under};
use crate::repro::row::{Input, Row};
use crate::repro::runs::{Load, Results, Run};
use crate::repro::{Experiment, ExperimentKind, File, Paper};

/// DRAM of the VM, GiB.
const DRAM: [u64; 5] = [1, 2, 4, 8, 16];

/// Length of a run: four rounds.
const SECONDS: u64 = 240;

const PROGRAMS: [Program; 4] = [
    (
        "graph500",
        "kind = \"graph\", preset = \"vtmm-graph500\"",
        None,
    ),
    ("redis", "kind = \"kv\", preset = \"vtmm-redis\"", Some(1)),
    (
        "pagerank",
        "kind = \"graph\", preset = \"gap-twitter\", algorithm = \"pagerank\"",
        None,
    ),
    (
        "fotonik3d",
        "kind = \"stencil\", preset = \"hpmbs-fotonik3d\", size = \"10036MiB\"",
        None,
    ),
];

const POLICIES: [Policy; 3] = [
    ("vtmm-paper", "\"vtmm-paper\""),
    ("vtmm", "\"vtmm\""),
    ("autonuma", "\"autonuma\""),
];

/// Programs by the VM's DRAM.
pub const DRAM_SIZES: Experiment = Experiment {
    paper: Paper::Vtmm,
    name: "vtmm/4.7-dram-sizes",
    title: "Slowdown of single programs by the VM's DRAM",
    kind: ExperimentKind::Prediction,
    file: Some(File {
        name: "vtmm-4.7-dram-sizes",
        text: include_str!("../../../../../scenarios/vtmm-4.7-dram-sizes.toml"),
    }),
    inputs: &[
        Input {
            what: "8 vCPUs; DRAM and PMem of table 1; graph500 of 19 GB (17.5 GiB here), redis of 32 GB with 4 KB values",
            from: "§4.1, §4.3.2",
        },
        Input {
            what: "redis serves by one vCPU",
            from: "its own way",
        },
        Input {
            what: "fotonik3d is a stencil of 9.8 GB (HPMBS, table 1); PageRank runs on GAP's Twitter graph; 40 GiB of \
                   memory in all, of which 1 to 16 GiB are DRAM; 240 s, which are four rounds",
            from: "our choice: the text at hand has no more of §4.7",
        },
    ],
    runs,
    rows,
    why: &[],
};

fn with_dram(base: &Result<Scenario, String>, gib: u64) -> Result<Scenario, String> {
    let base = base.as_ref().map_err(Clone::clone)?;
    base.with_fast(gib << 30).map_err(|fault| fault.to_string())
}

fn prefix(name: &str, gib: u64) -> String {
    format!("{name}, {gib} GiB of DRAM, ")
}

fn runs(load: &Load) -> Vec<Run> {
    let mut runs = Vec::new();
    for one in PROGRAMS {
        let base = program(load, one, SECONDS);
        runs.push(all_fast(one.0, &base));
        for gib in DRAM {
            runs.extend(under(
                &POLICIES,
                &prefix(one.0, gib),
                &with_dram(&base, gib),
            ));
        }
    }
    runs
}

fn rows(results: &Results) -> Vec<Row> {
    let mut rows = Vec::new();
    for (name, ..) in PROGRAMS {
        let fast = format!("{name}{}", super::FAST);
        for gib in DRAM {
            rows.extend(slowdowns(results, &POLICIES, &prefix(name, gib), &fast));
        }
    }
    rows
}
