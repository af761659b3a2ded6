//! Tests of what each kind of load stands for, counted on seeded accesses. Bounds are five deviations of a right load
//! or more, and far from what a wrong one gives.

use std::collections::BTreeSet;
use std::path::Path;

use super::*;

const COUNT: usize = 100_000;

fn share(accesses: &[Access], of: impl Fn(&Access) -> bool) -> f64 {
    let hits = u32::try_from(accesses.iter().filter(|access| of(access)).count()).expect("small");
    f64::from(hits) / f64::from(u32::try_from(accesses.len()).expect("small"))
}

fn about(value: f64, expected: f64, bound: f64) {
    assert!(
        (value - expected).abs() < bound,
        "{value}, not about {expected}"
    );
}

fn pages(accesses: &[Access]) -> BTreeSet<u64> {
    accesses.iter().map(|access| access.page()).collect()
}

/// Accesses per page.
fn counts(accesses: &[Access], pages: u64) -> Vec<u32> {
    let mut counts = vec![0; usize::try_from(pages).expect("small")];
    for access in accesses {
        counts[usize::try_from(access.page()).expect("small")] += 1;
    }
    counts
}

/// Share of the accesses that the most accessed `of` pages have.
fn top_share(accesses: &[Access], pages: u64, of: usize) -> f64 {
    let mut counts = counts(accesses, pages);
    counts.sort_unstable_by(|a, b| b.cmp(a));
    let all = u32::try_from(accesses.len()).expect("small");
    f64::from(counts[..of].iter().sum::<u32>()) / f64::from(all)
}

#[test]
fn hotset_has_exactly_its_hot_pages_in_each_layout() {
    for layout in ["scattered", "even", "clustered"] {
        // 2,000 pages, not a power of two.
        let keys = format!(
            r#"kind = "hotset", size = "8000KiB", hot = 0.1, hot_access = 1, layout = "{layout}""#
        );
        let hot = pages(&first(&keys, 1, COUNT));
        assert_eq!(hot.len(), 200, "{layout}");
        let runs = hot
            .iter()
            .filter(|page| !hot.contains(&(**page + 1)))
            .count();
        assert_eq!(runs == 1, layout == "clustered", "{runs} runs");
    }
}

#[test]
fn hotset_gives_hot_pages_their_share_and_the_rest_evenly() {
    let keys = r#"kind = "hotset", size = "8000KiB", hot = 0.1, hot_access = 0.9, write = 0.3"#;
    let accesses = first(keys, 1, COUNT);
    // 90 %, and a tenth of the other 10 %.
    about(top_share(&accesses, 2000, 200), 0.91, 0.005);
    about(share(&accesses, |access| access.is_write()), 0.3, 0.008);
    about(share(&accesses, |access| access.line() < 16), 0.25, 0.007);
    // Cold pages have 5 each: 12 have none by chance.
    let seen = pages(&accesses).len();
    assert!((1960..2000).contains(&seen), "{seen} of 2000");
}

#[test]
fn hotset_stages_move_the_hot_set_by_the_clock() {
    let keys = r#"kind = "hotset", size = "8000KiB", hot = 0.1, hot_access = 1, stages = 3, stage_every = "10s""#;
    let mut source = sources(&load(keys), 1, 1, "vm1").remove(0);
    let mut at = |s: u64| pages(&next(&mut *source, s * 1_000_000_000, 20_000));
    let (start, same, second, third, last) = (at(0), at(9), at(10), at(20), at(100));
    assert_eq!(start, same);
    assert_eq!(third, last, "the last stage goes on");
    for (one, other) in [(&start, &second), (&second, &third), (&start, &third)] {
        let both = one.intersection(other).count();
        // A tenth of 200 by chance, deviation 4.
        assert!((1..45).contains(&both), "{both} of 200 in both");
    }
}

