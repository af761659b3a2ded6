//! Whole pages, from runs made up here.

use terrace_sim::{
    OrderAt, Overhead, Provisioned, RunResult, Sample, SizeAt, Sweep, Timeline, VmResult,
    VmTimeline,
};

use super::*;

const GIB: u64 = 1 << 30;

fn vm_result(name: &str, policy: &str, slowdown: f64) -> VmResult {
    VmResult {
        memory_wait_s: 0.0,
        name: name.into(),
        policy: policy.into(),
        guest_policy: None,
        gathered_pages: None,
        hot_blocks: None,
        rounds: if policy == "all-fast" { 0 } else { 12 },
        runtime_s: 300.0 * slowdown,
        ops_per_s: 41.2e6 / slowdown,
        p50_ns: 82.0,
        p99_ns: 340.0 * slowdown,
        slowdown_vs_all_fast: Some(slowdown),
        max_slowdown: None,
        cost: Some(24.0),
        performance_per_cost: Some(1.667 / slowdown),
        cache_hit_ratio: None,
        fast_hit_ratio: 1.0 / slowdown,
        fast_write_ratio: 0.9 / slowdown,
        dram_utility: 0.72,
        tier_bytes_mean: vec![8 * GIB, 32 * GIB],
        tier_bytes_end: vec![8 * GIB, 32 * GIB],
        tier_written_bytes: vec![3 * GIB, GIB],
        fast_bytes_mean: 8 * GIB,
        fast_bytes_end: 8 * GIB,
        promoted_pages: 1_234_000,
        demoted_pages: 987_000,
        vm_exits: 45_600,
        major_faults: 0,
        swapped_in_bytes: 0,
        swapped_out_bytes: 0,
        overhead_s: Overhead {
            track: 1.25,
            classify: 0.5,
            migrate: 3.0,
        },
        provision: None,
        demand: None,
    }
}

/// A VM whose hot quarter moves up, under a policy that follows it after a while.
fn vm_timeline(name: &str, samples: u32, cells: u32, slowdown: f64) -> VmTimeline {
    let sample = |i: u32| {
        let hot = (i / 60 * 7 + 3) % cells.max(1);
        let noise = |c: u32| (i * 2_654_435 + c * 40_503) % 97;
        let heat = (0..cells).map(|c| match (c + cells - hot) % cells < cells / 4 {
            true => 9000 + noise(c) * 60,
            false if c % 11 == 0 => 0,
            false => 30 + noise(c),
        });
        let settled = f64::from(i % 60) / 60.0;
        let pages = if i % 60 < 12 { 9000 } else { 300 };
        let fast = (8 * GIB).min(GIB + u64::from(i) * (GIB / 40));
        Sample {
            at_s: f64::from(i + 1) * slowdown / 2.0,
            ops_per_s: 41e6 / slowdown,
            fast_hit_ratio: (0.45 + settled / 1.9) / slowdown,
            promoted_pages: pages,
            demoted_pages: pages * 3 / 4,
            tier_bytes: vec![fast, 40 * GIB - fast],
            heat: heat.collect(),
        }
    };
    VmTimeline {
        name: name.into(),
        memory_bytes: 40 * GIB,
        samples: (0..samples).map(sample).collect(),
    }
}

fn run(policy: &str, slowdown: f64, vms: &[&str], samples: u32, cells: u32) -> Output {
    let names = || vms.iter().zip(0_u32..);
    let slower = |i: u32| slowdown + f64::from(i) * 0.05 * (slowdown - 1.0);
    Output {
        result: RunResult {
            scenario: "four".into(),
            policy: policy.into(),
            seed: 7,
            scale: 64,
            simulated_s: 300.0 * slowdown,
            wall_s: 1.0,
            accesses: 1 << 30,
            accesses_per_wall_s: 2e7,
            state_bytes_per_page: 6.5,
            sim_state_bytes_per_page: 20.0,
            sweep: None,
            share: None,
            model: None,
            way: None,
            vms: names()
                .map(|(n, i)| vm_result(n, policy, slower(i)))
                .collect(),
        },
        timeline: Timeline {
            tiers: vec!["dram".into(), "pmem".into()],
            vms: names()
                .map(|(n, i)| vm_timeline(n, samples, cells, slower(i)))
                .collect(),
        },
    }
}

const FOUR: [&str; 4] = ["web", "kv", "scan", "batch"];

