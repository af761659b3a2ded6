//! The cost of tracking 64 GiB by windows of 5 ms, part after part: `cargo run --release -p terrace-bench --example parts`.

use terrace_bench::{part_windows, scan_sampled, side_by_side};

/// The window, ns.
const WINDOW: f64 = 5e6;

fn main() {
    let two = side_by_side(2);
    println!(
        "a scan of all by two threads: {:.2} of the time that one takes (least times)",
        two.ratio_least()
    );
    let sampled = scan_sampled();
    println!(
        "1/16 of the leaf tables: {:.0} ns/GiB, {:.4} of a full scan (least times)",
        sampled.least(),
        sampled.ratio_least()
    );
    println!(
        "64 GiB, a tenth of the pages accessed per window; windows of 5 ms, a clearing and a reading pass each"
    );
    println!("parts  a part's passes  duty  CPU per second  age of a page's last look, at most");
    for shift in [3, 6, 8] {
        let cost = part_windows(shift);
        let pass = cost.clear_ns + cost.read_ns;
        for duty in [1, 8, 64] {
            // Each part is under a window for 1 / duty of the time.
            let turn = WINDOW * f64::from(duty);
            let cpu = pass * f64::from(cost.parts) / turn;
            println!(
                "{:>5}  {:>12.0} us  {:>4}  {:>12.3} s  {:>8.0} ms",
                cost.parts,
                pass / 1e3,
                format!("1/{duty}"),
                cpu,
                turn / 1e6
            );
        }
    }
}
