//! GPAC §5.2.2: near memory of one guest under memtierd, without gathering and with it.

use terrace_sim::VmResult;
use terrace_sim::number::float;

use super::{FILE, GUEST, LOADS, PROGRAMS, Program, under, with};
use crate::repro::row::{Claim, Input, Row};
use crate::repro::runs::{Load, Measured, Results, Run};
use crate::repro::{Experiment, ExperimentKind, Figure, Paper, Why};

/// Redis' resident memory, bytes (table 2; GB are taken as GiB).
const RSS: f64 = 12.5 * GIB;
const GIB: f64 = 1024.0 * 1024.0 * 1024.0;

/// Place of redis among the programs.
const REDIS: usize = 1;

const ENDS: Input = Input {
    what: "memtierd has its heat policy as its README sets it, and begins at once; accesses enough for some 130 to 240 s; near memory at the \
           end, performance in the last third",
    from: "our choice: §5.2.2 has it begin after 220 s, and does not say how it is set",
};

/// Figure 7.
pub const FIGURE_7: Experiment = Experiment {
    paper: Paper::Gpac,
    name: "gpac/figure-7",
    title: "Redis' memory in near memory under memtierd, without gathering and with it",
    kind: ExperimentKind::Figures,
    file: Some(FILE),
    inputs: &[GUEST, LOADS, ENDS],
    runs: |load| pair(load, &PROGRAMS[REDIS]),
    rows: figure_rows,
    why: FIGURE_WHY,
};

/// The programs of table 2, of which §1 has a range.
pub const PROGRAMS_OF_TABLE_2: Experiment = Experiment {
    name: "gpac/near-memory",
    title: "Near memory of each program under memtierd, without gathering and with it",
    inputs: &[
        GUEST,
        LOADS,
        ENDS,
        Input {
            what: "50 to 70 % less near memory at a like performance is said of the real programs together: the lower end is asked of each",
            from: "abstract, §1",
        },
        Input {
            what: "masim at scale 4; blocks are hot that have a page accessed in two of three windows of 10 s",
            from: "our choice",
        },
    ],
    runs: |load| PROGRAMS.iter().flat_map(|p| pair(load, p)).collect(),
    rows: program_rows,
    why: PROGRAMS_WHY,
    ..FIGURE_7
};

const FIGURE_WHY: &[Why] = &[
    Why {
        rows: "with gathering: in near memory",
        text: "requests follow a Gaussian law over all keys, of which a block of 2 MiB has 2,000. When a block's hot pages have left it, others \
               are still accessed within 5 s, and a host that sees one bit for 2 MiB keeps all of it; what was gathered comes on top. If 1 % of the keys, \
               anywhere in memory, take all requests, {alone} % are in near memory after 400 s without gathering, and {gathered} % with it.",
        figures: &[
            Figure {
                name: "alone",
                what: "redis, requests for 1 % of the keys, without gathering: in near memory, %",
                value: "102",
                runs: few_keys,
                of: |results| few_keys_near(results, false),
            },
            Figure {
                name: "gathered",
                what: "redis, requests for 1 % of the keys, with gathering: in near memory, %",
                value: "5.5",
                runs: few_keys,
                of: |results| few_keys_near(results, true),
            },
        ],
    },
    Why::new(
        "faster with gathering",
        "looking at pages takes the guest's time in every window, also when gathering rests, and near memory has room for all here: there is \
         nothing to gain.",
    ),
];

const PROGRAMS_WHY: &[Why] = &[
    Why::new("redis: less near memory", "as in figure 7."),
    Why::new(
        "memcached: less near memory",
        "as of redis: a Gaussian law leaves accesses in every block.",
    ),
    Why::new(
        "hash: less near memory",
        "all keys are alike, so no page is colder than another, and nothing is gathered.",
    ),
    Why::new(
        "ocean: less near memory",
        "sweeps access every page, so nothing is gathered.",
    ),
];

/// Redis with requests for 1 % of the keys alone, for twice as long.
const FEW_KEYS: Program = Program {
    name: "few keys",
    load: "kind = \"kv\", preset = \"gpac-redis\", dist = \"hotspot\", hot = 0.01, hot_access = 1.0",
    ops: 800_000_000,
    ..PROGRAMS[REDIS]
};

fn few_keys(load: &Load) -> Vec<Run> {
    pair(load, &FEW_KEYS)
}

/// Part of [`FEW_KEYS`]' memory that is near at the end, %.
fn few_keys_near(results: &Results, gathers: bool) -> Result<f64, String> {
    Ok(near(results.get(&key(&FEW_KEYS, gathers))?)? / RSS * 100.0)
}

fn key(program: &Program, gathers: bool) -> String {
    let way = if gathers { "gathered" } else { "alone" };
    format!("{}, {way}", program.name)
}

