//! The second pass of the bucket sort: from how many units to which.
//!
//! Responsible for: walking the units once and writing those that move into lists, ordered by degree,
//! most wanted first, and by page number within a degree. It leaves to others: the numbers
//! ([`super::exchange`]).

use terrace_proto::TierId;

use super::{Flow, Quotas};
use crate::estimate::{
    BlockRanks, DEGREES, MAY_MOVE, Notes, Rank, Ranked, Spans, Units, movable_place,
};
use crate::pages::{BLOCK, Pages, flags};

/// No unit: a place that a huge block left empty.
const NONE: u32 = u32::MAX;
const TIERS: usize = TierId::MAX;
/// Units of a huge block.
const WHOLE: u32 = 512;

/// The places of a list that units of one degree take: from `next` up to `end`.
#[derive(Clone, Copy, Default)]
struct Bucket {
    next: u32,
    end: u32,
}

impl Bucket {
    fn left(self) -> u32 {
        self.end - self.next
    }
}

/// One list being filled: a bucket per degree, as large as its quota.
struct Lane {
    to: usize,
    buckets: [Bucket; DEGREES],
    units: Vec<u32>,
    /// Whether huge blocks left places empty.
    has_blocks: bool,
}

impl Lane {
    fn new(quotas: &Quotas, from: usize, to: usize) -> Option<Self> {
        let mut buckets = [Bucket::default(); DEGREES];
        let mut total = 0_u32;
        for i in 0..DEGREES {
            // Promotions start with the hottest, demotions with the coldest.
            let degree = if to < from { DEGREES - 1 - i } else { i };
            let quota = u32::try_from(quotas.get(from, to, degree)).unwrap_or(0);
            let next = total;
            total += quota;
            buckets[degree] = Bucket { next, end: total };
        }
        let units = vec![NONE; total as usize];
        (total > 0).then_some(Self {
            to,
            buckets,
            units,
            has_blocks: false,
        })
    }

    /// Takes a unit, or a block of so many, if its degree still has room.
    #[inline]
    fn take(&mut self, unit: u32, degree: u8, weight: u32) -> bool {
        let bucket = &mut self.buckets[usize::from(degree)];
        if bucket.left() < weight {
            return false;
        }
        self.units[bucket.next as usize] = unit;
        bucket.next += weight;
        self.has_blocks |= weight > 1;
        true
    }

    /// The list, without the places that nobody took.
    fn list(mut self) -> Vec<u32> {
        if self.has_blocks || self.buckets.iter().any(|bucket| bucket.left() > 0) {
            self.units.retain(|unit| *unit != NONE);
        }
        self.units
    }
}

/// Units of a tier from degree `first` to degree `first + span`, which still move, so that one comparison finds most units
/// that stay.
#[derive(Clone, Copy)]
struct Moving {
    tier: usize,
    place: u8,
    first: u8,
    span: u8,
}

/// The lists of all tiers.
struct Lanes {
    of: [Vec<Lane>; TIERS],
    /// Units that still move. They may include degrees of which no unit moves.
    moving: Vec<Moving>,
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
        for (tier, lanes) in self.of.iter().enumerate() {
            let place = movable_place(self::tier(tier).0);
            for lane in lanes {
                let open = |degree: &u8| lane.buckets[usize::from(*degree)].left() > 0;
                let first = (0..=u8::MAX).find(open);
                let last = (0..=u8::MAX).rev().find(open);
                if let (Some(first), Some(last)) = (first, last) {
                    self.moving.push(Moving {
                        tier,
                        place,
                        first,
                        span: last - first,
                    });
                }
            }
        }
    }

    /// Whether some unit of a block may move.
    fn concern(&self, block: usize, spans: &Spans) -> bool {
        let mut moving = self.moving.iter();
        moving.any(|m| spans.may_hold(block, m.tier, m.first, m.first + m.span))
    }

    /// Marks the units of a block that may move: 1 for each that does, else 0.
    #[inline]
    fn mark(&self, units: Units, marks: &mut Notes<u8>) {
        marks.0.fill(0);
        for moving in &self.moving {
            for ((mark, place), degree) in marks.0.iter_mut().zip(units.places).zip(units.degrees) {
                let is_there = place & MAY_MOVE == moving.place;
                let is_within = degree.wrapping_sub(moving.first) <= moving.span;
                *mark |= u8::from(is_there) & u8::from(is_within);
            }
        }
    }

    #[inline]
    fn offer(&mut self, unit: u32, place: u8, degree: u8, weight: u32) {
        let lanes = self.of.get_mut(usize::from(place & flags::TIER));
        for lane in lanes.into_iter().flatten() {
            if lane.take(unit, degree, weight) {
                if lane.buckets[usize::from(degree)].left() == 0 {
                    self.find_moving();
                }
                return;
            }
        }
    }

    /// Offers a huge block's first unit.
    fn offer_whole(&mut self, unit: u32, place: u8, degree: u8) {
        let from = place & MAY_MOVE;
        if (0..).take(TIERS).any(|tier| movable_place(tier) == from) {
            self.offer(unit, place, degree, WHOLE);
        }
    }

    /// Offers the units of a block that are marked.
    #[inline]
    fn offer_marked(&mut self, first: u32, units: Units, marks: &Notes<u8>) {
        for (word, marks) in (first..).step_by(64).zip(marks.0.as_chunks::<64>().0) {
            let mut left = bits(marks);
            while left != 0 {
                let unit = word + left.trailing_zeros();
                left &= left - 1;
                let at = (unit - first) as usize;
                self.offer(unit, units.places[at], units.degrees[at], 1);
            }
        }
    }
}

/// 64 bytes that are 0 or 1 as bits.
#[inline]
fn bits(bytes: &[u8; 64]) -> u64 {
    // The product brings the lowest bit of byte i to bit 56 + i, and no two bits meet.
    const GATHER: u64 = 0x0102_0408_1020_4080;
    let eights = bytes.as_chunks::<8>().0.iter().rev();
    eights.fold(0, |bits, eight| {
        bits << 8 | u64::from_le_bytes(*eight).wrapping_mul(GATHER) >> 56
    })
}

/// The units that move, by the decision of [`Quotas`]. `spans` are those of the same ranking.
pub(super) fn collect(
    pages: &Pages,
    by: impl Rank,
    round: u64,
    quotas: &Quotas,
    spans: &Spans,
) -> Vec<Flow> {
    let tiers = usize::from(pages.tiers());
    let mut lanes = Lanes::new(quotas, tiers);
    let mut ranks = BlockRanks::new();
    let mut marks = Notes([0; BLOCK]);
    let starts = (0..pages.units()).step_by(BLOCK);
    for ((block, start), first) in starts.enumerate().zip((0_u32..).step_by(BLOCK)) {
        if lanes.moving.is_empty() {
            break;
        }
        if !lanes.concern(block, spans) {
            continue;
        }
        match ranks.rank(pages, by, round, start) {
            Ranked::Whole { place, degree } => lanes.offer_whole(first, place, degree),
            Ranked::Units(units) => {
                lanes.mark(units, &mut marks);
                lanes.offer_marked(first, units, &marks);
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
        for lane in lanes {
            let to = lane.to;
            let mut flow = Flow {
                to: tier(to),
                units: lane.list(),
                forced: 0,
            };
            if to < from {
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
