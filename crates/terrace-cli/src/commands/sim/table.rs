//! Runs as a table for people.

use terrace_repro::choice;
use terrace_repro::compare::way as ways;
use terrace_sim::{RunResult, VmResult, policy};

use super::{demand, size_line};
use crate::render;

/// Rounds below which a policy's figures say little.
const MIN_ROUNDS: u64 = terrace_repro::compare::sensitivity::MIN_ROUNDS;

/// The table: a line about what was simulated, and a row for each VM of each run.
pub fn text(runs: &[&RunResult]) -> String {
    let Some(first) = runs.first() else {
        return String::new();
    };
    let mut out = format!(
        "{}: seed {}, scale {}\n",
        first.scenario, first.seed, first.scale
    );
    for run in runs {
        out += &format!(
            "{}{}: {:.1} s simulated in {:.1} s, {} accesses ({}/s), {:.1} bytes of state a page\n",
            run.policy,
            place(run),
            run.simulated_s,
            run.wall_s,
            count(run.accesses),
            rate(run.accesses_per_wall_s),
            run.sim_state_bytes_per_page,
        );
    }
    let mut header = HEADER.to_vec();
    let shares = runs.iter().any(|run| run.share.is_some());
    let sweeps = runs.iter().any(|run| run.sweep.is_some());
    let ways = runs.iter().any(|run| run.way.is_some());
    if ways {
        header.insert(5, "WAY");
    }
    if sweeps {
        header.insert(1, "FAST");
    }
    if shares {
        header.insert(1, "SHARE");
    }
    let first_number = 2 + usize::from(sweeps) + usize::from(shares);
    let numbers: Vec<usize> = [1 + usize::from(shares)]
        .into_iter()
        .filter(|_| sweeps)
        .chain(first_number..header.len())
        .collect();
    let mut rows = Vec::new();
    for run in runs {
        for vm in &run.vms {
            let mut cells = row(vm);
            if ways {
                cells.insert(5, way(run));
            }
            if sweeps {
                cells.insert(1, swept(run).unwrap_or_else(|| "-".into()));
            }
            if shares {
                cells.insert(1, run.share.clone().unwrap_or_else(|| "-".into()));
            }
            rows.push(cells);
        }
    }
    out.push('\n');
    out += &render::table(&header, &numbers, &rows);
    let choices = choice::choices(runs);
    if !choices.is_empty() {
        out.push('\n');
    }
    for choice in choices {
        out += &format!("{}\n", choice.sentence());
    }
    out + &notes(runs)
}

/// The columns of every table.
const HEADER: [&str; 14] = [
    "POLICY",
    "VM",
    "RUN TIME",
    "OPS/S",
    "SLOWDOWN",
    "COST",
    "PERF/COST",
    "FAST HITS",
    "PROMOTED",
    "DEMOTED",
    "EXITS",
    "FAULTS",
    "OVERHEAD",
    "ROUNDS",
];

/// The part of the way from first-touch to static-best that a run goes.
fn way(run: &RunResult) -> String {
    let way = run.way.and_then(|way| way.0);
    way.map_or("-".into(), |way| format!("{way:.2}"))
}

/// Warnings about the figures.
fn notes(runs: &[&RunResult]) -> String {
    let vms = || runs.iter().flat_map(|run| &run.vms);
    let mut amiss: Vec<String> = vms().filter_map(amiss).collect();
    amiss.extend(vms().flat_map(refused));
    let mut out = String::new();
    if !amiss.is_empty() {
        out += &format!("\n{}\n", amiss.join("\n"));
    }
    let sizes: Vec<String> = runs.iter().flat_map(|run| resized(run)).collect();
    if !sizes.is_empty() {
        out += &format!("\n{}\n", sizes.join("\n"));
    }
    let demands: Vec<String> = vms().flat_map(demand::lines).collect();
    if !demands.is_empty() {
        out += &format!("\n{}\n", demands.join("\n"));
    }
    if runs.iter().any(|run| run.way.is_some()) {
        out += "\nWAY: the part of the way from first-touch (0) to static-best (1), the best placement that stays.\n";
    }
    if ways::has_failed(runs) {
        out += &format!("\n{}\n", ways::FAILED);
    }
    if vms().any(too_few) {
        out += &few_rounds();
    }
    out
}

/// The line below a table of runs with few rounds.
pub fn few_rounds() -> String {
    format!(
        "\nUnder {MIN_ROUNDS} rounds a policy has hardly begun: let the load run longer before you judge it.\n"
    )
}

