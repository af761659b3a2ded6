//! HPMBS §5.3.2: what tracking by protection faults costs, with a fixed and with a dynamic hot set (table 2).

use terrace_core::demand::DemandConfig;
use terrace_sim::Scenario;

use super::last_third::PerAccess;
use super::order::{self, System};
use super::row::{Claim, Input, Row};
use super::runs::{Load, Results, Run};
use super::{Experiment, ExperimentKind, Figure, File, Paper, Why};

/// A program of table 2.
struct Program {
    name: &'static str,
    /// Working set, blocks of 2 MiB: the table's GB as GiB.
    blocks: u32,
    /// Run time without tracking, s. Of memcached that of table 1, as table 2 has its latency.
    base_s: f64,
    /// The load that stands for the program.
    load: &'static str,
    /// Overhead in % and tracked reuses, with the fixed and with the dynamic hot set.
    paper: [(f64, f64); 2],
}

/// Programs of table 2 that have a generator. Stencils make a sweep and a half: 1.5 accesses for each of their lines.
const PROGRAMS: [Program; 8] = [
    Program {
        name: "bwaves",
        blocks: 5939,
        base_s: 7902.0,
        load: "kind = \"stencil\", size = \"11878MiB\", parallelism = 2.8, ops = 291913728",
        paper: [(10.30, 395_751.0), (0.70, 203_287.0)],
    },
    Program {
        name: "cactusBSSN",
        blocks: 3533,
        base_s: 1912.0,
        load: "kind = \"stencil\", size = \"7066MiB\", parallelism = 2.8, ops = 173654016",
        paper: [(0.60, 834_170.0), (0.21, 33_184.0)],
    },
    Program {
        name: "lbm",
        blocks: 1690,
        base_s: 945.0,
        load: "kind = \"stencil\", size = \"3380MiB\", parallelism = 2.8, ops = 83066880",
        paper: [(1.74, 1_834_941.0), (1.29, 702_675.0)],
    },
    Program {
        name: DEEPSJENG,
        blocks: 3584,
        base_s: 308.0,
        load: RANDOM,
        paper: [(729.0, 136_983_318.0), (7.20, 783_437.0)],
    },
    Program {
        name: "fotonik3d",
        blocks: 5018,
        base_s: 878.0,
        load: "kind = \"stencil\", preset = \"hpmbs-fotonik3d\", ops = 246620160",
        paper: [(2.17, 494_227.0), (0.83, 202_348.0)],
    },
    Program {
        name: "roms",
        blocks: 5427,
        base_s: 2957.0,
        load: "kind = \"stencil\", size = \"10854MiB\", parallelism = 2.8, ops = 266747904",
        paper: [(0.74, 686_323.0), (0.72, 629_374.0)],
    },
    Program {
        name: "Graph",
        blocks: 1741,
        base_s: 866.0,
        load: "kind = \"graph\", preset = \"hpmbs-graph-4\", ops = 270000000",
        paper: [(1.80, 423_074.0), (1.60, 373_857.0)],
    },
    Program {
        name: "Memcached",
        blocks: 2099,
        base_s: 23.0,
        load: "kind = \"kv\", preset = \"hpmbs-memcached\", ops = 30000000",
        paper: [(0.26, 723_826.0), (0.20, 213_465.0)],
    },
];

const DEEPSJENG: &str = "deepsjeng";

/// The load of deepsjeng.
const RANDOM: &str =
    "kind = \"hotset\", size = \"7GiB\", hot = 1.0, hot_access = 1.0, ops = 15000000";

/// The same with 1 µs of computing beside each access.
const RANDOM_SLOW: &str = "kind = \"hotset\", size = \"7GiB\", hot = 1.0, hot_access = 1.0, compute_ns = 1000, ops = 15000000";

/// The hot sets of the table.
const SETS: [&str; 2] = [FIXED, "dynamic"];

/// The hot set of half of the working set.
const FIXED: &str = "fixed";

/// The run without tracking.
const BASE: &str = "base";

