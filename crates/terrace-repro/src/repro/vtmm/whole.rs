//! Whole systems: AutoNUMA alone (table 2), and vTMM with one of its parts replaced (figure 4).

use terrace_sim::Scenario;

use crate::repro::order::{self, System};
use crate::repro::row::{Claim, Input, Row};
use crate::repro::runs::{Load, Results, Run, computing};
use crate::repro::{Experiment, ExperimentKind, Figure, File, Paper, Why};

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
            let base = table_2_program(load, name, keys);
            runs.push(Run::new(
                format!("{name} fast"),
                base.clone().map(|b| b.all_fast()),
            ));
            runs.push(run(format!("{name} autonuma"), &base, "\"autonuma\""));
        }
        runs
    },
    rows: |results| {
        let slower = |name: &str| {
            results.slower_percent(&format!("{name} autonuma"), &format!("{name} fast"))
        };
        let row = |(name, _, percent)| Row::new(name, "%", Claim::Is(percent), slower(name));
        let mut rows: Vec<Row> = TABLE_2_PROGRAMS.map(row).into();
        let programs =
            TABLE_2_PROGRAMS.map(|(name, _, percent)| System::new(percent, slower(name)));
        rows.push(order::row("order of programs", &[programs.into()]));
        rows
    },
    why: WHY_TABLE_2,
};

const WHY_TABLE_2: &[Why] = &[
    Why {
        rows: "fotonik3d",
        text: "DRAM is taken first here, so 8 of 9.8 GB are in it and serve most of the accesses. With all memory in \
               PMem the simulated program is slowed down by {slow} %: the paper's figure asks for a good part of it in \
               PMem. How large its program is, and how much of the VM's DRAM was free for it, the text does not say.",
        figures: &[Figure {
            name: "slow",
            what: "649.fotonik3d_s-like, all memory in PMem: slowdown, %",
            value: "327",
            runs: |load| bounds(load, TABLE_2_PROGRAMS[0].1),
            of: |results| results.slower_percent("slow", "fast"),
        }],
    },
    Why {
        rows: "random access",
        text: "what the program does is not in the text. DRAM is taken first and full, so AutoNUMA finds no room, and \
               its hinting faults come on top of what leaving pages alone costs. With all memory in PMem our program \
               loses {slow} %: no placement of its pages gives the paper's figure.",
        figures: &[Figure {
            name: "slow",
            what: "random access, all memory in PMem: slowdown, %",
            value: "137",
            runs: |load| bounds(load, TABLE_2_PROGRAMS[1].1),
            of: |results| results.slower_percent("slow", "fast"),
        }],
    },
    Why {
        rows: "graph500",
        text: "with all memory in PMem the simulated program loses {slow} %, so no placement of its pages gives the \
               paper's figure: the real program waits more for memory than the preset, which has breadth-first \
               searches alone, no shortest paths. AutoNUMA promotes nothing, because DRAM is full.",
        figures: &[Figure {
            name: "slow",
            what: "graph500, all memory in PMem: slowdown, %",
            value: "79",
            runs: |load| bounds(load, TABLE_2_PROGRAMS[2].1),
            of: |results| results.slower_percent("slow", "fast"),
        }],
    },
    Why {
        rows: "redis",
        text: "the preset's requests come at the rate that Redis' documentation has for one processor of 2009 without a \
               network: 85 ns of computing per access (docs/workloads.md). How much work of its own the paper's redis has, \
               and what its clients cost, the text does not say. With 500 ns of computing per access the slowdown is \
               {computing} %.",
        figures: &[Figure {
            name: "computing",
            what: "redis with 500 ns of computing per access, AutoNUMA: slowdown, %",
            value: "20",
            runs: |load| {
                let base = table_2_program(load, "redis", TABLE_2_PROGRAMS[3].1);
                let base = base.map(|base| computing(&base, 500.0));
                let fast = base.clone().map(|base| base.all_fast());
                vec![
                    Run::new("fast", fast),
                    run("autonuma".into(), &base, "\"autonuma\""),
                ]
            },
            of: |results| results.slower_percent("autonuma", "fast"),
        }],
    },
    Why::new(
        "order of programs",
        "each program is off for a reason of its own, above. In the paper 649.fotonik3d_s loses most; here most of it \
         is in DRAM.",
    ),
];

/// A program of table 2.
fn table_2_program(load: &Load, name: &str, keys: &str) -> Result<Scenario, String> {
    program(load, keys).map(|mut base| {
        if name == "redis" {
            base.vms[0].vcpus = 1;
        }
        base
    })
}

/// A program with all of its memory in DRAM, and with all of it in PMem.
fn bounds(load: &Load, keys: &str) -> Vec<Run> {
    let base = program(load, keys);
    vec![
        Run::new("fast", base.clone().map(|base| base.all_fast())),
        Run::new("slow", base.map(|base| base.all_slow())),
    ]
}

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

/// The system vTMM.
const VTMM: &str = "\"vtmm-paper\"";

/// vTMM with Linux's migration, in the paper.
const PM_LINUX: &str = "+PM_Linux";
const MOVED_BY_LINUX: &str = "{ base = \"vtmm-paper\", move = \"linux\" }";

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
    (PM_LINUX, MOVED_BY_LINUX),
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
    why: WHY_FIGURE_4,
};

