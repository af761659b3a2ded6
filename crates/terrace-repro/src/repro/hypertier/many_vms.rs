//! Figures 1, 6 and 7: what management costs, and what it is good for, by the number of VMs.

use terrace_sim::{Overhead, Scenario, Vm, VmResult, number::float};

use super::{BY_THE_LETTER, LITERAL, OTHERS, OWN, POLICIES, places, policy_text};
use crate::repro::order::{self, System};
use crate::repro::row::{Claim, Input, Row};
use crate::repro::runs::{Load, Measured, Results, Run};
use crate::repro::{Experiment, ExperimentKind, Figure, File, Paper, Why};

const FILE: Option<File> = Some(File {
    name: "hypertier-gups-9",
    text: include_str!("../../../../../scenarios/hypertier-gups-9.toml"),
});

/// vCPUs that VMs share in figure 1.
const VCPUS: u32 = 36;

/// VMs of figure 1, each of which has as many vCPUs as the others.
const TOGETHER: [u32; 4] = [1, 3, 6, 9];

/// VMs of figure 6, of 4 vCPUs each.
const SIDE_BY_SIDE: [u32; 3] = [1, 5, 9];

/// VMs of the scenario file.
const ALL: u32 = 9;

/// MiB that are worked on, and updates, in all VMs of the scenario file together.
const WORKED_ON: u32 = 126 * 1024;
const UPDATES: u64 = 8_100_000_000;

/// Figure 1.
pub const FIGURE_1: Experiment = Experiment {
    paper: Paper::Hypertier,
    name: "hypertier/figure-1",
    title: "What management costs, by the number of VMs that do the same updates together",
    kind: ExperimentKind::Figures,
    file: FILE,
    inputs: &[
        Input {
            what: "36 vCPUs, 126 GiB that are worked on and 8.1 billion updates, divided evenly; 4 GiB of memory \
                   per vCPU, a fifth of it DRAM; latencies and bandwidths of table 2",
            from: "§3.2",
        },
        Input {
            what: "a seventh of the memory is hot and updated ten times as often as the rest together; it is the \
                   end of memory",
            from: "§6.2; that it is the end, GUPS's own way",
        },
        Input {
            what: "1, 3, 6 and 9 VMs of the six numbers that divide the 36 vCPUs",
            from: "our choice, for time",
        },
        Input {
            what: "cores are CPU time of sampling, classification and migration over the run's time. Three and \
                   a half (\"more than\") are the text's, of TPP; all else is a picture",
            from: "§3.2",
        },
        BY_THE_LETTER,
    ],
    runs: |load| {
        let runs = TOGETHER.into_iter().flat_map(|vms| {
            POLICIES.map(|(policy, _)| run(together(load, vms), policy, key(policy, vms)))
        });
        runs.collect()
    },
    rows: figure_1_rows,
    why: &[Why {
        rows: "tpp, 9 VMs",
        text: "each cold page is updated every few seconds, so it is found active at a later hint, and TPP promotes it: \
               many times the pages that are hot. If the cold part is hardly touched (weight = 1000 instead of 10), TPP \
               takes {untouched} cores. How many pages the paper's TPP moved, its text does not say.",
        figures: &[Figure {
            name: "untouched",
            what: "tpp, 9 VMs, the cold part hardly touched (weight = 1000): cores",
            value: "0.99",
            runs: |load| {
                let weighted = load.workload(&format!(
                    "{{ kind = \"gups\", preset = \"hypertier\", weight = 1000, ops = {} }}",
                    UPDATES / u64::from(ALL)
                ));
                let scenario = weighted.map(|weighted| {
                    let mut all = load.base().clone();
                    for vm in &mut all.vms {
                        vm.workload = weighted.vms[0].workload.clone();
                    }
                    all
                });
                vec![run(scenario, "tpp", "tpp".into())]
            },
            of: |results| results.get("tpp").map(cores),
        }],
    }],
};

