//! HPMBS §5.5: eight groups of VMs whose programs need much memory at different times. The text at hand has their set-up
//! (table 4) and breaks off before their results (table 5).

use terrace_sim::number::float;
use terrace_sim::{HostPolicy, Scenario};

use super::predicted;
use crate::repro::row::{Input, Row};
use crate::repro::runs::{Load, Results, Run};
use crate::repro::{Experiment, ExperimentKind, File, Paper};

/// A group of table 4.
struct Group {
    file: File,
    /// Memory of each VM that has all it wants, GB.
    best_gb: f64,
}

/// A group's scenario with its memory in the best case.
macro_rules! group {
    ($number:literal, $best_gb:literal) => {
        Group {
            file: File {
                name: concat!("hpmbs-group-", $number),
                text: include_str!(concat!(
                    "../../../../../scenarios/hpmbs-group-",
                    $number,
                    ".toml"
                )),
            },
            best_gb: $best_gb,
        }
    };
}

const GROUPS: [Group; 8] = [
    group!(1, 5.3),
    group!(2, 7.3),
    group!(3, 7.3),
    group!(4, 10.2),
    group!(5, 7.8),
    group!(6, 7.0),
    group!(7, 3.7),
    group!(8, 4.8),
];

/// Each VM has all it wants.
const BEST: &str = "best";

/// The ways of the paper that share memory, and the rules that stand for them.
const WAYS: [(&str, &str); 2] = [("baseline", "island"), ("balancing", "dp")];

/// Bytes of which sizes are whole multiples: blocks of 2 MiB at scale 4.
const GRANULE: f64 = 8.0 * 1024.0 * 1024.0;

const INPUTS: &[Input] = &[
    Input {
        what: "eight groups of VMs: which programs each VM runs, and in what order; GB of each VM with enough memory (best), and \
               without (baseline, balancing); one core a VM; guest, host and balloon have pages of 2 MiB",
        from: "table 4, §3.3, §5.1",
    },
    Input {
        what: "sizes and times of the programs; times are divided by 10, but for groups 7 and 8, whose programs take 17 to 40 s: a tenth \
               would end before sharing begins",
        from: "table 1; the divisors are our choice",
    },
    Input {
        what: "best and baseline: nobody is tracked, and sizes stay. Balancing: policy hpmbs, tracked as phases say; share dp, with \
               the defaults of [engine.arbiter] (a reserve of 5 %, floors of a quarter of each VM)",
        from: "§4, §5.5.1; docs/sharing.md",
    },
    Input {
        what: "a program makes 25,000 accesses a second, most of them to one half of its memory, and as many to the rest as table 2 has \
               tracked faults with a hot set of one half; deepsjeng with the dynamic hot set. Guesses: gcc (1,000 a second), \
               sequential reads and random reads and writes (2,000)",
        from: "table 2; else our choice",
    },
    Input {
        what: "a block of 2 MiB is swapped whole, in 0.85 ms in and 1.07 ms out; the paper's Linux swaps 4 KiB pages to a device that the \
               text does not name",
        from: "our choice: docs/machine.md",
    },
    Input {
        what: "groups 2 to 6 run at scale 2, as VMs with fewer than 1,024 blocks are not simulated",
        from: "our choice, for time",
    },
];

/// The eight groups.
pub const GROUPS_OF_TABLE_4: Experiment = Experiment {
    paper: Paper::Hpmbs,
    name: "hpmbs/table-4",
    title: "Slowdown of VMs that share memory, against VMs that have all they want",
    kind: ExperimentKind::Prediction,
    file: Some(GROUPS[0].file),
    inputs: INPUTS,
    runs,
    rows,
    why: &[],
};

fn runs(load: &Load) -> Vec<Run> {
    let seed = load.base().seed;
    let each = GROUPS.iter().zip(1..);
    each.flat_map(|(group, number)| runs_of(group, number, seed))
        .collect()
}

