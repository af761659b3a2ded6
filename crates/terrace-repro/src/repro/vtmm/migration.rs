//! §4.4: what it costs to migrate all of a program's pages (Tables 4, 5 and 6).

use terrace_sim::{Initial, Scenario, Start, Tables, number::float};

use crate::repro::order::{self, System};
use crate::repro::row::{Claim, Input, Row};
use crate::repro::runs::{Load, Results, Run};
use crate::repro::{Experiment, ExperimentKind, Figure, File, Paper, Why};

const FILE: File = File {
    name: "vtmm-migration",
    text: include_str!("../../../../../scenarios/vtmm-migration.toml"),
};

/// A table's line: RSS in GiB; slowdown of NVM, PM_Linux, PM_WP, PM_PML in %.
type Line = (u64, f64, [f64; 3]);

/// Table 4.
const READ: [Line; 4] = [
    (2, 62.8, [6.9, 0.7, 0.1]),
    (4, 60.6, [7.0, 2.8, 1.5]),
    (8, 72.1, [7.6, 3.1, 1.7]),
    (16, 78.0, [8.0, 3.3, 2.2]),
];

/// Table 5.
const WRITE: [Line; 4] = [
    (2, 188.2, [4.8, 0.7, 0.3]),
    (4, 190.6, [5.0, 3.6, 1.8]),
    (8, 189.8, [5.4, 5.7, 2.5]),
    (16, 183.5, [10.0, 8.4, 3.4]),
];

/// Table 6, thousands: RSS in GiB; read and write of PM_Linux, of PM_WP, of PM_PML.
const TRAPS: [(u64, [[f64; 2]; 3]); 4] = [
    (2, [[523.0, 524.0], [526.0, 1030.0], [1.0, 1.0]]),
    (4, [[1039.0, 1049.0], [1051.0, 1988.0], [1.0, 1.0]]),
    (8, [[2097.0, 2080.0], [2102.0, 3927.0], [1.0, 1.0]]),
    (16, [[4188.0, 4196.0], [4203.0, 7721.0], [2.0, 2.0]]),
];

/// The paper's names and the simulator's.
const WAYS: [(&str, &str); 3] = [
    ("PM_Linux", "linux"),
    ("PM_WP", "write-protect"),
    ("PM_PML", "pml-copy"),
];

/// Seconds of a run: what is lost to migration is shared out over them.
const SECONDS: u64 = 60;

const INPUTS: &[Input] = &[
    Input {
        what: "20 GB of DRAM and 20 GB of PMem, RSS of 2, 4, 8 and 16 GB, uniform random reads or writes, \
               all pages on PMem at first; 8 vCPUs",
        from: "§4.1, §4.4",
    },
    Input {
        what: "column NVM: the program's compute time per access is solved from it, for a memory \
               parallelism of 4, the workload's own; 0 ns is the least, and the rows NVM show how near it comes",
        from: "tables 4 and 5",
    },
    Input {
        what: "PM_Linux moves page by page on one processor, as Linux 5.4 does; the others with 4 threads",
        from: "§3.4, §3.6",
    },
    Input {
        what: "the program runs for 60 s, and migration begins at once: the text does not say how long it \
               runs; what a migration costs is a share of that",
        from: "our choice: the time between two rounds of migration, §3.2.3",
    },
];

/// Inputs of table 6: its runs are those of the other two.
const TRAP_INPUTS: &[Input] = &[
    Input {
        what: "the runs of tables 4 and 5 with their inputs; the exits of the run that stays on PMem are taken \
               off",
        from: "§4.4.2",
    },
    Input {
        what: "the interrupts by which the host makes vCPUs flush their TLBs are left out: with them, \
               PM_Linux has 9 exits a page here (a page moves alone, and there are 8 vCPUs)",
        from: "our reading: the paper has one exit a page and under a thousand for PM_PML, which has no room \
               for them",
    },
];

/// Table 4.
pub const TABLE_4: Experiment = Experiment {
    paper: Paper::Vtmm,
    name: "vtmm/table-4",
    title: "Slowdown by migrating all pages from PMem to DRAM, random reads",
    kind: ExperimentKind::Figures,
    file: Some(FILE),
    inputs: INPUTS,
    runs: |load| slowdown_runs(load, "read", &READ),
    rows: |results| slowdown_rows(results, "read", &READ),
    why: WHY_READ,
};

