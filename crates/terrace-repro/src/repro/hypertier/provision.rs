//! Figure 4: what a guest's placement is worth, by the device that gives the guest its memory.

use terrace_sim::{Device, Provision, Scenario, VmResult, number::float};

use super::{BY_THE_LETTER, OTHERS, OWN, POLICIES, places, policy_text};
use crate::repro::order::{self, System};
use crate::repro::row::{Claim, Input, Row};
use crate::repro::runs::{Load, Measured, Results, Run, computing};
use crate::repro::{Experiment, ExperimentKind, Figure, File, Paper, Why};

/// The names of all policies.
const NAMES: [&str; 5] = [OWN[0], OWN[1], OTHERS[0], OTHERS[1], OTHERS[2]];

/// The devices that size a guest's memory; the one that the text calls static comes first.
const DEVICES: [Device; 3] = Device::ALL;

/// Figure 4.
pub const FIGURE_4: Experiment = Experiment {
    paper: Paper::Hypertier,
    name: "hypertier/figure-4",
    title: "Updates a second in each of nine VMs, by the device that gives them their memory",
    kind: ExperimentKind::Figures,
    file: Some(File {
        name: "hypertier-figure-4",
        text: include_str!("../../../../../scenarios/hypertier-figure-4.toml"),
    }),
    inputs: &[
        Input {
            what: "nine VMs of 4 vCPUs and 16 GiB, a fifth of it DRAM; 14 GiB are worked on; the third of three \
                   iterations of 900 million updates is measured",
            from: "§6.1, §6.2",
        },
        Input {
            what: "static memory is virtio-mem's; with a balloon or HyperFlex a VM boots with 16 GiB of each tier, \
                   twice what it needs",
            from: "§6.2; that each node has all of it, §4.1",
        },
        Input {
            what: "it is resized to 3276 and 13108 MiB before its program touches any memory; the time is counted, \
                   in the first iteration",
            from: "our choice: the text says \"dynamically\". Resized while the program runs, which took 14 GiB of DRAM \
                   first, HyperFlex leaves each guest its 3276 MiB as well; the balloon finds PMem free and takes \
                   that, so that a guest keeps 6 GiB of DRAM (tpp) to 14 (hyperplace)",
        },
        Input {
            what: "the machine has 128 GiB of DRAM and 512 GiB of PMem, so that what a balloon leaves in PMem is there",
            from: "§3.2, one socket",
        },
        Input {
            what: "watermarks are those of the nodes that the guest boots with: no kernel calculates them anew when a \
                   balloon takes pages. Memtis gets the size that the VM is to have, as its scripts do \
                   (`memory.max_at_node0`)",
            from: "mm/page_alloc.c; that Memtis gets this size, our choice",
        },
        Input {
            what: "the four designs of the figure are taken to be figure 6's; \"nearly identical\" is taken for no \
                   more than the 10 % that TPP and Memtis may lose",
            from: "our reading of §6.2",
        },
        BY_THE_LETTER,
    ],
    runs,
    rows,
    why: &[
        Why {
            rows: "tpp: hyperflex over balloon",
            text: "with a balloon, nine VMs are bound by PMem's bandwidth here, whatever a guest does: every update reads \
                   and writes a line of 256 bytes. With 100 ns of computing per update TPP is ahead by {computing} %. \
                   What the program computes the text does not say. One VM alone is not bound, and loses nothing by the \
                   balloon: four of its updates are under way at a time, and hide PMem's latency.",
            figures: &[Figure {
                name: "computing",
                what: "tpp with 100 ns of computing per update: hyperflex over balloon, % more",
                value: "134",
                runs: |load| {
                    let slower = computing(load.base(), 100.0);
                    let run = |device| run(&slower, device, "tpp");
                    vec![run(Device::Hyperflex), run(Device::Balloon)]
                },
                of: |results| over(results, "tpp", Device::Hyperflex, Device::Balloon).map(percent),
            }],
        },
        Why::new(
            "tpp over the best",
            "Memtis is ahead of TPP here: it finds the hot part, as updates are sampled as loads too. The paper's does not \
             (§6.3).",
        ),
        Why::new(
            "order of existing systems",
            "as for tpp over the best: Memtis is ahead of TPP here.",
        ),
        Why::new(
            "virtio-mem over the better",
            "HyperFlex gives a guest what virtio-mem gives, so that which of the two is ahead by less than a hundredth is \
             chance.",
        ),
        Why::new(
            "order of devices",
            "HyperFlex gives a guest what virtio-mem gives, so that which of the two is ahead by less than a hundredth is \
             chance; a balloon is behind both.",
        ),
    ],
};

