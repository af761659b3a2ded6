//! Writes a small log of a guest's ranges: two processes made of numbers, whose heat moves.
//!
//!     cargo run -p terrace-core --example record_ranges -- FILE
//!
//! A sample in `tests/logs` is never written again: see `record_sample`.

use terrace_core::ranges::{Config, Range, Ranges};
use terrace_core::session::Session;
use terrace_proto::Tick;
use terrace_proto::ranges::{Mappings, RangesBudget, RangesEvent};
use terrace_testkit::guest::{Guest, config, mapped, start};
use terrace_testkit::log::sample;

/// Blocks of 2 MiB.
fn blocks(from: u64, count: u64) -> Range {
    Range {
        start: from * 512,
        end: (from + count) * 512,
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let file = std::env::args().nth(1).ok_or("usage: record_ranges FILE")?;
    let config = Config {
        capacity_pages: Some(6 * 512),
        ..config(256)
    };
    let mut guest = Guest {
        free: [1000, 3000],
        survey_ns: 2_000_000,
        ..Guest::default()
    };
    guest.put(7, blocks(0, 16), 1);
    guest.put(9, blocks(1000, 4), 0);
    guest.put(9, blocks(2000, 1), 1);
    guest.busy = (7000..7100).map(|page| (7, page)).collect();
    let log = vec![(Tick(0), start(&config))];
    let mut session = Session::new(Ranges::new(config), log);
    guest.tell(&mut session, mapped(7, blocks(0, 16)));
    let other = Mappings {
        process: 9,
        seeds: vec![blocks(1000, 4)],
        mapped: vec![blocks(1000, 4)],
        shared: vec![blocks(1003, 1)],
        pinned: vec![blocks(2000, 1)],
    };
    guest.tell(&mut session, RangesEvent::Mapped(other));
    for epoch in 0..30 {
        if epoch == 10 {
            let budget = RangesBudget {
                bytes_per_s: 4 << 20,
                cpu_percent: 2,
            };
            guest.tell(&mut session, RangesEvent::Budget(budget));
        }
        if epoch == 20 {
            guest.refuses.insert(9);
        }
        if epoch == 25 {
            guest.tell(&mut session, mapped(7, blocks(0, 14)));
            guest.tell(&mut session, RangesEvent::Gone(9));
        }
        let hot = if epoch < 15 {
            blocks(12, 3)
        } else {
            blocks(2, 3)
        };
        guest.epoch(&mut session, &[(7, hot, 120), (9, blocks(1002, 1), 20)]);
    }
    std::fs::write(file, sample(session.log()))?;
    Ok(())
}
