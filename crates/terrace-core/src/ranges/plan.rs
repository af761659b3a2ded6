//! Which pages travel: ranges by accesses per byte, fitted to the fast memory, hottest against coldest.
//!
//! The paper ranks anew each epoch, and a ranking by samples is never the same twice. A range takes
//! another's place here only if its accesses per page are higher by more than chance explains; if a load is
//! uniform, moves die out.

use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BTreeSet};

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
    let all = trees.into_iter();
    let all: Vec<(u32, Leaf)> = all
        .flat_map(|(process, tree)| tree.leaves().map(move |leaf| (process, leaf)))
        .collect();
    // Small keys are sorted many times faster than leaves, and few leaves have the same.
    let mut order: Vec<(u64, usize)> = (0..all.len())
        .map(|at| (u64::MAX - rounded(&all[at].1), at))
        .collect();
    order.sort_unstable();
    for same in order.chunk_by_mut(|a, b| a.0 == b.0) {
        same.sort_by(|(_, a), (_, b)| {
            let (a, b) = (&all[*a].1, &all[*b].1);
            hotter(a, b).then(Reverse(a.created).cmp(&Reverse(b.created)))
        });
    }
    let ranked = order.into_iter().map(|(_, at)| {
        let (process, leaf) = all[at];
        Ranked {
            process,
            leaf,
            held: held(process, leaf.range),
        }
    });
    ranked.collect()
}

/// Accesses per page, rounded down.
fn rounded(leaf: &Leaf) -> u64 {
    (u64::from(leaf.count) << 32) / leaf.range.pages().max(1)
}

/// By accesses per page, descending.
fn hotter(a: &Leaf, b: &Leaf) -> Ordering {
    let (x, y) = scaled(a, b);
    y.cmp(&x)
}

/// Both counts as if of ranges of one size.
fn scaled(a: &Leaf, b: &Leaf) -> (u128, u128) {
    let of = |leaf: &Leaf, other: &Leaf| u128::from(leaf.count) * u128::from(other.range.pages());
    (of(a, b), of(b, a))
}

/// Whether a range is accessed more often per page than another, by more than chance: counts of samples
/// are Poisson, so a count's variance is the count.
fn clearly_hotter(a: &Leaf, b: &Leaf) -> bool {
    let (x, y) = scaled(a, b);
    if x <= y {
        return false;
    }
    let (size_a, size_b) = (u128::from(a.range.pages()), u128::from(b.range.pages()));
    // Variance of x − y: x is count times size_b.
    let variance = x * size_b + y * size_a;
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
        for (rank, wanted) in fit.candidates(ranked) {
            let into_free = wanted.min(free);
            free -= into_free;
            let exchanged =
                plan.displace(&mut victims, ranked, &ranked[rank].leaf, wanted - into_free);
            if into_free + exchanged > 0 {
                plan.promote.push(Share {
                    rank,
                    pages: into_free + exchanged,
                });
            }
        }
        plan
    }

    /// Makes room for up to `wanted` pages of a range by colder ones; returns for how many.
    fn displace(
        &mut self,
        victims: &mut Vec<Share>,
        ranked: &[Ranked],
        by: &Leaf,
        wanted: u64,
    ) -> u64 {
        let mut got = 0;
        while got < wanted {
            let Some(victim) = victims.last_mut() else {
                break;
            };
            if !clearly_hotter(by, &ranked[victim.rank].leaf) {
                break;
            }
            let pages = victim.pages.min(wanted - got);
            got += pages;
            victim.pages -= pages;
            match self.demote.last_mut() {
                Some(last) if last.rank == victim.rank => last.pages += pages,
                _ => self.demote.push(Share {
                    rank: victim.rank,
                    pages,
                }),
            }
            if victim.pages == 0 {
                victims.pop();
            }
        }
        got
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
    fn candidates(&self, ranked: &[Ranked]) -> Vec<(usize, u64)> {
        let upto = ranked.iter().take(self.whole + 1).enumerate();
        let wanted = upto.map(|(rank, Ranked { held, .. })| {
            let missing = self.of(rank, held).saturating_sub(held.fast);
            (rank, missing.min(held.slow))
        });
        wanted.filter(|(_, pages)| *pages > 0).collect()
    }

    /// Ranges with pages that may go down, coldest last.
    fn victims(&self, ranked: &[Ranked]) -> Vec<Share> {
        let rest = ranked.iter().enumerate().skip(self.whole);
        rest.map(|(rank, Ranked { held, .. })| Share {
            rank,
            pages: held.fast.saturating_sub(self.of(rank, held)),
        })
        .filter(|share| share.pages > 0)
        .collect()
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