/// Table 5.
pub const TABLE_5: Experiment = Experiment {
    paper: Paper::Vtmm,
    name: "vtmm/table-5",
    title: "Slowdown by migrating all pages from PMem to DRAM, random writes",
    kind: ExperimentKind::Figures,
    file: Some(FILE),
    inputs: INPUTS,
    runs: |load| slowdown_runs(load, "write", &WRITE),
    rows: |results| slowdown_rows(results, "write", &WRITE),
    why: WHY_WRITE,
};

/// Table 6.
pub const TABLE_6: Experiment = Experiment {
    paper: Paper::Vtmm,
    name: "vtmm/table-6",
    title: "VM exits by migrating all pages from PMem to DRAM",
    kind: ExperimentKind::Figures,
    file: Some(FILE),
    inputs: TRAP_INPUTS,
    runs: |load| {
        let mut runs = slowdown_runs(load, "read", &READ);
        runs.extend(slowdown_runs(load, "write", &WRITE));
        runs
    },
    rows: trap_rows,
    why: WHY_TRAPS,
};

/// The reason for the rows of both tables.
const WHY_TABLES: &str = "the guest's page tables lie in PMem with the pages that the program touched first, and nothing \
    moves them; walks go on to read them there. With all pages in DRAM from the start and page tables in PMem, the \
    program of 16 GB loses {tables} %. Where the paper's page tables were, its text does not say. Besides, what moving \
    costs is shared out over the same 60 s for every RSS, and no one length of the run gives the paper's columns.";

/// A program of 16 GB with its pages in DRAM and its page tables in PMem, and one with all in DRAM.
fn tables_slow(load: &Load, what: &str, nvm: f64) -> Vec<Run> {
    let base = program(load, what, 16);
    let slow = base.as_ref().map_err(Clone::clone).and_then(|base| {
        let mut scenario = base.with_policy_text("\"first-touch\"")?;
        scenario.vms[0].initial = Initial {
            start: Start::FirstTouch,
            tables: Tables::Slow,
        };
        Ok(scenario)
    });
    let solved = |run: Run| run.solved(1.0 + nvm / 100.0);
    vec![
        solved(Run::new("fast", base.map(|base| base.all_fast()))),
        solved(Run::new("slow tables", slow)),
    ]
}

const WHY_READ: &[Why] = &[Why {
    rows: "GB, PM_",
    text: WHY_TABLES,
    figures: &[Figure {
        name: "tables",
        what: "random reads, 16 GB, page tables in PMem: slowdown, %",
        value: "51",
        runs: |load| tables_slow(load, "read", READ[3].1),
        of: |results| results.slower_percent("slow tables", "fast"),
    }],
}];

const WHY_WRITE: &[Why] = &[
    Why {
        rows: "GB, PM_",
        text: WHY_TABLES,
        figures: &[Figure {
            name: "tables",
            what: "random writes, 16 GB, page tables in PMem: slowdown, %",
            value: "80",
            runs: |load| tables_slow(load, "write", WRITE[3].1),
            of: |results| results.slower_percent("slow tables", "fast"),
        }],
    },
    Why::new(
        "order of systems",
        "at 8 GB the paper's PM_WP is slower than its PM_Linux. Here PM_Linux is slowest at every RSS: it moves page by \
         page, and what it loses grows with the pages.",
    ),
];

const WHY_TRAPS: &[Why] = &[
    Why::new(
        "PM_WP, write",
        "nearly two exits a page mean that nearly every page was written while it was protected. Here the 512 pages of \
         a batch are protected for the few ms until they are copied, and a vCPU that writes to one of them waits for \
         the batch's end: one exit for many pages, so that reads and writes hardly differ. The text does not say how \
         many pages PM_WP protects at a time.",
    ),
    Why::new(
        "PM_PML, write",
        "a write to a page that is being copied a second time waits, which is counted as an exit: a few of a hundred \
         pages. In the paper such pages are unmapped too (§3.4); why it counts so few, the text does not say. Reads, \
         where nothing is copied twice, have none.",
    ),
];

