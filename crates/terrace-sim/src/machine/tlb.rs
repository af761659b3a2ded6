//! Translation caches: set-associative, with least-recently-used replacement.

use super::ways::holds_tag;
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

/// A cache of translations in sets of about `WAYS`.
///
/// All translations of a set's front are compared, and moved, at once: most are not found.
#[derive(Clone, Debug)]
pub struct Tlb<const WAYS: usize> {
    /// The front of each set, most recently used first; those from `ways` on are empty. None if the cache is.
    fronts: Vec<[Cached; WAYS]>,
    /// The rest of each set if it has more than `WAYS`, which odd scales make: less recently used than the front.
    backs: Vec<Cached>,
    ways: usize,
    mask: u32,
}

impl<const WAYS: usize> Tlb<WAYS> {
    /// A cache of at most so many entries, in sets of about `WAYS`: the number of sets is a power of two. A cache
    /// without entries never finds anything.
    #[must_use]
    pub fn new(entries: u64) -> Self {
        let wanted = (entries / WAYS as u64).max(1);
        let sets = 1_u64 << wanted.ilog2();
        let ways = usize::try_from(entries / sets).unwrap_or(1);
        let sets = u32::try_from(sets).unwrap_or(1);
        let fronts = if ways == 0 { 0 } else { index(sets) };
        Self {
            fronts: vec![[Cached::EMPTY; WAYS]; fronts],
            backs: vec![Cached::EMPTY; ways.saturating_sub(WAYS) * index(sets)],
            ways,
            mask: sets - 1,
        }
    }

    /// The back of a key's set.
    fn back(&mut self, key: u32) -> &mut [Cached] {
        let behind = self.ways.saturating_sub(WAYS);
        let start = index(key & self.mask) * behind;
        &mut self.backs[start..start + behind]
    }

    /// Looks a key up; a translation that is found becomes the most recently used one.
    #[inline(always)]
    pub fn find(&mut self, key: u32) -> Option<Cached> {
        let front = self.fronts.get_mut(index(key & self.mask))?;
        if !holds(front, key) {
            return match self.backs.is_empty() {
                true => None,
                false => self.find_behind(key),
            };
        }
        if front[0].key() == key {
            return Some(front[0]);
        }
        to_front(front, key)
    }

    /// Looks a key up that the front of its set does not have.
    #[cold]
    fn find_behind(&mut self, key: u32) -> Option<Cached> {
        let at = self.back(key).iter().position(|c| c.key() == key)?;
        let found = self.back(key)[at];
        let last = shift_in(&mut self.fronts[index(key & self.mask)], found);
        let back = self.back(key);
        back.copy_within(..at, 1);
        back[0] = last;
        Some(found)
    }

    /// Puts a translation in, in place of an older one with its key or of the least recently used one.
    pub fn fill(&mut self, cached: Cached) {
        if self.find(cached.key()).is_none() {
            return self.push(cached);
        }
        if let Some(front) = self.fronts.get_mut(index(cached.key() & self.mask)) {
            front[0] = cached;
        }
    }

    /// Puts in a translation whose key was looked up and not found.
    #[inline(always)]
    pub fn push(&mut self, cached: Cached) {
        let Some(front) = self.fronts.get_mut(index(cached.key() & self.mask)) else {
            return;
        };
        let last = shift_in(front, cached);
        if let Some(over) = front.get_mut(self.ways) {
            *over = Cached::EMPTY;
        }
        if !self.backs.is_empty() {
            self.push_behind(cached.key(), last);
        }
    }

    /// Puts a translation that was pushed out of the front of a key's set into its back.
    #[cold]
    fn push_behind(&mut self, key: u32, cached: Cached) {
        let back = self.back(key);
        back.rotate_right(1);
        back[0] = cached;
    }

    /// Forgets one translation.
    pub fn forget(&mut self, key: u32) {
        let front = self.fronts.get_mut(index(key & self.mask));
        let mut all = front.into_iter().flatten();
        if let Some(cached) = all.find(|c| c.key() == key) {
            *cached = Cached::EMPTY;
        } else if let Some(cached) = self.back(key).iter_mut().find(|c| c.key() == key) {
            *cached = Cached::EMPTY;
        }
    }

    /// Empties the cache.
    pub fn flush(&mut self) {
        self.fronts.fill([Cached::EMPTY; WAYS]);
        self.backs.fill(Cached::EMPTY);
    }

    /// Sets the tier of each translation to that which `tier` gives for its key.
    pub fn retier(&mut self, tier: impl Fn(u32) -> u8) {
        for cached in self
            .fronts
            .as_flattened_mut()
            .iter_mut()
            .chain(&mut self.backs)
        {
            if *cached != Cached::EMPTY {
                *cached = Cached::new(cached.key(), tier(cached.key()), cached.dirty());
            }
        }
    }

    /// Bytes on the heap.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        self.fronts.capacity() * size_of::<[Cached; WAYS]>()
            + self.backs.capacity() * size_of::<Cached>()
    }
}

/// Puts a translation at the front of a set; returns the last one, which it pushes out.
#[inline]
fn shift_in<const WAYS: usize>(front: &mut [Cached; WAYS], cached: Cached) -> Cached {
    let before = *front;
    front[1..].copy_from_slice(&before[..WAYS - 1]);
    front[0] = cached;
    before[WAYS - 1]
}

/// Moves the translation of a key that the front of a set has to its first place. A call, because the search from one
/// to the next must not become part of [`holds`].
#[inline(never)]
fn to_front<const WAYS: usize>(front: &mut [Cached; WAYS], key: u32) -> Option<Cached> {
    let at = front.iter().position(|cached| cached.key() == key)?;
    let found = front[at];
    front.copy_within(..at, 1);
    front[0] = found;
    Some(found)
}

/// Whether the front of a set has a translation of a key.
#[inline(always)]
fn holds<const WAYS: usize>(front: &[Cached; WAYS], key: u32) -> bool {
    holds_tag(&front.map(|cached| cached.key()), key)
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
            // The last has more ways than are compared at once, as odd scales make.
            shape in prop::sample::select(vec![(1_u64, 1_usize, 1_usize), (8, 2, 4), (64, 16, 4), (3, 1, 3), (7, 1, 7), (28, 4, 7)]),
            steps in prop::collection::vec((0_u32..80, 0_u8..4, any::<bool>(), any::<bool>()), 1..200),
        ) {
            let (entries, naive_sets, naive_ways) = shape;
            let mut tlb = Tlb::<4>::new(entries);
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
        let mut tlb = Tlb::<4>::new(4);
        (1..4).for_each(|key| tlb.push(Cached::new(key, 0, false)));
        tlb.forget(2);
        tlb.forget(9);
        let found: Vec<bool> = (1..4).map(|key| tlb.find(key).is_some()).collect();
        assert_eq!(found, [true, false, true]);
    }

    #[test]
    fn shapes_of_real_processors_are_kept() {
        let l2 = Tlb::<12>::new(1536);
        assert_eq!((l2.ways, l2.mask), (12, 127));
        let scaled = Tlb::<12>::new(1536 / 64);
        assert_eq!((scaled.ways, scaled.mask), (12, 1));
        let mut none = Tlb::<4>::new(0);
        none.fill(Cached::new(1, 0, false));
        none.push(Cached::new(1, 0, false));
        assert_eq!(none.find(1), None);
    }
}
