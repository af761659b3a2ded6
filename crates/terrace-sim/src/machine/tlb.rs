//! Translation caches: set-associative, with least-recently-used replacement.

use crate::base::number::index;

/// A cached translation: its key, its tier, and whether a write set D through it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cached(u32);

impl Cached {
    const EMPTY: Self = Self(u32::MAX);
    /// The exclusive upper bound of keys.
    pub const KEYS: u32 = (1 << 29) - 1;

    /// A cached translation.
    #[must_use]
    #[inline]
    pub fn new(key: u32, tier: u8, dirty: bool) -> Self {
        Self(key << 3 | u32::from(tier & 3) << 1 | u32::from(dirty))
    }

    /// The translation's key.
    #[must_use]
    #[inline]
    pub fn key(self) -> u32 {
        self.0 >> 3
    }

    /// The tier of the page.
    #[must_use]
    #[inline]
    pub fn tier(self) -> usize {
        index(self.0 >> 1 & 3)
    }

    /// Whether D is set in the entries behind the translation.
    #[must_use]
    #[inline]
    pub fn dirty(self) -> bool {
        self.0 & 1 != 0
    }
}

/// Ways of the second level's sets, whose translations are compared, and moved, all at once: most are not found.
const L2_WAYS: usize = 12;

/// Whether a set has a translation of a key.
#[inline]
fn holds(set: &[Cached; L2_WAYS], key: u32) -> bool {
    let is = |held, cached: &Cached| held | (cached.key() == key);
    set.iter().fold(false, is)
}

/// Puts a translation at the front of a set, in place of its last one.
#[inline]
fn push_to(set: &mut [Cached; L2_WAYS], cached: Cached) {
    let before = *set;
    set[1..].copy_from_slice(&before[..L2_WAYS - 1]);
    set[0] = cached;
}

/// A cache of translations.
#[derive(Clone, Debug)]
pub struct Tlb {
    /// Entries set by set, most recently used first.
    entries: Vec<Cached>,
    ways: usize,
    mask: u32,
}

impl Tlb {
    /// A cache of at most so many entries, in sets of about `ways`: the number of sets is a power of two. A cache
    /// without entries never finds anything.
    #[must_use]
    pub fn new(entries: u64, ways: u64) -> Self {
        let wanted = (entries / ways.max(1)).max(1);
        let sets = 1_u64 << wanted.ilog2();
        let ways = usize::try_from(entries / sets).unwrap_or(1);
        let sets = u32::try_from(sets).unwrap_or(1);
        Self {
            entries: vec![Cached::EMPTY; ways * index(sets)],
            ways,
            mask: sets - 1,
        }
    }

    #[inline]
    fn set(&mut self, key: u32) -> &mut [Cached] {
        let start = index(key & self.mask) * self.ways;
        &mut self.entries[start..start + self.ways]
    }

    /// Looks a key up; a translation that is found becomes the most recently used one.
    #[inline]
    pub fn find(&mut self, key: u32) -> Option<Cached> {
        let set = self.set(key);
        let first = *set.first()?;
        if first.key() == key {
            return Some(first);
        }
        if let Some(whole) = set.as_array()
            && !holds(whole, key)
        {
            return None;
        }
        let at = set.iter().position(|cached| cached.key() == key)?;
        let found = set[at];
        set.copy_within(..at, 1);
        set[0] = found;
        Some(found)
    }

    /// Puts a translation in, in place of an older one with its key or of the least recently used one.
    #[inline]
    pub fn fill(&mut self, cached: Cached) {
        let set = self.set(cached.key());
        let Some(last) = set.len().checked_sub(1) else {
            return;
        };
        let at = set.iter().position(|old| old.key() == cached.key());
        set.copy_within(..at.unwrap_or(last), 1);
        set[0] = cached;
    }

    /// Puts in a translation whose key was looked up and not found.
    #[inline]
    pub fn push(&mut self, cached: Cached) {
        let set = self.set(cached.key());
        if let Some(whole) = set.as_mut_array() {
            return push_to(whole, cached);
        }
        let Some(last) = set.len().checked_sub(1) else {
            return;
        };
        if last > 0 {
            set.copy_within(..last, 1);
        }
        set[0] = cached;
    }

