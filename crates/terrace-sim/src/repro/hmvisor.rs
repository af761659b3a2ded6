//! HMvisor §4.3: how much of Graph500's writes is kept away from NVM.

use super::row::{Claim, Input, Row};
use super::runs::{Load, Measured, Results, Run};
use super::{Experiment, File, Kind, Paper};
use crate::number::float;
use crate::scenario::Scenario;

/// NUMA-Interleave.
const INTERLEAVE: &str = "interleave";

/// Policies in the order of figure 8, and `vtmm` for scale.
const POLICIES: [(&str, &str); 3] = [
    (INTERLEAVE, "\"interleave\""),
    ("raminate", "\"raminate\""),
    ("vtmm", "\"vtmm\""),
];

/// HMvisor's own bars in figure 8, by the threshold from which a page is hot.
const THRESHOLDS: [&str; 3] = ["H1", "H3", "H8"];

/// What they wait for.
const WAITS: &str = "it waits for the policy hmvisor";

/// NVM's writes that HMvisor saves, %.
const SAVED: f64 = 50.0;

/// 10^9 bytes.
const GB: f64 = 1e9;

/// §4.3.
const WRITES: Experiment = Experiment {
    paper: Paper::Hmvisor,
    name: "hmvisor/graph500-writes",
    title: "Bytes that Graph500 writes to DRAM and to NVM",
    kind: Kind::Figures,
    file: Some(File {
        name: "hmvisor-graph500",
        text: include_str!("../../../../scenarios/hmvisor-graph500.toml"),
    }),
    inputs: &[
        Input {
            what: "Graph500 of scale 21 and edge factor 30 on 2 vCPUs, all data on NVM at first; NVM is another \
                   node's DRAM",
            from: "§4.1",
        },
        Input {
            what: "NVM's writes fall by 50 %: the one figure of §4.3 that the text has; figures 7 and 8 are \
                   pictures",
            from: "abstract",
        },
        Input {
            what: "512 MiB of DRAM, half of Graph500's memory here; interleaving has 512 MiB of each, so that it \
                   takes as much DRAM and writes evenly (§4.2); 64 searches of one graph; 300 s",
            from: "our choice",
        },
        Input {
            what: "a page that moves is written once to where it goes, and counts there",
            from: "§4.1 counts the memory channels' traffic",
        },
    ],
    runs,
    rows,
    why: &[],
};

/// Its experiments.
pub const EXPERIMENTS: &[&Experiment] = &[&WRITES];

fn runs(load: &Load) -> Vec<Run> {
    let runs = POLICIES.iter().map(|(name, policy)| {
        let mut base = load.base().clone();
        if *name == INTERLEAVE {
            even(&mut base);
        }
        Run::new(*name, base.with_policy_text(policy))
    });
    runs.collect()
}

/// As much slow memory as fast: interleaving deals pages in proportion to the VM's sizes.
fn even(scenario: &mut Scenario) {
    let fast = scenario.vms[0].sizes[0];
    scenario.vms[0].sizes[1] = fast;
    scenario.machine.tiers[1].bytes = fast;
}

fn rows(results: &Results) -> Vec<Row> {
    let mut rows = Vec::new();
    for (name, _) in POLICIES {
        for (tier, what) in ["DRAM", "NVM"].iter().enumerate() {
            let written = results.get(name).and_then(|run| written(run, tier));
            let written = written.map(|bytes| bytes / GB);
            let what = format!("{name}, written to {what}");
            rows.push(Row::new(what, "GB", Claim::Nothing, written));
        }
        if name != INTERLEAVE {
            let what = format!("{name}, NVM's writes saved against interleaving");
            rows.push(Row::new(what, "%", Claim::Nothing, saved(results, name)));
        }
    }
    for name in THRESHOLDS {
        let what = format!("{name}, written to NVM");
        rows.push(Row::new(what, "GB", Claim::Nothing, Err(WAITS.into())));
    }
    let what = "HMvisor, NVM's writes saved against interleaving";
    rows.push(Row::new(what, "%", Claim::Is(SAVED), Err(WAITS.into())));
    rows
}

/// Part of the writes that a policy keeps away from NVM where interleaving does not, %. For the same work:
/// who writes faster writes more.
fn saved(results: &Results, name: &str) -> Result<f64, String> {
    let per_access = |name: &str| {
        let run = results.get(name)?;
        let vm = run.vm()?;
        Ok::<f64, String>(written(run, 1)? / (vm.ops_per_s * vm.runtime_s))
    };
    Ok((1.0 - per_access(name)? / per_access(INTERLEAVE)?) * 100.0)
}

/// Bytes written to a tier, moves included.
fn written(run: &Measured, tier: usize) -> Result<f64, String> {
    let vm = run.vm()?;
    let moved = if tier == 0 {
        vm.promoted_pages
    } else {
        vm.demoted_pages
    };
    let bytes = vm.tier_written_bytes.get(tier);
    let bytes = bytes.ok_or("the machine has one tier")?;
    Ok(float(bytes + moved * terrace_proto::PAGE_SIZE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interleaving_has_as_much_dram_as_the_others_and_as_much_nvm() {
        let load = Load::new(&WRITES.file.unwrap(), 1, None).unwrap();
        let runs = runs(&load);
        let sizes = |at: usize| runs[at].scenario.as_ref().unwrap().vms[0].sizes.clone();
        assert_eq!(sizes(0), [512 << 20, 512 << 20]);
        assert_eq!(sizes(2), [512 << 20, 1024 << 20]);
        runs[0].scenario.as_ref().unwrap().check().unwrap();
    }

    #[test]
    fn what_waits_for_the_policy_is_a_place_and_no_figure() {
        let rows = rows(&Results::default());
        let waits = rows.iter().filter(|r| r.missing.as_deref() == Some(WAITS));
        assert_eq!(waits.count(), THRESHOLDS.len() + 1);
        assert!(rows.iter().all(|row| row.simulated.is_none()));
    }
}