/// Figure 6.
pub const FIGURE_6: Experiment = Experiment {
    paper: Paper::Hypertier,
    name: "hypertier/figure-6",
    title: "Updates a second in each VM, by the number of VMs of 4 vCPUs side by side",
    kind: ExperimentKind::Figures,
    file: FILE,
    inputs: &[
        Input {
            what: "VMs of 4 vCPUs and 16 GiB, a fifth of it DRAM; 14 GiB are worked on; 900 million updates each",
            from: "§6.1, §6.2",
        },
        Input {
            what: "the mean over one iteration from the start, in which pages find their places; the paper measures \
                   the third of three",
            from: "our choice, for time",
        },
        Input {
            what: "that HyperPlace is ahead of all others, and TPP second, with up to five VMs, is the text's; how far, a \
                   picture's",
            from: "§6.3",
        },
        BY_THE_LETTER,
    ],
    runs: |load| {
        let runs = SIDE_BY_SIDE.into_iter().flat_map(|vms| {
            POLICIES.map(|(policy, _)| run(Ok(side_by_side(load, vms)), policy, key(policy, vms)))
        });
        runs.collect()
    },
    rows: figure_6_rows,
    why: &[
        Why {
            rows: "by the letter over the best other",
            text: "by the letter a new ranking is followed whatever makes it differ, and samples never rank the cold \
                   ranges for which fast memory has room the same twice; and what the first ranges, of many GiB, made \
                   it ask for is carried out before newer requests. One VM promotes {moved} GiB in this run, where 2 GiB \
                   are hot. docs/baselines/hyperplace.md has where ours departs from the letter.",
            figures: &[Figure {
                name: "moved",
                what: "hyperplace by the letter, 1 VM: promoted, GiB",
                value: "22.3",
                runs: |load| {
                    let key = key(LITERAL, 1);
                    vec![run(Ok(side_by_side(load, 1)), LITERAL, key)]
                },
                of: |results| {
                    let pages = results.get(&key(LITERAL, 1))?.vm()?.promoted_pages;
                    Ok(float(pages) / float(1 << 18))
                },
            }],
        },
        Why::new(
            "order of systems, with hyperplace by the letter",
            "the paper's second is TPP, and here Memtis is ahead of it; and what is moved in vain costs the letter its first place: \
             see the rows above.",
        ),
        Why::new(
            "order of systems",
            "the paper's second is TPP, because its Memtis does not find the hot part (§6.3); this one does, as updates \
             are sampled as loads too.",
        ),
    ],
};

/// Figure 7.
pub const FIGURE_7: Experiment = Experiment {
    paper: Paper::Hypertier,
    name: "hypertier/figure-7",
    title: "What each stage of management costs on nine VMs",
    kind: ExperimentKind::Figures,
    file: FILE,
    inputs: &[
        Input {
            what: "nine VMs as in figure 6; CPU time per VM",
            from: "§6.3",
        },
        Input {
            what: "ratios are the text's, those against Nomad and TPP \"up to\" it; seconds are a picture's",
            from: "§6.3",
        },
        BY_THE_LETTER,
        Input {
            what: "sampling: work on records, scans of page tables, hinting faults and shootdowns for them; \
                   classification: LRU lists, histograms, ranges and walks for what to move; migration: all of \
                   moving",
            from: "our choice: §6.3 does not draw the lines",
        },
    ],
    runs: |load| {
        POLICIES
            .map(|(policy, _)| run(Ok(side_by_side(load, ALL)), policy, key(policy, ALL)))
            .into()
    },
    rows: figure_7_rows,
    why: &[
        Why::new(
            "sampling of memtis",
            "a record costs both the same here, and Memtis takes one for each 199 loads, hyperplace one for each 4093 \
             loads and one for each 4093 stores: 10.3 times as many, and no more than that. That Memtis's thread polls \
             its buffers is not modelled, nor loads that hit the caches, which hyperplace's threshold of 80 leaves out.",
        ),
        Why::new(
            "classification of memtis",
            "all of it is looking at pages of its lists, each 100,000 samples anew, at an estimated 150 ns a page; \
             hyperplace's is walking page tables, 3 ns an entry. The paper's Memtis does not find the hot part, and so \
             has less to look for; this one does, as updates are sampled as loads too.",
        ),
        Why::new(
            "classification of",
            "both are the same lists of the same kernel here, and differ by how long the run takes and how much is \
             moved; looking at a page is estimated at 150 ns. hyperplace's part is a survey of the entries that it asks \
             about in each epoch; agent and simulation drive one controller.",
        ),
        Why::new(
            "over hyperplace's by the letter",
            "by the letter the migration thread hardly rests: what changes its place in the ranking by chance is moved as \
             well (figure 6).",
        ),
        Why::new(
            "migration of",
            "page tables in PMem make each update slower, so runs take longer, and what moves all the time moves more; \
             hyperplace moves until the hot part is in place.",
        ),
        Why::new(
            "order of systems",
            "Memtis classifies in less time than HyperPlace in the paper and in more here: see classification of memtis.",
        ),
    ],
};

