//! GPAC §5.3 and §5.4: many guests that gather their hot pages, on three kinds of memory. The text at hand breaks off before
//! these results.

use terrace_core::gather::Cl;
use terrace_sim::number::float;
use terrace_sim::{GuestPolicy, Scenario, VmResult};

use super::{FAST, all_fast, predicted};
use crate::repro::row::{Input, Row};
use crate::repro::runs::{Load, Measured, Results, Run};
use crate::repro::{Experiment, ExperimentKind, File, Paper};

/// A policy of the host: its name in the rows, and as a comparison names it.
type Host = (&'static str, &'static str);

const MEMTIERD: Host = ("memtierd", "memtierd@host");
const TPP: Host = ("tpp", "tpp@host");
const NUMAB2: Host = ("numab2", "numab2@host");

/// Accesses of a request of Redis: its index, and the lines of 1 KiB.
const PER_REQUEST: f64 = 17.0;

/// Shares of a VM's memory that are DRAM, %, and its memory.
const SHARES: [u64; 7] = [10, 20, 30, 40, 50, 60, 70];
const VM_BYTES: u64 = 20 << 30;

/// Limits of hot pages in a block: those of table 3 span 10 to 290.
const LIMITS: [u16; 7] = [10, 50, 100, 150, 200, 250, 290];

const REDIS: Input = Input {
    what: "Redis of 12.5 GB in each VM, requests by a Gaussian law over its keys; guests of 4 KiB pages, hosts of 2 MiB",
    from: "§5.1, table 2",
};

const OURS: Input = Input {
    what: "VMs of 16 GiB in all four set-ups, because six of 20 do not fit into 100 GB; one vCPU each, as Redis serves by one; values \
           lie in the order of their keys (§5.2.1 tells of one hot region that fades); half of the requests read; 190 million accesses a VM, some \
           100 s",
    from: "our choice",
};

const READ: Input = Input {
    what: "what abstract and introduction say of many VMs (10 to 13 % more performance at a like cost of memory) was known and set \
           nothing; requests a second are those of the last third, percentiles those of the whole run",
    from: "abstract, §1; else our choice",
};

/// Six Redis on little DRAM, with the daemon of user space.
const PMEM: Experiment = Experiment {
    paper: Paper::Gpac,
    name: "gpac/many-pmem",
    title: "Six Redis on 20 GiB of DRAM and 80 GiB of PMem, started in DRAM",
    kind: ExperimentKind::Prediction,
    file: Some(File {
        name: "gpac-many-pmem",
        text: include_str!("../../../../../scenarios/gpac-many-pmem.toml"),
    }),
    inputs: &[REDIS, OURS, READ],
    runs: |load| many(load, &[MEMTIERD]),
    rows: |results| many_rows(results, &[MEMTIERD]),
    why: &[],
};

/// Eight Redis under the kernel's own tiering.
const KERNEL: Experiment = Experiment {
    name: "gpac/many-kernel",
    title: "Eight Redis on 64 GiB of DRAM and 512 GiB of PMem under the kernel's tiering",
    file: Some(File {
        name: "gpac-many-kernel",
        text: include_str!("../../../../../scenarios/gpac-many-kernel.toml"),
    }),
    runs: |load| many(load, &[TPP, NUMAB2]),
    rows: |results| many_rows(results, &[TPP, NUMAB2]),
    ..PMEM
};

/// Six Redis on CXL memory.
const CXL: Experiment = Experiment {
    name: "gpac/many-cxl",
    title: "Six Redis on 30 GiB of DRAM and 70 GiB of CXL memory",
    file: Some(File {
        name: "gpac-many-cxl",
        text: include_str!("../../../../../scenarios/gpac-many-cxl.toml"),
    }),
    runs: |load| many(load, &[MEMTIERD, NUMAB2]),
    rows: |results| many_rows(results, &[MEMTIERD, NUMAB2]),
    ..PMEM
};

/// Six Redis on HBM.
const HBM: Experiment = Experiment {
    name: "gpac/many-hbm",
    title: "Six Redis on 20 GiB of HBM and 80 GiB of DRAM",
    file: Some(File {
        name: "gpac-many-hbm",
        text: include_str!("../../../../../scenarios/gpac-many-hbm.toml"),
    }),
    ..CXL
};

/// One Redis by its share of DRAM.
const DRAM_SHARE: Experiment = Experiment {
    name: "gpac/dram-share",
    title: "One Redis by the share of its memory that is DRAM",
    file: Some(File {
        name: "gpac-dram-share",
        text: include_str!("../../../../../scenarios/gpac-dram-share.toml"),
    }),
    inputs: &[
        REDIS,
        Input {
            what: "a VM of 20 GiB on DRAM and PMem, one vCPU; values lie in the order of their keys; half of the requests read; DRAM is 10 to 70 % \
                   of the VM's memory; 190 million accesses",
            from: "§5.1 for the VM; else our choice",
        },
        READ,
    ],
    runs: share_runs,
    rows: share_rows,
    ..PMEM
};

