//! Figure 8: how much the parameters of sampling and classification matter.

use terrace_sim::{Scenario, number::float};

use crate::repro::row::{Claim, Input, Row};
use crate::repro::runs::{Load, Results, Run};
use crate::repro::{Experiment, ExperimentKind, File, Paper, Why};

/// Accesses per sample; what §6.4 finds best is the third.
const PERIODS: [u64; 5] = [1021, 2039, 4093, 8191, 16381];

/// Split periods, ms, and thresholds; what §6.4 finds best are the second ones.
const EPOCHS: [u32; 3] = [256, 512, 1024];
const THRESHOLDS: [u32; 3] = [5, 11, 22];

/// Figure 8.
pub const FIGURE_8: Experiment = Experiment {
    paper: Paper::Hypertier,
    name: "hypertier/figure-8",
    title: "Run time of updates by the parameters of sampling and classification, five VMs",
    kind: ExperimentKind::Figures,
    file: Some(File {
        name: "hypertier-figure-8",
        text: include_str!("../../../../../scenarios/hypertier-figure-8.toml"),
    }),
    inputs: &[
        Input {
            what: "five VMs of 4 vCPUs and 16 GiB; three iterations of 900 million updates, all of their time",
            from: "§6.2, §6.4; that the run time is that of all three is our reading",
        },
        Input {
            what: "the threshold of a load's latency has no place here: every sampled access reaches memory and takes longer \
                   than 80 cycles, so that all would be sampled",
            from: "docs/machine.md",
        },
        Input {
            what: "sampling is varied at a split period of 512 ms and a threshold of 11, these at a period of 4093. \
                   The others are \
                   twice and four times as much and as little, periods rounded to primes",
            from: "§6.4 for the middle ones, else our choice: the figure is a picture",
        },
        Input {
            what: "less than 10 %, around 4093, near 512 and 11, about 200 s",
            from: "§6.4",
        },
    ],
    runs,
    rows,
    why: &[
        Why::new(
            "split period of the shortest",
            "each epoch halves the hot ranges once, from a root of 40 TiB, and what is not found is served by PMem until \
             then, so a shorter epoch saves time. What an epoch costs is a walk of page tables, with next to no work \
             besides.",
        ),
        Why::new(
            "of the shortest",
            "run times hardly differ, so which is the shortest is chance. Samples are cheap here at any of these \
             periods, and a hot range has thousands of them in an epoch, where 88 are significant at a threshold of 11.",
        ),
    ],
};

/// Period, split period and threshold that §6.4 finds best.
const BEST: (u64, u32, u32) = (PERIODS[2], EPOCHS[1], THRESHOLDS[1]);

fn key(period: u64, epoch_ms: u32, threshold: u32) -> String {
    format!("period {period}, split period {epoch_ms} ms, threshold {threshold}")
}

/// Settings with each of the periods: period, split period and threshold.
fn sampling() -> [(u64, u32, u32); 5] {
    PERIODS.map(|period| (period, EPOCHS[1], THRESHOLDS[1]))
}

fn classification() -> Vec<(u64, u32, u32)> {
    let by_epoch = |epoch| THRESHOLDS.map(|threshold| (PERIODS[2], epoch, threshold));
    EPOCHS.into_iter().flat_map(by_epoch).collect()
}

fn runs(load: &Load) -> Vec<Run> {
    let mut all = sampling().to_vec();
    all.extend(classification());
    all.sort_unstable();
    all.dedup();
    all.into_iter().map(|of| run(load.base(), of)).collect()
}

fn run(base: &Scenario, (period, epoch, threshold): (u64, u32, u32)) -> Run {
    let policy = format!(
        "{{ base = \"hyperplace\", period = {period}, epoch_ms = {epoch}, tau_split = {threshold} }}"
    );
    Run::new(
        key(period, epoch, threshold),
        base.with_policy_text(&policy),
    )
}

/// Time until the last VM is done, s.
fn seconds(results: &Results, (period, epoch, threshold): (u64, u32, u32)) -> Result<f64, String> {
    let run = results.get(&key(period, epoch, threshold))?;
    let times = run.result.vms.iter().map(|vm| vm.runtime_s);
    Ok(times.fold(0.0, f64::max))
}

fn rows(results: &Results) -> Vec<Row> {
    let mut rows = Vec::new();
    for of in sampling() {
        let what = format!("run time, period {}", of.0);
        rows.push(Row::new(what, "s", Claim::Nothing, seconds(results, of)));
    }
    for of in classification() {
        let what = format!("run time, split period {} ms, threshold {}", of.1, of.2);
        let claim = if of == BEST {
            Claim::Is(200.0)
        } else {
            Claim::Nothing
        };
        rows.push(Row::new(what, "s", claim, seconds(results, of)));
    }
    let all = |of: &[(u64, u32, u32)]| -> Result<Vec<f64>, String> {
        of.iter().map(|of| seconds(results, *of)).collect()
    };
    let by_period = all(&sampling());
    let by_split = all(&classification());
    for (what, times) in [("periods", &by_period), ("splits", &by_split)] {
        let what = format!("longest run time over the shortest, {what}");
        let apart = times.clone().map(|times| (apart(&times) - 1.0) * 100.0);
        rows.push(Row::new(what, "% more", Claim::AtMost(10.0), apart));
    }
    let period = by_period.map(|times| PERIODS[shortest(&times)]);
    let split = by_split.map(|times| classification()[shortest(&times)]);
    let mut best = |what: &str, unit: &str, paper, ours: Result<u64, String>| {
        let what = format!("{what} of the shortest run time");
        rows.push(Row::new(what, unit, Claim::Is(paper), ours.map(float)));
    };
    best("period", "accesses", 4093.0, period);
    let epoch = split.clone().map(|(_, epoch, _)| u64::from(epoch));
    best("split period", "ms", 512.0, epoch);
    let threshold = split.map(|(.., threshold)| u64::from(threshold));
    best("split threshold", "accesses", 11.0, threshold);
    rows
}

fn apart(times: &[f64]) -> f64 {
    let (least, most) = times
        .iter()
        .fold((f64::MAX, 0.0_f64), |(least, most), time| {
            (least.min(*time), most.max(*time))
        });
    most / least
}

fn shortest(times: &[f64]) -> usize {
    let all = times.iter().enumerate();
    all.min_by(|a, b| a.1.total_cmp(b.1))
        .map_or(0, |(at, _)| at)
}