const WHY_FIGURE_4: &[Why] = &[
    Why::new(
        "+EPT scanner",
        "tracking is on for 5 of 60 s, and even never resting it costs graph500 little with either scanner at this \
         window (figure 2b): a twelfth of a small difference is nothing. The sequential program's hot pages are hot \
         alike, so that what one scanner sees the other sees too.",
    ),
    Why {
        rows: "graph500: vTMM faster than +fixed threshold",
        text: "the threshold decides, and the paper's is not in the text: with hot from 1 visit of 8 vTMM is faster by \
               {one} %. The default, 4, happens to suit.",
        figures: &[Figure {
            name: "one",
            what: "graph500: vTMM faster than with hot from 1 visit, %",
            value: "6.5",
            runs: |load| {
                let base = program(load, FIGURE_4_PROGRAMS[0].1);
                let mut one = run("one".into(), &base, OTHERS[1].1);
                if let Ok(scenario) = &mut one.scenario {
                    scenario.engine.fixed_threshold = 1;
                }
                vec![run("vtmm".into(), &base, VTMM), one]
            },
            of: |results| results.faster_percent("vtmm", "one"),
        }],
    },
    Why::new(
        "sequential: vTMM faster than +fixed threshold",
        "the simulated program sweeps its hot part several times in each window and nothing else, so every hot page \
         has 8 visits and every other none: any threshold tells them apart.",
    ),
    Why {
        rows: "graph500: vTMM faster than +PM_Linux",
        text: "the hot pages of the simulated graph stay the same, so migration matters at the beginning, and the \
               longer the run the less: in 60 s, a quarter of this run, vTMM is faster by {short} %. The engine's \
               limit of moves is no cause: without it nothing changes.",
        figures: &[Figure {
            name: "short",
            what: "graph500 for 60 s: vTMM faster than +PM_Linux, %",
            value: "2.97",
            runs: |load| {
                let base = load.workload(&format!(
                    "{{ {}, duration = \"60s\" }}",
                    FIGURE_4_PROGRAMS[0].1
                ));
                vec![
                    run("vtmm".into(), &base, VTMM),
                    moved_by_linux("linux".into(), &base),
                ]
            },
            of: |results| results.faster_percent("vtmm", "linux"),
        }],
    },
    Why::new(
        "faster than AutoNUMA",
        "DRAM is taken first and full, so AutoNUMA finds no room and promotes nothing. For graph500, all memory in PMem \
         costs less than the paper's AutoNUMA loses (table 2); for the sequential program vTMM itself lags behind, \
         because the hot part changes every 60 s.",
    ),
    Why {
        rows: "sequential: vTMM's performance",
        text: "the hot part changes every 60 s here, and vTMM finds it anew with its next round; how often it changes in \
               the paper, the text does not say. If it never changes, and so is in DRAM from the start, vTMM has \
               {still} % of the performance with DRAM alone.",
        figures: &[Figure {
            name: "still",
            what: "sequential, the hot part never changes: vTMM's performance, % of that with DRAM alone",
            value: "99.9",
            runs: |load| {
                let keys = format!("{}, period = \"1000s\"", FIGURE_4_PROGRAMS[1].1);
                let base = program(load, &keys);
                vec![
                    Run::new("fast", base.clone().map(|base| base.all_fast())),
                    run("vtmm".into(), &base, VTMM),
                ]
            },
            of: |results| Ok(results.slowdown("fast", "vtmm")? * 100.0),
        }],
    },
    Why::new(
        "sequential: order of systems",
        "the EPT scanner is not behind vTMM's here, and a fixed threshold tells the sequential program's pages apart, so \
         that it is not behind +PM_Linux: see the two rows above.",
    ),
    Why::new(
        "graph500: vTMM's performance",
        "the page tables of what first touch put into PMem stay there. Every system here leaves them, and its walks read \
         them; with DRAM alone they are in DRAM.",
    ),
    Why::new(
        "sequential: vTMM faster than +PM_Linux",
        "PM_Linux moves page by page on one processor, so the pages of a new hot part are in PMem for longer; how often \
         it changes, every 60 s, is our choice.",
    ),
];

/// A run of vTMM whose pages one processor moves one by one.
fn moved_by_linux(key: String, base: &Result<Scenario, String>) -> Run {
    let mut run = run(key, base, MOVED_BY_LINUX);
    if let Ok(scenario) = &mut run.scenario {
        scenario.machine.management_cpus = 1;
        scenario.machine.migrate_batch = 1;
    }
    run
}

fn figure_4_runs(load: &Load) -> Vec<Run> {
    let mut runs = Vec::new();
    for (name, keys, _) in FIGURE_4_PROGRAMS {
        let base = program(load, keys);
        runs.push(Run::new(
            format!("{name} fast"),
            base.clone().map(|b| b.all_fast()),
        ));
        runs.push(run(format!("{name} vtmm"), &base, VTMM));
        for (other, policy) in OTHERS {
            let key = format!("{name} {other}");
            runs.push(match other {
                PM_LINUX => moved_by_linux(key, &base),
                _ => run(key, &base, policy),
            });
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
        let ahead =
            |(other, _): &(&str, &str)| results.faster_percent(&vtmm, &format!("{name} {other}"));
        let others = OTHERS.iter().zip(faster);
        let others = others.map(|(other, percent)| System::new(percent, ahead(other)));
        let systems = [System::new(0.0, results.faster_percent(&vtmm, &vtmm))];
        let systems = systems.into_iter().chain(others).collect();
        rows.push(order::row(&format!("{name}: order of systems"), &[systems]));
    }
    rows
}
