//! Updates in a VM beside others that load DRAM: is all of the hot set in DRAM still the best place for it?

use terrace_sim::Scenario;

use super::predicted;
use crate::repro::row::{Input, Row};
use crate::repro::runs::{Load, Results, Run};
use crate::repro::{Experiment, ExperimentKind, File, Paper};

/// Shares of antagonists, and the vCPUs of one: as many as the VM with the updates has, and twice as many (one of the second
/// is two of the first). Three of the first ask for most of DRAM's bandwidth, three of the second for more than there is.
const SHARES: [[u32; 2]; 6] = [[0, 8], [1, 8], [2, 8], [3, 8], [2, 16], [3, 16]];

/// Parts of the hot set that are in DRAM, in GiB; all of it is the last one.
const HOT_GIB: [u64; 8] = [1, 2, 3, 4, 5, 6, 7, 8];
const ALL_HOT: u64 = 8;

/// The hottest pages in the first tier, as many as there is room for, whatever that does to its load.
const HOTTEST: &str = "{ base = \"clairvoyant\", by = \"latency\" }";

const BEST: &str = "static-best";

/// Updates beside antagonists.
pub const ANTAGONISTS: Experiment = Experiment {
    paper: Paper::Ours,
    name: "ours/antagonists",
    title: "Gain of the best split of a hot set over all of it in DRAM, by the load of others on DRAM",
    kind: ExperimentKind::Prediction,
    file: Some(File {
        name: "gups-antagonists",
        text: include_str!("../../../../../scenarios/gups-antagonists.toml"),
    }),
    inputs: &[
        Input {
            what: "updates of 32 GiB by 8 vCPUs, 90 % of them to a hot set of 8 GiB; DRAM and CXL memory of vTMM's table 1",
            from: "our choice",
        },
        Input {
            what: "a share of antagonists is 8 vCPUs, or 16, of another VM that read 8 GiB of DRAM as a stream, again and again",
            from: "our choice",
        },
        Input {
            what: "splits with 1 to 8 GiB of the hot set in DRAM; what is not hot is in CXL memory, so that DRAM that the hot \
                   set leaves stays empty",
            from: "our choice",
        },
        Input {
            what: "static-best: the split that our bound finds by itself with 8 GiB of DRAM",
            from: "docs/simulator.md",
        },
    ],
    runs,
    rows,
    why: &[],
};

fn key([shares, vcpus]: [u32; 2], gib: u64) -> String {
    format!("{shares} × {vcpus}, {gib}")
}

fn best_key([shares, vcpus]: [u32; 2]) -> String {
    format!("{shares} × {vcpus}, {BEST}")
}

/// The scenario with so many shares of antagonists, and so much DRAM for the updates, under a policy of the latter.
fn beside(
    load: &Load,
    [shares, vcpus]: [u32; 2],
    gib: u64,
    policy: &str,
) -> Result<Scenario, String> {
    let base = load.base();
    let updates = base.with_policy_text(policy)?.vms[0].clone();
    let mut scenario = base.clone();
    scenario.vms[0] = updates;
    scenario.vms[0].sizes[0] = gib << 30;
    if shares == 0 {
        scenario.vms.truncate(1);
    } else {
        scenario.vms[1].vcpus = shares * vcpus;
    }
    scenario.check().map_err(|fault| fault.to_string())?;
    Ok(scenario)
}

fn runs(load: &Load) -> Vec<Run> {
    let mut runs = Vec::new();
    for shares in SHARES {
        for gib in HOT_GIB {
            runs.push(Run::new(
                key(shares, gib),
                beside(load, shares, gib, HOTTEST),
            ));
        }
        let best = beside(load, shares, ALL_HOT, &format!("\"{BEST}\""));
        runs.push(Run::new(best_key(shares), best));
    }
    runs
}

/// Updates a second of a run, million.
fn millions(results: &Results, key: &str) -> Result<f64, String> {
    Ok(results.get(key)?.vm()?.ops_per_s / 1e6)
}

/// The hot GiB in DRAM with which most updates are made, and how many million a second.
fn best(results: &Results, shares: [u32; 2]) -> Result<(u64, f64), String> {
    let mut best = (ALL_HOT, millions(results, &key(shares, ALL_HOT))?);
    for gib in HOT_GIB {
        let rate = millions(results, &key(shares, gib))?;
        if rate > best.1 {
            best = (gib, rate);
        }
    }
    Ok(best)
}

fn rows(results: &Results) -> Vec<Row> {
    let mut rows = Vec::new();
    for shares in SHARES {
        let [count, vcpus] = shares;
        let what = |figure: &str| match count {
            0 => format!("no antagonists: {figure}"),
            _ => format!("antagonists × {count}, {vcpus} vCPUs each: {figure}"),
        };
        let all = key(shares, ALL_HOT);
        let found = best(results, shares);
        rows.push(predicted(
            what("updates with all of the hot set in DRAM"),
            "million/s",
            millions(results, &all),
        ));
        let share = found.clone().map(|(gib, _)| {
            100.0 * terrace_sim::number::float(gib) / terrace_sim::number::float(ALL_HOT)
        });
        rows.push(predicted(
            what("best part of the hot set in DRAM"),
            "%",
            share,
        ));
        let gain = found.and_then(|(gib, _)| results.faster_percent(&key(shares, gib), &all));
        rows.push(predicted(what("gain of the best split"), "%", gain));
        let bound = results.faster_percent(&best_key(shares), &all);
        rows.push(predicted(what("gain of static-best"), "%", bound));
    }
    rows
}
