//! Which pages travel: ranges by accesses per byte, fitted to the fast memory, hottest against coldest.
//!
//! The paper ranks anew each epoch, and a ranking by samples is never the same twice. A range takes
//! another's place here only if its accesses per page are higher by more than chance explains; if a load is
//! uniform, moves die out.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use super::order::order;
use super::tree::{Leaf, Range, RangeTree};

/// How many standard deviations two frequencies must differ by, squared: 4.
const SIGNIFICANT: u128 = 16;

/// Pages of a range that exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Held {
    /// In fast memory.
    pub fast: u64,
    /// Pages in other tiers.
    pub slow: u64,
}

/// A range of a process in the ranking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ranked {
    /// The process whose range it is.
    pub process: u32,
    /// The range.
    pub leaf: Leaf,
    /// Which of its pages exist and can be moved.
    pub held: Held,
}

/// All ranges of all processes: the most accesses per byte first, the newer first if these are equal, then in
/// the order given, and of addresses. `held` is asked about each range.
#[must_use]
pub fn rank<'a>(
    trees: impl IntoIterator<Item = (u32, &'a RangeTree)>,
    held: impl Fn(u32, Range) -> Held,
) -> Vec<Ranked> {
    let mut all: Vec<(u32, Leaf)> = Vec::new();
    for (process, tree) in trees {
        all.reserve(tree.len());
        all.extend(tree.leaves().map(|leaf| (process, leaf)));
    }
    let ranked = order(&all).into_iter().map(|at| {
        let (process, leaf) = all[at];
        Ranked {
            process,
            leaf,
            held: held(process, leaf.range),
        }
    });
    ranked.collect()
}

/// Both counts as if of ranges of one size.
fn scaled(a: &Leaf, b: &Leaf) -> (u128, u128) {
    let of = |leaf: &Leaf, other: &Leaf| u128::from(leaf.count) * u128::from(other.range.pages());
    (of(a, b), of(b, a))
}

/// Whether a range is accessed more often per page than another, by more than chance: counts of samples
/// are Poisson, so a count's variance is the count.
fn clearly_hotter(a: &Leaf, b: &Leaf) -> bool {
    let (size_a, size_b) = (a.range.pages(), b.range.pages());
    let wide = |factor: u64, other: u64| u128::from(factor) * u128::from(other);
    if size_a.max(size_b) >> 31 == 0 {
        // None of the products is longer than its type: the common case, at a fraction of the other's price.
        let (x, y) = (u64::from(a.count) * size_b, u64::from(b.count) * size_a);
        let variance = wide(x, size_b) + wide(y, size_a);
        return x > y && wide(x - y, x - y) > variance * SIGNIFICANT;
    }
    let (x, y) = scaled(a, b);
    if x <= y {
        return false;
    }
    // Variance of x − y: x is count times size_b.
    let variance = x * u128::from(size_b) + y * u128::from(size_a);
    let difference = x - y;
    match difference.checked_mul(difference) {
        Some(square) => square > variance.saturating_mul(SIGNIFICANT),
        None => true,
    }
}

/// So many pages of a ranked range: the first ones found, in order of address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// The position in the ranking, from 0.
    pub rank: usize,
    /// Pages that travel.
    pub pages: u64,
}

/// The moves of an epoch. Beyond what free fast memory takes, as many pages go down as up.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Plan {
    /// To fast memory, hottest first.
    pub promote: Vec<Share>,
    /// Out of it, coldest first.
    pub demote: Vec<Share>,
    /// Ranges that fit wholly: those before this place in the ranking.
    pub fits: usize,
}

impl Plan {
    /// Fits ranges into `capacity` pages of fast memory, of which `free` are not used yet. A range without
    /// accesses is never promoted.
    #[must_use]
    pub fn new(ranked: &[Ranked], capacity: u64, free: u64) -> Self {
        let fit = Fit::new(ranked, capacity);
        let mut plan = Self {
            fits: fit.whole,
            ..Self::default()
        };
        let mut free = free;
        let mut victims = fit.victims(ranked);
        let mut victim = victims.next();
        for (rank, wanted) in fit.candidates(ranked) {
            let into_free = wanted.min(free);
            free -= into_free;
            let mut got = into_free;
            // Colder pages make room for the rest.
            while got < wanted
                && let Some(colder) = &mut victim
                && clearly_hotter(&ranked[rank].leaf, &ranked[colder.rank].leaf)
            {
                let pages = colder.pages.min(wanted - got);
                got += pages;
                colder.pages -= pages;
                plan.send_down(colder.rank, pages);
                if colder.pages == 0 {
                    victim = victims.next();
                }
            }
            if got > 0 {
                plan.promote.push(Share { rank, pages: got });
            }
        }
        plan
    }