const INPUTS: &[Input] = &[
    Input {
        what: "one VM on one core of an i7-6700, whose last-level cache has 8 MiB and 16 ways (Intel's data); pages of 2 MiB in \
               guest and host",
        from: "§4, §5.1",
    },
    Input {
        what: "bwaves, cactusBSSN, lbm, fotonik3d and roms as stencils of their sizes, at the pace of hpmbs-fotonik3d; deepsjeng as \
               random accesses to all of its memory, half writes; Graph and Memcached by their presets. mcf and imagick have no \
               generator: their rows are left out",
        from: "table 2 for sizes; else our choice",
    },
    Input {
        what: "fixed: half of the working set; dynamic: 250 blocks at first, and 1 to 10 million loads and stores between two faults. It may \
               grow to all of the memory in use, as the text names no largest (the default is half: docs/demand.md). Tracking never rests",
        from: "§2.4, §5.3.2",
    },
    Input {
        what: "a run is a sweep and a half over a stencil's memory, 15 million accesses of deepsjeng, 270 million of Graph, 30 \
               million of Memcached; its last third is measured, in which no block is new",
        from: "our choice, for time",
    },
    Input {
        what: "faults are those of as many accesses as the program makes here, untracked, in the paper's run time: 7902, 1912, 945, \
               308, 878, 2957 and 866 s, and 23 s of Memcached",
        from: "tables 2 and 1",
    },
    Input {
        what: "slower: time of the same accesses. The paper has the mean latency of Memcached's requests instead",
        from: "table 2",
    },
];