#[test]
fn a_list_of_stages_has_their_shares() {
    let keys = r#"kind = "hotset", size = "8000KiB", stages = [0.1, 0.05], hot_access = 1, stage_every = "10s""#;
    let mut source = sources(&load(keys), 1, 1, "vm1").remove(0);
    assert_eq!(pages(&next(&mut *source, 0, 20_000)).len(), 200);
    assert_eq!(
        pages(&next(&mut *source, 10_000_000_000, 20_000)).len(),
        100
    );
}

#[test]
fn drift_replaces_its_share_of_the_hot_set_per_second() {
    let keys =
        r#"kind = "hotset", size = "8000KiB", hot = 0.1, hot_access = 1, drift_per_s = 0.25"#;
    let mut source = sources(&load(keys), 1, 1, "vm1").remove(0);
    let start = pages(&next(&mut *source, 0, 20_000));
    let later = pages(&next(&mut *source, 2_000_000_000, 20_000));
    assert_eq!(
        (later.len(), start.intersection(&later).count()),
        (200, 100)
    );
}

#[test]
fn sequential_sweeps_its_window_and_advances_each_period() {
    let keys = r#"kind = "sequential", size = "400KiB", hot = 0.2, period = "1s""#;
    let mut source = sources(&load(keys), 1, 1, "vm1").remove(0);
    let lines = |accesses: Vec<Access>| -> Vec<u64> {
        accesses
            .iter()
            .map(|access| access.page() * 64 + access.line())
            .collect()
    };
    let window = 20 * 64;
    let sweep = lines(next(&mut *source, 0, 2 * 1280));
    assert_eq!(sweep[..1280], (0..window).collect::<Vec<_>>());
    assert_eq!(sweep[..1280], sweep[1280..]);
    let moved = lines(next(&mut *source, 4_500_000_000, 1280));
    assert_eq!(moved, (4 * window..5 * window).collect::<Vec<_>>());
    let round = lines(next(&mut *source, 5_000_000_000, 1280));
    assert_eq!(round, (0..window).collect::<Vec<_>>());
}

