//! The benchmark of the exact stack.

use std::collections::HashMap;
use std::hint::black_box;

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng as _, SeedableRng as _};
use terrace_core::demand::{Distances, Stack};

use crate::measured::{Measured, timed};

/// Number of pages: 256 GiB in pages of 2 MiB.
const PAGES: u32 = 1 << 17;
/// Accesses per run: each page 32 times, so that new numberings of the stack's slots count as often as they come.
const ACCESSES: usize = 1 << 22;

/// `mrc_ns_per_access`: distances over 128 Ki pages that are accessed evenly at random, the worst order for a stack; the
/// baseline increments a count in the standard `HashMap`, with its default hasher. ns per access.
#[must_use]
pub fn distances() -> Measured {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(1);
    let pages: Vec<u32> = (0..ACCESSES).map(|_| random.next_u32() % PAGES).collect();
    let mut stack = Stack::new();
    let mut counts = HashMap::new();
    // Both hold all pages before the first run.
    for page in 0..PAGES {
        stack.access(page);
        counts.insert(page, 0_u64);
    }
    Measured::in_turns(|_| {
        let exact = timed(|| {
            let mut distances = Distances::new();
            for page in &pages {
                distances.add(stack.access(*page));
            }
            distances
        });
        let increments = timed(|| {
            for page in &pages {
                *counts.entry(*page).or_default() += 1;
            }
            black_box(&counts).len()
        });
        (exact, increments)
    })
    .per(ACCESSES as f64)
}
