//! Whole systems: AutoNUMA alone (table 2), and vTMM with one of its parts replaced (figure 4).

use crate::repro::row::{Claim, Input, Row};
use crate::repro::runs::{Load, Results, Run};
use crate::repro::{Experiment, File, Kind, Paper};
use crate::scenario::Scenario;

/// Length of a run: four rounds.
const SECONDS: u64 = 240;

/// Programs of table 2: name, load, slowdown in %.
const TABLE_2_PROGRAMS: [(&str, &str, f64); 4] = [
    (
        "649.fotonik3d_s-like",
        "kind = \"stencil\", preset = \"hpmbs-fotonik3d\"",
        237.79,
    ),
    (
        "random access",
        "kind = \"hotset\", size = \"36GiB\", hot = 0.2, hot_access = 0.9, write = 0.5",
        200.12,
    ),
    (
        "graph500",
        "kind = \"graph\", preset = \"vtmm-graph500\"",
        136.24,
    ),
    ("redis", "kind = \"kv\", preset = \"vtmm-redis\"", 24.53),
];

fn program(load: &Load, keys: &str) -> Result<Scenario, String> {
    load.workload(&format!("{{ {keys}, duration = \"{SECONDS}s\" }}"))
}

/// A run of a program under a policy as scenarios have it.
fn run(key: String, base: &Result<Scenario, String>, policy: &str) -> Run {
    let base = base.as_ref().map_err(Clone::clone);
    Run::new(key, base.and_then(|base| base.with_policy_text(policy)))
}

/// Table 2.
pub const TABLE_2: Experiment = Experiment {
    paper: Paper::Vtmm,
    name: "vtmm/table-2",
    title: "Slowdown of a VM with AutoNUMA alone against one with DRAM alone",
    kind: Kind::Figures,
    file: Some(File {
        name: "vtmm-table-2",
        text: include_str!("../../../../../scenarios/vtmm-table-2.toml"),
    }),
    inputs: &[
        Input {
            what: "8 GB of DRAM and 32 GB of PMem; DRAM is taken first",
            from: "§2.1, §4.2",
        },
        Input {
            what: "graph500 of 19 GB (17.5 GiB here), redis of 32 GB, which serves by one vCPU",
            from: "§4.3.2; the last is redis's way",
        },
        Input {
            what: "649.fotonik3d_s as a stencil of 9.8 GB; random accesses over 36 GB, a fifth of it hot and \
                   taking 90 %, half writes; 240 s",
            from: "HPMBS, table 1, for the size; else our choice, after the sequential program of §4.5",
        },
    ],
    runs: |load| {
        let mut runs = Vec::new();
        for (name, keys, _) in TABLE_2_PROGRAMS {
            let base = program(load, keys).map(|mut base| {
                if name == "redis" {
                    base.vms[0].vcpus = 1;
                }
                base
            });
            runs.push(Run::new(
                format!("{name} fast"),
                base.clone().map(|b| b.all_fast()),
            ));
            runs.push(run(format!("{name} autonuma"), &base, "\"autonuma\""));
        }
        runs
    },
    rows: |results| {
        let row = |(name, _, percent)| {
            let slower =
                results.slower_percent(&format!("{name} autonuma"), &format!("{name} fast"));
            Row::new(name, "%", Claim::Is(percent), slower)
        };
        TABLE_2_PROGRAMS.map(row).into()
    },
    why: &[],
};

/// Programs of figure 4, and by how many % vTMM is faster than with another scanner, a fixed threshold,
/// Linux's migration, and than AutoNUMA.
const FIGURE_4_PROGRAMS: [(&str, &str, [f64; 4]); 2] = [
    (
        "graph500",
        "kind = \"graph\", preset = \"vtmm-graph500\"",
        [3.9, 9.4, 16.3, 105.0],
    ),
    (
        "sequential",
        "kind = \"sequential\", preset = \"vtmm\"",
        [3.2, 65.0, 9.3, 74.0],
    ),
];

/// What vTMM is compared with: the paper's name, and the policy.
const OTHERS: [(&str, &str); 4] = [
    (
        "+EPT scanner",
        "{ base = \"vtmm-paper\", observe = \"ept-scan\" }",
    ),
    (
        "+fixed threshold",
        "{ base = \"vtmm-paper\", estimate = \"fixed-threshold\" }",
    ),
    ("+PM_Linux", "{ base = \"vtmm-paper\", move = \"linux\" }"),
    ("AutoNUMA", "\"autonuma\""),
];

/// Figure 4.
pub const FIGURE_4: Experiment = Experiment {
    paper: Paper::Vtmm,
    name: "vtmm/figure-4",
    title: "By how much vTMM is faster than with one of its parts replaced, and than others",
    kind: Kind::Figures,
    file: Some(File {
        name: "vtmm-figure-4",
        text: include_str!("../../../../../scenarios/vtmm-figure-4.toml"),
    }),
    inputs: &[
        Input {
            what: "8 GB of DRAM and 32 GB of PMem; graph500 of 19 GB (17.5 GiB here); sequential accesses to \
                   36 GB, 7.2 GB of it hot, half writes, the hot part changes periodically",
            from: "§4.5",
        },
        Input {
            what: "it changes every 60 s; runs of 240 s",
            from: "our choice",
        },
        Input {
            what: "hot from 4 visits in 8 windows under the fixed threshold",
            from: "the engine's default: §4.5 finds its value by profiling and does not give it",
        },
        Input {
            what: "+PM_Linux moves page by page on one processor, as Linux 5.4 does",
            from: "§3.4, §3.6",
        },
    ],
    runs: figure_4_runs,
    rows: figure_4_rows,
    why: &[],
};

fn figure_4_runs(load: &Load) -> Vec<Run> {
    let mut runs = Vec::new();
    for (name, keys, _) in FIGURE_4_PROGRAMS {
        let base = program(load, keys);
        runs.push(Run::new(
            format!("{name} fast"),
            base.clone().map(|b| b.all_fast()),
        ));
        runs.push(run(format!("{name} vtmm"), &base, "\"vtmm-paper\""));
        for (other, policy) in OTHERS {
            let mut run = run(format!("{name} {other}"), &base, policy);
            if let (Ok(scenario), "+PM_Linux") = (&mut run.scenario, other) {
                scenario.machine.management_cpus = 1;
                scenario.machine.migrate_batch = 1;
            }
            runs.push(run);
        }
    }
    runs
}

fn figure_4_rows(results: &Results) -> Vec<Row> {
    let mut rows = Vec::new();
    for (name, _, faster) in FIGURE_4_PROGRAMS {
        let vtmm = format!("{name} vtmm");
        for ((other, _), percent) in OTHERS.iter().zip(faster) {
            rows.push(Row::new(
                format!("{name}: vTMM faster than {other}"),
                "%",
                Claim::Is(percent),
                results.faster_percent(&vtmm, &format!("{name} {other}")),
            ));
        }
        let fast = format!("{name} fast");
        let share = results.slowdown(&fast, &vtmm).map(|share| share * 100.0);
        rows.push(Row::new(
            format!("{name}: vTMM's performance, of that with DRAM alone"),
            "%",
            Claim::AtLeast(87.0),
            share,
        ));
    }
    rows
}
