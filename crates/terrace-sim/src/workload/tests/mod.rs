//! Tests of all kinds together: the accesses of each, and the faults that it refuses.

mod faults;
mod shares;

use std::collections::BTreeMap;
use std::path::Path;

use proptest::prelude::*;

use super::*;
use crate::base::access::Access;
use crate::base::load::Stop;

/// A load of each kind that makes its own accesses, small.
const EACH: [&str; 16] = [
    r#"kind = "hotset", size = "16MiB", hot = 0.2"#,
    r#"kind = "hotset", size = "16MiB", hot = 0.3, layout = "clustered", drift_per_s = 0.5"#,
    r#"kind = "sequential", size = "16MiB", hot = 0.2, period = "1s""#,
    r#"kind = "gups", variant = "hemem", size = "16MiB", hot = 0.1, move_at = "1s""#,
    r#"kind = "gups", variant = "hypertier", size = "16MiB", hot = 0.2"#,
    r#"kind = "gups", variant = "colloid", size = "16MiB", hot = 0.2"#,
    r#"kind = "zipf", size = "16MiB", exponent = 0.9"#,
    r#"kind = "gauss", size = "16MiB", sigma = 0.1"#,
    r#"kind = "kv", keys = 10000, value = "1KiB", dist = "zipf""#,
    r#"kind = "ycsb", preset = "d", size = "16MiB""#,
    r#"kind = "graph", algorithm = "bc", vertices = 4096, degree = 16, iterations = 1"#,
    r#"kind = "graph", algorithm = "pagerank", vertices = 5000, degree = 16, skew = 0.76, order = "shuffled""#,
    r#"kind = "btree", size = "16MiB", write = 0.5"#,
    r#"kind = "xsbench", size = "16MiB", nuclides = 34"#,
    r#"kind = "stencil", size = "16MiB""#,
    r#"kind = "linear", size = "16MiB""#,
];

/// Reads a load as a scenario has it.
fn read(keys: &str) -> Result<Load, String> {
    let text = format!("workload = {{ {keys} }}\n");
    let table: Result<BTreeMap<String, Load>, _> = toml::from_str(&text);
    table
        .map(|mut table| table.remove("workload").expect("it is there"))
        .map_err(|why| why.to_string())
}

fn load(keys: &str) -> Workload {
    read(&format!("{keys}, ops = 1000")).expect(keys).workload
}

fn sources(workload: &Workload, scale: u64, seed: u64, vm: &str) -> Vec<Box<dyn Source>> {
    let context = Context {
        scale,
        seed,
        vm,
        vcpus: 2,
        is_cached: false,
        folder: Path::new("."),
    };
    workload.sources(&context).expect("sources")
}

/// The next `count` accesses.
fn next(source: &mut dyn Source, now_ns: u64, count: usize) -> Vec<Access> {
    let mut accesses = vec![Access::default(); count];
    let mut given = 0;
    while given < count {
        let some = source.fill(now_ns, &mut accesses[given..]);
        assert!(some > 0, "it ended after {given}");
        given += some;
    }
    accesses
}

fn first(keys: &str, scale: u64, count: usize) -> Vec<Access> {
    next(&mut *sources(&load(keys), scale, 1, "vm1")[0], 0, count)
}

#[test]
fn a_seed_fixes_accesses_per_vm_and_vcpu() {
    for keys in EACH {
        let workload = load(keys);
        let of =
            |seed, vm, vcpu: usize| next(&mut *sources(&workload, 1, seed, vm)[vcpu], 0, 20_000);
        let accesses = of(1, "vm1", 0);
        assert_eq!(accesses, of(1, "vm1", 0), "{keys}");
        assert_ne!(accesses, of(1, "vm1", 1), "{keys}");
        // Nothing is drawn there.
        if !keys.contains("stencil") {
            assert_ne!(accesses, of(2, "vm1", 0), "{keys}");
            assert_ne!(accesses, of(1, "vm2", 0), "{keys}");
        }
    }
}

#[test]
fn a_fork_goes_on_as_the_source_does() {
    let phases = format!(
        r#"kind = "phases", of = [{{ {}, ops = 3000 }}, {{ {}, duration = "1s" }}]"#,
        EACH[0], EACH[8]
    );
    for keys in EACH.into_iter().chain([phases.as_str()]) {
        let mut source = sources(&load(keys), 1, 1, "vm1").remove(0);
        next(&mut *source, 5, 1234);
        let mut fork = source.fork();
        assert_eq!(
            next(&mut *source, 2_000_000_000, 4321),
            next(&mut *fork, 2_000_000_000, 4321),
            "{keys}"
        );
    }
}

/// The size of batches changes no access.
#[test]
fn small_batches_are_large_ones_in_parts() {
    for keys in EACH {
        let mut source = sources(&load(keys), 1, 1, "vm1").remove(0);
        let parts: Vec<Access> = (0..100).flat_map(|_| next(&mut *source, 0, 7)).collect();
        assert_eq!(parts, first(keys, 1, 700), "{keys}");
    }
}

