//! The benchmark of the simulator: accesses per second and bytes per page.

use std::path::Path;

use terrace_sim::{
    Access, Cached, Context, Costs, Options, RunError, Scenario, Simulation, Source, Tlb,
    number::{float, low, to_usize},
};

use crate::measured::{Cost, Measured, RUNS, timed};

/// The load of both rows: GUPS as HeMem has it, over 64 GiB, a tenth of it hot.
const SCENARIO: &str = r#"
[machine]
tiers = ["dram", "pmem"]
sizes = ["16GiB", "48GiB"]
vcpus_per_vm = 8
[[vm]]
name = "bench"
fast = "16GiB"
slow = "48GiB"
page = "4KiB"
policy = "vtmm"
workload = { kind = "gups", variant = "hemem", size = "64GiB", hot = 0.1, duration = "DURATION" }
"#;

/// Accesses that the baseline takes from one vCPU at a time.
const BATCH: usize = 64;

/// The figures of the simulator: medians.
#[derive(Clone, Debug, PartialEq)]
pub struct Simulated {
    /// Accesses per second of the whole simulation; the baseline is generator, TLB look-up and one 16-byte record
    /// per page alone.
    pub accesses_per_s: Measured,
    /// Bytes of simulator and engine per simulated 4 KiB page.
    pub state_bytes_per_page: f64,
}

fn scenario(scale: u64, duration: &str) -> Result<Scenario, RunError> {
    let text = SCENARIO.replace("DURATION", duration);
    let text = text.replace("[machine]", &format!("[machine]\nscale = {scale}"));
    Scenario::parse(&text, "bench", Path::new(".")).map_err(|error| RunError(error.to_string()))
}

/// Measures the load at a scale, for `duration` of the full-size machine.
///
/// # Errors
/// If the scenario cannot be run: never.
pub fn simulate(scale: u64, duration: &str) -> Result<Simulated, RunError> {
    let scenario = scenario(scale, duration)?;
    let (mut runs, mut accesses, mut state_bytes_per_page) = (Vec::new(), 0, 0.0);
    for _ in 0..RUNS {
        let mut simulation = Simulation::new(&scenario, Options::default())?;
        let cost = timed(|| simulation.advance(u64::MAX));
        let result = simulation.result();
        drop(simulation);
        accesses = result.accesses;
        state_bytes_per_page = result.sim_state_bytes_per_page;
        runs.push((cost, baseline(&scenario, accesses)?));
    }
    Ok(Simulated {
        accesses_per_s: Measured::rates(float(accesses), &runs),
        state_bytes_per_page,
    })
}

/// The least that a simulator of pages can do: draw the access, look the page up in both levels of its
/// vCPU's TLB, add to the page's record.
fn baseline(scenario: &Scenario, accesses: u64) -> Result<Cost, RunError> {
    let vm = &scenario.vms[0];
    let scale = scenario.machine.scale;
    let context = Context {
        scale,
        seed: scenario.seed,
        vm: &vm.name,
        vcpus: vm.vcpus,
        is_cached: false,
        folder: &scenario.folder,
    };
    let sources = vm.workload.sources(&context);
    let sources = sources.map_err(|error| RunError(error.to_string()))?;
    let costs = Costs::default();
    let scaled = |entries: u64| (entries / scale).max(1);
    let tlbs = || {
        let (l1, l2) = (scaled(costs.l1_entries), scaled(costs.l2_entries));
        (Tlb::<4>::new(l1), Tlb::<12>::new(l2))
    };
    let mut vcpus: Vec<(Box<dyn Source>, _)> =
        sources.into_iter().map(|source| (source, tlbs())).collect();
    let pages = vm.workload.pages(scale, &scenario.folder);
    let pages = pages.map_err(|error| RunError(error.to_string()))?;
    let mut records = vec![[0_u64; 2]; to_usize(pages)];
    let mut batch = [Access::default(); BATCH];
    let mut done = 0;
    let cost = timed(|| {
        while done < accesses {
            for (source, (l1, l2)) in &mut vcpus {
                let count = source.fill(0, &mut batch);
                for access in &batch[..count] {
                    let page = low(access.page());
                    if l1.find(page).is_none() {
                        let cached = Cached::new(page, 0, false);
                        if l2.find(page).is_none() {
                            l2.push(cached);
                        }
                        l1.push(cached);
                    }
                    records[to_usize(access.page())][usize::from(access.is_write())] += 1;
                }
                done += count as u64;
            }
        }
    });
    std::hint::black_box(&records);
    Ok(cost)
}