fn three_policies() -> Vec<Output> {
    [("vtmm", 1.21), ("all-fast", 1.0), ("first-touch", 2.4)]
        .map(|(policy, slowdown)| run(policy, slowdown, &FOUR, 600, 64))
        .to_vec()
}

fn sweep() -> Vec<Output> {
    let mut runs = Vec::new();
    for (policy, worst) in [("vtmm", 1.8), ("first-touch", 3.0)] {
        for step in 0..4 {
            let slowdown = 1.0 + (worst - 1.0) / f64::from(1 << step);
            let mut one = run(policy, slowdown, &["web", "kv"], 120, 16);
            one.result.sweep = Some(Sweep {
                key: "fast".into(),
                bytes: (2 << step) * GIB,
            });
            runs.push(one);
        }
    }
    runs
}

/// Every element that opens closes, in order; returns how many there are.
fn check_markup(page: &str) -> usize {
    let mut open: Vec<&str> = Vec::new();
    let mut elements = 0;
    let mut rest = page.strip_prefix("<!DOCTYPE html>").expect("a page");
    while let Some(start) = rest.find('<') {
        let text = &rest[..start];
        assert!(!text.contains('>'), "a loose > in {text:?}");
        for part in text.split('&').skip(1) {
            let name = part.split(';').next().unwrap_or("");
            assert!(
                ["amp", "lt", "gt", "quot", "#39"].contains(&name),
                "&{part}"
            );
        }
        let end = start + rest[start..].find('>').expect("a tag that ends");
        let tag = &rest[start + 1..end];
        rest = &rest[end + 1..];
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name), "closed out of order");
            continue;
        }
        elements += 1;
        assert_eq!(tag.matches('"').count() % 2, 0, "quotes of {tag}");
        assert!(!tag.contains("NaN") && !tag.contains("inf"), "{tag}");
        if !tag.ends_with('/') {
            open.push(tag.split([' ', '\n']).next().unwrap_or(""));
        }
    }
    assert!(open.is_empty(), "still open: {open:?}");
    elements
}

#[test]
fn a_page_is_well_formed_small_and_needs_no_network() {
    let runs = three_policies();
    let page = html("four VMs", &runs);
    assert!(check_markup(&page) > 500);
    assert!(page.len() < 2_000_000, "{} bytes", page.len());
    for word in ["http", "<script", "@import", "url(", "src="] {
        assert!(!page.contains(word), "{word}");
    }
    assert_eq!(page, html("four VMs", &runs), "the same bytes again");
}

#[test]
fn a_page_says_the_figures() {
    let page = html("four VMs", &three_policies());
    let has = |what: &str| assert!(page.contains(what), "no {what:?}");
    has("<h1>four VMs</h1>");
    has("Scenario <b>four</b>, seed 7, scale 64; 3 runs, up to 720.0 s");
    has(
        "<tr><th>web</th><td>vtmm</td><td class=\"n\">363.00</td><td class=\"n\">1.210</td><td class=\"n\">24.00</td><td class=\"n\">1.378</td>",
    );
    has("<td class=\"n\">82.6 %</td>");
    has("<td class=\"n\">1.25 / 0.5 / 3</td><td class=\"n\">12</td></tr>");
    // 363 s of the longest 783 s.
    has("<b class=\"c0\" style=\"width:46.4%\"></b></div><span class=\"n\">363.00</span>");
    has("title=\"web under vtmm: run time 363.00 s, slowdown 1.210, 34 M accesses/s\"");
    has("aria-label=\"kv: pages moved\"");
    has("dram: 8 GiB\npmem: 32 GiB");
    has("s, 0.0 GiB to 5.0 GiB: ");
    assert!(!page.contains("fewer than 3 rounds:"));
}

#[test]
fn names_cannot_break_the_page() {
    let odd = "</svg><script>\"'&\n";
    let mut one = run(odd, 1.5, &[odd], 20, 8);
    one.result.scenario = odd.into();
    one.timeline.tiers = vec![odd.into(); 2];
    one.result.vms[0].guest_policy = Some(odd.into());
    let page = html(odd, &[one]);
    check_markup(&page);
    assert!(!page.contains("<script"));
}

#[test]
fn few_rounds_are_said_aloud_where_a_policy_has_rounds() {
    let mut runs = three_policies();
    runs[0].result.vms[2].rounds = 2;
    let page = html("t", &runs);
    assert_eq!(page.matches("▲ 2</td>").count(), 1);
    assert!(page.contains("fewer than 3 rounds:"));
    assert_eq!(page.matches("▲ 0").count(), 0, "all-fast has no rounds");
}

