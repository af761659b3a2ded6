//! Times scans of 64 MiB of leaf tables beside their baselines, by all instructions that this machine has for them:
//! `cargo run --release -p terrace-bench --example scan`.

use terrace_bench::{Measured, Vectors, scan_leaf_all_by, scan_leaf_by};

fn print(vectors: Vectors, what: &str, figures: &Measured) {
    let instructions = figures
        .instructions()
        .map_or_else(String::new, |(scan, base)| {
            format!("; instructions {scan:.2}, baseline {base:.2}")
        });
    println!(
        "{vectors:?}, {what} accessed: {:.2} ns/entry, baseline {:.2}; ratio {:.2}, of least times {:.2}; spread {:.0} %{instructions}",
        figures.least(),
        figures.baseline_least(),
        figures.ratio(),
        figures.ratio_least(),
        figures.spread() * 100.0
    );
}

fn main() {
    let real = |vectors: &Vectors| *vectors != Vectors::Emulated512;
    for _ in 0..3 {
        for vectors in Vectors::all().into_iter().filter(real) {
            print(vectors, "10 %", &scan_leaf_by(Some(vectors), 10));
            print(vectors, "none", &scan_leaf_by(Some(vectors), 0));
            print(vectors, "all", &scan_leaf_all_by(Some(vectors)));
        }
    }
}