const WHY: &[Why] = &[
    Why::new(
        "order of programs",
        "the stencils differ here by size and run time alone, and have one pace; the paper's programs differ by how often they come \
         back to a block: see their rows.",
    ),
    Why {
        rows: "deepsjeng, fixed",
        text: "here an access to another block follows each {access} ns, and half of them fault. A chess program computes for longer \
               between look-ups of its table. With 1 µs more per access (compute_ns = 1000) there are {slow_faults} million \
               faults in 308 s, as in the paper, and the program is {slow} % slower: a fault takes some 4 µs here, and the paper's \
               columns come to 14 µs.",
        figures: &[
            Figure {
                name: "access",
                what: "deepsjeng, time of an access, ns",
                value: "57.6",
                runs: |load| fixed_runs(load, RANDOM, 1792),
                of: |results| Ok(results.get(BASE)?.last_third.ns),
            },
            Figure {
                name: "slow_faults",
                what: "deepsjeng, compute_ns = 1000, tracked faults, millions",
                value: "147",
                runs: |load| fixed_runs(load, RANDOM_SLOW, 1792),
                of: |results| {
                    let accesses = 308.0 * 1e9 / results.get(BASE)?.last_third.ns;
                    Ok(accesses * results.get(FIXED)?.last_third.faults / 1e6)
                },
            },
            Figure {
                name: "slow",
                what: "deepsjeng, compute_ns = 1000, slower, %",
                value: "183",
                runs: |load| fixed_runs(load, RANDOM_SLOW, 1792),
                of: more_percent,
            },
        ],
    },
    Why {
        rows: "deepsjeng, dynamic",
        text: "the set grows here until it holds all of the memory, and then nothing faults; the paper's leaves 0.6 % of the fixed one's \
               faults, so it held nearly all. With 99.7 % of the memory in the set the program is {most} % slower, at a pace that is far \
               too quick (see the fixed set).",
        figures: &[Figure {
            name: "most",
            what: "deepsjeng, fixed hot set of 99.7 %, slower, %",
            value: "42",
            runs: |load| fixed_runs(load, RANDOM, 3573),
            of: more_percent,
        }],
    },
    Why::new(
        "Memcached, fixed hot set, slower",
        "the paper's is the latency of requests, 23 ms, in which the time of a fault hardly shows: its 723,826 faults in 23 s, at \
         even 10 µs each, are 31 % of a processor. Here the time of the same requests counts, one after another, which take 3 µs \
         each.",
    ),
    Why::new(
        "Memcached, dynamic hot set, slower",
        "the set grows to all of the memory within the first requests, and then nothing faults. The paper's keeps a third of the faults.",
    ),
    Why::new(
        "Memcached, fixed hot set, tracked faults",
        "keys lie anywhere, so that a request goes to any block, and 36 of 100 requests fault here. The thread serves as many as it can, some 320,000 a second; with the same share the paper's \
         faults would be those of 86,000. How many its clients ask for, the text does not say.",
    ),
    Why::new(
        "Memcached, dynamic hot set, tracked faults",
        "as the time that they take: the set holds all of the memory. What held the paper's back the text does not say.",
    ),
    Why::new(
        "Graph, fixed hot set, tracked faults",
        "here a pass over the edges comes to each block once, and PageRank's ranks are hardly ever out of the set: 193 faults a second. The \
         paper's come to 488 a second, or 4.9 for each block in each of the 50 runs of 17 s. Its Graph is CloudSuite's, which runs on Spark; what a Java heap adds to the graph itself, the generator does not have.",
    ),
    Why::new(
        "Graph, dynamic hot set, tracked faults",
        "the set grows while the graph is built, and holds nearly all of it when the measured third begins.",
    ),
    Why {
        rows: "hot set, slower",
        text: "a fault takes {cost} µs of bwaves here: an exit, a record, and the flush of what left the set. The paper's columns come to 8.7 \
               (lbm), 13 (cactusBSSN), 34 (roms), 38 (fotonik3d, Graph) and 2,057 µs (bwaves) with the fixed set. What its handler does besides (it looks each block up in an LRU stack) or what else a run varies by, the \
               text does not split. The number of faults differs too, see there.",
        figures: &[Figure {
            name: "cost",
            what: "bwaves, fixed hot set, time of a fault, µs",
            value: "4.9",
            runs: |load| fixed_runs(load, PROGRAMS[0].load, PROGRAMS[0].blocks / 2),
            of: |results| {
                let (base, tracked) = (
                    results.get(BASE)?.last_third,
                    results.get(FIXED)?.last_third,
                );
                Ok((tracked.ns - base.ns) / tracked.faults / 1000.0)
            },
        }],
    },
    Why::new(
        "fixed hot set, tracked faults",
        "a stencil comes to each block once a sweep, and that faults with any set that is smaller than the sweep: 890 faults a second at the \
         pace of the preset. A sweep takes 6.7 s (bwaves), 4.0 s (cactusBSSN), 1.9 s (lbm), 5.6 s (fotonik3d), 6.1 s (roms). The paper's \
         faults come to one for each block in 118, 8.1, 0.9, 8.9 and 23 s: bwaves and roms work on a part for long before they go on, \
         and lbm goes over its memory twice as fast as the preset's pace lets it.",
    ),
    Why::new(
        "dynamic hot set, tracked faults",
        "a sweep is a cliff: a set that is smaller than the sweep saves hardly a fault, and one that holds it faults no more. There are 0.2 million \
         loads and stores between two faults, so the set grows; bwaves' has all 5,940 blocks at the end. What still faults here was outside of it \
         when the last third began. The paper's programs come back to some blocks sooner than to others, so that its set saves from 8 % (roms) \
         to 96 % (cactusBSSN) of the faults.",
    ),
];

/// Table 2.
const TABLE_2: Experiment = Experiment {
    paper: Paper::Hpmbs,
    name: "hpmbs/table-2",
    title: "Slowdown and tracked faults of a program that is tracked by protection faults",
    kind: ExperimentKind::Figures,
    file: Some(File {
        name: "hpmbs-table-2",
        text: include_str!("../../../../scenarios/hpmbs-table-2.toml"),
    }),
    inputs: INPUTS,
    runs,
    rows,
    why: WHY,
};

/// The experiments of HPMBS.
pub const EXPERIMENTS: &[&Experiment] = &[&TABLE_2];

