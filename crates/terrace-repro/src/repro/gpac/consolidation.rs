//! GPAC table 3: the pages that a limit selects, and the time that they take.

use terrace_sim::VmResult;
use terrace_sim::number::float;

use super::{FILE, GUEST, LOADS, PROGRAMS, Program, under, with};
use crate::repro::row::{Claim, Input, Row};
use crate::repro::runs::{Load, Measured, Results, Run};
use crate::repro::{Experiment, ExperimentKind, Paper, Why};

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

const WHY: &[Why] = &[];

fn runs(load: &Load) -> Vec<Run> {
    let run = |program: &Program| {
        let scenario = with(load, program, END);
        let scenario = scenario.and_then(|s| under(&s, "first-touch+gpac", Some(program.limit)));
        Run::new(program.name, scenario)
    };
    PROGRAMS.iter().map(run).collect()
}

fn selected(vm: &VmResult) -> f64 {
    float(vm.gathered_pages.unwrap_or(0))
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
        let each = vm(program).map(|vm| vm.overhead_s.migrate * 1e6 / selected(vm));
        rows.push(Row::new(what, "µs", claim, each));
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_program_gathers_by_its_own_limit_and_the_host_leaves_its_pages() {
        let load = Load::new(&FILE, 1, None).unwrap();
        for (run, program) in runs(&load).iter().zip(&PROGRAMS) {
            let vm = &run.scenario.as_ref().unwrap().vms[0];
            let name = vm.guest_policy.unwrap().name();
            assert_eq!(name, format!("gpac cl={}", program.limit));
            assert_eq!(vm.policy, terrace_sim::HostPolicy::FirstTouch);
        }
    }
}
