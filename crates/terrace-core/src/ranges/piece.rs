//! The unit of a move in a guest: a page or a huge page.

use terrace_proto::TierId;
use terrace_proto::ranges::{PieceRun, Range};

use super::free::tier_of;

/// A page or a huge page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Piece {
    /// The process whose page it is.
    pub process: u32,
    /// First page.
    pub page: u64,
    /// 4 KiB pages: 1, or 512 for a huge page.
    pub pages: u16,
    /// The node where it is.
    pub node: u32,
    /// That node's tier.
    pub tier: TierId,
    /// Other processes may map it, and it is moved for them, too.
    pub shared: bool,
}

/// The pieces of a survey's answer; runs that do not begin in the range that was asked about are left out, as are
/// pages of no tier and those that are reported twice.
pub fn pieces<'a>(
    runs: &'a [PieceRun],
    process: u32,
    range: Range,
    tiers: &'a [Vec<u32>],
    shared: &'a [Range],
) -> impl Iterator<Item = Piece> + 'a {
    let mut from = range.start;
    runs.iter()
        .filter(move |run| (range.start..range.end).contains(&run.page) && run.pages_each > 0)
        .filter_map(|run| Some((run, tier_of(tiers, run.node)?)))
        .flat_map(move |(run, tier)| {
            let inside = each(run).take_while(move |page| *page < range.end);
            inside.map(move |page| (run, tier, page))
        })
        .filter_map(move |(run, tier, page)| {
            if page < from {
                return None;
            }
            from = page.saturating_add(u64::from(run.pages_each));
            Some(Piece {
                process,
                page,
                pages: run.pages_each,
                node: run.node,
                tier,
                shared: contains(shared, page),
            })
        })
}

/// First pages of a run's pieces.
fn each(run: &PieceRun) -> impl Iterator<Item = u64> + use<> {
    let (first, by) = (run.page, u64::from(run.pages_each));
    (0..u64::from(run.pieces)).map(move |n| first.saturating_add(n.saturating_mul(by)))
}

/// Pieces in a row as runs.
#[must_use]
pub fn runs(pieces: &[Piece]) -> Vec<PieceRun> {
    let mut runs: Vec<PieceRun> = Vec::new();
    for piece in pieces {
        push(&mut runs, piece.page, piece.pages, piece.node);
    }
    runs
}

/// Adds a piece to runs: to the last one, if it continues that.
pub fn push(runs: &mut Vec<PieceRun>, page: u64, pages: u16, node: u32) {
    if let Some(last) = runs.last_mut() {
        let all = u64::from(last.pieces) * u64::from(last.pages_each);
        let behind = last.page.checked_add(all);
        if (behind, last.pages_each, last.node) == (Some(page), pages, node) {
            last.pieces += 1;
            return;
        }
    }
    runs.push(PieceRun {
        page,
        pieces: 1,
        pages_each: pages,
        node,
    });
}

/// First pages of the pieces of runs, in order.
pub fn pages(runs: &[PieceRun]) -> impl Iterator<Item = u64> + '_ {
    runs.iter().flat_map(each)
}

/// 4 KiB pages of pieces.
#[must_use]
pub fn size(pieces: &[Piece]) -> u64 {
    pieces.iter().map(|piece| u64::from(piece.pages)).sum()
}

/// Whether one of the ranges, which are ascending, has a page.
fn contains(ranges: &[Range], page: u64) -> bool {
    let after = ranges.partition_point(|range| range.start <= page);
    let before = after.checked_sub(1).and_then(|at| ranges.get(at));
    before.is_some_and(|range| page < range.end)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(page: u64, pieces: u32, pages_each: u16, node: u32) -> PieceRun {
        PieceRun {
            page,
            pieces,
            pages_each,
            node,
        }
    }

    #[test]
    fn pieces_and_runs_are_two_forms_of_one_thing() {
        let reported = [run(512, 2, 512, 1), run(1536, 3, 1, 0), run(1600, 1, 1, 0)];
        let tiers = [vec![0], vec![1]];
        let shared = [Range {
            start: 1537,
            end: 1538,
        }];
        let range = Range {
            start: 0,
            end: 4096,
        };
        let all: Vec<Piece> = pieces(&reported, 7, range, &tiers, &shared).collect();
        assert_eq!(runs(&all), reported);
        assert_eq!(size(&all), 1024 + 4);
        assert_eq!(
            pages(&reported).collect::<Vec<_>>(),
            [512, 1024, 1536, 1537, 1538, 1600]
        );
        let of_others: Vec<u64> = all.iter().filter(|p| p.shared).map(|p| p.page).collect();
        assert_eq!(of_others, [1537]);
    }

    #[test]
    fn unrequested_foreign_or_senseless_answers_are_ignored() {
        let reported = [
            run(5, 10, 1, 0),
            run(12, 3, 1, 9),
            run(11, u32::MAX, 0, 1),
            run(10, 2, 1, 1),
            run(11, u32::MAX, 1, 1),
            run(u64::MAX - 1, u32::MAX, 512, 1),
        ];
        let range = Range { start: 10, end: 16 };
        let tiers = [vec![0], vec![1]];
        let all: Vec<u64> = pieces(&reported, 7, range, &tiers, &[])
            .map(|p| p.page)
            .collect();
        assert_eq!(all, [10, 11, 12, 13, 14, 15]);
    }
}