/// A hash table by the limit of hot pages.
const LIMIT: Experiment = Experiment {
    name: "gpac/limit",
    title: "A hash table by the limit of hot pages in a block that is emptied",
    file: Some(File {
        name: "gpac-limit",
        text: include_str!("../../../../../scenarios/gpac-limit.toml"),
    }),
    inputs: &[
        Input {
            what: "Hash_bkt_rcu of 8.8 GB; guests of 4 KiB pages, hosts of 2 MiB; limits of 10 to 290 hot pages",
            from: "§5.1, tables 2 and 3",
        },
        Input {
            what: "lookups alone, of keys that are all alike, in a VM of 20 GiB with one vCPU and 4 GiB of DRAM under numab2; 450 million accesses",
            from: "our choice",
        },
    ],
    runs: limit_runs,
    rows: limit_rows,
    ..PMEM
};

/// The experiments, in the page's order.
pub const EXPERIMENTS: &[&Experiment] = &[&PMEM, &KERNEL, &CXL, &HBM, &DRAM_SHARE, &LIMIT];

/// A policy without gathering and with it: the runs' names, and the policies' as a comparison names them.
fn both((name, host): Host) -> [(String, String); 2] {
    [
        (name.into(), host.into()),
        (format!("{name}+gpac"), format!("{host}+gpac")),
    ]
}

/// The scenario under each policy without gathering and with it.
fn under(prefix: &str, base: &Result<Scenario, String>, hosts: &[Host]) -> Vec<Run> {
    let run = |(name, policy): (String, String)| {
        let base = base.as_ref().map_err(Clone::clone);
        let scenario = base.and_then(|base| {
            let with = base.with_policy(&policy);
            with.map_err(|fault| fault.to_string())
        });
        Run::new(format!("{prefix}{name}"), scenario)
    };
    hosts.iter().flat_map(|host| both(*host).map(run)).collect()
}

fn many(load: &Load, hosts: &[Host]) -> Vec<Run> {
    let base = Ok(load.base().clone());
    let mut runs = vec![all_fast("", &base)];
    runs.extend(under("", &base, hosts));
    runs
}

/// Requests a second of all VMs in the last third, thousand.
fn requests(run: &Measured) -> f64 {
    run.late_ops_per_s.iter().sum::<f64>() / PER_REQUEST / 1e3
}

/// The mean of a figure over the VMs.
fn mean(run: &Measured, of: fn(&VmResult) -> f64) -> f64 {
    let vms = &run.result.vms;
    vms.iter().map(of).sum::<f64>() / u64::try_from(vms.len()).map_or(f64::NAN, float)
}

/// How many more requests one run serves than another, %.
fn more(results: &Results, one: &str, other: &str) -> Result<f64, String> {
    let (one, other) = (results.get(one)?, results.get(other)?);
    Ok((requests(one) / requests(other) - 1.0) * 100.0)
}

/// The figures of a run of one or more Redis.
fn redis(results: &Results, run: &str) -> Vec<Row> {
    let figure = |what: &str, unit: &str, of: fn(&Measured) -> f64| {
        predicted(format!("{run}: {what}"), unit, results.get(run).map(of))
    };
    vec![
        figure("requests", "thousand/s", requests),
        figure("a request's p50, mean of the VMs", "µs", |run| {
            mean(run, |vm| vm.p50_ns) / 1e3
        }),
        figure("a request's p99, mean of the VMs", "µs", |run| {
            mean(run, |vm| vm.p99_ns) / 1e3
        }),
    ]
}

/// The figures of a run that gathers.
fn gathers(results: &Results, run: &str, alone: &str) -> Vec<Row> {
    let pages = results.get(run).map(|run| {
        let all = run.result.vms.iter().filter_map(|vm| vm.gathered_pages);
        float(all.sum()) / 1e3
    });
    vec![
        predicted(format!("{run}: pages gathered, all VMs"), "thousand", pages),
        predicted(
            format!("{run}: more requests than {alone}"),
            "%",
            more(results, run, alone),
        ),
    ]
}

/// The figures of each policy without gathering and with it.
fn pairs(results: &Results, prefix: &str, hosts: &[Host]) -> Vec<Row> {
    let mut rows = Vec::new();
    for host in hosts {
        let [alone, beside] = both(*host).map(|(name, _)| format!("{prefix}{name}"));
        for run in [&alone, &beside] {
            rows.extend(redis(results, run));
            let hits = results.get(run);
            let hits = hits.map(|run| mean(run, |vm| vm.fast_hit_ratio) * 100.0);
            rows.push(predicted(format!("{run}: near hits"), "%", hits));
        }
        rows.extend(gathers(results, &beside, &alone));
    }
    rows
}