fn runs(load: &Load) -> Vec<Run> {
    PROGRAMS
        .iter()
        .flat_map(|program| runs_of(load, program))
        .collect()
}

/// A program without tracking, and with each hot set.
fn runs_of(load: &Load, program: &Program) -> Vec<Run> {
    let alone = load.workload(&format!("{{ {} }}", program.load));
    let tracked = |set: &str| {
        let mut scenario = alone.clone()?;
        if set == FIXED {
            fix(&mut scenario.engine.demand, program.blocks / 2);
        }
        Ok(scenario)
    };
    let mut runs = vec![Run::new(key(program.name, BASE), untracked(alone.as_ref()))];
    runs.extend(SETS.map(|set| Run::new(key(program.name, set), tracked(set))));
    runs
}

/// A load without tracking, and with a hot set of so many blocks.
fn fixed_runs(load: &Load, table: &str, blocks: u32) -> Vec<Run> {
    let alone = load.workload(&format!("{{ {table} }}"));
    let base = untracked(alone.as_ref());
    let fixed = alone.map(|mut alone| {
        fix(&mut alone.engine.demand, blocks);
        alone
    });
    vec![Run::new(BASE, base), Run::new(FIXED, fixed)]
}

/// How much longer the same work takes with the hot set of [`fixed_runs`], %.
fn more_percent(results: &Results) -> Result<f64, String> {
    let base = results.get(BASE)?.last_third.ns;
    Ok((results.get(FIXED)?.last_third.ns / base - 1.0) * 100.0)
}

fn untracked(alone: Result<&Scenario, &String>) -> Result<Scenario, String> {
    alone
        .map_err(Clone::clone)?
        .with_policy_text("\"first-touch\"")
}

/// The hot set keeps one size. Otherwise it begins and resizes itself as the scenario says.
fn fix(demand: &mut DemandConfig, blocks: u32) {
    demand.hot_set_pages = blocks;
    demand.resize_hot_set = false;
}

fn key(program: &str, run: &str) -> String {
    format!("{program} {run}")
}

fn rows(results: &Results) -> Vec<Row> {
    let mut rows = Vec::new();
    for program in &PROGRAMS {
        for (set, (percent, faults)) in SETS.iter().zip(program.paper) {
            let name = format!("{}, {set} hot set", program.name);
            rows.push(Row::new(
                format!("{name}, slower"),
                "%",
                Claim::Is(percent),
                slower(results, program, set),
            ));
            rows.push(Row::new(
                format!("{name}, tracked faults"),
                "thousand",
                Claim::Is(faults / 1000.0),
                faults_k(results, program, set),
            ));
        }
    }
    rows.extend(orders(results));
    rows
}

/// How much longer the same work takes with a hot set, %.
fn slower(results: &Results, program: &Program, set: &str) -> Result<f64, String> {
    let base = per_access(results, program, BASE)?.ns;
    Ok((per_access(results, program, set)?.ns / base - 1.0) * 100.0)
}

/// Tracked faults of all accesses that the program makes in the paper's run time, thousands.
fn faults_k(results: &Results, program: &Program, set: &str) -> Result<f64, String> {
    let accesses = program.base_s * 1e9 / per_access(results, program, BASE)?.ns;
    Ok(per_access(results, program, set)?.faults * accesses / 1000.0)
}

fn per_access(results: &Results, program: &Program, run: &str) -> Result<PerAccess, String> {
    Ok(results.get(&key(program.name, run))?.last_third)
}

