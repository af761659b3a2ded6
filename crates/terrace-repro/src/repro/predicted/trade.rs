//! HMvisor §3.3: a VM's fast memory is traded for slow, or back, at the same price. The text at hand breaks off before the results.

use terrace_proto::PAGE_SIZE;
use terrace_sim::{VmResult, number::float};

use super::predicted;
use crate::repro::row::{Input, Row};
use crate::repro::runs::{Load, Measured, Results, Run};
use crate::repro::{Experiment, ExperimentKind, File, Paper};

/// A program: its name, its load, and MiB of fast and of slow memory at each of [`RATIOS`].
type Program = (&'static str, &'static str, [(u64, u64); 3]);

/// The sizes' ratios of fast to slow memory, as the rows name them.
const RATIOS: [&str; 3] = ["1:1", "1:3", "1:4"];

const PROGRAMS: [Program; 2] = [
    (
        "sjeng",
        "kind = \"hotset\", size = \"178MiB\", hot = 1.0, hot_access = 1.0, duration = \"120s\"",
        [(100, 100), (100, 300), (100, 400)],
    ),
    (
        "mcf",
        "kind = \"hotset\", size = \"1740MiB\", hot = 1.0, hot_access = 1.0, duration = \"120s\"",
        [(900, 900), (400, 1200), (300, 1200)],
    ),
];

/// The rules: sizes that stay, and trade.
const RULES: [&str; 2] = [STAYS, TRADES];
const STAYS: &str = "island";
const TRADES: &str = "trade";

const MIB: u64 = 1 << 20;

/// Two programs at three ratios of fast to slow memory.
pub const TRADE: Experiment = Experiment {
    paper: Paper::Hmvisor,
    name: "hmvisor/trade",
    title: "What trade of fast memory for slow is worth to a VM, at the same price",
    kind: ExperimentKind::Prediction,
    file: Some(File {
        name: "hmvisor-trade",
        text: include_str!("../../../../../scenarios/hmvisor-trade.toml"),
    }),
    inputs: &[
        Input {
            what: "2 vCPUs; two nodes of DRAM, of which one stands for NVM; data begin on NVM; DRAM has four times the price of NVM; mcf \
                   has 1.7 GB",
            from: "§3.3, §4.1",
        },
        Input {
            what: "mcf and sjeng (178 MB) as random accesses to all of their memory, half writes; MiB of fast and slow memory: sjeng 100/100, \
                   100/300, 100/400, mcf 900/900, 400/1200, 300/1200; swap of 4 GiB; 120 s",
            from: "our choice: the text at hand has no more of it",
        },
        Input {
            what: "pages stay where they are until a device or the guest's reclaim moves them (policy first-touch): a policy that moves hot \
                   pages cannot be simulated beside a device that sizes the guest's nodes, so slow memory is never traded for fast here",
            from: "our choice: docs/simulator.md",
        },
    ],
    runs,
    rows,
    why: &[],
};

fn key(program: &str, ratio: &str, rule: &str) -> String {
    format!("{program} {ratio}, {rule}")
}

fn runs(load: &Load) -> Vec<Run> {
    let mut runs = Vec::new();
    for (name, table, sizes) in PROGRAMS {
        for (ratio, (fast, slow)) in RATIOS.iter().zip(sizes) {
            for rule in RULES {
                let scenario = load.workload(&format!("{{ {table} }}")).and_then(|mut s| {
                    s.vms[0].name = name.into();
                    s.vms[0].sizes = vec![fast * MIB, slow * MIB];
                    s.with_share(rule).map_err(|fault| fault.to_string())
                });
                runs.push(Run::new(key(name, ratio, rule), scenario));
            }
        }
    }
    runs
}

fn rows(results: &Results) -> Vec<Row> {
    let mut rows = Vec::new();
    for (name, ..) in PROGRAMS {
        for ratio in RATIOS {
            let run = |rule| results.get(&key(name, ratio, rule)).and_then(Measured::vm);
            let both = || Ok::<_, String>((run(STAYS)?, run(TRADES)?));
            let what = |figure: &str| format!("{name} {ratio}: {figure}");
            let gain = both().map(|(stays, trades)| trades.ops_per_s / stays.ops_per_s);
            rows.push(predicted(what("faster with trade"), "times", gain));
            for rule in RULES {
                let read = run(rule).map(swapped_in_per_s);
                let figure = format!("pages swapped in, {rule}");
                rows.push(predicted(what(&figure), "per s", read));
            }
            for (tier, tier_name) in [(0, "fast"), (1, "slow")] {
                let has = run(TRADES).and_then(|vm| given_mib(vm, tier));
                let figure = format!("{tier_name} memory at the end, trade");
                rows.push(predicted(what(&figure), "MiB", has));
            }
        }
    }
    rows
}

fn swapped_in_per_s(vm: &VmResult) -> f64 {
    float(vm.swapped_in_bytes / PAGE_SIZE) / vm.runtime_s
}

fn given_mib(vm: &VmResult, tier: usize) -> Result<f64, String> {
    let given = vm.provision.as_ref().and_then(|d| d.given_bytes.get(tier));
    let given = given.ok_or("the VM has no such node")?;
    Ok(float(given / MIB))
}

#[cfg(test)]
mod tests {
    use terrace_sim::HostShare;

    use super::*;

    #[test]
    fn each_program_runs_with_its_sizes_with_trade_and_without() {
        let load = Load::new(&TRADE.file.unwrap(), 1, None).unwrap();
        let runs = runs(&load);
        assert_eq!(runs.len(), PROGRAMS.len() * RATIOS.len() * RULES.len());
        for run in &runs {
            let scenario = run.scenario.as_ref().unwrap();
            scenario.check().unwrap();
            let trades = scenario.host.share == HostShare::Trade;
            assert_eq!(trades, run.key.ends_with(TRADES), "{}", run.key);
        }
        let last = &runs.last().unwrap().scenario.as_ref().unwrap().vms[0];
        assert_eq!(last.sizes, [300 * MIB, 1200 * MIB]);
    }
}