/// A program of `size` GiB that does `what` on the experiment's machine.
fn program(load: &Load, what: &str, size: u64) -> Result<Scenario, String> {
    load.workload(&format!(
        "{{ kind = \"hotset\", preset = \"vtmm-{what}\", size = \"{size}GiB\", duration = \"{SECONDS}s\" }}"
    ))
}

/// The scenario with pages that migrate in a given way.
fn migrating(base: &Scenario, way: &str) -> Result<Scenario, String> {
    let policy = format!("{{ base = \"vtmm\", place = \"fastest\", move = \"{way}\" }}");
    let mut scenario = base.with_policy_text(&policy)?;
    if way == "linux" {
        scenario.machine.management_cpus = 1;
        scenario.machine.migrate_batch = 1;
    }
    Ok(scenario)
}

fn slowdown_runs(load: &Load, what: &str, lines: &[Line]) -> Vec<Run> {
    let mut runs = Vec::new();
    for (size, nvm, _) in lines {
        let base = program(load, what, *size);
        let key = |name: &str| format!("{what} {size} {name}");
        let mut add = |run: Run| runs.push(run.solved(1.0 + nvm / 100.0));
        add(Run::new(key("fast"), base.clone().map(|b| b.all_fast())));
        add(Run::new(key("slow"), base.clone().map(|b| b.all_slow())));
        for (name, way) in WAYS {
            let scenario = base.as_ref().map_err(Clone::clone);
            let scenario = scenario.and_then(|base| migrating(base, way));
            add(Run::new(key(name), scenario).migrating());
        }
    }
    runs
}

fn slowdown_rows(results: &Results, what: &str, lines: &[Line]) -> Vec<Row> {
    let mut rows = Vec::new();
    let mut comparisons = Vec::new();
    for (size, nvm, ways) in lines {
        let slower = |name: &str| {
            results.slower_percent(
                &format!("{what} {size} {name}"),
                &format!("{what} {size} fast"),
            )
        };
        rows.push(Row::new(
            format!("{size} GB, NVM"),
            "%",
            Claim::Input(*nvm),
            slower("slow"),
        ));
        let solved = results.get(&format!("{what} {size} slow"));
        rows.push(Row::new(
            format!("{size} GB, compute time per access, solved from NVM"),
            "ns",
            Claim::Nothing,
            solved.map(|run| run.compute_ns),
        ));
        for ((name, _), percent) in WAYS.iter().zip(ways) {
            rows.push(Row::new(
                format!("{size} GB, {name}"),
                "%",
                Claim::Is(*percent),
                slower(name),
            ));
        }
        let systems = WAYS.iter().zip(ways);
        let systems = systems.map(|((name, _), percent)| System::new(*percent, slower(name)));
        comparisons.push(systems.collect());
    }
    rows.push(order::row("order of systems, all RSS", &comparisons));
    rows
}

/// Exits of one run above another's, thousands.
fn more_exits_k(results: &Results, key: &str, reference: &str) -> Result<f64, String> {
    let (one, two) = (results.get(key)?, results.get(reference)?);
    Ok((float(one.exits) - float(two.exits)) / 1000.0)
}

fn trap_rows(results: &Results) -> Vec<Row> {
    let mut rows = Vec::new();
    for (size, ways) in TRAPS {
        for ((name, _), traps) in WAYS.iter().zip(ways) {
            for (what, traps) in ["read", "write"].iter().zip(traps) {
                let more = more_exits_k(
                    results,
                    &format!("{what} {size} {name}"),
                    &format!("{what} {size} slow"),
                );
                // The paper has "<1" for the small ones, so the others are taken as bounds too.
                let claim = if *name == "PM_PML" {
                    Claim::AtMost(traps)
                } else {
                    Claim::Is(traps)
                };
                let row = Row::new(
                    format!("{size} GB, {name}, {what}"),
                    "thousand",
                    claim,
                    more,
                );
                rows.push(match (*name, *what) {
                    // Each page that moves exits once, at the next access; without writes no page is copied twice.
                    ("PM_Linux", _) | (_, "read") => row.by_construction(),
                    _ => row,
                });
            }
        }
    }
    rows
}
