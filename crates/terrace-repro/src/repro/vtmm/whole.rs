//! Whole systems: AutoNUMA alone (table 2), and vTMM with one of its parts replaced (figure 4).

use terrace_sim::Scenario;

use crate::repro::row::{Claim, Input, Row};
use crate::repro::runs::{Load, Results, Run};
use crate::repro::{Experiment, ExperimentKind, File, Paper, Why};

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
    kind: ExperimentKind::Figures,
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
    why: &[
        Why {
            rows: "fotonik3d",
            text: "DRAM is taken first here, so 8 of 9.8 GB are in it and serve 82 % of the accesses. With all \
                   memory in PMem the simulated program is slowed down by 579 %, with all of it there at \
                   first and AutoNUMA on, by 48 % over a minute: the paper's figure asks for a good part \
                   of it in PMem. How large its program is, and how much of the VM's DRAM was free for it, the \
                   text does not say.",
        },
        Why {
            rows: "random access",
            text: "what the program does is not in the text. DRAM is taken first and full, so AutoNUMA finds no \
                   room, and its hinting faults come on top of what leaving pages alone costs (45 and 36 % in a \
                   minute). With all memory in PMem our program loses 137 %, with writes alone and no \
                   computing 179 %: no placement of its pages gives the paper's figure.",
        },
        Why {
            rows: "graph500",
            text: "with all memory in PMem the simulated program loses 95 %, so no placement of its pages gives \
                   the paper's figure: the real program waits more for memory than the preset, which has \
                   breadth-first searches alone, no shortest paths. AutoNUMA promotes nothing, because \
                   DRAM is full.",
        },
        Why {
            rows: "redis",
            text: "with DRAM alone, the paper's redis answers 29 thousand requests a second; the preset's \
                   requests cost memory and 50 ns per access, no network and no more of redis's own work, \
                   and come more than five times as often. With 500 ns of computing \
                   per access, which gives about 28 thousand requests a second, the slowdown is 20 %.",
        },
    ],
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

/// The systems with which vTMM is compared: the paper's name, and the policy.
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
    kind: ExperimentKind::Figures,
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
    why: &[
        Why {
            rows: "+EPT scanner",
            text: "tracking is on for 5 of 60 s, and never resting it costs graph500 1.0 % with the EPT scanner \
                   and 0.5 % with vTMM's at this window (figure 2b): a twelfth of the difference is nothing. \
                   The sequential program's hot pages are hot alike, and the two differ by less than 1 %.",
        },
        Why {
            rows: "graph500: vTMM faster than +fixed threshold",
            text: "the threshold decides, and the paper's is not in the text: with hot from 1, 2, 4, 7 and 8 \
                   visits of 8 the program is slowed down by 18, 18, 6.4, 6.0 and 17 %, vTMM's by 5.8 %. So \
                   vTMM is faster by 0.2 to 11 %; the default, 4, happens to suit.",
        },
        Why {
            rows: "sequential: vTMM faster than +fixed threshold",
            text: "the simulated program sweeps its hot part several times in each window and nothing else, so \
                   every hot page has 8 visits and every other none: any threshold tells them apart.",
        },
        Why {
            rows: "graph500: vTMM faster than +PM_Linux",
            text: "the hot pages of the simulated graph stay the same, so migration matters at the beginning, and \
                   the longer the run the less: vTMM is faster by 4.1 % in 60 s, 3.6 % in 120 s, 2.5 % in \
                   240 s. The engine's limit of moves is no cause: without it nothing changes.",
        },
        Why {
            rows: "faster than AutoNUMA",
            text: "DRAM is taken first and full, so AutoNUMA finds no room and promotes nothing. For graph500, \
                   all memory in PMem costs 95 % where the paper's AutoNUMA loses 136 % (table 2); for the \
                   sequential program vTMM itself lags behind, because the hot part changes every 60 s: if it \
                   never changes, and so is in DRAM from the start, vTMM has 99.9 % of the performance with \
                   DRAM alone.",
        },
    ],
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
