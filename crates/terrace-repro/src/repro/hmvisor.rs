//! HMvisor §4.3: how much of Graph500's writes is kept away from NVM.

use terrace_sim::{Scenario, VmResult, number::float};

use super::order::{self, System};
use super::row::{Claim, Input, Row};
use super::runs::{Load, Results, Run};
use super::{Experiment, ExperimentKind, File, Paper, Why};

/// NUMA-Interleave.
const INTERLEAVE: &str = "interleave";

/// HMvisor as in figure 7, with its own defaults: 50 sub-epochs, and pages counted above 30 times are hot.
const HMVISOR: &str = "hmvisor";

/// HMvisor's own bars in figure 8, by the threshold from which a page is hot.
const THRESHOLDS: [&str; 3] = ["H1", "H3", "H8"];

/// Policies in the order of figure 8, HMvisor's defaults, and `vtmm` for scale; and both of these beside a guest that moves the pages.
const POLICIES: [(&str, &str); 9] = [
    (INTERLEAVE, "\"interleave\""),
    (
        "raminate",
        "{ base = \"raminate\", scan_ms = 1000, migrate_ms = 1000, decay_ms = 5000 }",
    ),
    ("vtmm", "\"vtmm\""),
    (
        "H1",
        "{ base = \"hmvisor\", lists = 8, sub_epochs = 10, hotness_threshold = 1 }",
    ),
    (
        "H3",
        "{ base = \"hmvisor\", lists = 8, sub_epochs = 10, hotness_threshold = 3 }",
    ),
    (
        "H8",
        "{ base = \"hmvisor\", lists = 8, sub_epochs = 10, hotness_threshold = 8 }",
    ),
    (HMVISOR, "\"hmvisor\""),
    (
        "vtmm, the guest moves",
        "{ base = \"vtmm\", move = \"guest\" }",
    ),
    (
        "HMvisor, the guest moves",
        "{ base = \"hmvisor\", move = \"guest\" }",
    ),
];

/// NVM's writes that HMvisor saves, %.
const SAVED: f64 = 50.0;

/// 10^9 bytes.
const GB: f64 = 1e9;

/// §4.3.
const WRITES: Experiment = Experiment {
    paper: Paper::Hmvisor,
    name: "hmvisor/graph500-writes",
    title: "Bytes that Graph500 writes to DRAM and to NVM",
    kind: ExperimentKind::Figures,
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
            what: "NVM's writes fall by 50 %: the one figure of what is saved that the text has; figures 7 and 8 \
                   are pictures",
            from: "abstract",
        },
        Input {
            what: "512 MiB of DRAM, half of Graph500's memory here; interleaving has 512 MiB of each, so that it \
                   takes as much DRAM and writes evenly (§4.2); 64 searches of one graph; 300 s",
            from: "our choice",
        },
        Input {
            what: "an even split is what interleaving gives in the paper (§4.2): savings are against half of the program's \
                   own writes, whatever interleaving gives here",
            from: "§4.2",
        },
        Input {
            what: "figure 8 compares 8 lists, epochs of 10 sub-epochs of 100 ms and thresholds of 1, 3 and 8 with RAMinate, \
                   which scans and moves once a second and lets pages sink after 5 s",
            from: "§4.3, figure 8",
        },
        Input {
            what: "the host moves pages, but for two rows beside figure 8: there the guest moves what is named, 1,024 frames a second, as in the paper \
                   (§3.2); HMvisor then reads accesses from the guest's page tables, as in the daemon",
            from: "docs/simulator.md",
        },
        Input {
            what: "a page that moves is written once to where it goes, and counts there",
            from: "§4.2 counts the memory channels' traffic",
        },
    ],
    runs,
    rows,
    why: &[
        Why::new(
            "HMvisor, NVM's writes saved",
            "behind the cache a search's writes are spread over most of its memory, and few pages are written or read \
             in more than 30 of 50 sub-epochs: DRAM stays nearly empty, so next to nothing is saved in NVM. What \
             it does hold is written several times as much as an even share.",
        ),
        Why::new(
            "order of systems",
            "lists hold back whatever does not exceed the threshold in as many epochs as there are lists, and \
             single-sided moves send the rest down again while room is left; interleaving and RAMinate fill DRAM with \
             whatever comes.",
        ),
    ],
};