#[test]
fn each_rule_of_sharing_has_a_part_of_its_own() {
    let mut runs = sweep();
    runs.truncate(2);
    for (run, share) in runs.iter_mut().zip(["island", "fair"]) {
        run.result.sweep = None;
        run.result.share = Some(share.into());
    }
    let page = html("shares", &runs);
    for share in ["island", "fair"] {
        assert!(page.contains(&format!("Runs with share {share}")), "{page}");
        assert!(page.contains(&format!("<td>share {share}</td>")), "{page}");
    }
}

#[test]
fn a_sweep_is_a_line_per_policy_and_details_per_value() {
    let page = html("sweep", &sweep());
    check_markup(&page);
    assert!(page.contains("<title>vtmm at 4 GiB: 1.400</title>"));
    assert!(page.contains("<title>first-touch at 16 GiB: 1.250</title>"));
    for value in [2, 4, 8, 16] {
        let summary = format!("<summary>Runs with {value} GiB</summary>");
        assert_eq!(page.matches(&summary).count(), 1);
    }
    let part = page.split("<summary>Runs with 4 GiB").nth(1).unwrap();
    let part = part.split("</details>").next().unwrap();
    assert_eq!(part.matches("web: accesses served").count(), 1);
    assert_eq!(
        part.matches("class=\"room\"").count(),
        8,
        "2 figures of 2 VMs and 2 runs"
    );
}

#[test]
fn the_cheapest_size_within_the_bound_is_named() {
    let mut runs = sweep();
    for vm in runs.iter_mut().flat_map(|run| &mut run.result.vms) {
        vm.max_slowdown = Some(1.45);
    }
    let page = html("sweep", &runs);
    check_markup(&page);
    assert!(page.contains("<p>vtmm: fast = 4GiB is the cheapest that keeps every VM"));
    assert!(page.contains("<p>first-touch: fast = 16GiB is the cheapest"));
    assert!(page.contains("<td class=\"n\">1.800 &gt; 1.45</td>"));
    assert!(!html("sweep", &sweep()).contains("max_slowdown"));
}

