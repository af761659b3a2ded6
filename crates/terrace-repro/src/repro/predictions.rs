//! vTMM §4.6 and §4.9.1: set-ups whose results are not in the text at hand. What comes of them is a
//! prediction; no figure stands beside it.

use terrace_sim::number::float;

use super::row::{Claim, Input, Row};
use super::runs::{Load, Results, Run};
use super::{Experiment, ExperimentKind, File, Paper};

/// Hot shares of memory, %. The text at hand breaks off before §4.6 says which.
const HOT: [u64; 8] = [10, 20, 30, 40, 50, 60, 70, 80];

/// Policies of §4.6: their names, and as a scenario has them.
const ONE_VM: [(&str, &str); 3] = [
    ("vtmm-paper", "\"vtmm-paper\""),
    ("vtmm", "\"vtmm\""),
    (AUTONUMA, "\"autonuma\""),
];

/// Policies of §4.9.1.
const FOUR_VMS: [(&str, &str); 6] = [
    (
        "vtmm-paper island",
        "{ base = \"vtmm-paper\", share = \"island\" }",
    ),
    (
        "vtmm-paper pool",
        "{ base = \"vtmm-paper\", share = \"pool\" }",
    ),
    ("vtmm island", "{ base = \"vtmm\", share = \"island\" }"),
    ("vtmm pool", "{ base = \"vtmm\", share = \"pool\" }"),
    ("memory-mode", "\"memory-mode\""),
    (AUTONUMA, "\"autonuma\""),
];

/// The policy with which the paper compares.
const AUTONUMA: &str = "autonuma";

/// The run to which slowdowns are relative.
const FAST: &str = "all-fast";

const HOT_INPUTS: &[Input] = &[
    Input {
        what: "8 GB of DRAM and 16 GB of PMem, 8 vCPUs; 90 % of the accesses to hot objects, 10 % uniform \
               over all of the memory",
        from: "§4.1, §4.6",
    },
    Input {
        what: "hot shares of 10 to 80 %; 16 GiB of memory, so that half of it fits DRAM; half of the accesses \
               write; the load's own pace; 200 s, which are four rounds",
        from: "our choice: the text at hand has no more of §4.6",
    },
];

const STAGE_INPUTS: &[Input] = &[
    HOT_INPUTS[0],
    Input {
        what: "four stages, the hot set in other 4 GiB in each, one run of pages at a random place; 16 GiB of \
               memory; half of the accesses write; the load's own pace; 180 s a stage, which are three rounds",
        from: "our choice: the text at hand has no more of §4.6",
    },
];

const FOUR_INPUTS: &[Input] = &[
    Input {
        what: "32 GB of DRAM and 192 GB of slow memory; four VMs of 8 + 32 GB with 8 vCPUs each; a pool's \
               limits are 75 and 125 % of a VM's DRAM",
        from: "§3.5, §4.1, §4.9.1",
    },
    Input {
        what: "graph500 of 19 GB (17.5 GiB here), redis of 32 GB with 4 KB values, half updates, 80 % of \
               the requests to 20 % of the keys",
        from: "§4.3.2",
    },
    Input {
        what: "fotonik3d as a stencil of 9.8 GB; PageRank on graph500's graph; the loads' own pace; 240 s, \
               which are four rounds",
        from: "HPMBS, table 1, for the stencil's size; else our choice: which programs run is said in §4.7, \
               which the text at hand does not have",
    },
    Input {
        what: "what abstract and introduction say of the mean gain (51 % over AutoNUMA and 31 % over memory \
               mode on PMem, 16 % over AutoNUMA on CXL memory) was known and set nothing",
        from: "abstract, §1",
    },
];

/// §4.6, a hot set that stays.
const FIXED: Experiment = Experiment {
    paper: Paper::Vtmm,
    name: "vtmm/4.6-fixed",
    title: "Random accesses by the share of memory that is hot",
    kind: ExperimentKind::Prediction,
    file: Some(File {
        name: "vtmm-4.6-fixed",
        text: include_str!("../../../../scenarios/vtmm-4.6-fixed.toml"),
    }),
    inputs: HOT_INPUTS,
    runs: fixed_runs,
    rows: fixed_rows,
    why: &[],
};