/// The order of the two hot sets of each program, and of all programs with each hot set.
fn orders(results: &Results) -> Vec<Row> {
    type Of = fn(&Results, &Program, &str) -> Result<f64, String>;
    let columns: [(&str, Of); 2] = [("slower", slower), ("tracked faults", faults_k)];
    let system = |program: &Program, set: usize, column: usize| {
        let (percent, faults) = program.paper[set];
        let paper = [percent, faults][column];
        System::new(paper, columns[column].1(results, program, SETS[set]))
    };
    let mut rows = Vec::new();
    for (at, (column, _)) in columns.iter().enumerate() {
        let pair = |program| vec![system(program, 0, at), system(program, 1, at)];
        let pairs: Vec<_> = PROGRAMS.iter().map(pair).collect();
        rows.push(order::row(&format!("order of hot sets, {column}"), &pairs));
        for (set, name) in SETS.iter().enumerate() {
            let all = PROGRAMS.iter().map(|program| system(program, set, at));
            let what = format!("order of programs, {name} hot set, {column}");
            rows.push(order::row(&what, &[all.collect()]));
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_run_untracked_and_with_both_hot_sets() {
        let load = Load::new(&TABLE_2.file.unwrap(), 1, None).unwrap();
        let runs = runs(&load);
        assert_eq!(runs.len(), 3 * PROGRAMS.len());
        for (program, runs) in PROGRAMS.iter().zip(runs.chunks(3)) {
            let [base, fixed, dynamic] = [0, 1, 2].map(|at| runs[at].scenario.clone().unwrap());
            for scenario in [&base, &fixed, &dynamic] {
                scenario.check().unwrap();
            }
            let (fixed_set, dynamic_set) = (fixed.engine.demand, dynamic.engine.demand);
            assert_eq!(fixed_set.hot_set_pages, program.blocks / 2);
            assert!(!fixed_set.resize_hot_set && dynamic_set.resize_hot_set);
            assert_eq!(dynamic_set.hot_set_pages, 250);
            assert_eq!(fixed_set.max_tracking_percent, 100);
            assert_eq!(fixed.vms, dynamic.vms);
            assert_eq!(base.vms[0].workload, fixed.vms[0].workload);
        }
    }

    #[test]
    fn the_stand_ins_have_the_sizes_of_the_table() {
        let load = Load::new(&TABLE_2.file.unwrap(), 1, None).unwrap();
        let gib = [11.6, 6.9, 3.3, 7.0, 9.8, 10.6, 3.4, 4.1];
        for (program, gib) in PROGRAMS.iter().zip(gib) {
            let scenario = load.workload(&format!("{{ {} }}", program.load)).unwrap();
            let pages = scenario.vms[0].workload.pages(1, &scenario.folder).unwrap();
            let size = terrace_sim::number::float(pages) / f64::from(1 << 18);
            assert!((size / gib - 1.0).abs() < 0.02, "{}: {size}", program.name);
            let blocks = f64::from(program.blocks) / 512.0;
            assert!((blocks - gib).abs() < 0.01, "{}: {blocks}", program.name);
        }
    }

    #[test]
    fn each_column_of_each_program_has_a_row() {
        let rows = rows(&Results::default());
        assert_eq!(rows.len(), 4 * PROGRAMS.len() + 6);
        assert!(rows.iter().all(|row| row.simulated.is_none()));
        let pairs = rows
            .iter()
            .find(|row| row.what == "order of hot sets, slower");
        assert_eq!(pairs.unwrap().paper, Claim::AtLeast(8.0));
    }

    #[test]
    fn faults_are_those_of_the_accesses_of_the_paper_s_run_time() {
        use super::super::runs::Measured;
        let measured = |ns, faults| {
            Ok(Measured {
                result: terrace_sim::RunResult::default(),
                rounds: Vec::new(),
                exits: 0,
                late_hits: 0.0,
                late_ops_per_s: Vec::new(),
                last_third: PerAccess {
                    ns,
                    faults,
                    walks: 0.0,
                },
                compute_ns: 0.0,
            })
        };
        let program = &PROGRAMS[3];
        let results = Results::new(
            [
                (key(DEEPSJENG, BASE), measured(100.0, 0.0)),
                (key(DEEPSJENG, FIXED), measured(150.0, 0.001)),
            ]
            .into(),
        );
        assert!((slower(&results, program, FIXED).unwrap() - 50.0).abs() < 1e-9);
        // 308 s of 100 ns each are 3.08 billion accesses.
        assert!((faults_k(&results, program, FIXED).unwrap() - 3080.0).abs() < 1e-6);
    }
}
