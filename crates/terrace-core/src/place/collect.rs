//! The second pass of the bucket sort: from how many units to which.
//!
//! Responsible for: walking the units once and writing those that move into lists, ordered by degree,
//! most wanted first, and by page number within a degree. It leaves to others: the numbers
//! ([`super::exchange`]).

use terrace_proto::TierId;

use super::{Flow, Quotas};
use crate::estimate::{BlockRanks, DEGREES, Rank, Ranked, movable_key};
use crate::pages::{BLOCK, Pages};

/// No unit: a place that a huge block left empty.
const NONE: u32 = u32::MAX;
const TIERS: usize = TierId::MAX;

/// One list being filled: a bucket per degree, as large as its quota.
struct Lane {
    to: usize,
    /// Units that each degree may still take.
    left: [u32; DEGREES],
    /// The position of each degree's next unit.
    next: [u32; DEGREES],
    units: Vec<u32>,
}

impl Lane {
    fn new(quotas: &Quotas, from: usize, to: usize) -> Option<Self> {
        let mut lane = Self {
            to,
            left: [0; DEGREES],
            next: [0; DEGREES],
            units: Vec::new(),
        };
        let mut total = 0_u32;
        for i in 0..DEGREES {
            // Promotions start with the hottest, demotions with the coldest.
            let degree = if to < from { DEGREES - 1 - i } else { i };
            let quota = u32::try_from(quotas.get(from, to, degree)).unwrap_or(0);
            lane.left[degree] = quota;
            lane.next[degree] = total;
            total += quota;
        }
        lane.units = vec![NONE; total as usize];
        (total > 0).then_some(lane)
    }

    #[inline]
    fn take(&mut self, unit: u32, degree: usize, weight: u32) -> bool {
        if self.left[degree] < weight {
            return false;
        }
        self.left[degree] -= weight;
        self.units[self.next[degree] as usize] = unit;
        self.next[degree] += 1;
        true
    }
}

/// Keys from `start` on, so many.
#[derive(Clone, Copy)]
struct KeyRange {
    start: u16,
    len: u16,
}

/// The lists of all tiers.
struct Lanes {
    of: [Vec<Lane>; TIERS],
    /// Keys of which some unit still moves, as ranges, so that one comparison finds most units that
    /// stay. They may hold keys of which none moves.
    moving: Vec<KeyRange>,
}

impl Lanes {
    fn new(quotas: &Quotas, tiers: usize) -> Self {
        let lane = |from| {
            let others = (0..tiers).filter(move |to| *to != from);
            others.filter_map(move |to| Lane::new(quotas, from, to))
        };
        let mut lanes = Self {
            of: std::array::from_fn(|from| {
                if from < tiers {
                    lane(from).collect()
                } else {
                    Vec::new()
                }
            }),
            moving: Vec::new(),
        };
        lanes.find_moving();
        lanes
    }

    /// Demotions take degrees from the lowest on, promotions from the highest: two ranges a tier.
    fn find_moving(&mut self) {
        self.moving.clear();
        for (from, lanes) in self.of.iter().enumerate() {
            for lane in lanes {
                let degrees = || (0_u16..256).filter(|d| lane.left[usize::from(*d)] > 0);
                if let (Some(first), Some(last)) = (degrees().next(), degrees().next_back()) {
                    self.moving.push(KeyRange {
                        start: movable_key(from) | first,
                        len: last - first + 1,
                    });
                }
            }
        }
    }

    /// Marks the units of a block that may move.
    #[inline]
    fn mark(&self, keys: &[u16], marks: &mut [u8; BLOCK]) {
        marks.fill(0);
        for range in &self.moving {
            for (mark, key) in marks.iter_mut().zip(keys) {
                *mark |= u8::from(key.wrapping_sub(range.start) < range.len);
            }
        }
    }

    #[inline]
    fn offer(&mut self, unit: u32, key: u16, weight: u32) {
        let (class, degree) = (usize::from(key >> 8), usize::from(key & 255));
        let Some(lanes) = self.of.get_mut(class) else {
            return;
        };
        for lane in lanes {
            if lane.take(unit, degree, weight) {
                if lane.left[degree] == 0 {
                    self.find_moving();
                }
                return;
            }
        }
    }
}

/// The units that move, by the decision of [`Quotas`].
pub(super) fn collect(pages: &Pages, by: impl Rank, round: u64, quotas: &Quotas) -> Vec<Flow> {
    let tiers = usize::from(pages.tiers());
    let mut lanes = Lanes::new(quotas, tiers);
    let mut ranks = BlockRanks::new();
    let mut marks = [0; BLOCK];
    for (start, first) in (0..pages.units())
        .step_by(BLOCK)
        .zip((0_u32..).step_by(BLOCK))
    {
        if lanes.moving.is_empty() {
            break;
        }
        match ranks.rank(pages, by, round, start) {
            Ranked::Whole(key) => lanes.offer(first, key, 512),
            Ranked::Units => {
                let keys = &ranks.keys[..BLOCK.min(pages.units() - start)];
                lanes.mark(keys, &mut marks);
                for (eight, marks) in (first..).step_by(8).zip(marks.as_chunks::<8>().0) {
                    let mut left = u64::from_le_bytes(*marks);
                    while left != 0 {
                        let unit = eight + left.trailing_zeros() / 8;
                        left &= left - 1;
                        lanes.offer(unit, ranks.keys[(unit - first) as usize], 1);
                    }
                }
            }
        }
    }
    flows(lanes, quotas)
}

/// Demotions, slowest destination first; then promotions, fastest destination first.
fn flows(lanes: Lanes, quotas: &Quotas) -> Vec<Flow> {
    let mut forced = quotas.forced;
    let (mut down, mut up) = (Vec::new(), Vec::new());
    for (from, lanes) in lanes.of.into_iter().enumerate() {
        for mut lane in lanes {
            lane.units.retain(|u| *u != NONE);
            let mut flow = Flow {
                to: tier(lane.to),
                units: lane.units,
                forced: 0,
            };
            if lane.to < from {
                up.push(flow);
                continue;
            }
            let must = forced[from].min(flow.units.len() as u64);
            forced[from] -= must;
            flow.forced = usize::try_from(must).unwrap_or(0);
            down.push(flow);
        }
    }
    down.sort_by_key(|flow| std::cmp::Reverse(flow.to));
    up.sort_by_key(|flow| flow.to);
    down.append(&mut up);
    down
}

fn tier(index: usize) -> TierId {
    TierId(u8::try_from(index).unwrap_or(u8::MAX))
}
