//! Counting what a pass over a part found.
//!
//! Responsible for: a part's accessed and written bits, as reads and writes of its units. It leaves to others: which part, and when.
//! No queue rests pages here: every pass over a part re-arms all of it, so each window is judged by its own bits.

use terrace_proto::{PageSize, PartAnswer, PartCell};

use crate::pages::Pages;

/// Adds a window of a part. A page that several leaf tables map has the windows of all their parts; it counts in no more than a
/// page of one part can.
pub(super) fn record(pages: &mut Pages, answer: &PartAnswer, windows: u8) {
    let written = answer.written.as_deref().unwrap_or_default();
    match pages.ram().unit() {
        PageSize::Base => {
            for (i, cell) in answer.cells.iter().enumerate() {
                let wrote = written.get(i).copied().unwrap_or(0);
                record_pages(pages, cell, wrote, windows);
            }
        }
        PageSize::Huge => record_huge(pages, &answer.cells, written, windows),
    }
}

fn record_pages(pages: &mut Pages, cell: &PartCell, written: u64, windows: u8) {
    let start = cell.at as usize * 64;
    let mut rest = cell.accessed;
    while rest != 0 {
        let i = rest.trailing_zeros();
        visit(pages, start + i as usize, written >> i & 1 == 1, windows);
        rest &= rest - 1;
    }
}

/// A unit of 2 MiB is visited once, however many of its pages were.
fn record_huge(pages: &mut Pages, cells: &[PartCell], written: &[u64], windows: u8) {
    let mut at = 0;
    for cells in cells.chunk_by(|a, b| a.at / 8 == b.at / 8) {
        let writes = written.get(at..at + cells.len()).unwrap_or_default();
        at += cells.len();
        if cells.iter().any(|cell| cell.accessed != 0) {
            let wrote = writes.iter().any(|cell| *cell != 0);
            visit(pages, cells[0].at as usize / 8, wrote, windows);
        }
    }
}

#[inline]
fn visit(pages: &mut Pages, unit: usize, wrote: bool, windows: u8) {
    let (Some(reads), Some(writes)) = (pages.reads.get_mut(unit), pages.writes.get_mut(unit))
    else {
        return;
    };
    let visits = u8::from(reads.saturating_add(*writes) < windows);
    if wrote {
        *writes += visits;
    } else {
        *reads += visits;
    }
}

#[cfg(test)]
mod tests {
    use terrace_proto::{Part, RequestId, ScanStats, Space, VmId};

    use super::super::tests::pages;
    use super::*;

    fn answer(cells: &[(u32, u64)], written: Option<&[u64]>) -> PartAnswer {
        let cell = |&(at, accessed): &(u32, u64)| PartCell {
            at,
            mapped: u64::MAX,
            accessed,
        };
        PartAnswer {
            id: RequestId(1),
            space: Space::Guest(VmId(1)),
            part: Part::new(0, 0, 0).unwrap(),
            cells: cells.iter().map(cell).collect(),
            huge: Vec::new(),
            written: written.map(<[u64]>::to_vec),
            stats: ScanStats::default(),
        }
    }

    #[test]
    fn a_page_counts_in_each_window_of_its_part_and_no_more() {
        let mut p = pages(PageSize::Base, 128);
        for _ in 0..3 {
            record(&mut p, &answer(&[(1, 0b101)], Some(&[0b100])), 2);
        }
        assert_eq!(
            (&p.reads[64..67], &p.writes[64..67]),
            (&[2, 0, 0][..], &[0, 0, 2][..])
        );
        assert!(p.reads[..64].iter().all(|reads| *reads == 0));
    }

    #[test]
    fn a_huge_unit_counts_once_a_window() {
        let mut p = pages(PageSize::Huge, 1024);
        let of_two_units = [(7, 1), (8, 0), (9, 3)];
        record(&mut p, &answer(&of_two_units, Some(&[0, 0, 1])), 8);
        record(&mut p, &answer(&of_two_units, None), 8);
        assert_eq!((p.reads, p.writes), (vec![2, 1], vec![0, 1]));
    }
}
