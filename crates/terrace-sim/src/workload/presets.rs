//! Presets: parameters that papers and benchmarks give, by name.

use toml::{Table, Value};

/// A preset of a load.
pub(super) struct Preset {
    /// The kind of load that the preset is for.
    pub(super) kind: &'static str,
    /// The preset's name.
    pub(super) name: &'static str,
    /// The preset's keys, as an inline table.
    pub(super) keys: &'static str,
}

const fn preset(kind: &'static str, name: &'static str, keys: &'static str) -> Preset {
    Preset { kind, name, keys }
}

/// All presets, in the order of the documentation; each under a comment with its source, and with the parts that are
/// not from there.
pub(super) const PRESETS: [Preset; 35] = [
    // vTMM §4.3.1: 10 GB, 90 % of the accesses to a share of the pages (its X axis)
    preset("hotset", "vtmm-scan", r#"size = "10GiB", hot_access = 0.9"#),
    // vTMM §4.4: uniform random reads; 2 to 16 GB
    preset(
        "hotset",
        "vtmm-read",
        r#"size = "16GiB", hot = 1.0, hot_access = 1.0, write = 0.0"#,
    ),
    // vTMM §4.4: uniform random writes; 2 to 16 GB
    preset(
        "hotset",
        "vtmm-write",
        r#"size = "16GiB", hot = 1.0, hot_access = 1.0, write = 1.0"#,
    ),
    // vTMM §4.6: 90 % to hot objects, 10 % uniform; the size is chosen within its 24 GB VM
    preset(
        "hotset",
        "vtmm-hot-set",
        r#"size = "16GiB", hot_access = 0.9"#,
    ),
    // HPMBS table 1, Q: 5.0 GB
    preset(
        "hotset",
        "hpmbs-random-read",
        r#"size = "5GiB", hot = 1.0, hot_access = 1.0, write = 0.0"#,
    ),
    // HPMBS table 1, P: 5.0 GB
    preset(
        "hotset",
        "hpmbs-random-write",
        r#"size = "5GiB", hot = 1.0, hot_access = 1.0, write = 1.0"#,
    ),
    // HPMBS table 1, R: 1.8 GB
    preset(
        "hotset",
        "hpmbs-random-read-write",
        r#"size = "1843MiB", hot = 1.0, hot_access = 1.0, write = 0.5"#,
    ),
    // GPAC §5.1, table 2: 9.8 GB, one 4 KiB page of each 512; masim writes unless it is told otherwise; the pace is ours
    preset(
        "hotset",
        "gpac-masim",
        r#"size = "9984MiB", hot = 0.001953125, hot_access = 1.0, write = 1.0, layout = "even", compute_ns = 500"#,
    ),
    // vTMM §4.5: 36 GB, 7.2 GB hot, half writes, moved periodically; the period is our estimate
    preset(
        "sequential",
        "vtmm",
        r#"size = "36GiB", hot = 0.2, write = 0.5, period = "60s""#,
    ),
    // HPMBS table 1, N: 5.0 GB
    preset("sequential", "hpmbs-read", r#"size = "5GiB", write = 0.0"#),
    // HPMBS table 1, O: 5.0 GB
    preset("sequential", "hpmbs-write", r#"size = "5GiB", write = 1.0"#),
    // HyperTier §3.2, §6.2: 126 GiB over nine VMs, a seventh hot, ten times as often
    preset(
        "gups",
        "hypertier",
        r#"variant = "hypertier", size = "14GiB", hot = 0.14285714285714285, weight = 10"#,
    ),
    // the load of `terrace bench`
    preset(
        "gups",
        "hemem",
        r#"variant = "hemem", size = "64GiB", hot = 0.1"#,
    ),
    // vTMM §4.3.2: 32 GB in pairs of 4 KB, half updates, 80 % to 20 %
    preset(
        "kv",
        "vtmm-redis",
        r#"keys = 8388608, value = "4KiB", dist = "hotspot", hot = 0.2, hot_access = 0.8, read = 0.5, compute_ns = 85"#,
    ),
    // vTMM §4.3.3: 10 GB with 2 GB hot
    preset(
        "kv",
        "vtmm-redis-10g",
        r#"keys = 2621440, value = "4KiB", dist = "hotspot", hot = 0.2, hot_access = 0.8, read = 0.5, compute_ns = 85"#,
    ),
    // GPAC §5.1, table 2: 12.5 GB, 1 KB, Gaussian; the share of reads is our estimate
    preset(
        "kv",
        "gpac-redis",
        r#"keys = 13107200, value = "1KiB", dist = "gauss", read = 0.5, compute_ns = 437"#,
    ),
    // GPAC §5.1, table 2: 11 GB, 1 KB, Gaussian; the share of reads is our estimate
    preset(
        "kv",
        "gpac-memcached",
        r#"keys = 11534336, value = "1KiB", dist = "gauss", read = 0.5, compute_ns = 156"#,
    ),
    // GPAC §5.1, table 2: 8.8 GB, Hash_bkt_rcu; elements of 128 bytes and lookups alone as in perfbook's hashtorture.h; the
    // number of keys follows from the size
    preset(
        "kv",
        "gpac-hash",
        r#"keys = 65536000, value = "128B", hot = 1.0, hot_access = 1.0, read = 1.0, compute_ns = 10"#,
    ),
    // HPMBS table 1, L: 4.1 GB; value, law and share of reads are our estimates
    preset(
        "kv",
        "hpmbs-memcached",
        r#"keys = 4299161, value = "1KiB", dist = "zipf", read = 0.95, compute_ns = 156"#,
    ),
    // vTMM §4.3.2: 19 GB, 8 iterations; scale 26 with edge factor 16 is 17.5 GiB here; Graph500's law, shuffled
    preset(
        "graph",
        "vtmm-graph500",
        r#"algorithm = "bfs", vertices = 67108864, degree = 32, iterations = 8, skew = 0.76, order = "shuffled""#,
    ),
    // HMvisor §4.1: scale 21, edge factor 30 (1.0 GiB here; its 1.5 GB keep an edge list too); Graph500's law, shuffled
    preset(
        "graph",
        "hmvisor-graph500",
        r#"algorithm = "bfs", vertices = 2097152, degree = 60, skew = 0.76, order = "shuffled""#,
    ),
    // HPMBS table 1, J: 4 million nodes, 3.4 GB; the degree follows from both; law and order are those of gap-twitter
    preset(
        "graph",
        "hpmbs-graph-4",
        r#"algorithm = "pagerank", vertices = 4000000, degree = 111, skew = 0.76, order = "shuffled""#,
    ),
    // HPMBS table 1, K: 5 million nodes, 4.5 GB; the degree follows from both; law and order are those of gap-twitter
    preset(
        "graph",
        "hpmbs-graph-5",
        r#"algorithm = "pagerank", vertices = 5000000, degree = 118, skew = 0.76, order = "shuffled""#,
    ),
    // GAP's Kronecker graph: scale 27, edge factor 16, each edge listed at both ends; Graph500's law, shuffled
    preset(
        "graph",
        "gap-kron",
        r#"algorithm = "pagerank", vertices = 134217728, degree = 32, skew = 0.76, order = "shuffled""#,
    ),
    // GAP's uniformly random graph: scale 27, edge factor 16, each edge listed at both ends
    preset(
        "graph",
        "gap-urand",
        r#"algorithm = "pagerank", vertices = 134217728, degree = 32, skew = 0.5"#,
    ),
    // GAP's Twitter graph: 61,578,415 vertices, 1,468,364,884 directed edges; law and order are our estimates
    preset(
        "graph",
        "gap-twitter",
        r#"algorithm = "pagerank", vertices = 61578415, degree = 24, skew = 0.76, order = "shuffled""#,
    ),
    // HPMBS table 1, H: 9.8 GB; vTMM table 2 runs the same program and gives no size
    preset(
        "stencil",
        "hpmbs-fotonik3d",
        r#"size = "10035MiB", arrays = 6, parallelism = 2.8"#,
    ),
    // GPAC §5.1, table 2: 5.5 GB, Ocean_ncp of SPLASH2x; 24 fields and 6 levels are our reading of the program
    preset(
        "multigrid",
        "gpac-ocean",
        r#"size = "5632MiB", fields = 24, levels = 6"#,
    ),
    // YCSB workload A
    preset("ycsb", "a", r"read = 0.5, update = 0.5, compute_ns = 437"),
    // YCSB workload B
    preset("ycsb", "b", r"read = 0.95, update = 0.05, compute_ns = 437"),
    // YCSB workload C
    preset("ycsb", "c", r"read = 1.0, compute_ns = 437"),
    // YCSB workload D
    preset(
        "ycsb",
        "d",
        r#"read = 0.95, insert = 0.05, dist = "latest", compute_ns = 437"#,
    ),
    // YCSB workload E
    preset("ycsb", "e", r"scan = 0.95, insert = 0.05"),
    // YCSB workload F: to memory, reading, changing and writing back is one update
    preset("ycsb", "f", r"read = 0.5, update = 0.5, compute_ns = 437"),
    // XSBench's default: 355 nuclides with 11,303 points each (one more here, for whole MiB)
    preset("xsbench", "large", r#"size = "5649MiB", nuclides = 355"#),
];

/// Adds the keys of the preset that the table names, if any, except those that the table has.
pub(super) fn apply(kind: &str, table: &mut Table) -> Result<(), String> {
    let Some(name) = table.remove("preset") else {
        return Ok(());
    };
    let of_kind = || PRESETS.iter().filter(|preset| preset.kind == kind);
    let preset = of_kind().find(|preset| name.as_str() == Some(preset.name));
    let preset = preset.ok_or_else(|| {
        let names: Vec<_> = of_kind().map(|preset| preset.name).collect();
        if names.is_empty() {
            "preset: this kind has none".into()
        } else {
            format!("preset = {name}: allowed are {}", names.join(", "))
        }
    })?;
    for (key, value) in preset.table() {
        table.entry(key).or_insert(value);
    }
    Ok(())
}

impl Preset {
    /// The preset's keys.
    pub(super) fn table(&self) -> Table {
        let text = format!("keys = {{ {} }}", self.keys);
        let read = text.parse::<Table>().ok();
        match read.and_then(|mut table| table.remove("keys")) {
            Some(Value::Table(keys)) => keys,
            // A test reads them all.
            _ => Table::new(),
        }
    }
}