/// A program under memtierd, without gathering and with it.
fn pair(load: &Load, program: &Program) -> Vec<Run> {
    let scenario = with(load, program, &format!("ops = {}", program.ops));
    let run = |gathers: bool| {
        let policy = if gathers {
            "memtierd+gpac"
        } else {
            "memtierd@host"
        };
        let scenario = scenario.as_ref().map_err(Clone::clone);
        Run::new(
            key(program, gathers),
            scenario.and_then(|s| under(s, policy, None)),
        )
    };
    [false, true].map(run).into()
}

/// Figures of a program without gathering and with it.
fn both<'a>(results: &'a Results, program: &Program) -> Result<[&'a Measured; 2], String> {
    Ok([
        results.get(&key(program, false))?,
        results.get(&key(program, true))?,
    ])
}

/// Bytes in near memory at the end.
fn near(run: &Measured) -> Result<f64, String> {
    Ok(float(run.vm()?.fast_bytes_end))
}

/// How much faster a program is with gathering in its last third, %.
fn faster([alone, gathered]: [&Measured; 2]) -> f64 {
    (gathered.late_ops_per_s[0] / alone.late_ops_per_s[0] - 1.0) * 100.0
}

fn figure_rows(results: &Results) -> Vec<Row> {
    let redis = &PROGRAMS[REDIS];
    let mut rows = Vec::new();
    for (gathers, what, paper) in [(false, "without", 85.0), (true, "with", 33.0)] {
        let run = results.get(&key(redis, gathers));
        let percent = run.clone().and_then(near).map(|bytes| bytes / RSS * 100.0);
        let what = |figure: &str| format!("{what} gathering: {figure}");
        let near = what("in near memory, of 12.5 GB");
        rows.push(Row::new(near, "%", Claim::Is(paper), percent));
        for (figure, of) in [
            ("a request's p50", (|vm| vm.p50_ns) as fn(&VmResult) -> f64),
            ("a request's p99", |vm| vm.p99_ns),
        ] {
            let us = run.clone().and_then(Measured::vm).map(|vm| of(vm) / 1e3);
            rows.push(Row::new(what(figure), "µs", Claim::Nothing, us));
        }
    }
    let faster = both(results, redis).map(faster);
    rows.push(Row::new(
        "faster with gathering, last third",
        "%",
        Claim::AtLeast(0.0),
        faster,
    ));
    rows
}

fn program_rows(results: &Results) -> Vec<Row> {
    let mut rows = Vec::new();
    for program in &PROGRAMS {
        let name = program.name;
        for gathers in [false, true] {
            let key = key(program, gathers);
            let gib = results.get(&key).and_then(near).map(|bytes| bytes / GIB);
            rows.push(Row::new(
                format!("{key}: near memory"),
                "GiB",
                Claim::Nothing,
                gib,
            ));
        }
        let less = both(results, program)
            .and_then(|[alone, gathered]| Ok((1.0 - near(gathered)? / near(alone)?) * 100.0));
        let claim = match name {
            // No real program.
            "masim" => Claim::Nothing,
            _ => Claim::AtLeast(50.0),
        };
        let what = |figure: &str| format!("{name}: {figure}");
        rows.push(Row::new(
            what("less near memory with gathering"),
            "%",
            claim,
            less,
        ));
        let faster = both(results, program).map(faster);
        let figure = what("faster with gathering, last third");
        rows.push(Row::new(figure, "%", Claim::Nothing, faster));
        for (figure, of) in [
            (
                "hot blocks before",
                (|b| b.first) as fn(terrace_sim::HotBlocks) -> u64,
            ),
            ("hot blocks of the last round", |b| b.last),
        ] {
            let blocks = results.get(&key(program, true)).and_then(Measured::vm);
            let blocks = blocks.and_then(|vm| vm.hot_blocks.ok_or("no round".into()));
            rows.push(Row::new(
                what(figure),
                "blocks",
                Claim::Nothing,
                blocks.map(|blocks| float(of(blocks))),
            ));
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_program_runs_with_gathering_and_without_it() {
        let load = Load::new(&FILE, 1, None).unwrap();
        let runs = (PROGRAMS_OF_TABLE_2.runs)(&load);
        assert_eq!(runs.len(), 2 * PROGRAMS.len());
        for run in &runs {
            let scenario = run.scenario.as_ref().unwrap();
            scenario.check().unwrap();
            let vm = &scenario.vms[0];
            assert_eq!(vm.guest_policy.is_some(), run.key.ends_with("gathered"));
            assert_eq!(vm.sizes, [16 << 30, 20 << 30]);
        }
    }

    #[test]
    fn the_runs_of_figure_7_are_part_of_those_of_all_programs() {
        let load = Load::new(&FILE, 1, None).unwrap();
        let all = (PROGRAMS_OF_TABLE_2.runs)(&load);
        for run in (FIGURE_7.runs)(&load) {
            assert!(all.iter().any(|other| other.same(&run)), "{}", run.key);
        }
    }
}