/// §4.6, a hot set that moves with each stage.
const DYNAMIC: Experiment = Experiment {
    name: "vtmm/4.6-dynamic",
    title: "Random accesses to a hot set that is elsewhere in each of four stages",
    file: Some(File {
        name: "vtmm-4.6-dynamic",
        text: include_str!("../../../../scenarios/vtmm-4.6-dynamic.toml"),
    }),
    inputs: STAGE_INPUTS,
    runs: |load| variants(load, &ONE_VM),
    rows: |results| one_vm(results, "", ""),
    ..FIXED
};

/// §4.9.1 with PMem.
const PMEM: Experiment = Experiment {
    name: "vtmm/4.9.1-pmem",
    title: "Four VMs together on DRAM and PMem",
    file: Some(File {
        name: "vtmm-4.9.1-pmem",
        text: include_str!("../../../../scenarios/vtmm-4.9.1-pmem.toml"),
    }),
    inputs: FOUR_INPUTS,
    runs: |load| variants(load, &FOUR_VMS),
    rows: four_vms,
    ..FIXED
};

/// §4.9.1 with CXL memory.
const CXL: Experiment = Experiment {
    name: "vtmm/4.9.1-cxl",
    title: "Four VMs together on DRAM and CXL memory",
    file: Some(File {
        name: "vtmm-4.9.1-cxl",
        text: include_str!("../../../../scenarios/vtmm-4.9.1-cxl.toml"),
    }),
    ..PMEM
};

/// All predictions.
pub const EXPERIMENTS: &[&Experiment] = &[&FIXED, &DYNAMIC, &PMEM, &CXL];

/// The scenario as it is under each policy, and with every VM `all-fast`.
fn variants(load: &Load, policies: &[(&str, &str)]) -> Vec<Run> {
    let mut runs = vec![Run::new(FAST, Ok(load.base().all_fast()))];
    for (name, policy) in policies {
        runs.push(Run::new(*name, load.base().with_policy_text(policy)));
    }
    runs
}

fn fixed_runs(load: &Load) -> Vec<Run> {
    let mut runs = Vec::new();
    for hot in HOT {
        let base = load.workload(&format!(
            "{{ kind = \"hotset\", preset = \"vtmm-hot-set\", hot = 0.{}, duration = \"200s\" }}",
            hot / 10
        ));
        let key = |name: &str| format!("{hot} {name}");
        runs.push(Run::new(key(FAST), base.clone().map(|b| b.all_fast())));
        for (name, policy) in ONE_VM {
            let base = base.as_ref().map_err(Clone::clone);
            let scenario = base.and_then(|base| base.with_policy_text(policy));
            runs.push(Run::new(key(name), scenario));
        }
    }
    runs
}

fn fixed_rows(results: &Results) -> Vec<Row> {
    let rows = HOT.map(|hot| one_vm(results, &format!("{hot} "), &format!("{hot} % hot, ")));
    rows.into_iter().flatten().collect()
}

/// Slowdown and fast hits of each policy, and what vTMM gains over AutoNUMA.
fn one_vm(results: &Results, key: &str, what: &str) -> Vec<Row> {
    let mut rows = Vec::new();
    let reference = format!("{key}{FAST}");
    for (name, _) in ONE_VM {
        let run = format!("{key}{name}");
        let slower = results.slower_percent(&run, &reference);
        let what = |figure: &str| format!("{what}{name}: {figure}");
        rows.push(predicted(what("slower than all-fast"), slower));
        let hits = results.get(&run).and_then(|run| run.vm());
        let hits = hits.map(|vm| vm.fast_hit_ratio * 100.0);
        rows.push(predicted(what("fast hits"), hits));
        if name != AUTONUMA {
            let gain = results.slower_percent(&format!("{key}{AUTONUMA}"), &run);
            rows.push(predicted(what("faster than autonuma"), gain));
        }
    }
    rows
}

/// Slowdown of each VM under each policy, and the geometric mean of what is gained over AutoNUMA.
fn four_vms(results: &Results) -> Vec<Row> {
    let mut rows = Vec::new();
    let names: Vec<String> = match results.get(FAST) {
        Ok(fast) => fast.result.vms.iter().map(|vm| vm.name.clone()).collect(),
        Err(why) => return vec![predicted(FAST.into(), Err(why))],
    };
    for (policy, _) in FOUR_VMS {
        for (at, vm) in names.iter().enumerate() {
            let factor = factors(results, FAST, policy).map(|factors| factors[at]);
            let slower = factor.map(|factor| (factor - 1.0) * 100.0);
            rows.push(predicted(
                format!("{policy}, {vm}: slower than all-fast"),
                slower,
            ));
        }
        if policy != AUTONUMA {
            let gain = factors(results, policy, AUTONUMA).map(|f| (mean(&f) - 1.0) * 100.0);
            let what = format!("{policy}: faster than autonuma, geometric mean");
            rows.push(predicted(what, gain));
        }
    }
    rows
}