/// The experiments of HMvisor.
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

/// Gives the VM and the machine as much slow memory as the VM has fast memory: interleaving deals pages in proportion
/// to the VM's sizes.
fn even(scenario: &mut Scenario) {
    let fast = scenario.vms[0].sizes[0];
    scenario.vms[0].sizes[1] = fast;
    scenario.machine.tiers[1].bytes = fast;
}

fn rows(results: &Results) -> Vec<Row> {
    let mut rows = Vec::new();
    for (name, _) in POLICIES {
        if name == HMVISOR {
            continue;
        }
        for (tier, what) in ["DRAM", "NVM"].iter().enumerate() {
            let vm = results.get(name).and_then(|run| run.vm());
            let written = vm.map(|vm| written(vm, tier) / GB);
            let what = format!("{name}, written to {what}");
            rows.push(Row::new(what, "GB", Claim::Nothing, written));
        }
        if name != INTERLEAVE {
            let vm = results.get(name).and_then(|run| run.vm());
            let what = format!("{name}, NVM's writes saved against an even split");
            rows.push(Row::new(what, "%", Claim::Nothing, vm.map(saved)));
        }
    }
    let hmvisor = results.get(HMVISOR).and_then(|run| run.vm());
    let what = "HMvisor, NVM's writes saved against an even split";
    rows.push(Row::new(what, "%", Claim::Is(SAVED), hmvisor.map(saved)));
    // What is at hand of the text puts HMvisor ahead of both, and says nothing of these two.
    let others = [INTERLEAVE, "raminate"].map(|name| {
        let vm = results.get(name).and_then(|run| run.vm());
        System::new(2.0, vm.map(|vm| written(vm, 1)))
    });
    let own = THRESHOLDS.map(|name| {
        let vm = results.get(name).and_then(|run| run.vm());
        System::new(1.0, vm.map(|vm| written(vm, 1)))
    });
    let systems = own.into_iter().chain(others).collect();
    rows.push(order::row("order of systems, written to NVM", &[systems]));
    rows
}

/// How much less is written to NVM than half of what the program writes, %.
fn saved(vm: &VmResult) -> f64 {
    let program: u64 = vm.tier_written_bytes.iter().sum();
    (1.0 - written(vm, 1) / (float(program) / 2.0)) * 100.0
}

/// Bytes written to a tier, moves included.
fn written(vm: &VmResult, tier: usize) -> f64 {
    let moved = [vm.promoted_pages, vm.demoted_pages];
    float(vm.tier_written_bytes[tier] + moved[tier] * terrace_proto::PAGE_SIZE)
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
    fn savings_are_against_half_of_all_writes_and_count_moves() {
        let vm = VmResult {
            tier_written_bytes: vec![6 << 20, 2 << 20],
            demoted_pages: 256,
            promoted_pages: 512,
            ..VmResult::default()
        };
        assert_eq!(written(&vm, 0), float(8 << 20));
        assert_eq!(written(&vm, 1), float(3 << 20));
        assert_eq!(saved(&vm), 25.0);
    }

    #[test]
    fn each_bar_of_hmvisor_has_a_run_and_a_row() {
        let load = Load::new(&WRITES.file.unwrap(), 1, None).unwrap();
        let runs = runs(&load);
        assert_eq!(runs.len(), POLICIES.len());
        for run in &runs {
            run.scenario.as_ref().unwrap().check().unwrap();
        }
        let rows = rows(&Results::default());
        for name in THRESHOLDS {
            let what = format!("{name}, written to NVM");
            assert!(rows.iter().any(|row| row.what == what), "{what}");
        }
        assert!(rows.iter().all(|row| row.simulated.is_none()));
    }
}