fn key(policy: &str, vms: u32) -> String {
    format!("{policy}, {}", counted(vms))
}

fn counted(vms: u32) -> String {
    let plural = if vms == 1 { "" } else { "s" };
    format!("{vms} VM{plural}")
}

fn run(scenario: Result<Scenario, String>, policy: &str, key: String) -> Run {
    let text = policy_text(policy);
    Run::new(key, scenario.and_then(|all| all.with_policy_text(text)))
}

/// The scenario with so many VMs, each with an equal part of what the nine have.
fn together(load: &Load, vms: u32) -> Result<Scenario, String> {
    let mut scenario = load.workload(&format!(
        "{{ kind = \"gups\", preset = \"hypertier\", size = \"{}MiB\", ops = {} }}",
        WORKED_ON / vms,
        UPDATES / u64::from(vms)
    ))?;
    let first = scenario.vms[0].clone();
    let part = |bytes: &u64| bytes * u64::from(ALL) / u64::from(vms);
    let vm = |number| Vm {
        name: format!("vm{number}"),
        vcpus: VCPUS / vms,
        sizes: first.sizes.iter().map(part).collect(),
        ..first.clone()
    };
    scenario.vms = (1..=vms).map(vm).collect();
    Ok(scenario)
}

/// The scenario with so many of its nine VMs.
fn side_by_side(load: &Load, vms: u32) -> Scenario {
    let mut scenario = load.base().clone();
    scenario.vms.truncate(terrace_sim::number::index(vms));
    for (i, tier) in scenario.machine.tiers.iter_mut().enumerate() {
        tier.bytes = scenario.vms.iter().map(|vm| vm.sizes[i]).sum();
    }
    scenario
}

fn figure_1_rows(results: &Results) -> Vec<Row> {
    let mut rows = Vec::new();
    for (policy, _) in POLICIES {
        for vms in TOGETHER {
            let key = key(policy, vms);
            let claim = match (policy, vms) {
                ("tpp", ALL) => Claim::Is(3.5),
                _ => Claim::Nothing,
            };
            let cores = results.get(&key).map(cores);
            rows.push(Row::new(key, "cores", claim, cores));
        }
    }
    for own in OWN {
        for vms in TOGETHER {
            let what = format!("updates of {own} over the best other's, {}", counted(vms));
            rows.push(Row::new(
                what,
                "ratio",
                Claim::Nothing,
                ahead(results, own, vms),
            ));
        }
    }
    rows
}

fn figure_6_rows(results: &Results) -> Vec<Row> {
    let updates = |policy: &str, vms| results.get(&key(policy, vms)).map(updates);
    let mut rows = Vec::new();
    for (policy, _) in POLICIES {
        for vms in SIDE_BY_SIDE {
            let updates = updates(policy, vms).map(|updates| updates / 1e6);
            rows.push(Row::new(key(policy, vms), "M/s", Claim::Nothing, updates));
        }
    }
    for own in OWN {
        for vms in SIDE_BY_SIDE {
            let what = format!("{own} over the best other, {}", counted(vms));
            let ahead = ahead(results, own, vms);
            rows.push(Row::new(what, "ratio", Claim::AtLeast(1.0), ahead));
        }
        // TPP is second, and like the others with more than five VMs.
        let comparisons = SIDE_BY_SIDE.map(|vms| {
            let tpp = if vms > 5 { 3.0 } else { 2.0 };
            let systems = [(1.0, own), (tpp, "tpp"), (3.0, "memtis"), (3.0, "nomad")];
            places(&systems, |policy| updates(policy, vms))
        });
        let what = format!("order of systems, with {own}");
        rows.push(order::row(&what, &comparisons));
    }
    rows
}