fn key(device: Device, policy: &str) -> String {
    format!("{policy}, {}", device.name())
}

fn runs(load: &Load) -> Vec<Run> {
    let all = DEVICES.into_iter();
    all.flat_map(|device| POLICIES.map(|(policy, _)| run(load.base(), device, policy)))
        .collect()
}

fn run(base: &Scenario, device: Device, policy: &str) -> Run {
    let scenario = sized_by(base, device).with_policy_text(policy_text(policy));
    Run::new(key(device, policy), scenario)
}

/// The scenario with another device for the same VMs.
fn sized_by(scenario: &Scenario, device: Device) -> Scenario {
    let mut scenario = scenario.clone();
    for vm in &mut scenario.vms {
        vm.provision = Some(Provision::usual(device, &vm.sizes, Vec::new()));
    }
    scenario
}

fn rows(results: &Results) -> Vec<Row> {
    let mut rows = Vec::new();
    for device in DEVICES {
        for (policy, _) in POLICIES {
            let updates = updates(results, device, policy).map(|updates| updates / 1e6);
            rows.push(Row::new(
                key(device, policy),
                "M/s",
                Claim::Nothing,
                updates,
            ));
        }
    }
    for device in DEVICES {
        let given = results.get(&key(device, "tpp")).map(fast_mib);
        let what = format!("fast memory that a guest has, {}", device.name());
        rows.push(Row::new(what, "MiB", Claim::Nothing, given));
    }
    for (policy, _) in POLICIES {
        let claim = match policy {
            "tpp" => Claim::Is(74.0),
            _ => Claim::Nothing,
        };
        let more = over(results, policy, Device::Hyperflex, Device::Balloon).map(percent);
        let what = format!("{policy}: hyperflex over balloon");
        rows.push(Row::new(what, "% more", claim, more));
    }
    for (policy, _) in POLICIES {
        let slower = over(results, policy, Device::VirtioMem, Device::Hyperflex).map(percent);
        let what = format!("{policy}: hyperflex slower than virtio-mem");
        rows.push(Row::new(what, "%", Claim::AtMost(10.0), slower));
    }
    rows.extend(of_all_designs(results));
    rows
}

/// The rows about all designs together.
fn of_all_designs(results: &Results) -> Vec<Row> {
    let apart = DEVICES.map(|device| {
        let all = each(&NAMES, |policy| updates(results, device, policy));
        let what = format!("best design over the worst, {}", device.name());
        let ratio = all.map(|all| most(&all) / least(&all));
        Row::new(what, "ratio", Claim::Nothing, ratio)
    });
    let ahead = each(&NAMES, |policy| {
        let flex = over(results, policy, Device::VirtioMem, Device::Hyperflex)?;
        Ok(flex.min(over(results, policy, Device::VirtioMem, Device::Balloon)?))
    });
    let what = "virtio-mem over the better of the others, least of all designs";
    let ahead = ahead.map(|all| least(&all));
    let ahead = Row::new(what, "ratio", Claim::AtLeast(1.0), ahead);
    let flex = |policy: &str| updates(results, Device::Hyperflex, policy);
    let existing = each(&OTHERS, flex);
    let tpp = existing.and_then(|all| Ok(flex("tpp")? / most(&all)));
    let what = "tpp over the best of memtis, tpp and nomad, hyperflex";
    let tpp = Row::new(what, "ratio", Claim::AtLeast(1.0), tpp);
    let orders = [order_of_devices(results), order_of_existing(results)];
    apart
        .into_iter()
        .chain([ahead, tpp])
        .chain(orders)
        .collect()
}

