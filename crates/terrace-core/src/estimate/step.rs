//! A round's step of all averages, by tables.
//!
//! Responsible for: what becomes of a unit's two averages, given its counts, for a whole block at a time. It leaves to others: rates and the
//! time behind them ([`super::rates`]).
//!
//! A row has all that one pair of counts makes of each average. Of pairs few occur, so rows are made as they are needed.

use super::rates::roots;
use super::scale::{Rate, position, rate_of, rounded, step_of};

/// Difference of the roots of two numbers of touches that is a change, in 16ths: six standard deviations, because each page is asked in each round.
const SURPRISE_ROOTS: u64 = 48;
/// The same for what a single round says of a page that is hotter now, and of one that is colder. Loads come in bursts, so a page falls by more than it rises by.
const RISEN_ROOTS: u64 = 56;
const FALLEN_ROOTS: u64 = 80;

/// Units that are passed over together if nobody touches them.
const WIDTH: u32 = 8;
const GROUP: usize = WIDTH as usize;

/// Numbers of a byte.
const STEPS: usize = 256;
/// All steps.
const ANY: (u8, u8) = (0, u8::MAX);

/// The effect of one pair of counts on averages.
#[derive(Clone)]
struct Row {
    is_made: bool,
    /// The place of the rate that the counts say.
    seen: u32,
    /// The recent average's place, by what it was.
    recent: [u32; STEPS],
    /// The long average's place, by the step that it had; one more for what lies above the last.
    long: [u32; STEPS + 1],
    /// Long averages' steps within which the round alone shows no change.
    usual: (u8, u8),
}

impl Row {
    const EMPTY: Self = Self {
        is_made: false,
        seen: 0,
        recent: [0; STEPS],
        long: [0; STEPS + 1],
        usual: (0, 0),
    };
}

/// One round's step of all averages.
pub(super) struct Step {
    rates: Vec<Rate>,
    windows: u8,
    rows: Vec<Row>,
    /// Parts of the round in recent averages and in long ones, of 65,536.
    parts: (u64, u64),
    /// Windows' time of the round alone, ns; none if no page's load is taken to have changed.
    watched_ns: Option<u64>,
    /// The deviation that chance makes of a root by that of independent touches, in 256ths.
    deviation: u64,
    /// Long averages' steps from which a recent one does not differ by more than chance, by the recent one's step.
    alike: [(u8, u8); STEPS],
}

impl Step {
    /// By rates for each pair of counts, the round's parts of the averages, and windows' time behind recent averages and of the round alone, ns; none if no
    /// page's load is taken to have changed.
    pub(super) fn new(
        rates: Vec<Rate>,
        windows: u8,
        parts: (u64, u64),
        anew: Option<(u64, u64)>,
        spread: u64,
    ) -> Self {
        let (behind_ns, watched_ns) = anew.unzip();
        let behind_ns = behind_ns.unwrap_or(0);
        // The root of a number varies by half of the root of its spread.
        let deviation = (spread << 8).isqrt();
        let by_step: Vec<u64> = (0..=u8::MAX)
            .map(|step| roots(rate_of(step), behind_ns))
            .collect();
        let alike = |now: usize| match watched_ns {
            Some(_) => {
                let by = (SURPRISE_ROOTS * deviation) >> 8;
                within(&by_step, by_step[now], (by, by))
            }
            None => ANY,
        };
        Self {
            rows: vec![Row::EMPTY; rates.len()],
            rates,
            windows,
            parts,
            watched_ns,
            deviation,
            alike: std::array::from_fn(alike),
        }
    }

    /// Takes a block's counts into its averages. Each unit draws its chances from its number, so that units of a block draw evenly.
    pub(super) fn take(
        &mut self,
        first: u32,
        (reads, writes): (&[u8], &[u8]),
        (recent, long): (&mut [u8], &mut [u16]),
    ) {
        let counts = reads.chunks(GROUP).zip(writes.chunks(GROUP));
        let averages = recent.chunks_mut(GROUP).zip(long.chunks_mut(GROUP));
        for (group, (counts, averages)) in (0..).zip(counts.zip(averages)) {
            if !is_idle(counts, (&*averages.0, &*averages.1)) {
                self.take_group(first.wrapping_add(group * WIDTH), counts, averages);
            }
        }
    }

    /// The same of a few units. A unit that nobody touches takes the same steps: which ones do comes by chance, and a branch that comes by chance
    /// costs more.
    #[inline]
    fn take_group(
        &mut self,
        first: u32,
        (reads, writes): (&[u8], &[u8]),
        (recent, long): (&mut [u8], &mut [u16]),
    ) {
        let columns = usize::from(self.windows) + 1;
        let counts = reads.iter().zip(writes);
        let averages = recent.iter_mut().zip(long);
        for (number, ((reads, writes), (recent, long))) in (0..WIDTH).zip(counts.zip(averages)) {
            let at = usize::from(*reads) * columns + usize::from(*writes);
            // Counts beyond the windows are nobody's.
            let Some(row) = self.rows.get(at) else {
                continue;
            };
            if !row.is_made {
                self.make(at, *reads, *writes);
            }
            let chance = first.wrapping_add(number).wrapping_mul(0x9e37_79b9);
            (*recent, *long) = self.stepped(&self.rows[at], *recent, *long, chance);
        }
    }

