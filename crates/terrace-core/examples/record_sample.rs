//! Writes a small log: a simulated VM of 1,024 pages and its engine through three rounds.
//!
//!     cargo run -p terrace-core --example record_sample -- FILE
//!
//! A sample in `tests/logs` is never written again: when decisions change on purpose, a new one is
//! added under a new name, and the test replays both if it can.

use terrace_core::{EngineConfig, TierKind};
use terrace_proto::Tick;
use terrace_testkit::engine::{Host, SECOND, draw, spec};
use terrace_testkit::log::sample;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let file = std::env::args().nth(1).ok_or("usage: record_sample FILE")?;
    let mut config = EngineConfig {
        move_budget_bytes_per_s: 4 << 20,
        plan_max_bytes: 2 << 20,
        plan_max_pages: 64,
        ..EngineConfig::default()
    };
    config.tiers[1].kind = TierKind::Pmem;
    let mut host = Host::new(config, &[1024, 4096]);
    // A fifth of the pages is hot; with each round (nine scans) a third of those another one.
    let heat = |page: u64, scan: u64| {
        let hot = match page % 15 {
            2 | 9 => true,
            at => at == 3 + scan / 9,
        };
        let d = draw(page, scan);
        if hot {
            (d < 230, d < 60)
        } else {
            (d < 6, d < 2)
        }
    };
    host.busy_every = 50;
    host.arrive(spec(1, 1024, 256), Box::new(heat));
    host.run_until(Tick(170 * SECOND));
    std::fs::write(file, sample(host.log()))?;
    Ok(())
}
