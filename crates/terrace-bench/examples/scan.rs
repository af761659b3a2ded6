//! Times scans of 64 MiB of leaf tables beside their baselines: `cargo run --release -p terrace-bench --example scan`.

use terrace_bench::{Measured, scan_leaf, scan_leaf_all};

fn print(name: &str, figures: &Measured) {
    println!(
        "{name}: {:.2} ns/entry, baseline {:.2}; ratio {:.2}, of least times {:.2}; spread {:.0} %",
        figures.least(),
        figures.baseline_least(),
        figures.ratio(),
        figures.ratio_least(),
        figures.spread() * 100.0
    );
}

fn main() {
    for _ in 0..3 {
        print("10 % accessed", &scan_leaf(10));
        print("none accessed", &scan_leaf(0));
        print("all accessed", &scan_leaf_all());
    }
}