/// Static memory is best for all designs, and the balloon worst (§6.2).
fn order_of_devices(results: &Results) -> Row {
    let ordered = [
        (Device::VirtioMem, 1.0),
        (Device::Hyperflex, 2.0),
        (Device::Balloon, 3.0),
    ];
    let comparisons = NAMES.map(|policy| {
        let system =
            |(device, place): (Device, f64)| System::new(-place, updates(results, device, policy));
        ordered.map(system).into()
    });
    order::row("order of devices, all designs", &comparisons)
}

/// TPP is the best of the designs that there were (§6.2).
fn order_of_existing(results: &Results) -> Row {
    let systems = [(1.0, "tpp"), (2.0, "memtis"), (2.0, "nomad")];
    let systems = places(&systems, |policy| {
        updates(results, Device::Hyperflex, policy)
    });
    order::row("order of existing systems, hyperflex", &[systems])
}

fn each(policies: &[&str], of: impl Fn(&str) -> Result<f64, String>) -> Result<Vec<f64>, String> {
    policies.iter().map(|policy| of(policy)).collect()
}

/// Updates with one device over those with another.
fn over(results: &Results, policy: &str, one: Device, other: Device) -> Result<f64, String> {
    Ok(updates(results, one, policy)? / updates(results, other, policy)?)
}

/// Updates a second of the last iteration, mean over the VMs.
fn updates(results: &Results, device: Device, policy: &str) -> Result<f64, String> {
    let late = &results.get(&key(device, policy))?.late_ops_per_s;
    Ok(late.iter().sum::<f64>() / float(late.len() as u64))
}

/// Size of the guests' fast nodes at the end, MiB, mean over the VMs.
fn fast_mib(run: &Measured) -> f64 {
    let given = |vm: &VmResult| {
        let given = vm.provision.as_ref().and_then(|p| p.given_bytes.first());
        float(given.copied().unwrap_or(0)) / float(1 << 20)
    };
    let vms = &run.result.vms;
    vms.iter().map(given).sum::<f64>() / float(vms.len() as u64)
}

fn percent(ratio: f64) -> f64 {
    (ratio - 1.0) * 100.0
}

fn most(all: &[f64]) -> f64 {
    all.iter().copied().fold(0.0, f64::max)
}

fn least(all: &[f64]) -> f64 {
    all.iter().copied().fold(f64::INFINITY, f64::min)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_vms_are_sized_by_each_device() {
        let load = Load::new(&FIGURE_4.file.unwrap(), 1, None).unwrap();
        let runs = runs(&load);
        assert_eq!(runs.len(), 15);
        let gib16 = [3276 << 20, 13_108 << 20];
        for (run, device) in runs.iter().zip(DEVICES.into_iter().flat_map(|d| [d; 5])) {
            let scenario = run.scenario.as_ref().unwrap();
            scenario.check().unwrap();
            assert_eq!(scenario.vms.len(), 9);
            let provision = scenario.vms[8].provision.as_ref().unwrap();
            assert_eq!(
                (provision.by, scenario.vms[8].sizes.as_slice()),
                (device, &gib16[..])
            );
            let twice = provision.nodes.iter().sum::<u64>() == 32 << 30;
            assert_eq!(twice, device != Device::VirtioMem);
        }
    }

    #[test]
    fn where_a_run_failed_its_rows_say_so_and_have_no_figure() {
        let rows = rows(&Results::default());
        assert_eq!(rows.len(), 35);
        assert!(
            rows.iter()
                .all(|row| row.simulated.is_none() && row.missing.is_some())
        );
    }
}
