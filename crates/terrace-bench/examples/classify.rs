//! Times classification of 16 Mi pages beside its baseline: `cargo run --release -p terrace-bench --example classify`.

use terrace_bench::{Classify, PAGES_OF_64_GIB};

fn main() {
    let mut classify = Classify::new(PAGES_OF_64_GIB);
    for _ in 0..5 {
        let figures = classify.measure();
        println!(
            "classify {:.2} ns/page, copy {:.2} ns/page, ratio {:.2}",
            figures.least(),
            figures.baseline_least(),
            figures.ratio_least()
        );
    }
}
