//! The distances that a hot set kept from being tracked, put back by assumption (HPMBS §2.3).

use super::Distances;

/// Distances that nearly all accesses to huge pages have: 99.9 % of them are below 20 in HPMBS §2.3.
pub const SHORT_DISTANCES: u32 = 20;
/// Share of the filtered accesses at short distances, per mille.
const SHORT_PER_MILLE: u128 = 999;

/// The histogram of all accesses: those `tracked` through a hot set of `hot_set` pages, and of the others 99.9 % evenly
/// over the first 20 distances and the rest evenly from there to the hot set's size. Good for a curve only: what
/// distances most accesses have is assumed, not seen. `None` if the hot set has no more than those 20 pages: then
/// distances that it let through would be assumed to be kept.
#[must_use]
pub fn restored(tracked: &Distances, accesses: u64, hot_set: u32) -> Option<Distances> {
    if hot_set <= SHORT_DISTANCES {
        return None;
    }
    let filtered = accesses.saturating_sub(tracked.total());
    let short = u128::from(filtered) * SHORT_PER_MILLE / 1000;
    let short = u64::try_from(short).unwrap_or(filtered);
    let mut all = tracked.clone();
    spread(&mut all, 0, SHORT_DISTANCES, short);
    spread(&mut all, SHORT_DISTANCES, hot_set, filtered - short);
    Some(all)
}

/// Adds so many accesses, evenly over distances from `start` and below `end`; what cannot be divided, to the first.
fn spread(distances: &mut Distances, start: u32, end: u32, accesses: u64) {
    let width = u64::from(end - start);
    let (each, more) = (accesses / width, accesses % width);
    for (place, distance) in (0..).zip(start..end) {
        distances.add_many(distance, each + u64::from(place < more));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tracked() -> Distances {
        let mut tracked = Distances::new();
        (0..300).for_each(|_| tracked.add(None));
        tracked.add_many(260, 700);
        tracked
    }

    #[test]
    fn nearly_all_filtered_accesses_get_short_distances() {
        let all = restored(&tracked(), 1_001_000, 250).unwrap();
        assert_eq!(all.total(), 1_001_000);
        assert_eq!((0..20).map(|d| all.count(d)).sum::<u64>(), 999_000);
        assert_eq!((20..250).map(|d| all.count(d)).sum::<u64>(), 1_000);
        assert_eq!((all.count(0), all.count(19)), (49_950, 49_950));
        assert_eq!((all.count(20), all.count(249), all.count(250)), (5, 4, 0));
        assert_eq!((all.count(260), all.cold()), (700, 300));
    }

    #[test]
    fn a_small_hot_set_is_not_restored() {
        assert_eq!(restored(&tracked(), 1_001_000, 20), None);
        assert!(restored(&tracked(), 1_001_000, 21).is_some());
    }

    #[test]
    fn a_counter_that_is_behind_adds_nothing() {
        assert_eq!(restored(&tracked(), 10, 250), Some(tracked()));
    }
}