/// How many times as fast each VM is in one run as in another.
fn factors(results: &Results, one: &str, other: &str) -> Result<Vec<f64>, String> {
    let (one, other) = (results.get(one)?, results.get(other)?);
    let vms = one.result.vms.iter().zip(&other.result.vms);
    Ok(vms.map(|(a, b)| a.ops_per_s / b.ops_per_s).collect())
}

/// Geometric mean.
fn mean(factors: &[f64]) -> f64 {
    let count = u64::try_from(factors.len()).map_or(f64::NAN, float);
    let sum: f64 = factors.iter().copied().map(libm::log).sum();
    libm::exp(sum / count)
}

fn predicted(what: String, percent: Result<f64, String>) -> Row {
    Row::new(what, "%", Claim::Nothing, percent)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::repro::render::markdown;
    use crate::repro::row::{Outcome, ReproReport};
    use crate::repro::{PREDICTIONS, named};

    #[test]
    fn a_mean_of_factors_is_geometric() {
        assert!((mean(&[2.0, 0.5]) - 1.0).abs() < 1e-12);
        assert!((mean(&[1.0, 8.0, 1.0]) - 2.0).abs() < 1e-12);
    }

    #[test]
    fn a_prediction_shows_no_figure_and_names_what_was_chosen() {
        for experiment in EXPERIMENTS {
            assert_eq!(experiment.kind, ExperimentKind::Prediction);
            let chosen = |input: &Input| input.from.contains("our choice");
            assert!(experiment.inputs.iter().any(chosen), "{}", experiment.name);
            let rows = (experiment.rows)(&Results::default());
            assert!(!rows.is_empty());
            assert!(rows.iter().all(|row| row.paper == Claim::Nothing));
        }
    }

    #[test]
    fn predictions_have_one_name_and_a_page_of_their_own() {
        let found = named(PREDICTIONS).unwrap();
        let names = |all: &[&Experiment]| all.iter().map(|e| e.name).collect::<Vec<_>>();
        assert_eq!(names(&found), names(EXPERIMENTS));
        let page = |experiments: &[&Experiment]| {
            let outcomes = experiments.iter().map(|e| Outcome::new(e, None, &[]));
            markdown(&ReproReport {
                seed: 1,
                seeds: 3,
                experiments: outcomes.collect(),
            })
        };
        assert!(page(EXPERIMENTS).starts_with("# Predictions\n"));
        let paper = named("vtmm").unwrap();
        assert!(page(&paper).starts_with("# The papers"));
    }

    #[test]
    fn committed_predictions_have_three_seeds_and_render_alike() {
        let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
        let committed = |name: &str| std::fs::read_to_string(docs.join(name)).expect(name);
        let report: ReproReport = serde_json::from_str(&committed("predictions.json")).unwrap();
        assert!(report.seeds >= 3, "{} seeds", report.seeds);
        let there: Vec<&str> = report.experiments.iter().map(|e| e.name.as_str()).collect();
        let all: Vec<&str> = EXPERIMENTS.iter().map(|e| e.short_name()).collect();
        assert_eq!(there, all);
        let missing = report.experiments.iter().flat_map(|e| &e.rows);
        let missing: Vec<_> = missing.filter(|row| row.simulated.is_none()).collect();
        assert!(missing.is_empty(), "{missing:?}");
        assert_eq!(committed("predictions.md"), markdown(&report));
    }

    #[test]
    fn every_hot_share_and_policy_has_a_run_of_its_own() {
        let load = Load::new(&FIXED.file.unwrap(), 1, None).unwrap();
        let runs = fixed_runs(&load);
        assert_eq!(runs.len(), HOT.len() * (ONE_VM.len() + 1));
        for (i, run) in runs.iter().enumerate() {
            assert!(run.scenario.is_ok(), "{}: {:?}", run.key, run.scenario);
            let same = runs[..i].iter().find(|other| other.same(run));
            assert!(same.is_none(), "{} is {}", run.key, same.unwrap().key);
        }
    }
}
