//! Rule 2, and all rules at once: scans of all kinds against a guest that frees and reuses table pages
//! as fast as it can and checks every byte.

use std::time::Instant;

use terrace_proto::{PageBitmap, Part, Rearm};

use crate::guest::{Guest, Pass};

/// `TERRACE_LONG` asks for more.
const SCANS: u64 = 3_000;
const LONG_SCANS: u64 = 20_000;
/// Far fewer than a guest manages in that time; fewer would be no storm.
const MIN_FORKS: u64 = 100;

/// The second half of the scans moves dirty bits as well. A fifth of them is over parts, a third of the others by two threads.
pub fn thousands_of_scans_under_a_fork_storm_lose_no_byte(guest: &mut Guest) {
    let scans = match std::env::var_os("TERRACE_LONG") {
        Some(_) => LONG_SCANS,
        None => SCANS,
    };
    guest.ask("churn 3");
    let forks = guest.number("stats", "churn_forks");
    let begin = Instant::now();
    let (mut answered, mut roots, mut lost, mut cleared) = (0, 0, 0, 0);
    for number in 0..scans {
        if number == scans / 2 {
            guest.tell_writes(true);
        }
        guest.use_threads(if number % 3 == 0 { 2 } else { 1 });
        let scanned = match number % 5 {
            4 => {
                let index = u32::try_from(number % 4).unwrap();
                let part = Part::new(number / 40, 2, index).unwrap();
                guest.try_part(part, number % 10 == 4)
            }
            _ => {
                let pass = kind(number, guest.memory.span_pages());
                guest.try_scan(pass).map(|answer| answer.stats)
            }
        };
        match scanned {
            Ok(stats) => {
                answered += 1;
                roots = roots.max(stats.roots);
                lost += stats.lost_races;
                cleared += stats.cleared;
            }
            Err(failure) => assert!(!failure.fatal, "{}", failure.reason),
        }
        if number.is_multiple_of(500) {
            guest.ask(&format!("move {number}"));
        }
    }
    let seconds = begin.elapsed().as_secs_f64();
    let forks = guest.number("stats", "churn_forks") - forks;
    guest.ask("churn 0");
    guest.forget();
    println!(
        "{answered} of {scans} scans answered in {seconds:.1} s, {cleared} bits cleared, up to {roots} \
         top-level tables; {forks} forks meanwhile; {lost} races lost"
    );
    guest.expect_intact();
    assert!(forks >= MIN_FORKS, "only {forks} forks: no storm");
    assert!(answered * 10 >= scans * 9, "too few scans were answered");
}

/// All kinds of passes in turn.
fn kind(number: u64, pages: u64) -> Pass {
    let rearm = match number % 4 {
        0 => Rearm::Only(some_pages(number, pages)),
        1 => Rearm::None,
        _ => Rearm::All,
    };
    Pass {
        rearm,
        prune: !number.is_multiple_of(3),
        discover: number.is_multiple_of(50),
    }
}

/// About half of all pages, others each time.
fn some_pages(seed: u64, pages: u64) -> PageBitmap {
    let mut chosen = PageBitmap::new(pages);
    let mut state = seed | 1;
    for page in 0..pages {
        state = state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(1);
        chosen.put(page, state >> 63 == 1);
    }
    chosen
}