fn row(vm: &VmResult) -> Vec<String> {
    let overhead = vm.overhead_s;
    let policy = match &vm.guest_policy {
        Some(guest) => format!("{} + {guest}", vm.policy),
        None => vm.policy.clone(),
    };
    let rounds = match (is_unmanaged(vm), too_few(vm)) {
        (true, _) => "-".into(),
        (false, true) => format!("{}: too few to judge", vm.rounds),
        (false, false) => vm.rounds.to_string(),
    };
    vec![
        policy,
        vm.name.clone(),
        format!("{:.2} s", vm.runtime_s),
        rate(vm.ops_per_s),
        slowdown(vm),
        vm.cost.map_or("-".into(), choice::money),
        vm.performance_per_cost
            .map_or("-".into(), |p| format!("{p:.3}")),
        format!("{:.1} %", vm.fast_hit_ratio * 100.0),
        render::pages(vm.promoted_pages),
        render::pages(vm.demoted_pages),
        count(vm.vm_exits),
        count(vm.major_faults),
        format!(
            "{:.2} s",
            overhead.track + overhead.classify + overhead.migrate
        ),
        rounds,
    ]
}

/// The sizes that a device gave a VM, if they are not those it was to have.
fn amiss(vm: &VmResult) -> Option<String> {
    let provision = vm.provision.as_ref()?;
    let sizes = |bytes: &[u64]| {
        let sizes: Vec<String> = bytes.iter().map(|bytes| render::bytes(*bytes)).collect();
        sizes.join(" + ")
    };
    (provision.given_bytes != provision.wanted_bytes).then(|| {
        format!(
            "{}, {}: {} gave it {}, not {}",
            vm.policy,
            vm.name,
            provision.by,
            sizes(&provision.given_bytes),
            sizes(&provision.wanted_bytes)
        )
    })
}

/// The sizes of a run's VMs over time.
fn resized(run: &RunResult) -> Vec<String> {
    let place = place(run);
    let lines = run.vms.iter().filter_map(size_line::line);
    lines
        .map(|line| match place.is_empty() {
            true => line,
            false => format!("{}: {line}", place.trim_start_matches(", ")),
        })
        .collect()
}

/// `, share dp, fast 2 GiB`: the place of a run among others; empty if it has none.
fn place(run: &RunResult) -> String {
    let share = run.share.as_ref();
    let share = share.map_or(String::new(), |share| format!(", share {share}"));
    share + &swept(run).map_or(String::new(), |size| format!(", fast {size}"))
}

/// Resizes that were refused.
fn refused(vm: &VmResult) -> Vec<String> {
    let refused = vm.provision.iter().flat_map(|p| &p.refused);
    let each = refused.map(|refused| {
        format!(
            "{}, {}: not resized at {:.1} s: {}",
            vm.policy,
            vm.name,
            refused.at_s,
            refused
                .why
                .strip_prefix(&format!("{}: ", vm.name))
                .unwrap_or(&refused.why)
        )
    });
    each.collect()
}

/// The slowdown, with its bound if it is beyond that.
fn slowdown(vm: &VmResult) -> String {
    match (vm.slowdown_vs_all_fast, vm.max_slowdown) {
        (None, _) => "-".into(),
        (Some(slowdown), Some(most)) if slowdown > most => format!("{slowdown:.3} > {most}"),
        (Some(slowdown), _) => format!("{slowdown:.3}"),
    }
}

fn too_few(vm: &VmResult) -> bool {
    !is_unmanaged(vm) && vm.rounds < MIN_ROUNDS
}

/// Whether neither the host nor the guest has rounds.
fn is_unmanaged(vm: &VmResult) -> bool {
    vm.guest_policy.is_none() && policy::is_unmanaged(&vm.policy)
}

fn swept(run: &RunResult) -> Option<String> {
    run.sweep.as_ref().map(|sweep| render::bytes(sweep.bytes))
}

/// A rate with its unit: `812`, `12.3 k`, `4.5 M`.
fn rate(n: f64) -> String {
    const UNITS: [(&str, f64); 3] = [("G", 1e9), ("M", 1e6), ("k", 1e3)];
    match UNITS.iter().find(|(_, size)| n >= *size) {
        Some((unit, size)) => format!("{:.1} {unit}", n / size),
        None => format!("{n:.0}"),
    }
}

