//! GPAC table 3: the pages that a limit selects, and the time that they take.

use terrace_sim::VmResult;
use terrace_sim::number::float;

use super::{FILE, GUEST, LOADS, PROGRAMS, Program, under, with};
use crate::repro::row::{Claim, Input, Row};
use crate::repro::runs::{Load, Measured, Results, Run, computing};
use crate::repro::{Experiment, ExperimentKind, Figure, Paper, Why};

/// Time of a run with one round of gathering: windows are 10 s long, and the third one ends with the first round.
const END: &str = "duration = \"38s\"";

/// Table 3.
pub const TABLE_3: Experiment = Experiment {
    paper: Paper::Gpac,
    name: "gpac/table-3",
    title: "Pages that a consolidation limit selects in one round, and the time that each takes",
    kind: ExperimentKind::Figures,
    file: Some(FILE),
    inputs: &[
        GUEST,
        LOADS,
        Input {
            what: "the limit of each program",
            from: "table 3",
        },
        Input {
            what: "hot is what was accessed in two of three windows of 10 s; one round; the host leaves all pages in far memory; masim at \
                   scale 4",
            from: "our choice: §5.1 names idle page tracking, and no windows",
        },
        Input {
            what: "the paper's time per page is its time over its pages; no time per page where no page is selected here",
            from: "table 3",
        },
    ],
    runs,
    rows,
    why: WHY,
};

const WHY: &[Why] = &[
    Why {
        rows: "redis, limit 50",
        text: "how many blocks have fewer hot pages than the limit hangs on the requests in a window. The text gives neither their rate nor the \
               windows. With 2 µs of computing per access, a quarter of the requests, {slow} pages are selected.",
        figures: &[Figure {
            name: "slow",
            what: "redis with 2 µs of computing per access: pages selected",
            value: "81040",
            runs: |load| paced(load, 1, 2_000.0),
            of: paced_selected,
        }],
    },
    Why {
        rows: "memcached, limit 100",
        text: "as of redis. With 2 µs of computing per access, a ninth of the requests, {slow} pages are selected.",
        figures: &[Figure {
            name: "slow",
            what: "memcached with 2 µs of computing per access: pages selected",
            value: "96640",
            runs: |load| paced(load, 2, 2_000.0),
            of: paced_selected,
        }],
    },
    Why {
        rows: "hash, limit 250",
        text: "lookups of keys that are all alike access every page in each window, so no block has fewer hot pages than the limit. With 3 µs of \
               computing per access, {some} pages are selected, and with 10 µs {few}: the paper's program accesses far fewer pages in its windows, whose \
               length the text does not give.",
        figures: &[
            Figure {
                name: "some",
                what: "hash with 3 µs of computing per access: pages selected",
                value: "696048",
                runs: |load| paced(load, 3, 3_000.0),
                of: paced_selected,
            },
            Figure {
                name: "few",
                what: "hash with 10 µs of computing per access: pages selected",
                value: "121552",
                runs: |load| paced(load, 3, 10_000.0),
                of: paced_selected,
            },
        ],
    },
    Why {
        rows: "ocean, limit 290",
        text: "a sweep over all of its memory takes a few seconds, so every page is accessed in each window. Where it takes longer than a window, \
               whole blocks are hot or not: with 1 µs of computing per access {slow} pages are selected. The paper's guest may have scattered the \
               program's pages over its physical memory; here they lie there in the program's order.",
        figures: &[Figure {
            name: "slow",
            what: "ocean with 1 µs of computing per access: pages selected",
            value: "768",
            runs: |load| paced(load, 4, 1_000.0),
            of: paced_selected,
        }],
    },
    Why {
        rows: "time per page",
        text: "the kernel's work is 2 µs a page (docs/machine.md, an estimate), copying within far memory is the rest, and 512 pages share a flush. With \
               a flush for each page, as the paper's algorithm 1 has it, a page of masim takes {one} µs with one vCPU and {twelve} µs with twelve: the \
               paper's figures lie between.",
        figures: &[
            Figure {
                name: "one",
                what: "masim, a flush for each page, one vCPU: time per page, µs",
                value: "4.66",
                runs: |load| flushing(load, 1),
                of: flushed,
            },
            Figure {
                name: "twelve",
                what: "masim, a flush for each page, twelve vCPUs: time per page, µs",
                value: "15.7",
                runs: |load| flushing(load, 12),
                of: flushed,
            },
        ],
    },
];

/// The name of a run that a reason needs.
const ASKED: &str = "asked";

/// A program's run with so much computing per access, ns.
fn paced(load: &Load, program: usize, compute_ns: f64) -> Vec<Run> {
    let mut run = run(load, &PROGRAMS[program]);
    run.scenario = run
        .scenario
        .map(|scenario| computing(&scenario, compute_ns));
    run.key = ASKED.into();
    vec![run]
}

fn paced_selected(results: &Results) -> Result<f64, String> {
    results.get(ASKED)?.vm().map(selected)
}

/// The run of masim with a flush for each page, on so many vCPUs that are slowed down to access as little.
fn flushing(load: &Load, vcpus: u32) -> Vec<Run> {
    let mut runs = paced(load, 0, 6_000.0);
    if let Ok(scenario) = &mut runs[0].scenario {
        scenario.machine.migrate_batch = 1;
        scenario.vms[0].vcpus = vcpus;
    }
    runs
}

fn flushed(results: &Results) -> Result<f64, String> {
    results.get(ASKED)?.vm().map(time_per_page)
}

fn run(load: &Load, program: &Program) -> Run {
    let scenario = with(load, program, END);
    let scenario = scenario.and_then(|s| under(&s, "first-touch+gpac", Some(program.limit)));
    Run::new(program.name, scenario)
}

fn runs(load: &Load) -> Vec<Run> {
    PROGRAMS.iter().map(|program| run(load, program)).collect()
}

fn selected(vm: &VmResult) -> f64 {
    float(vm.gathered_pages.unwrap_or(0))
}

/// Time of a page that is gathered, µs.
fn time_per_page(vm: &VmResult) -> f64 {
    vm.overhead_s.migrate * 1e6 / selected(vm)
}

fn rows(results: &Results) -> Vec<Row> {
    let vm = |program: &Program| results.get(program.name).and_then(Measured::vm);
    let mut rows = Vec::new();
    for program in &PROGRAMS {
        let what = format!("{}, limit {}: pages selected", program.name, program.limit);
        let claim = Claim::Is(program.selected);
        let row = Row::new(what, "pages", claim, vm(program).map(selected));
        // One page of each block is hot, so as many are selected as it has blocks.
        rows.push(match program.name {
            "masim" => row.by_construction(),
            _ => row,
        });
    }
    for program in &PROGRAMS {
        if vm(program).is_ok_and(|vm| selected(vm) == 0.0) {
            continue;
        }
        let what = format!("{}: time per page", program.name);
        let claim = Claim::Is(program.ms * 1e3 / program.selected);
        let each = vm(program).map(time_per_page);
        rows.push(Row::new(what, "µs", claim, each));
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_program_gathers_by_its_limit_and_its_host_moves_nothing() {
        let load = Load::new(&FILE, 1, None).unwrap();
        for (run, program) in runs(&load).iter().zip(&PROGRAMS) {
            let vm = &run.scenario.as_ref().unwrap().vms[0];
            let name = vm.guest_policy.unwrap().name();
            assert_eq!(name, format!("gpac cl={}", program.limit));
            assert_eq!(vm.policy, terrace_sim::HostPolicy::FirstTouch);
        }
    }
}