/// A group's runs: with all that its VMs want, and each of the ways.
fn runs_of(group: &Group, number: u32, seed: u64) -> Vec<Run> {
    let given = Load::new(&group.file, seed, None).map_err(|error| error.0);
    let given = given.map(|load| load.base().clone());
    let best = given.as_ref().map_err(Clone::clone);
    let mut runs = vec![Run::new(
        key(number, BEST),
        best.map(|given| with_enough(given, group.best_gb)),
    )];
    runs.extend(WAYS.map(|(way, share)| {
        let given = given.as_ref().map_err(Clone::clone);
        let run = given.and_then(|given| {
            let shared = given.with_share(share);
            let mut shared = shared.map_err(|fault| fault.to_string())?;
            if share == "island" {
                untrack(&mut shared);
            }
            Ok(shared)
        });
        Run::new(key(number, way), run)
    }));
    runs
}

/// The scenario with so much memory for each VM, and nobody to take it.
fn with_enough(given: &Scenario, gb: f64) -> Scenario {
    let granules = (gb * float(1 << 30) / GRANULE).round();
    let mut best = given.with_share("island").unwrap_or_else(|_| given.clone());
    untrack(&mut best);
    for vm in &mut best.vms {
        vm.sizes[0] = terrace_sim::number::whole(granules * GRANULE);
        vm.provision = None;
        vm.claim.memory_ceiling = None;
    }
    best
}

fn untrack(scenario: &mut Scenario) {
    for vm in &mut scenario.vms {
        vm.policy = HostPolicy::FirstTouch;
    }
}

fn key(number: u32, way: &str) -> String {
    format!("group {number}, {way}")
}

fn rows(results: &Results) -> Vec<Row> {
    let mut rows = Vec::new();
    let mut all = WAYS.map(|_| Ok(Vec::new()));
    for number in (1..).take(GROUPS.len()) {
        for ((way, _), all) in WAYS.into_iter().zip(&mut all) {
            let factors = slowdowns(results, number, way);
            rows.extend(figures(&key(number, way), &factors));
            *all = std::mem::replace(all, Ok(Vec::new())).and_then(|mut all| {
                all.extend(factors?);
                Ok(all)
            });
        }
    }
    for ((way, _), all) in WAYS.into_iter().zip(&all) {
        rows.extend(figures(&format!("all groups, {way}"), all));
    }
    rows
}

/// Run time of each VM of a group over that in the best case.
fn slowdowns(results: &Results, number: u32, way: &str) -> Result<Vec<f64>, String> {
    let (best, run) = (
        results.get(&key(number, BEST))?,
        results.get(&key(number, way))?,
    );
    let vms = run.result.vms.iter().zip(&best.result.vms);
    Ok(vms
        .map(|(vm, best)| vm.runtime_s / best.runtime_s)
        .collect())
}

/// Average, harmonic mean and largest of slowdowns; 1 is as fast as with all the memory.
fn figures(what: &str, factors: &Result<Vec<f64>, String>) -> Vec<Row> {
    let of = |name: &str, figure: fn(&[f64]) -> f64| {
        let simulated = factors
            .as_ref()
            .map(|f| figure(f.as_slice()))
            .map_err(Clone::clone);
        predicted(format!("{what}: {name} slowdown"), "times", simulated)
    };
    vec![
        of("average", |f| f.iter().sum::<f64>() / float(f.len() as u64)),
        of("harmonic mean of", |f| {
            float(f.len() as u64) / f.iter().map(|f| 1.0 / f).sum::<f64>()
        }),
        of("largest", |f| f.iter().copied().fold(0.0, f64::max)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_table_4_in_each_way() {
        for (group, number) in GROUPS.iter().zip(1..) {
            let runs = runs_of(group, number, 1);
            let size = |at: usize| runs[at].scenario.as_ref().unwrap().vms[0].sizes[0];
            let wanted = group.best_gb * float(1 << 30);
            assert!((float(size(0)) - wanted).abs() < GRANULE, "{number}");
            assert!(size(1) < size(0) && size(1) == size(2), "{number}");
            for run in &runs {
                run.scenario.as_ref().unwrap().check().unwrap();
            }
        }
    }

    #[test]
    fn slowdowns_are_averaged_in_three_ways() {
        let rows = figures("x", &Ok(vec![1.0, 3.0]));
        let simulated: Vec<f64> = rows.iter().filter_map(|row| row.simulated).collect();
        assert_eq!(simulated, [2.0, 1.5, 3.0]);
        let missing = figures("x", &Err("no run".into()));
        assert!(missing.iter().all(|row| row.simulated.is_none()));
    }
}
