//! Page tables of a guest as a pass names them.
//!
//! No user table maps the page of a page table, so scan answers say nothing of it; but a processor reads it wherever a TLB has no translation.

use serde::{Deserialize, Serialize};

use crate::{RequestId, Space};

/// A page that holds a page table of the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableFrame {
    /// The page's number in the guest.
    pub frame: u32,
    /// Leaves below it that had their accessed bit, as far as the number goes.
    pub accessed: u16,
    /// Level of the table; 1 holds leaves of 4 KiB.
    pub level: u8,
}

/// The page tables below which a pass found accessed leaves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TablesAnswer {
    /// The request of the pass, whose answer follows.
    pub id: RequestId,
    /// The pass's address space.
    pub space: Space,
    /// The tables, in ascending order of their frames, each once.
    pub frames: Vec<TableFrame>,
}

impl TableFrame {
    /// One in how many pages may be named: four times as many as the tables of a guest that maps all its memory once, so that no guest has the
    /// engine remember more of them.
    const SHARE: u64 = 128;

    /// Most tables that are named of a VM of so many pages.
    #[must_use]
    pub fn most(pages: u64) -> usize {
        usize::try_from(pages / Self::SHARE)
            .unwrap_or(usize::MAX)
            .max(16)
    }

    /// Whether these can be tables of a VM of so many pages: ascending, within its memory, not too many.
    #[must_use]
    pub fn fit(frames: &[Self], pages: u64) -> bool {
        frames.len() <= Self::most(pages)
            && frames.is_sorted_by(|a, b| a.frame < b.frame)
            && frames
                .last()
                .is_none_or(|last| u64::from(last.frame) < pages)
    }

    /// Makes one of what several passes over parts named, in ascending order: an upper table is named by each, with the leaves of its part.
    pub fn join(frames: &mut Vec<Self>) {
        frames.sort_unstable_by_key(|t| t.frame);
        frames.dedup_by(|again, first| {
            let same = again.frame == first.frame;
            if same {
                first.accessed = first.accessed.saturating_add(again.accessed);
                first.level = first.level.max(again.level);
            }
            same
        });
    }

    /// Leaves those out that have the fewest accessed leaves, if there are more than so many; puts the others in the order of their frames.
    pub fn bound(frames: &mut Vec<Self>, most: usize) {
        if frames.len() > most {
            let hottest_first = |t: &Self| (std::cmp::Reverse((t.accessed, t.level)), t.frame);
            frames.select_nth_unstable_by_key(most, hottest_first);
            frames.truncate(most);
        }
        frames.sort_unstable_by_key(|t| t.frame);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(frame: u32, accessed: u16) -> TableFrame {
        TableFrame {
            frame,
            accessed,
            level: 1,
        }
    }

    #[test]
    fn of_too_many_tables_the_hottest_stay() {
        let accessed = (1..=10_u16).cycle();
        let mut all: Vec<_> = (0..100_u32)
            .zip(accessed)
            .map(|(i, n)| table(i, n))
            .collect();
        all.reverse();
        TableFrame::bound(&mut all, 20);
        assert_eq!(all.len(), 20);
        assert!(all.iter().all(|t| t.accessed >= 9));
        assert!(TableFrame::fit(&all, 128 * 20));
        assert!(!TableFrame::fit(&all, 98), "frame 99 is beyond the memory");
    }

    #[test]
    fn answers_with_a_frame_twice_or_with_too_many_are_none() {
        assert!(!TableFrame::fit(&[table(3, 1), table(3, 2)], 1000));
        assert!(!TableFrame::fit(&[table(4, 1), table(3, 2)], 1000));
        let many: Vec<_> = (0..17).map(|i| table(i, 1)).collect();
        assert!(!TableFrame::fit(&many, 1000) && TableFrame::fit(&many[..16], 1000));
    }
}