#[test]
fn sequential_sweeps_parts_of_its_own_or_all_of_the_window() {
    let first_and_last = |sweep: &str| -> Vec<(u64, u64)> {
        let keys = format!(r#"kind = "sequential", size = "64KiB", sweep = "{sweep}""#);
        let vcpus = sources(&load(&keys), 1, 1, "vm1");
        vcpus
            .into_iter()
            .map(|mut source| {
                let lines = next(&mut *source, 0, 1024).into_iter();
                let lines = lines.map(|access| access.page() * 64 + access.line());
                let lines: BTreeSet<u64> = lines.collect();
                (*lines.first().unwrap(), *lines.last().unwrap())
            })
            .collect()
    };
    assert_eq!(first_and_last("own"), [(0, 511), (512, 1023)]);
    assert_eq!(first_and_last("shared"), [(0, 1023); 2]);
}

#[test]
fn gups_hemem_moves_its_hot_section_and_always_writes() {
    let keys = r#"kind = "gups", variant = "hemem", size = "8000KiB", hot = 0.1, move_at = "5s""#;
    let mut source = sources(&load(keys), 1, 1, "vm1").remove(0);
    let hot = |accesses: &[Access]| -> BTreeSet<usize> {
        let counts = counts(accesses, 2000);
        (0..2000).filter(|page| counts[*page] > 100).collect()
    };
    let before = next(&mut *source, 4_999_999_999, COUNT);
    let after = next(&mut *source, 5_000_000_000, COUNT);
    about(top_share(&before, 2000, 200), 0.91, 0.005);
    assert!(before.iter().all(|access| access.is_write()));
    let (before, after) = (hot(&before), hot(&after));
    assert_eq!((before.len(), after.len()), (200, 200));
    assert_eq!(
        before.last().expect("hot") - before.first().expect("hot"),
        199
    );
    assert!(before.is_disjoint(&after));
}

#[test]
fn gups_hypertier_is_hot_at_the_end_and_the_rest_misses_it() {
    let keys = r#"kind = "gups", variant = "hypertier", size = "8000KiB", hot = 0.25, weight = 10"#;
    let accesses = first(keys, 1, COUNT);
    // 10 of 11, none of the rest.
    about(
        share(&accesses, |access| access.page() >= 1500),
        10.0 / 11.0,
        0.005,
    );
}

#[test]
fn gups_colloid_has_hot_and_cold_lines_in_every_page() {
    let keys = r#"kind = "gups", variant = "colloid", size = "1MiB", hot = 0.25"#;
    let accesses = first(keys, 1, 1_000_000);
    about(top_share(&accesses, 256, 64), 0.25, 0.1);
    let mut lines = vec![0_u32; 256 * 64];
    for access in &accesses {
        lines[usize::try_from(access.page() * 64 + access.line()).expect("small")] += 1;
    }
    // Hot ones have 226 each, cold ones 6.
    assert_eq!(lines.iter().filter(|count| **count > 100).count(), 4096);
}

#[test]
fn zipf_has_the_weights_of_its_law() {
    for exponent in [0.5, 1.0, 1.5] {
        let keys =
            format!(r#"kind = "zipf", size = "400KiB", exponent = {exponent}, scatter = false"#);
        let counts = counts(&first(&keys, 1, COUNT), 100);
        let weight = |k: u32| libm::pow(f64::from(k), -exponent);
        let all: f64 = (1..=100).map(weight).sum();
        for k in [1, 2, 3, 10, 50, 100] {
            let expected = 100_000.0 * weight(k) / all;
            let count = f64::from(counts[usize::try_from(k - 1).expect("small")]);
            about(count, expected, 5.0 * expected.sqrt() + 1.0);
        }
    }
}

#[test]
fn zipf_at_scale_has_curve_and_hottest_page_of_full_size() {
    let full: Vec<f64> = (1..=262_144_u32)
        .map(|k| libm::pow(f64::from(k), -0.99))
        .collect();
    let all: f64 = full.iter().sum();
    for (scale, page_count) in [(16_u64, 16_384_usize), (64, 4096), (256, 1024)] {
        let keys = r#"kind = "zipf", size = "1GiB", exponent = 0.99"#;
        let page_limit = u64::try_from(page_count).expect("small");
        let accesses = first(keys, scale, 300_000);
        for percent in [5, 20, 50] {
            let expected: f64 = full[..262_144 * percent / 100].iter().sum();
            let hottest = top_share(&accesses, page_limit, page_count * percent / 100);
            // The most accessed pages of a sample are a little hotter than the hottest pages.
            about(
                hottest,
                expected / all,
                if scale < 64 { 0.06 } else { 0.01 },
            );
        }
        let merged = first(&format!(r#"{keys}, head = "merged""#), scale, 300_000);
        let hottest = [&accesses, &merged].map(|of| top_share(of, page_limit, 1));
        // At full size 0.075; at scale 256 ten pages of 1,024 take turns.
        assert!(hottest[0] < 0.075, "{} at scale {scale}", hottest[0]);
        assert!(hottest[1] > 0.15, "{} at scale {scale}", hottest[1]);
    }
}

#[test]
fn gauss_is_a_bell_around_the_middle() {
    let keys = r#"kind = "gauss", size = "4000KiB", sigma = 0.1, scatter = false"#;
    let accesses = first(keys, 1, COUNT);
    about(share(&accesses, |access| access.page() < 500), 0.5, 0.008);
    about(
        share(&accesses, |access| (400..600).contains(&access.page())),
        0.6827,
        0.008,
    );
    about(
        share(&accesses, |access| (300..700).contains(&access.page())),
        0.9545,
        0.004,
    );
}

#[test]
fn kv_asks_its_index_and_then_each_line_of_the_value() {
    let keys = r#"kind = "kv", keys = 10000, value = "1000B", read = 0.3"#;
    let accesses = first(keys, 1, 17 * 5000);
    let index_pages = 40;
    let mut updates = 0;
    for request in accesses.chunks_exact(17) {
        assert!(request[0].page() < index_pages && !request[0].is_write());
        let lines: Vec<u64> = request[1..]
            .iter()
            .map(|access| access.page() * 64 + access.line() - index_pages * 64)
            .collect();
        assert_eq!(lines[0] % 16, 0);
        assert_eq!(lines, (lines[0]..lines[0] + 16).collect::<Vec<_>>());
        assert!(request[..16].iter().all(|access| !access.ends_operation()));
        assert!(request[16].ends_operation());
        assert!(
            request[1..]
                .iter()
                .all(|a| a.is_write() == request[1].is_write())
        );
        updates += u32::from(request[1].is_write());
    }
    about(f64::from(updates) / 5000.0, 0.7, 0.035);
}

#[test]
fn kv_hotspot_takes_its_share_by_keys() {
    let keys = r#"kind = "kv", keys = 1000, value = "4KiB", hot = 0.2, hot_access = 0.8"#;
    let accesses = first(keys, 1, 65 * 20_000);
    let values: Vec<Access> = accesses
        .into_iter()
        .filter(|access| access.page() >= 4)
        .map(|access| Access::new(access.page() - 4, access.line(), false))
        .collect();
    // 80 %, and a fifth of the rest.
    about(top_share(&values, 1000, 200), 0.84, 0.015);
}

#[test]
fn even_hot_pages_lie_one_in_each_block_at_any_scale() {
    let keys = r#"kind = "hotset", preset = "gpac-masim", size = "64MiB""#;
    for scale in [1, 4] {
        let hot = pages(&first(keys, scale, 10_000));
        let each: BTreeSet<u64> = (0..32 / scale).map(|block| block * 512).collect();
        assert_eq!(hot, each, "scale {scale}");
    }
}

#[test]
fn values_in_the_order_of_keys_are_hot_in_the_middle() {
    let keys = r#"kind = "kv", keys = 1000, value = "4KiB", dist = "gauss", order = "keys""#;
    let accesses = first(keys, 1, 65 * 20_000);
    let values: Vec<&Access> = accesses.iter().filter(|a| a.page() >= 4).collect();
    let within = |access: &&&Access| (access.page() - 4).abs_diff(500) < 167;
    let hits = u32::try_from(values.iter().filter(within).count()).expect("small");
    let all = u32::try_from(values.len()).expect("small");
    // One standard deviation, a sixth of the keys, to either side: 68.3 % of what lies within three.
    about(f64::from(hits) / f64::from(all), 0.685, 0.02);
}

#[test]
fn a_multigrid_step_sweeps_all_fields_and_writes_half() {
    let keys = r#"kind = "multigrid", size = "4MiB", fields = 4, levels = 3"#;
    // 65,536 lines; half of each array is this vCPU's, so that a step has fewer accesses than are half of these.
    let accesses = first(keys, 1, COUNT);
    assert_eq!(pages(&accesses).len(), pages(&accesses[..COUNT / 2]).len());
    about(share(&accesses, |access| access.is_write()), 0.5, 0.001);
    let last = accesses.iter().map(|a| a.page()).max().expect("some");
    assert!((960..1024).contains(&last), "{last}");
}

#[test]
fn ycsb_d_reads_what_was_inserted_lately() {
    let keys = r#"kind = "ycsb", preset = "d", size = "16MiB", value = "4KiB""#;
    let accesses = first(keys, 1, 65 * 20_000);
    let mut recent = Vec::new();
    let (mut reads, mut hits) = (0_u32, 0_u32);
    for request in accesses.chunks_exact(65) {
        if request[1].is_write() {
            recent.push(request[1].page());
        } else if recent.len() > 100 {
            reads += 1;
            hits += u32::from(recent[recent.len() - 100..].contains(&request[1].page()));
        }
    }
    let inserts = f64::from(u32::try_from(recent.len()).expect("small"));
    about(inserts / 20_000.0, 0.05, 0.008);
    // The last 100 inserts of this vCPU are every other of the newest 200 of 4,000 keys.
    let share = f64::from(hits) / f64::from(reads);
    assert!((0.25..0.5).contains(&share), "{share}");
}

#[test]
fn ycsb_e_scans_up_to_100_records() {
    let keys = r#"kind = "ycsb", preset = "e", size = "16MiB", value = "64B""#;
    let accesses = first(keys, 1, COUNT);
    let mut lengths = vec![0_u32];
    for access in &accesses {
        *lengths.last_mut().expect("one") += 1;
        if access.ends_operation() {
            lengths.push(0);
        }
    }
    lengths.pop();
    assert_eq!(lengths.iter().max(), Some(&101));
    let all = f64::from(u32::try_from(lengths.len()).expect("small"));
    // 50.5 records and the index; 5 % are inserts of 2.
    about(
        f64::from(lengths.iter().sum::<u32>()) / all,
        0.95 * 51.5 + 0.05 * 2.0,
        3.5,
    );
}

#[test]
fn a_search_visits_every_vertex_once_and_each_of_its_edges() {
    let keys = r#"kind = "graph", algorithm = "bfs", vertices = 4096, degree = 16, iterations = 3"#;
    let (offsets, edges, properties) = (513, 513 + 8192, 513 + 8192 + 512);
    let build = (offsets + 8192) / 2 + 1;
    let accesses = first(keys, 1, 60_000);
    assert!(accesses[..build - 1].iter().all(|access| access.is_write()));
    let line = |access: &Access| access.page() * 64 + access.line();
    let run = &accesses[build..];
    let reads = share(run, |access| {
        line(access) >= edges && line(access) < properties
    });
    // Each edge reads a neighbour; offsets, edges and the queue are the rest.
    assert!((0.6..0.9).contains(&reads), "{reads}");
    let low = run
        .iter()
        .filter(|a| line(a) >= edges && line(a) < edges + 128)
        .count();
    let all = run
        .iter()
        .filter(|a| line(a) >= edges && line(a) < properties)
        .count();
    let skew = f64::from(u32::try_from(low).expect("small"))
        / f64::from(u32::try_from(all).expect("small"));
    about(skew, 0.5625, 0.03);
}

#[test]
fn every_btree_lookup_starts_at_the_root_and_writes_only_leaves() {
    let keys = r#"kind = "btree", size = "16MiB", fanout = 16, write = 1"#;
    let accesses = first(keys, 1, COUNT);
    let root = share(&accesses, |access| access.page() == 0 && access.line() == 2);
    let leaves = share(&accesses, |access| access.is_write());
    // One of each per look-up: root and leaf.
    about(root, leaves, 0.001);
    assert!((0.05..0.2).contains(&root), "{root}");
    let first_leaf = accesses
        .iter()
        .filter(|a| a.is_write())
        .map(|a| a.page())
        .min();
    assert!(
        first_leaf.expect("leaves") > 100,
        "upper levels are not written"
    );
}

#[test]
fn xsbench_only_reads_and_mostly_nuclide_grids() {
    let keys = r#"kind = "xsbench", size = "64MiB", nuclides = 355"#;
    let accesses = first(keys, 1, COUNT);
    assert!(accesses.iter().all(|access| !access.is_write()));
    // The grids are the last 48 of 1,476 bytes.
    let grids = share(&accesses, |access| access.page() >= 15_860);
    assert!((0.5..0.8).contains(&grids), "{grids}");
}

#[test]
fn stencil_reads_one_half_and_writes_the_other_in_turns() {
    let keys = r#"kind = "stencil", size = "24KiB", arrays = 6"#;
    // 64 lines per array, 32 of them this vCPU's.
    let accesses = first(keys, 1, 2 * 32 * 6);
    let (one, other) = accesses.split_at(32 * 6);
    assert!(
        one.iter()
            .all(|access| access.is_write() == (access.page() >= 3))
    );
    assert!(
        other
            .iter()
            .all(|access| access.is_write() == (access.page() < 3))
    );
    assert!(accesses.iter().all(|access| access.line() < 32));
}

#[test]
fn linear_alternates_rows_in_order_and_weights() {
    let keys = r#"kind = "linear", size = "400KiB", weights = 0.1"#;
    let accesses = first(keys, 1, 2 * 2880);
    for (row, pair) in (0..).zip(accesses.chunks_exact(2)) {
        assert_eq!(pair[0].page() * 64 + pair[0].line(), 640 + row);
        assert!(!pair[0].is_write() && pair[1].page() < 10);
    }
    about(share(&accesses, |access| access.is_write()), 0.25, 0.03);
}

#[test]
fn swapmix_grows_by_its_rate_until_it_is_grown() {
    let keys = r#"kind = "swapmix", private = "400KiB", growth = "400KiB", rate = "100KiB""#;
    for scale in [1, 4] {
        let mut source = sources(&load(keys), scale, 1, "vm1").remove(0);
        let mut at = |s: u64| pages(&next(&mut *source, s * 1_000_000_000, 20_000)).len();
        let full: Vec<usize> = [0, 2, 4, 9].map(&mut at).into();
        let expected = if scale == 1 {
            [100, 150, 200, 200]
        } else {
            [25, 37, 50, 50]
        };
        assert_eq!(full, expected);
    }
}

#[test]
fn phases_follow_each_other_and_start_again() {
    let keys = r#"kind = "phases", duration = "10s", of = [
        { kind = "linear", size = "400KiB", ops = 200, compute_ns = 7 },
        { kind = "stencil", size = "800KiB", duration = "2s", compute_ns = 9 }]"#;
    let load = read(&keys.replace('\n', " ")).expect("a load");
    assert_eq!(load.stop, Stop::Duration(10_000_000_000));
    let workload = load.workload;
    assert_eq!(workload.pages(1, Path::new(".")).expect("pages"), 200);
    let mut source = sources(&workload, 1, 1, "vm1").remove(0);
    let mut batch = [Access::default(); 64];
    let mut step = |s: u64, expected: usize, compute_ns: f64| {
        assert_eq!(source.fill(s * 1_000_000_000, &mut batch), expected);
        assert_eq!(source.pace().compute_ns, compute_ns);
    };
    // Half of the 200 are this vCPU's.
    step(1, 64, 7.0);
    step(1, 36, 7.0);
    step(1, 64, 9.0);
    step(2, 64, 9.0);
    step(3, 64, 7.0);
}

#[test]
fn phases_without_an_end_share_that_of_the_whole() {
    let load = read(
        r#"kind = "phases", duration = "10s", of = [{ kind = "linear", size = "400KiB" }, { kind = "stencil", size = "400KiB" }]"#,
    )
    .expect("a load");
    let mut source = sources(&load.workload, 1, 1, "vm1").remove(0);
    let writes = |accesses: &[Access]| share(accesses, |access| access.is_write());
    about(writes(&next(&mut *source, 4_999_999_999, 600)), 0.25, 0.1);
    about(writes(&next(&mut *source, 5_000_000_000, 600)), 0.5, 0.001);
}

#[test]
fn shares_of_memory_have_the_same_heat_at_every_scale() {
    for keys in [
        r#"kind = "hotset", size = "1GiB", hot = 0.2"#,
        r#"kind = "gups", variant = "hemem", size = "1GiB", hot = 0.1"#,
        r#"kind = "zipf", size = "1GiB", exponent = 0.9"#,
        r#"kind = "gauss", size = "1GiB", sigma = 0.1"#,
        r#"kind = "kv", keys = 1048576, value = "1KiB""#,
        r#"kind = "graph", algorithm = "bfs", vertices = 4194304, degree = 16"#,
    ] {
        let workload = load(keys);
        let at = |scale: u64| {
            let pages = workload.pages(scale, Path::new(".")).expect("pages");
            let mut source = sources(&workload, scale, 1, "vm1").remove(0);
            // Past what builds a graph.
            next(&mut *source, 0, 80_000);
            let accesses = next(&mut *source, 0, 500_000);
            top_share(&accesses, pages, usize::try_from(pages / 5).expect("small"))
        };
        about(at(64), at(256), 0.03);
    }
}

#[test]
fn masim_and_phases_end_by_themselves() {
    for keys in [
        r#"kind = "masim", file = "a.cfg""#,
        r#"kind = "phases", of = [{ kind = "linear", size = "4KiB", ops = 5 }]"#,
    ] {
        assert_eq!(read(keys).expect(keys).stop, Stop::Trace);
    }
}

#[test]
fn every_preset_is_a_load_that_the_documentation_lists() {
    let documentation = include_str!("../../../../../docs/workloads.md");
    for preset in presets::PRESETS {
        let missing = match (preset.kind, preset.name) {
            ("ycsb", _) => r#", size = "1GiB""#,
            ("hotset", "vtmm-scan" | "vtmm-hot-set") => ", hot = 0.2",
            _ => "",
        };
        let keys = format!(
            r#"kind = "{}", preset = "{}", duration = "1s"{missing}"#,
            preset.kind, preset.name
        );
        let workload = read(&keys).expect(&keys).workload;
        workload.pages(64, Path::new(".")).expect(&keys);
        assert!(!preset.table().is_empty(), "{keys}");
        let row = format!(
            "| `{}` | `{}` | `{}` |",
            preset.kind, preset.name, preset.keys
        );
        assert!(
            documentation.contains(&row),
            "docs/workloads.md lacks {row}"
        );
    }
}

#[test]
fn keys_win_over_those_of_the_preset() {
    let workload = load(r#"kind = "sequential", preset = "vtmm", size = "1GiB""#);
    assert_eq!(workload.pages(1, Path::new(".")).expect("pages"), 262_144);
    let whole = load(r#"kind = "sequential", size = "1GiB", hot = 0.2, period = "60s""#);
    assert_eq!(workload, whole);
}

/// The paces of `kv`, `ycsb` and `stencil` before their presets had paces of their own.
#[test]
fn a_pace_beside_a_preset_wins_and_gives_the_old_load() {
    let redis = load(r#"kind = "kv", preset = "vtmm-redis""#);
    assert!((redis.pace().compute_ns - 85.0).abs() < f64::EPSILON);
    for (preset, by_hand) in [
        (
            r#"kind = "kv", preset = "vtmm-redis", compute_ns = 50"#,
            r#"kind = "kv", keys = 8388608, value = "4KiB""#,
        ),
        (
            r#"kind = "ycsb", preset = "c", size = "1GiB", compute_ns = 50"#,
            r#"kind = "ycsb", read = 1.0, size = "1GiB""#,
        ),
        (
            r#"kind = "stencil", preset = "hpmbs-fotonik3d", parallelism = 8"#,
            r#"kind = "stencil", size = "10035MiB""#,
        ),
    ] {
        assert_eq!(load(preset), load(by_hand), "{preset}");
    }
}

#[test]
fn the_documentation_lists_every_kind_with_its_pace() {
    let documentation = include_str!("../../../../../docs/workloads.md");
    for (kind, compute_ns, parallelism) in super::super::load::KINDS {
        if kind != "trace" && kind != "phases" {
            let row = format!("| `{kind}` | {compute_ns} | {parallelism} |");
            assert!(
                documentation.contains(&row),
                "docs/workloads.md lacks {row}"
            );
        }
    }
}