#[test]
fn many_vms_and_policies_fit_on_a_page() {
    let names: Vec<String> = (1..=8).map(|i| format!("vm{i}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let policies: Vec<String> = (1..=12).map(|i| format!("policy-{i}")).collect();
    let runs: Vec<Output> = policies
        .iter()
        .map(|p| run(p, 1.3, &names, 90, 16))
        .collect();
    let page = html("many", &runs);
    check_markup(&page);
    assert_eq!(
        page.matches("aria-label=\"vm8: tiers under policy-")
            .count(),
        12
    );
    assert!(page.contains("<i class=\"c11\"></i>policy-12"));
}

#[test]
fn runs_without_numbers_or_samples_make_a_page_too() {
    check_markup(&html("nothing", &[]));
    let page = html("short", &[run("vtmm", 1.2, &["a"], 0, 0)]);
    check_markup(&page);
    assert!(page.contains("No timeline was recorded"));
    let page = html("cold", &[run("vtmm", 1.2, &["a"], 5, 0)]);
    check_markup(&page);
    assert!(page.contains("No heat was recorded"));
    check_markup(&html("no VM", &[run("vtmm", 1.2, &[], 0, 0)]));

    let mut odd = run("vtmm", 1.2, &["a", "b"], 5, 3);
    for vm in &mut odd.result.vms {
        vm.runtime_s = f64::NAN;
        vm.ops_per_s = f64::INFINITY;
        vm.slowdown_vs_all_fast = Some(f64::NAN);
        vm.fast_hit_ratio = f64::NAN;
        vm.p99_ns = -1.0;
    }
    odd.result.simulated_s = f64::NAN;
    odd.timeline.tiers.clear();
    for sample in &mut odd.timeline.vms[0].samples {
        sample.fast_hit_ratio = f64::NAN;
        sample.tier_bytes = vec![u64::MAX, u64::MAX, 1, 2, 3];
        sample.heat = vec![0; 3];
    }
    odd.timeline.vms[1].samples[2].heat = vec![u32::MAX; 200];
    odd.timeline.vms[1].memory_bytes = 0;
    check_markup(&html("odd", &[odd]));
}

#[test]
fn a_demand_is_drawn_with_its_curve_and_its_seconds() {
    use terrace_sim::{Demand, DemandCurve, DemandPoint, PhaseAt, WorkingSetAt};
    let point = |gib: u64, miss_ratio| DemandPoint {
        bytes: gib * GIB,
        miss_ratio,
        ..DemandPoint::default()
    };
    let second = |at_s, gib: u64| WorkingSetAt {
        at_s,
        demand_bytes: gib * GIB,
        ..WorkingSetAt::default()
    };
    let demand = Demand {
        curve: Some(DemandCurve {
            source: "restored".into(),
            points: vec![point(1, 1.0), point(2, 1e-4), point(4, 0.0)],
            ..DemandCurve::default()
        }),
        working_sets: vec![second(1.0, 2), second(2.0, 4), second(9.0, 1)],
        phases: vec![PhaseAt {
            at_s: 5.0,
            change: "began".into(),
        }],
        ..Demand::default()
    };
    let with = |demand| Output {
        result: RunResult {
            policy: "hpmbs".into(),
            vms: vec![VmResult {
                demand,
                ..vm_result("a<b", "hpmbs", 1.1)
            }],
            ..RunResult::default()
        },
        timeline: Timeline::default(),
    };
    let page = html("demand", &[with(Some(demand.clone()))]);
    assert!(page.contains("a&lt;b: misses by memory"), "{page}");
    assert!(page.contains("<title>hpmbs, restored</title>"), "{page}");
    assert!(page.contains("a&lt;b: demand over time"), "{page}");
    assert!(!page.contains("NaN") && !page.contains("inf\""), "{page}");
    // Never tracked: no chart, but the reason.
    let never = html("never", &[with(Some(Demand::default()))]);
    assert!(never.contains("hpmbs, a&lt;b: never tracked"), "{never}");
    assert!(!page.contains("never tracked") && !page.contains("all of the curve is a guess"));
    let mut guessed = demand;
    let curve = guessed.curve.as_mut().unwrap();
    curve.guess_below_bytes = 5 * GIB;
    let guessed = html("guessed", &[with(Some(guessed))]);
    assert!(guessed.contains("all of the curve is a guess"), "{guessed}");
    assert!(!html("none", &[with(None)]).contains("Memory demand"));
}

/// A device that gave a VM 4 GiB at first, and later 5.
fn resized() -> Provisioned {
    let order = |at_s: f64, from: u64, to: u64, reason: &str| OrderAt {
        at_s,
        from_bytes: vec![from * GIB],
        to_bytes: vec![Some(to * GIB)],
        origin: "arbiter".into(),
        reason: reason.into(),
    };
    let sizes = [(0.0, 16), (7.0, 4), (60.0, 5)];
    Provisioned {
        orders: vec![
            order(0.0, 16, 4, "boot"),
            order(59.0, 4, 5, "it swaps <a lot>"),
        ],
        sizes: sizes
            .map(|(at_s, gib)| SizeAt {
                at_s,
                bytes: vec![gib * GIB],
            })
            .to_vec(),
        ..Provisioned::default()
    }
}

#[test]
fn orders_are_marked_on_the_sizes_over_time_with_their_reasons() {
    let mut runs = three_policies();
    let page = html("four VMs", &runs);
    assert!(!page.contains("Sizes over time"));
    runs[0].result.vms[1].provision = Some(resized());
    let page = html("four VMs", &runs);
    check_markup(&page);
    assert!(page.contains("<figcaption>kv: size over time</figcaption>"));
    assert!(!page.contains("web: size over time"));
    let order = "<title>vtmm, 59.0 s: 4 GiB → 5 GiB\nit swaps &lt;a lot&gt;</title></circle>";
    assert!(page.contains(order));
    assert!(!page.contains("boot"), "the first sizes are no change");
}

#[test]
fn a_sweep_under_several_rules_has_its_lines_for_each_rule() {
    let under = |share: &str| {
        let mut runs = sweep();
        runs.iter_mut()
            .for_each(|run| run.result.share = Some(share.into()));
        runs
    };
    let page = html("a sweep", &[under("island"), under("dp")].concat());
    check_markup(&page);
    for part in [
        "Slowdown by fast memory, share island",
        "Slowdown by fast memory, share dp",
        "<summary>Runs with share dp, 16 GiB</summary>",
        "<th>share, sweep</th>",
        "<td>share island, fast 2 GiB</td>",
    ] {
        assert!(page.contains(part), "{part}");
    }
}
