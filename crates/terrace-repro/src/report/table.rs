//! The summary: every figure of every VM and run.

use terrace_sim::{Output, RunResult, VmResult, number::float, policy::is_unmanaged};

use super::cast::{Cast, place_label};
use super::format::{NONE, bytes, escaped, fixed, percent, short};
use crate::choice::{choices, money};
use crate::compare::way;

/// Rounds below which a policy's figures say little.
const FEW_ROUNDS: u64 = crate::compare::sensitivity::MIN_ROUNDS;
type Cell = fn(&VmResult) -> String;

/// Columns: head, what it means, cell.
const COLUMNS: [(&str, &str, Cell); 17] = [
    (
        "run time, s",
        "until its load ended, full-size machine",
        |vm| fixed(vm.runtime_s, 2),
    ),
    (
        "slowdown",
        "run time over that with every VM all-fast",
        slowdown,
    ),
    (
        "cost",
        "GiB held per tier, mean over time, times the tier's price; memory-mode's DRAM counts too",
        |vm| vm.cost.map_or(NONE.into(), money),
    ),
    (
        "performance per cost",
        "against all-fast: 1 is as much performance for the money",
        |vm| fixed(vm.performance_per_cost.unwrap_or(f64::NAN), 3),
    ),
    (
        "accesses/s",
        "memory accesses per second of its run time",
        |vm| short(vm.ops_per_s),
    ),
    ("p50, ns", "median time of one operation", |vm| {
        short(vm.p50_ns)
    }),
    ("p99, ns", "99th percentile of the same", |vm| {
        short(vm.p99_ns)
    }),
    (
        "fast hits",
        "share of the data accesses that the first tier serves",
        |vm| percent(vm.fast_hit_ratio),
    ),
    (
        "fast writes",
        "share of the writes that the first tier serves",
        |vm| percent(vm.fast_write_ratio),
    ),
    ("DRAM utility", "HMvisor's formula", |vm| {
        fixed(vm.dram_utility, 3)
    }),
    (
        "fast memory",
        "bytes of the first tier held, mean over time",
        |vm| bytes(vm.fast_bytes_mean),
    ),
    ("promoted", "4 KiB pages moved to a faster tier", |vm| {
        short(float(vm.promoted_pages))
    }),
    ("demoted", "4 KiB pages moved to a slower tier", |vm| {
        short(float(vm.demoted_pages))
    }),
    ("exits", "exits of its vCPUs to the host", |vm| {
        short(float(vm.vm_exits))
    }),
    (
        "major faults",
        "faults that waited for the swap device",
        |vm| short(float(vm.major_faults)),
    ),
    (
        "track / classify / migrate, s",
        "CPU time of management by stage",
        |vm| {
            let stages = [
                vm.overhead_s.track,
                vm.overhead_s.classify,
                vm.overhead_s.migrate,
            ];
            stages.map(short).join(" / ")
        },
    ),
    (
        "rounds",
        "rounds that the policy ended; fewer than 3 say little",
        rounds,
    ),
];

pub fn draw(cast: &Cast) -> String {
    let shared = cast.runs.iter().any(|run| run.result.share.is_some());
    let sizes = cast.runs.iter().any(|run| run.result.sweep.is_some());
    let swept = shared || sizes;
    let mut head = String::from("<th>VM</th><th>policy</th>");
    head += match (shared, sizes) {
        (true, true) => "<th>share, sweep</th>",
        (true, false) => "<th>share</th>",
        (false, true) => "<th>sweep</th>",
        (false, false) => "",
    };
    let ways = cast.runs.iter().any(|run| run.result.way.is_some());
    if ways {
        let meaning = "the part of the way from first-touch, 0, to static-best, 1, the best placement that stays";
        head += &format!("<th class=\"n\" title=\"{meaning}\">way</th>");
    }
    for (name, meaning, _) in COLUMNS {
        head += &format!("<th class=\"n\" title=\"{}\">{name}</th>", escaped(meaning));
    }
    let mut out = format!("<div class=\"wide\"><table>\n<thead><tr>{head}</tr></thead>\n");
    for name in &cast.vms {
        out += "<tbody>\n";
        for run in &cast.runs {
            let vms = run.result.vms.iter().filter(|vm| vm.name == **name);
            vms.for_each(|vm| out += &row(run, vm, [swept, ways]));
        }
        out += "</tbody>\n";
    }
    out += "</table></div>\n";
    let results: Vec<&RunResult> = cast.runs.iter().map(|run| &run.result).collect();
    for choice in choices(&results) {
        out += &format!("<p>{}.</p>\n", escaped(&choice.sentence()));
    }
    if way::has_failed(&results) {
        out += &format!("<p class=\"warn\">{}</p>\n", escaped(way::FAILED));
    }
    if cast
        .runs
        .iter()
        .flat_map(|r| &r.result.vms)
        .any(has_few_rounds)
    {
        out += "<p class=\"warn\">▲ marks fewer than 3 rounds: the load ended before the policy \
                could show what it does. Let it run longer.</p>\n";
    }
    out
}

fn row(run: &Output, vm: &VmResult, [swept, ways]: [bool; 2]) -> String {
    let guest = vm.guest_policy.as_ref();
    let guest = guest.map_or_else(String::new, |g| format!(" + {g} in the guest"));
    // The run's name of its policy, and what this VM had where that says less.
    let mut policy = run.result.policy.clone();
    if policy != vm.policy {
        policy += &format!(" ({})", vm.policy);
    }
    let mut cells = format!(
        "<th>{}</th><td>{}</td>",
        escaped(&vm.name),
        escaped(&(policy + &guest))
    );
    if swept {
        cells += &format!("<td>{}</td>", escaped(&place_label(run)));
    }
    if ways {
        let way = run.result.way.and_then(|way| way.0);
        cells += &format!(
            "<td class=\"n\">{}</td>",
            way.map_or(NONE.into(), |way| fixed(way, 2))
        );
    }
    for (_, _, cell) in COLUMNS {
        cells += &format!("<td class=\"n\">{}</td>", escaped(&cell(vm)));
    }
    format!("<tr>{cells}</tr>\n")
}

/// A VM's slowdown as text, with the bound that it is beyond.
fn slowdown(vm: &VmResult) -> String {
    let slowdown = vm.slowdown_vs_all_fast.unwrap_or(f64::NAN);
    let beyond = vm.max_slowdown.filter(|most| slowdown > *most);
    let bound = beyond.map_or_else(String::new, |most| format!(" > {most}"));
    fixed(slowdown, 3) + &bound
}

fn rounds(vm: &VmResult) -> String {
    if has_no_rounds(vm) {
        NONE.into()
    } else if has_few_rounds(vm) {
        format!("▲ {}", vm.rounds)
    } else {
        vm.rounds.to_string()
    }
}

fn has_few_rounds(vm: &VmResult) -> bool {
    vm.rounds < FEW_ROUNDS && !has_no_rounds(vm)
}

/// Whether neither the host nor the guest does anything.
fn has_no_rounds(vm: &VmResult) -> bool {
    vm.guest_policy.is_none() && is_unmanaged(&vm.policy)
}