/// A count in the same form.
fn count(n: u64) -> String {
    const UNITS: [(&str, u64); 3] = [("G", 1_000_000_000), ("M", 1_000_000), ("k", 1_000)];
    match UNITS.iter().find(|(_, size)| n >= *size) {
        Some((unit, size)) => format!("{}.{} {unit}", n / size, n % size / (size / 10)),
        None => n.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use terrace_sim::{
        Demand, DemandCurve, DemandPoint, OrderAt, Overhead, Provisioned, SizeAt, Sweep,
        WorkingSetAt,
    };

    use super::*;

    fn run(policy: &str, rounds: u64) -> RunResult {
        let vm = VmResult {
            name: "vm1".into(),
            policy: policy.into(),
            rounds,
            runtime_s: 60.0,
            ops_per_s: 1.25e7,
            slowdown_vs_all_fast: Some(1.0625),
            cost: Some(17.5),
            performance_per_cost: Some(1.2549),
            fast_hit_ratio: 0.875,
            promoted_pages: 256,
            vm_exits: 1500,
            overhead_s: Overhead {
                track: 0.5,
                classify: 0.25,
                migrate: 0.25,
            },
            ..VmResult::default()
        };
        RunResult {
            scenario: "quick".into(),
            policy: policy.into(),
            seed: 1,
            scale: 64,
            simulated_s: 60.0,
            wall_s: 2.0,
            accesses: 30_000_000,
            accesses_per_wall_s: 1.5e7,
            vms: vec![vm],
            ..RunResult::default()
        }
    }

    #[test]
    fn a_run_is_a_row_for_each_vm() {
        let expected = "\
quick: seed 1, scale 64
vtmm: 60.0 s simulated in 2.0 s, 30.0 M accesses (15.0 M/s), 0.0 bytes of state a page

POLICY  VM   RUN TIME   OPS/S  SLOWDOWN   COST  PERF/COST  FAST HITS  PROMOTED  DEMOTED  EXITS  FAULTS  OVERHEAD  ROUNDS
vtmm    vm1   60.00 s  12.5 M     1.062  17.50      1.255     87.5 %     1 MiB      0 B  1.5 k       0    1.00 s       7
";
        assert_eq!(text(&[&run("vtmm", 7)]), expected);
    }

    #[test]
    fn rounds_under_3_are_said_aloud_where_a_policy_has_rounds() {
        let output = text(&[&run("vtmm", 2)]);
        assert!(output.contains("2: too few to judge"), "{output}");
        assert!(output.contains("Under 3 rounds"), "{output}");
        let output = text(&[&run("oracle", 0)]);
        assert!(
            !output.contains("too few") && !output.contains("Under 3"),
            "{output}"
        );
    }

    #[test]
    fn a_vm_that_got_other_sizes_than_ordered_is_named() {
        let mut blind = run("tpp", 7);
        let mut given = Provisioned {
            by: "balloon".into(),
            wanted_bytes: vec![3 << 30, 13 << 30],
            given_bytes: vec![27 << 20, 16 << 30],
            resize_s: 9.4,
            refused: Vec::new(),
            sizes: Vec::new(),
            orders: Vec::new(),
            more_orders: 0,
        };
        blind.vms[0].provision = Some(given.clone());
        let output = text(&[&blind]);
        let line = "tpp, vm1: balloon gave it 27 MiB + 16 GiB, not 3 GiB + 13 GiB\n";
        assert!(output.contains(line), "{output}");
        given.given_bytes.clone_from(&given.wanted_bytes);
        blind.vms[0].provision = Some(given);
        assert!(!text(&[&blind]).contains("gave it"));
    }

    #[test]
    fn the_sizes_of_a_resized_vm_are_a_line() {
        let order = |from: u64, to: u64| OrderAt {
            from_bytes: vec![from << 30],
            to_bytes: vec![Some(to << 30)],
            ..OrderAt::default()
        };
        let size = |at_s: f64, gib: u64| SizeAt {
            at_s,
            bytes: vec![gib << 30],
        };
        let mut shared = run("vtmm", 7);
        shared.share = Some("dp".into());
        let mut device = Provisioned {
            wanted_bytes: vec![5 << 30],
            given_bytes: vec![5 << 30],
            sizes: vec![size(0.0, 16), size(7.0, 4), size(20.0, 3), size(30.0, 5)],
            orders: vec![order(16, 4)],
            ..Provisioned::default()
        };
        shared.vms[0].provision = Some(device.clone());
        assert!(!text(&[&shared]).contains("at first"));
        device.orders.extend([order(4, 3), order(3, 5)]);
        shared.vms[0].provision = Some(device);
        let output = text(&[&shared]);
        let line = "\nshare dp: vtmm, vm1: 4 GiB at first, 5 GiB at last, 3 GiB at least, 5 GiB at most; \
                    orders for its size: 2\n";
        assert!(output.contains(line), "{output}");
    }

    #[test]
    fn a_demand_is_a_line_with_the_reasons_to_doubt_it() {
        let mut tracked = run("hpmbs", 0);
        let second = |gib: u64| WorkingSetAt {
            demand_bytes: gib << 30,
            ..WorkingSetAt::default()
        };
        let last = DemandPoint {
            bytes: 8 << 30,
            ..DemandPoint::default()
        };
        let curve = DemandCurve {
            source: "restored".into(),
            guess_below_bytes: 1 << 30,
            points: vec![last],
            ..DemandCurve::default()
        };
        tracked.vms[0].demand = Some(Demand {
            tracked_faults: 1234,
            working_sets: vec![second(3), second(5), second(4)],
            curve: Some(curve.clone()),
            ..Demand::default()
        });
        let line = "\nhpmbs, vm1: demand 4 GiB at last, 5 GiB at most; 1234 tracked faults; its curve \
                    can be believed from 1 GiB on\n";
        let output = text(&[&tracked]);
        assert!(output.ends_with(line), "{output}");
        let demand = tracked.vms[0].demand.as_mut().unwrap();
        demand.tracking = "resting".into();
        demand.curve = Some(DemandCurve {
            source: "tracked".into(),
            guess_below_bytes: 9 << 30,
            ..curve
        });
        let output = text(&[&tracked]);
        for part in [
            "nothing is restored",
            "all of the curve is a guess",
            "the last rest outlives",
        ] {
            assert!(output.contains(part), "{part} in {output}");
        }
        assert!(!output.contains("can be believed"), "{output}");
        tracked.vms[0].demand = Some(Demand::default());
        let output = text(&[&tracked]);
        assert!(
            output.contains("no second was tracked whole; 0 tracked faults\n"),
            "{output}"
        );
        assert!(output.contains("hpmbs, vm1: never tracked"), "{output}");
    }

    #[test]
    fn rounds_of_a_policy_in_the_guest_are_told() {
        let mut guest = run("first-touch", 2);
        guest.vms[0].guest_policy = Some("tpp".into());
        let output = text(&[&guest]);
        assert!(output.contains("2: too few to judge"), "{output}");
    }

    #[test]
    fn a_sweep_says_its_value_and_a_missing_reference_is_a_dash() {
        let mut swept = run("vtmm", 7);
        swept.sweep = Some(Sweep {
            key: "fast".into(),
            bytes: 2 << 30,
        });
        swept.vms[0].slowdown_vs_all_fast = None;
        let output = text(&[&swept]);
        assert!(output.contains("vtmm, fast 2 GiB: "), "{output}");
        let row = output.lines().find(|l| l.contains("vm1")).unwrap();
        let cells: Vec<&str> = row
            .split("  ")
            .map(str::trim)
            .filter(|c| !c.is_empty())
            .collect();
        assert_eq!(cells[..5], ["vtmm", "2 GiB", "vm1", "60.00 s", "12.5 M"]);
        assert_eq!(cells[5], "-");
    }

    #[test]
    fn slowdowns_beyond_the_bound_are_marked_the_cheapest_is_named() {
        let at = |gib: u64, slowdown: f64| {
            let mut run = run("vtmm", 7);
            run.sweep = Some(Sweep {
                key: "fast".into(),
                bytes: gib << 30,
            });
            run.vms[0].slowdown_vs_all_fast = Some(slowdown);
            run.vms[0].max_slowdown = Some(1.2);
            run
        };
        let output = text(&[&at(2, 1.25), &at(4, 1.1)]);
        assert!(output.contains("1.250 > 1.2  "), "{output}");
        assert!(!output.contains("1.100 >"), "{output}");
        assert!(
            output.contains("\n\nvtmm: fast = 4GiB is the cheapest that keeps every VM"),
            "{output}"
        );
    }

    #[test]
    fn a_cost_that_is_not_known_is_a_dash() {
        let mut run = run("vtmm", 7);
        run.vms[0].cost = None;
        run.vms[0].performance_per_cost = None;
        let output = text(&[&run]);
        let row = output.lines().find(|l| l.contains("vm1")).unwrap();
        assert!(row.contains("1.062     -          -  "), "{output}");
    }

    #[test]
    fn counts_and_rates_read_well() {
        assert_eq!(count(999), "999");
        assert_eq!(count(1_290_000), "1.2 M");
        assert_eq!(count(u64::MAX), "18446744073.7 G");
        assert_eq!(rate(0.0), "0");
        assert_eq!(rate(f64::NAN), "NaN");
        assert_eq!(rate(2.5e9), "2.5 G");
    }
}
