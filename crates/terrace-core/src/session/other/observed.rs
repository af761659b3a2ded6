//! The accesses that one VM's scans observed: windows, the part of each that is known, and the accessed bits as
//! another policy would find them.
//!
//! An accessed bit stays set until a scan re-arms it. So what a scan found set and left so shows nothing
//! about the next window; what it found clear does, re-armed or not. A unit of 2 MiB counts once,
//! accessed if any of its pages is.

use std::borrow::Cow;

use terrace_proto::{PageBitmap, PageSize, Rearm, ScanAnswer};

/// One window of one VM, a bit for each unit.
pub(super) struct Window {
    /// Some user table maps it.
    pub mapped: Vec<u64>,
    /// Of those, the ones whose accesses in the window are known.
    pub known: Vec<u64>,
    /// Of those, the accessed ones.
    pub accessed: Vec<u64>,
}

pub(super) struct Observed {
    unit: PageSize,
    /// Accessed bits that were set before the window under way and were left so.
    stale: Vec<u64>,
    /// The accessed bits as the other policy's own re-arming leaves them.
    bits: PageBitmap,
    /// Pages reported as written since the other policy asked last, if any source reported.
    written: Option<PageBitmap>,
}

impl Observed {
    pub fn new(unit: PageSize, span_pages: u64) -> Self {
        Self {
            unit,
            stale: Vec::new(),
            bits: PageBitmap::new(span_pages),
            written: None,
        }
    }

    /// The clearing pass of a round: what it found is of no window.
    pub fn clear(&mut self, answer: &ScanAnswer, rearm: &Rearm) {
        self.stale = self.left_set(answer, rearm);
        self.bits.clear();
        self.written = None;
    }

    /// The scan at the end of a window.
    pub fn window(&mut self, answer: &ScanAnswer, rearm: &Rearm) -> Window {
        let mapped = self.units(&answer.known).into_owned();
        let stale = |i: usize| self.stale.get(i).copied().unwrap_or(0);
        let known: Vec<u64> = (0..).zip(&mapped).map(|(i, m)| m & !stale(i)).collect();
        let accessed = self.units(&answer.accessed);
        let accessed = known.iter().zip(&*accessed).map(|(k, a)| k & a).collect();
        self.stale = self.left_set(answer, rearm);
        merge(&mut self.bits, &answer.accessed);
        if let Some(written) = &answer.written {
            match &mut self.written {
                Some(sum) => merge(sum, written),
                none => *none = Some(written.clone()),
            }
        }
        Window {
            mapped,
            known,
            accessed,
        }
    }

    /// Answers a scan of the other policy: the bits since it re-armed them, and what was written.
    pub fn ask(&mut self, rearm: &Rearm) -> (PageBitmap, Option<PageBitmap>) {
        let found = self.bits.clone();
        match rearm {
            Rearm::None => {}
            Rearm::All => self.bits.clear(),
            Rearm::Only(pages) => {
                for (i, (bits, pages)) in found.words().iter().zip(pages.words()).enumerate() {
                    self.bits.set_word(i, bits & !pages);
                }
            }
        }
        (found, self.written.take())
    }

    fn left_set(&self, answer: &ScanAnswer, rearm: &Rearm) -> Vec<u64> {
        let accessed = self.units(&answer.accessed);
        match rearm {
            Rearm::All => Vec::new(),
            Rearm::None => accessed.into_owned(),
            Rearm::Only(pages) => {
                let rearmed = self.units(pages);
                let rearmed = rearmed.iter().copied().chain(std::iter::repeat(0));
                accessed.iter().zip(rearmed).map(|(a, r)| a & !r).collect()
            }
        }
    }

    fn units<'a>(&self, pages: &'a PageBitmap) -> Cow<'a, [u64]> {
        match self.unit {
            PageSize::Base => Cow::Borrowed(pages.words()),
            PageSize::Huge => {
                let blocks: Vec<&[u64]> = pages.words().chunks(8).collect();
                let any = |blocks: &[&[u64]]| {
                    (0..).zip(blocks).fold(0, |word, (i, pages)| {
                        word | u64::from(pages.iter().any(|w| *w != 0)) << i
                    })
                };
                Cow::Owned(blocks.chunks(64).map(any).collect())
            }
        }
    }
}

fn merge(sum: &mut PageBitmap, more: &PageBitmap) {
    for (i, more) in more.words().iter().enumerate() {
        let word = sum.words().get(i).copied().unwrap_or(0);
        sum.set_word(i, word | more);
    }
}

#[cfg(test)]
mod tests {
    use terrace_proto::{RequestId, ScanStats, Space, VmId};

    use super::*;

    fn bitmap(pages: u64, set: &[u64]) -> PageBitmap {
        let mut map = PageBitmap::new(pages);
        set.iter().for_each(|page| map.set(*page));
        map
    }

    fn answer(pages: u64, accessed: &[u64]) -> ScanAnswer {
        ScanAnswer {
            id: RequestId(1),
            space: Space::Guest(VmId(1)),
            known: PageBitmap::full(pages),
            accessed: bitmap(pages, accessed),
            written: None,
            huge_leaf: PageBitmap::new(pages.div_ceil(512)),
            stats: ScanStats::default(),
        }
    }

    #[test]
    fn an_old_accessed_bit_says_nothing_about_the_next_window() {
        let mut observed = Observed::new(PageSize::Base, 4);
        observed.clear(&answer(4, &[0, 1, 2, 3]), &Rearm::All);
        // Pages 0 and 1 are accessed, and only page 0 is re-armed.
        let first = observed.window(&answer(4, &[0, 1]), &Rearm::Only(bitmap(4, &[0])));
        assert_eq!((first.known[0], first.accessed[0]), (0b1111, 0b0011));
        let second = observed.window(&answer(4, &[0, 1, 3]), &Rearm::None);
        assert_eq!((second.known[0], second.accessed[0]), (0b1101, 0b1001));
        let third = observed.window(&answer(4, &[0, 1, 3]), &Rearm::All);
        assert_eq!((third.known[0], third.accessed[0]), (0b0100, 0));
    }

    #[test]
    fn the_other_policy_sees_bits_as_its_own_rearming_left_them() {
        let mut observed = Observed::new(PageSize::Base, 4);
        observed.clear(&answer(4, &[]), &Rearm::All);
        observed.window(&answer(4, &[0, 1]), &Rearm::All);
        let (bits, written) = observed.ask(&Rearm::Only(bitmap(4, &[1])));
        assert_eq!((bits.words()[0], written), (0b0011, None));
        observed.window(&answer(4, &[2]), &Rearm::All);
        assert_eq!(observed.ask(&Rearm::All).0.words()[0], 0b0101);
        assert_eq!(observed.ask(&Rearm::None).0.count(), 0);
    }

    #[test]
    fn a_unit_of_2_mib_counts_once() {
        let mut observed = Observed::new(PageSize::Huge, 1024);
        observed.clear(&answer(1024, &[]), &Rearm::All);
        let window = observed.window(&answer(1024, &[600, 601]), &Rearm::All);
        assert_eq!((window.mapped[0], window.accessed[0]), (0b11, 0b10));
    }
}
