//! Counts of samples by page, and the pages that carry a part of all accesses.

use super::step::WHOLE;
use crate::base::number::{index, low};
use crate::mechanisms::lists::Lists;
use crate::mechanisms::{Context, Setup, Stage, Unit};

/// Bins of counts, each of twice the count of the one before, as many as Memtis has.
const BINS: u8 = 16;

/// Bins by which a page must be colder to make room for another: samples of equally hot pages vary by one.
const COLDER: u8 = 2;

/// Samples after which all counts are halved, of the full-size machine: Memtis's `htmm_cooling_period`.
const COOLING: u64 = 2_000_000;

/// A part of the accesses that is to go from one tier to another.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shift {
    pub from: u8,
    pub to: u8,
    /// The part, of [`WHOLE`].
    pub part: u64,
    /// Most units that move.
    pub most: u64,
}

/// Pages, each with the tier to which it is to go.
pub(super) type Moves = Vec<(Unit, u8)>;

/// The pages of a VM by tier and count.
#[derive(Debug)]
pub(super) struct Pages {
    counts: Vec<u16>,
    /// The sum of the counts.
    sum: u64,
    lists: Lists,
    /// Samples until the next cooling, and from one to the next.
    until_cooling: u64,
    cooling_every: u64,
}

impl Pages {
    /// Pages without a sample, on no list.
    pub(super) fn new(setup: &Setup) -> Self {
        let tiers = u8::try_from(setup.tiers).unwrap_or(u8::MAX / BINS);
        let cooling_every = (COOLING / setup.scale).max(1);
        Self {
            counts: vec![0; index(setup.units)],
            sum: 0,
            lists: Lists::new(tiers * BINS, setup.units),
            until_cooling: cooling_every,
            cooling_every,
        }
    }

    fn bin(&self, unit: Unit) -> u8 {
        let bin = self.counts[index(unit)].saturating_add(1).ilog2();
        u8::try_from(bin).unwrap_or(BINS).min(BINS - 1)
    }

    /// Puts a page on the list of its tier and bin, unless it is there already.
    pub(super) fn list(&mut self, context: &Context, unit: Unit) {
        let list = context.tier(unit).unwrap_or(0) * BINS + self.bin(unit);
        if self.lists.list_of(unit) != Some(list) {
            self.lists.push(list, unit);
        }
    }

    /// Puts all pages on lists.
    pub(super) fn list_all(&mut self, context: &Context) {
        for unit in 0..low(self.counts.len() as u64) {
            self.list(context, unit);
        }
    }

    /// Counts a sample of a page. A page under way is on no list until it has arrived.
    pub(super) fn count(&mut self, context: &mut Context, unit: Unit) {
        let count = &mut self.counts[index(unit)];
        if *count < u16::MAX {
            *count += 1;
            self.sum += 1;
        }
        if self.lists.list_of(unit).is_some() {
            self.list(context, unit);
        }
        self.until_cooling -= 1;
        if self.until_cooling == 0 {
            self.until_cooling = self.cooling_every;
            self.cool(context);
        }
    }

    /// Halves all counts.
    fn cool(&mut self, context: &mut Context) {
        self.sum = 0;
        for unit in 0..low(self.counts.len() as u64) {
            let count = &mut self.counts[index(unit)];
            *count /= 2;
            self.sum += u64::from(*count);
            if self.lists.list_of(unit).is_some() {
                self.list(context, unit);
            }
        }
        let pages = self.counts.len() as u64;
        context.spend(Stage::Classify, pages * context.costs().classify_page);
    }

    /// Takes pages off their lists whose samples make up a part of all: those that leave the slower tier, the hottest
    /// first, and those that come from the faster one to make room, the coldest first.
    pub(super) fn pick(&mut self, context: &mut Context, shift: Shift) -> (Moves, Moves) {
        let Shift { from, to, .. } = shift;
        let mut left = self.sum * shift.part / WHOLE;
        let mut room = context.free(to);
        let can_come = room + context.free(from) > 0;
        let (mut leave, mut come) = (Vec::new(), Vec::new());
        for bin in (1..BINS).rev() {
            while let Some(unit) = self.lists.tail(from * BINS + bin) {
                let count = u64::from(self.counts[index(unit)]);
                let moves = (leave.len() + come.len()) as u64;
                if count > left || moves + 2 > shift.most {
                    break;
                }
                if room == 0 {
                    let victim = self.coldest(to, bin.saturating_sub(COLDER));
                    let Some(victim) = victim.filter(|_| can_come && bin > COLDER) else {
                        break;
                    };
                    self.lists.remove(victim);
                    left += u64::from(self.counts[index(victim)]);
                    come.push((victim, from));
                    room += 1;
                }
                self.lists.remove(unit);
                left -= count;
                room -= 1;
                leave.push((unit, to));
            }
        }
        let visited = (leave.len() + come.len()) as u64;
        context.spend(Stage::Classify, visited * context.costs().lru_page);
        (leave, come)
    }

    /// The coldest page of a tier, if it is in no bin above `most`.
    fn coldest(&self, tier: u8, most: u8) -> Option<Unit> {
        (0..=most).find_map(|bin| self.lists.tail(tier * BINS + bin))
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.lists.heap_bytes() + 2 * self.counts.capacity()
    }
}
