//! Samples that wait for the round's end, in bounded memory.
//!
//! Responsible for: how often each unit was sampled since the round began, and over what time. It leaves to others: what
//! becomes of a unit's samples when the list is full, and when the round ends.

/// Bounds of the number of units in the list: 8 bytes each, a third of a byte for each of the VM's, and 1 MiB at most.
const UNITS: (usize, usize) = (256, 1 << 17);
/// Most samples of a unit.
const MOST: u32 = u16::MAX as u32;

/// How often units were sampled, ascending.
#[derive(Debug)]
pub(super) struct List {
    units: Vec<(u32, u32)>,
    most: usize,
    /// Time over which they were taken for each miss that one stands for, ns in 256ths.
    exposure: u64,
    /// The same of those that did not fit.
    folded: u64,
    folds: u64,
}

impl List {
    /// For a VM of so many units.
    pub fn new(units: usize) -> Self {
        Self {
            units: Vec::new(),
            most: (units / 24).clamp(UNITS.0, UNITS.1),
            exposure: 0,
            folded: 0,
            folds: 0,
        }
    }

    pub fn heap_bytes(&self) -> usize {
        self.units.capacity() * size_of::<(u32, u32)>()
    }

    /// Takes samples in. What does not fit is folded: handed on at once, unit by unit; or, without averages to fold it into, thinned out.
    pub fn take_in(
        &mut self,
        mut samples: Vec<(u32, u32)>,
        exposure: u64,
        fold: Option<&mut impl FnMut(u32, u64, u64)>,
    ) {
        samples.sort_unstable();
        samples.dedup_by(|later, first| {
            let same = later.0 == first.0;
            if same {
                first.1 = first.1.saturating_add(later.1);
            }
            same
        });
        if self.units.len() + samples.len() <= self.most {
            self.merge(&samples);
            self.exposure = self.exposure.saturating_add(exposure).min(1 << 56);
            return;
        }
        let Some(fold) = fold else {
            self.thin_out(samples, exposure);
            return;
        };
        self.folds += 1;
        let older = std::mem::take(&mut self.exposure);
        self.folded = self.folded.saturating_add(older).min(1 << 56);
        for (unit, n) in self.units.drain(..) {
            fold(unit, n.into(), self.folds);
        }
        if samples.len() <= self.most {
            self.merge(&samples);
            self.exposure = exposure.min(1 << 56);
            return;
        }
        self.folds += 1;
        self.folded = self.folded.saturating_add(exposure).min(1 << 56);
        for (unit, n) in samples {
            fold(unit, n.min(MOST).into(), self.folds);
        }
    }

    /// Takes one in so many samples, as if the period had been longer, so that all units have the same chance.
    fn thin_out(&mut self, mut samples: Vec<(u32, u32)>, exposure: u64) {
        let room = (self.most - self.units.len()) as u64;
        let all: u64 = samples.iter().map(|(_, n)| u64::from(*n)).sum();
        if room == 0 {
            return;
        }
        let one_in = all / room + 1;
        let mut before = 0;
        samples.retain_mut(|(_, n)| {
            let until = before + u64::from(*n);
            let taken = until / one_in - before / one_in;
            before = until;
            *n = u32::try_from(taken).unwrap_or(MOST);
            taken > 0
        });
        self.merge(&samples);
        self.exposure = self.exposure.saturating_add(exposure / one_in).min(1 << 56);
    }

    /// Merges units from behind, so that none is moved twice.
    fn merge(&mut self, more: &[(u32, u32)]) {
        let (mut i, mut j) = (self.units.len(), more.len());
        if self.units.capacity() == 0 {
            self.units.reserve_exact(self.most);
        }
        self.units.resize(i + j, (0, 0));
        let mut to = i + j;
        while j > 0 {
            to -= 1;
            let new = more[j - 1];
            if i > 0 && self.units[i - 1].0 > new.0 {
                i -= 1;
                self.units[to] = self.units[i];
                continue;
            }
            j -= 1;
            self.units[to] = (new.0, new.1.min(MOST));
        }
        self.units.dedup_by(|later, first| {
            let same = later.0 == first.0;
            if same {
                first.1 = first.1.saturating_add(later.1).min(MOST);
            }
            same
        });
    }

    /// The units, ascending, and how often each was sampled.
    pub fn iter(&self) -> impl Iterator<Item = (u32, u64)> {
        self.units.iter().map(|(unit, n)| (*unit, u64::from(*n)))
    }

    /// Samples in the list.
    pub fn samples(&self) -> u64 {
        self.iter().map(|(_, n)| n).sum()
    }

    /// Times over which the samples in the list were taken, and those that were folded.
    pub fn exposures(&self) -> (u64, u64) {
        (self.exposure, self.folded)
    }

    /// Begins anew.
    pub fn clear(&mut self) {
        self.units.clear();
        (self.exposure, self.folded) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_folded_and_none_is_counted_twice() {
        let mut list = List::new(6000);
        let mut folded = std::collections::BTreeMap::new();
        for round in 0..40_u32 {
            let batch = (0..100).map(|i| ((i * 37 + round * 11) % 1000, 1 + i % 2));
            let mut fold = |unit: u32, n: u64, _| *folded.entry(unit).or_insert(0) += n;
            list.take_in(batch.collect(), 256, Some(&mut fold));
            assert!(list.units.len() <= 256, "{}", list.units.len());
            assert!(list.units.windows(2).all(|two| two[0].0 < two[1].0));
        }
        let all = folded.values().sum::<u64>() + list.samples();
        assert_eq!(all, 40 * 150);
        assert_eq!(list.exposures().0 + list.exposures().1, 40 * 256);
        assert!(list.exposures().1 > 0 && !folded.is_empty());
    }

    #[test]
    fn what_a_list_cannot_take_at_first_is_thinned_out() {
        let mut list = List::new(6000);
        let none: Option<&mut fn(u32, u64, u64)> = None;
        list.take_in((0..200).map(|unit| (unit, 1)).collect(), 256, none);
        let none: Option<&mut fn(u32, u64, u64)> = None;
        list.take_in((200..400).map(|unit| (unit, 1)).collect(), 256, none);
        // One in four: there is room for 56.
        assert_eq!((list.samples(), list.exposures()), (250, (256 + 64, 0)));
    }
}