    /// Forgets one translation.
    pub fn forget(&mut self, key: u32) {
        if let Some(cached) = self.set(key).iter_mut().find(|c| c.key() == key) {
            *cached = Cached::EMPTY;
        }
    }

    /// Empties the cache.
    pub fn flush(&mut self) {
        self.entries.fill(Cached::EMPTY);
    }

    /// Sets the tier of each translation to that which `tier` gives for its key.
    pub fn retier(&mut self, tier: impl Fn(u32) -> u8) {
        for cached in &mut self.entries {
            if *cached != Cached::EMPTY {
                *cached = Cached::new(cached.key(), tier(cached.key()), cached.dirty());
            }
        }
    }

    /// Bytes on the heap.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        self.entries.capacity() * size_of::<Cached>()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    /// A cache with a naive queue for each set, most recently used first.
    struct Naive {
        sets: Vec<VecDeque<(u32, u8, bool)>>,
        ways: usize,
    }

    impl Naive {
        fn find(&mut self, key: u32) -> Option<(u32, u8, bool)> {
            let count = self.sets.len();
            let set = &mut self.sets[key as usize % count];
            let at = set.iter().position(|e| e.0 == key)?;
            let found = set.remove(at)?;
            set.push_front(found);
            Some(found)
        }

        fn fill(&mut self, entry: (u32, u8, bool)) {
            let count = self.sets.len();
            let set = &mut self.sets[entry.0 as usize % count];
            set.retain(|e| e.0 != entry.0);
            set.push_front(entry);
            set.truncate(self.ways);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]
        #[test]
        fn finds_what_a_naive_lru_finds(
            shape in prop::sample::select(vec![(1_u64, 4_u64, 1_usize, 1_usize), (24, 12, 2, 12), (64, 4, 16, 4), (3, 12, 1, 3)]),
            steps in prop::collection::vec((0_u32..80, 0_u8..4, any::<bool>(), any::<bool>()), 1..200),
        ) {
            let (entries, ways, naive_sets, naive_ways) = shape;
            let mut tlb = Tlb::new(entries, ways);
            let mut naive = Naive { sets: vec![VecDeque::new(); naive_sets], ways: naive_ways };
            for (key, tier, dirty, fill) in steps {
                if fill && naive.find(key).is_none() {
                    prop_assert_eq!(tlb.find(key), None);
                    tlb.push(Cached::new(key, tier, dirty));
                    naive.fill((key, tier, dirty));
                } else if fill {
                    tlb.find(key);
                    tlb.fill(Cached::new(key, tier, dirty));
                    naive.fill((key, tier, dirty));
                } else {
                    let found = tlb.find(key).map(|c| (c.key(), c.tier(), c.dirty()));
                    let expected = naive.find(key).map(|(k, t, d)| (k, t as usize, d));
                    prop_assert_eq!(found, expected);
                }
            }
        }
    }

    #[test]
    fn one_translation_is_forgotten_and_the_others_stay() {
        let mut tlb = Tlb::new(4, 4);
        (1..4).for_each(|key| tlb.push(Cached::new(key, 0, false)));
        tlb.forget(2);
        tlb.forget(9);
        let found: Vec<bool> = (1..4).map(|key| tlb.find(key).is_some()).collect();
        assert_eq!(found, [true, false, true]);
    }

    #[test]
    fn shapes_of_real_processors_are_kept() {
        let l2 = Tlb::new(1536, 12);
        assert_eq!((l2.ways, l2.mask), (12, 127));
        let scaled = Tlb::new(1536 / 64, 12);
        assert_eq!((scaled.ways, scaled.mask), (12, 1));
        let mut none = Tlb::new(0, 4);
        none.fill(Cached::new(1, 0, false));
        none.push(Cached::new(1, 0, false));
        assert_eq!(none.find(1), None);
    }
}