    fn send_down(&mut self, rank: usize, pages: u64) {
        match self.demote.last_mut() {
            Some(last) if last.rank == rank => last.pages += pages,
            _ => self.demote.push(Share { rank, pages }),
        }
    }

    /// The demotions: the plan's shares, and so many pages more of the ranges that do not belong into fast memory,
    /// the coldest first.
    #[must_use]
    pub fn going_down(&self, ranked: &[Ranked], more: u64) -> Vec<Share> {
        let mut planned: BTreeMap<usize, u64> = BTreeMap::new();
        for share in &self.demote {
            *planned.entry(share.rank).or_default() += share.pages;
        }
        let rising: BTreeSet<usize> = self.promote.iter().map(|share| share.rank).collect();
        let mut left = more;
        for (rank, range) in ranked.iter().enumerate().skip(self.fits).rev() {
            if rising.contains(&rank) {
                continue;
            }
            let already = planned.get(&rank).copied().unwrap_or(0);
            let extra = range.held.fast.saturating_sub(already).min(left);
            if extra > 0 {
                planned.insert(rank, already + extra);
                left -= extra;
            }
        }
        let shares = planned.into_iter().rev();
        shares.map(|(rank, pages)| Share { rank, pages }).collect()
    }

    /// Pages that go up.
    #[must_use]
    pub fn promoted(&self) -> u64 {
        self.promote.iter().map(|share| share.pages).sum()
    }

    /// Pages that go down.
    #[must_use]
    pub fn demoted(&self) -> u64 {
        self.demote.iter().map(|share| share.pages).sum()
    }
}

/// Which ranges belong into fast memory.
struct Fit {
    /// Ranges before this place wholly.
    whole: usize,
    /// Pages of the range at that place.
    partial: u64,
}

impl Fit {
    fn new(ranked: &[Ranked], capacity: u64) -> Self {
        let mut left = capacity;
        let mut whole = 0;
        for range in ranked {
            let pages = range.held.fast + range.held.slow;
            if range.leaf.count == 0 {
                return Self { whole, partial: 0 };
            }
            if pages > left {
                return Self {
                    whole,
                    partial: left,
                };
            }
            left -= pages;
            whole += 1;
        }
        Self { whole, partial: 0 }
    }

    /// Pages of a range that belong into fast memory.
    fn of(&self, rank: usize, held: &Held) -> u64 {
        match rank.cmp(&self.whole) {
            Ordering::Less => held.fast + held.slow,
            Ordering::Equal => self.partial,
            Ordering::Greater => 0,
        }
    }

    /// Ranges with pages that should come up, hottest first.
    fn candidates(&self, ranked: &[Ranked]) -> impl Iterator<Item = (usize, u64)> {
        let upto = ranked.iter().take(self.whole + 1).enumerate();
        let wanted = upto.map(|(rank, Ranked { held, .. })| {
            let missing = self.of(rank, held).saturating_sub(held.fast);
            (rank, missing.min(held.slow))
        });
        wanted.filter(|(_, pages)| *pages > 0)
    }

    /// Ranges with pages that may go down, coldest first.
    fn victims(&self, ranked: &[Ranked]) -> impl Iterator<Item = Share> {
        let rest = ranked.iter().enumerate().skip(self.whole).rev();
        rest.map(|(rank, Ranked { held, .. })| Share {
            rank,
            pages: held.fast.saturating_sub(self.of(rank, held)),
        })
        .filter(|share| share.pages > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(rank: usize, pages: u64) -> Share {
        Share { rank, pages }
    }

    #[test]
    fn demotions_come_from_the_coldest_and_spare_hot_pages() {
        let ranked = [100, 50, 30, 20].map(|fast| Ranked {
            process: 1,
            leaf: Leaf {
                range: Range { start: 0, end: 512 },
                count: 0,
                created: 0,
                accessed: 0,
            },
            held: Held { fast, slow: 0 },
        });
        let plan = Plan {
            promote: vec![share(1, 5)],
            demote: vec![share(3, 10)],
            fits: 1,
        };
        assert_eq!(plan.going_down(&ranked, 0), [share(3, 10)]);
        assert_eq!(plan.going_down(&ranked, 15), [share(3, 20), share(2, 5)]);
        // Ranges 0, which fits, and 1, which comes up, stay whole.
        let all = plan.going_down(&ranked, 1000);
        assert_eq!(all, [share(3, 20), share(2, 30)]);
    }
}