    #[inline]
    fn stepped(&self, row: &Row, recent: u8, long: u16, chance: u32) -> (u8, u16) {
        let (coarse, fine) = (chance >> 24, chance >> 16 & 255);
        let [part, then] = long.to_le_bytes();
        if then < row.usual.0 || then > row.usual.1 {
            return (step_of(row.seen, coarse), rounded(row.seen, fine));
        }
        let now = row.recent[usize::from(recent)];
        let recent = step_of(now, coarse);
        let (least, most) = self.alike[usize::from(recent)];
        if then < least || then > most {
            return (recent, rounded(now, fine));
        }
        let at = usize::from(then);
        let (from, to) = (row.long[at], row.long[at + 1]);
        let between = ((to - from) * u32::from(part)) >> 8;
        (recent, rounded(from + between, fine))
    }

    /// Long averages' steps that a round's rate alone shows no change of.
    fn usual(&self, rate: Rate) -> (u8, u8) {
        let Some(watched_ns) = self.watched_ns else {
            return ANY;
        };
        let by_step: Vec<u64> = (0..=u8::MAX)
            .map(|step| roots(rate_of(step), watched_ns))
            .collect();
        let root = roots(rate, watched_ns);
        let by = |roots: u64| (roots * self.deviation) >> 8;
        within(&by_step, root, (by(RISEN_ROOTS), by(FALLEN_ROOTS)))
    }

    fn make(&mut self, at: usize, reads: u8, writes: u8) {
        let rate = self.rates[at];
        let is_full = u16::from(reads) + u16::from(writes) >= u16::from(self.windows);
        // A page found in every window is touched at least so often.
        let at_least = |old: Rate| if is_full { rate.max(old) } else { rate };
        let next = |old: Rate, part: u64| position(mix(old, at_least(old), part));
        let usual = self.usual(rate);
        let row = &mut self.rows[at];
        row.is_made = true;
        row.seen = position(rate);
        row.usual = (usual.0, if is_full { u8::MAX } else { usual.1 });
        let steps = (0..=u8::MAX).map(rate_of);
        for ((recent, long), old) in row.recent.iter_mut().zip(&mut row.long).zip(steps) {
            (*recent, *long) = (next(old, self.parts.0), next(old, self.parts.1));
        }
        row.long[STEPS] = row.long[STEPS - 1];
    }
}

/// Whether units have neither counts nor averages, and so keep none.
#[inline]
fn is_idle((reads, writes): (&[u8], &[u8]), (recent, long): (&[u8], &[u16])) -> bool {
    let any = |bytes: &[u8]| bytes.iter().fold(0, |any, byte| any | byte);
    any(reads) | any(writes) | any(recent) == 0 && long.iter().fold(0, |any, of| any | of) == 0
}

/// Steps whose roots lie so far below one at most, and so far above it.
fn within(by_step: &[u64], root: u64, (below, above): (u64, u64)) -> (u8, u8) {
    let least = by_step.partition_point(|r| r.saturating_add(below) < root);
    let most = by_step.partition_point(|r| *r <= root.saturating_add(above));
    let step = |at: usize| u8::try_from(at).unwrap_or(u8::MAX);
    (step(least), step(most.saturating_sub(1)))
}

/// An average with a part of 65,536 of something new.
pub(super) fn mix(old: Rate, new: Rate, part: u64) -> Rate {
    (old * (65_536 - part) + new * part) >> 16
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn step() -> Step {
        let rates = (0..81).map(|at| at << 14).collect();
        Step::new(rates, 8, (20_000, 500), Some((1 << 30, 1 << 28)), 256)
    }

    proptest! {
        #[test]
        fn units_take_the_same_step_alone_and_in_a_block(
            units in prop::collection::vec(
                (0_u8..=10, 0_u8..=4, prop_oneof![3 => Just(0), 1 => 0_u8..=255], prop_oneof![3 => Just(0), 1 => any::<u16>()]),
                1..100,
            ),
            first in any::<u32>(),
        ) {
            let reads: Vec<u8> = units.iter().map(|unit| unit.0.saturating_sub(2)).collect();
            let writes: Vec<u8> = units.iter().map(|unit| unit.1.saturating_sub(3)).collect();
            let recent: Vec<u8> = units.iter().map(|unit| unit.2).collect();
            let long: Vec<u16> = units.iter().map(|unit| unit.3).collect();
            let (mut in_block, mut alone) = ((recent.clone(), long.clone()), (recent, long));
            step().take(first, (&reads, &writes), (&mut in_block.0, &mut in_block.1));
            let mut by_one = step();
            for (number, unit) in (0_u32..).zip(0..units.len()) {
                let one = unit..=unit;
                let counts = (&reads[one.clone()], &writes[one.clone()]);
                let averages = (&mut alone.0[one.clone()], &mut alone.1[one]);
                by_one.take(first.wrapping_add(number), counts, averages);
            }
            prop_assert_eq!(in_block, alone);
        }

        #[test]
        fn a_unit_that_nobody_touches_has_no_rate_whatever_its_number(first in any::<u32>()) {
            let (mut recent, mut long) = (vec![0; 9], vec![0; 9]);
            // The last one is touched, so that none is passed over.
            let reads = [0, 0, 0, 0, 0, 0, 0, 3, 0];
            step().take(first, (&reads, &[0; 9]), (&mut recent, &mut long));
            prop_assert_eq!((&recent[..7], &long[..7]), (&[0; 7][..], &[0; 7][..]));
            prop_assert!(recent[7] > 0);
        }
    }
}
