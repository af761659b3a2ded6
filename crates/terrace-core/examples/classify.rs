//! Times classification of 16 Mi pages beside its baseline: `cargo run --release --example classify`.

use std::time::Instant;

use terrace_core::bench;

fn main() {
    let start = Instant::now();
    let clock = || u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
    let mut classify = bench::Classify::new(bench::PAGES_OF_64_GIB);
    for _ in 0..5 {
        let figures = classify.measure(clock);
        println!(
            "classify {:.2} ns/page, copy {:.2} ns/page, ratio {:.2}",
            figures.classify_ns,
            figures.copy_ns,
            figures.classify_ns / figures.copy_ns
        );
    }
}