fn many_rows(results: &Results, hosts: &[Host]) -> Vec<Row> {
    let mut rows = redis(results, FAST);
    rows.extend(pairs(results, "", hosts));
    rows
}

/// The prefix of the runs with a share of DRAM.
fn share(percent: u64) -> String {
    format!("{percent} % DRAM, ")
}

fn share_runs(load: &Load) -> Vec<Run> {
    let mut runs = vec![all_fast("", &Ok(load.base().clone()))];
    for percent in SHARES {
        let with = load
            .base()
            .with_fast(VM_BYTES / 100 * percent / GRANULE * GRANULE);
        let with = with.map_err(|fault| fault.to_string());
        runs.extend(under(&share(percent), &with, &[MEMTIERD, NUMAB2]));
    }
    runs
}

/// Bytes of which sizes are multiples: a block of 2 MiB at the scenario's scale.
const GRANULE: u64 = 16 << 20;

fn share_rows(results: &Results) -> Vec<Row> {
    let mut rows = redis(results, FAST);
    for percent in SHARES {
        rows.extend(pairs(results, &share(percent), &[MEMTIERD, NUMAB2]));
    }
    rows
}

/// The name of the run with a limit.
fn limit(cl: u16) -> String {
    format!("limit {cl}")
}

fn limit_runs(load: &Load) -> Vec<Run> {
    let base = Ok(load.base().clone());
    let mut runs = vec![all_fast("", &base)];
    runs.extend(under("", &base, &[NUMAB2]));
    runs.extend(LIMITS.map(|cl| {
        let with = load.base().with_policy("numab2+gpac");
        let with = with.map_err(|fault| fault.to_string()).map(|mut scenario| {
            scenario.vms[0].guest_policy = Some(GuestPolicy::Gathers(Cl::Below(cl)));
            scenario
        });
        Run::new(limit(cl), with)
    }));
    runs
}

fn limit_rows(results: &Results) -> Vec<Row> {
    let [(alone, _), (auto, _)] = both(NUMAB2);
    let mut rows = Vec::new();
    let names = LIMITS.map(limit);
    for run in [FAST, &alone, &auto]
        .into_iter()
        .chain(names.iter().map(String::as_str))
    {
        let rate = results
            .get(run)
            .map(|run| run.late_ops_per_s[0] / 3.0 / 1e6);
        rows.push(predicted(format!("{run}: lookups"), "million/s", rate));
        for (what, of) in [
            ("a lookup's p50", (|vm| vm.p50_ns) as fn(&VmResult) -> f64),
            ("a lookup's p99", |vm| vm.p99_ns),
        ] {
            let ns = results.get(run).and_then(Measured::vm).map(of);
            rows.push(predicted(format!("{run}: {what}"), "ns", ns));
        }
    }
    for run in std::iter::once(&auto).chain(&names) {
        let vm = results.get(run).and_then(Measured::vm);
        let pages = vm.map(|vm| float(vm.gathered_pages.unwrap_or(0)));
        rows.push(predicted(format!("{run}: pages gathered"), "pages", pages));
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_policy_runs_without_gathering_and_with_it() {
        let load = Load::new(&KERNEL.file.unwrap(), 1, None).unwrap();
        for run in many(&load, &[TPP, NUMAB2]) {
            let vms = &run.scenario.unwrap().vms;
            let gathers = |vm: &terrace_sim::Vm| vm.guest_policy.is_some();
            assert_eq!(vms.len(), 8);
            assert!(
                vms.iter()
                    .all(|vm| gathers(vm) == run.key.ends_with("+gpac"))
            );
        }
    }

    #[test]
    fn shares_of_dram_leave_a_vm_its_memory() {
        let load = Load::new(&DRAM_SHARE.file.unwrap(), 1, None).unwrap();
        for run in share_runs(&load) {
            let sizes = &run.scenario.unwrap().vms[0].sizes;
            assert_eq!(sizes.iter().sum::<u64>(), VM_BYTES, "{}", run.key);
        }
    }

    #[test]
    fn each_limit_has_a_run_with_it() {
        let load = Load::new(&LIMIT.file.unwrap(), 1, None).unwrap();
        let runs = limit_runs(&load);
        for cl in LIMITS {
            let run = runs.iter().find(|run| run.key == limit(cl)).unwrap();
            let guest = run.scenario.as_ref().unwrap().vms[0].guest_policy;
            assert_eq!(guest, Some(GuestPolicy::Gathers(Cl::Below(cl))));
        }
    }
}