proptest! {
    #[test]
    fn accesses_stay_within_the_pages(
        kind in 0..EACH.len(),
        seed in 0..1000_u64,
        scale in 1..5_u32,
        now_ns in 0..u64::MAX / 2,
    ) {
        let scale = 1 << scale;
        let workload = load(EACH[kind]);
        let pages = workload.pages(scale, Path::new(".")).expect("pages");
        for mut source in sources(&workload, scale, seed, "vm1") {
            for at in [0, now_ns] {
                for access in next(&mut *source, at, 500) {
                    prop_assert!(access.page() < pages, "{access:?} of {pages}");
                }
            }
        }
    }

    #[test]
    fn hot_sets_of_any_shape_stay_within_the_pages(
        units in 1..2000_u64,
        hot in 0.0001..1.0_f64,
        clustered: bool,
        drift in 0.0..2.0_f64,
        now_ns in 0..1_000_000_000_000_u64,
    ) {
        let layout = if clustered { "clustered" } else { "scattered" };
        let workload = load(&format!(
            r#"kind = "hotset", size = "{}KiB", hot = {hot:.6}, layout = "{layout}", drift_per_s = {drift:.3}"#,
            4 * units
        ));
        let mut source = sources(&workload, 1, 1, "vm1").remove(0);
        for access in next(&mut *source, now_ns, 300) {
            prop_assert!(access.page() < units);
        }
    }
}

#[test]
fn the_whole_memory_of_a_graph_is_used() {
    let keys =
        r#"kind = "graph", algorithm = "pagerank", vertices = 4096, degree = 16, iterations = 2"#;
    let workload = load(keys);
    let pages = workload.pages(1, Path::new(".")).expect("pages");
    let mut seen = vec![false; usize::try_from(pages).expect("small")];
    for mut source in sources(&workload, 1, 1, "vm1") {
        for access in next(&mut *source, 0, 300_000) {
            seen[usize::try_from(access.page()).expect("small")] = true;
        }
    }
    assert!(seen.iter().all(|page| *page));
}

#[test]
fn golden_first_accesses_of_gups_and_zipf() {
    assert_eq!(first_tuples(EACH[3], 1), GUPS);
    assert_eq!(first_tuples(EACH[6], 1), ZIPF);
}

/// The first six accesses.
fn first_tuples(keys: &str, scale: u64) -> Vec<(u64, u64, bool)> {
    tuples(&first(keys, scale, 6))
}

/// Page, line, and whether it is a write.
fn tuples(accesses: &[Access]) -> Vec<(u64, u64, bool)> {
    let tuple = |access: &Access| (access.page(), access.line(), access.is_write());
    accesses.iter().map(tuple).collect()
}

const GUPS: [(u64, u64, bool); 6] = [
    (1037, 16, true),
    (3615, 31, true),
    (1049, 57, true),
    (1218, 37, true),
    (1058, 36, true),
    (1093, 45, true),
];
const ZIPF: [(u64, u64, bool); 6] = [
    (3841, 56, false),
    (1472, 51, false),
    (248, 31, false),
    (3222, 5, false),
    (3777, 18, false),
    (2360, 50, false),
];

/// Loads by Zipf's law that are large enough for a head at scale 64.
const BY_ZIPF: [&str; 4] = [
    r#"kind = "zipf", size = "1GiB", exponent = 0.99"#,
    r#"kind = "kv", keys = 1048576, value = "64B", dist = "zipf""#,
    r#"kind = "ycsb", preset = "c", size = "1GiB", value = "64B""#,
    r#"kind = "ycsb", preset = "d", size = "1GiB", value = "64B""#,
];

#[test]
fn golden_accesses_of_merged_and_spread_heads() {
    let of = |key: &str, skipped: usize| {
        BY_ZIPF.map(|keys| {
            let keys = format!("{keys}{key}");
            tuples(&first(&keys, 64, skipped + 6)[skipped..])
        })
    };
    assert_eq!(of(r#", head = "merged""#, 0), MERGED);
    // In another turn.
    assert_eq!(of(r#", head = "spread""#, 1000), SPREAD);
    assert_eq!(of("", 1000), SPREAD);
}

#[test]
fn heads_differ_only_on_scaled_machines() {
    for keys in BY_ZIPF {
        let merged = format!(r#"{keys}, head = "merged""#);
        assert_eq!(first(keys, 1, 20_000), first(&merged, 1, 20_000), "{keys}");
        // The latest keys take turns anyway.
        let are_equal = first(keys, 64, 2000) == first(&merged, 64, 2000);
        assert_eq!(are_equal, keys.contains(r#""d""#), "{keys}");
    }
}

const MERGED: [[(u64, u64, bool); 6]; 4] = [
    [
        (3060, 56, false),
        (1631, 51, false),
        (4087, 31, false),
        (903, 5, false),
        (3777, 18, false),
        (3777, 50, false),
    ],
    [
        (17, 4, false),
        (112, 34, true),
        (37, 4, false),
        (303, 50, true),
        (58, 51, false),
        (116, 37, true),
    ],
    [
        (624, 62, false),
        (2847, 34, false),
        (474, 41, false),
        (3888, 54, false),
        (796, 25, false),
        (1207, 53, false),
    ],
    [
        (270, 19, false),
        (2474, 23, false),
        (258, 48, false),
        (3595, 60, false),
        (572, 15, false),
        (2233, 38, false),
    ],
];
const SPREAD: [[(u64, u64, bool); 6]; 4] = [
    [
        (3382, 24, false),
        (3382, 4, true),
        (3382, 44, true),
        (1430, 54, true),
        (3781, 7, false),
        (1606, 19, true),
    ],
    [
        (47, 51, false),
        (150, 52, false),
        (24, 12, false),
        (257, 25, false),
        (28, 15, false),
        (247, 31, false),
    ],
    [
        (310, 25, false),
        (3298, 60, false),
        (36, 49, false),
        (2241, 35, false),
        (418, 5, false),
        (2385, 50, false),
    ],
    [
        (497, 37, false),
        (3460, 18, false),
        (141, 14, false),
        (2691, 9, false),
        (16, 40, false),
        (2158, 49, false),
    ],
];