/// A stage's name and its part of an overhead.
type Stage = (&'static str, fn(&Overhead) -> f64);

const STAGES: [Stage; 3] = [
    ("sampling", |spent| spent.track),
    ("classification", |spent| spent.classify),
    ("migration", |spent| spent.migrate),
];

/// The text's claims about ratios: index of a stage in [`STAGES`], the policy that is compared, and its seconds over
/// `hyperplace`'s.
const RATIOS: [(usize, &str, Claim); 7] = [
    (0, "memtis", Claim::Is(29.0)),
    (1, "nomad", Claim::Is(8.4)),
    (2, "nomad", Claim::Is(18.4)),
    (1, "tpp", Claim::Is(2.5)),
    (2, "tpp", Claim::Is(7.7)),
    (1, "memtis", Claim::AtMost(1.0)),
    (2, "memtis", Claim::AtMost(1.0)),
];

/// The order of the text in each stage: index in [`STAGES`], and policies by their time, HyperPlace's being 1.
const STAGE_ORDERS: [(usize, &[(f64, &str)]); 3] = [
    (0, &[(29.0, "memtis")]),
    (1, &[(8.4, "nomad"), (2.5, "tpp"), (0.9, "memtis")]),
    (2, &[(18.4, "nomad"), (7.7, "tpp"), (0.9, "memtis")]),
];

fn figure_7_rows(results: &Results) -> Vec<Row> {
    let seconds = |policy: &str, (_, of): Stage| {
        let run = results.get(&key(policy, ALL))?;
        Ok(mean(run, |vm| of(&vm.overhead_s)))
    };
    let mut rows = Vec::new();
    for (policy, _) in POLICIES {
        for stage in STAGES {
            let what = format!("{policy}, {}", stage.0);
            rows.push(Row::new(what, "s", Claim::Nothing, seconds(policy, stage)));
        }
    }
    for (own, whose) in OWN
        .into_iter()
        .zip(["hyperplace's", "hyperplace's by the letter"])
    {
        for (stage, other, claim) in RATIOS {
            let what = format!("{} of {other} over {whose}", STAGES[stage].0);
            let ours = seconds(own, STAGES[stage]);
            let ratio = ours.and_then(|ours| Ok(seconds(other, STAGES[stage])? / ours));
            rows.push(Row::new(what, "ratio", claim, ratio));
        }
        let comparisons = STAGE_ORDERS.map(|(stage, others)| {
            let system =
                |(times, policy): &(f64, &str)| System::new(*times, seconds(policy, STAGES[stage]));
            let ours = System::new(1.0, seconds(own, STAGES[stage]));
            [ours]
                .into_iter()
                .chain(others.iter().map(system))
                .collect()
        });
        let what = format!("order of systems in the three stages, with {own}");
        rows.push(order::row(&what, &comparisons));
    }
    rows
}

/// Processors that management keeps busy.
fn cores(run: &Measured) -> f64 {
    let spent = |vm: &VmResult| STAGES.iter().map(|(_, of)| of(&vm.overhead_s)).sum::<f64>();
    run.result.vms.iter().map(spent).sum::<f64>() / run.result.simulated_s
}

/// Updates a second, mean over the VMs.
fn updates(run: &Measured) -> f64 {
    mean(run, |vm| vm.ops_per_s)
}

fn mean(run: &Measured, of: impl Fn(&VmResult) -> f64) -> f64 {
    let vms = &run.result.vms;
    vms.iter().map(of).sum::<f64>() / float(vms.len() as u64)
}

/// Updates a second of one of HyperTier's own policies, over those of the best of the others.
fn ahead(results: &Results, own: &str, vms: u32) -> Result<f64, String> {
    let of = |policy: &str| Ok::<f64, String>(updates(results.get(&key(policy, vms))?));
    let mut best = 0.0_f64;
    for other in OTHERS {
        best = best.max(of(other)?);
    }
    Ok(of(own)? / best)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load() -> Load {
        Load::new(&FILE.unwrap(), 1, None).unwrap()
    }

    #[test]
    fn vms_together_have_what_the_nine_have() {
        let load = load();
        for vms in TOGETHER {
            let scenario = together(&load, vms).unwrap();
            scenario.check().unwrap();
            let sum = |of: fn(&Vm) -> u64| scenario.vms.iter().map(of).sum::<u64>();
            assert_eq!(sum(|vm| u64::from(vm.vcpus)), 36);
            assert_eq!(sum(|vm| vm.sizes[0]), scenario.machine.tiers[0].bytes);
            assert_eq!(sum(|vm| vm.sizes[1]), scenario.machine.tiers[1].bytes);
        }
        // So figures 1, 6 and 7 share their runs.
        let nine = run(together(&load, ALL), "tpp", String::new());
        assert!(nine.same(&run(Ok(side_by_side(&load, ALL)), "tpp", String::new())));
    }

    #[test]
    fn fewer_vms_have_a_smaller_machine() {
        let scenario = side_by_side(&load(), 5);
        scenario.check().unwrap();
        assert_eq!(scenario.vms.len(), 5);
        assert_eq!(scenario.machine.tiers[0].bytes, (5 * 3276) << 20);
    }
}
