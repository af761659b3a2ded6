//! The benchmark of classification: from a round's counts to hot set and exchange plan.

use terrace_core::EngineConfig;
use terrace_core::estimate::{Estimator, Seen};
use terrace_core::pages::Pages;
use terrace_core::place::{BenefitPlace, ExchangeRule, PlaceStage, Proposal, RankedPlace, Room};
use terrace_core::ram::Ram;
use terrace_proto::{Gfn, PAGE_SIZE, PageCode, TierId};

use crate::measured::{Measured, timed};
use crate::vm::{among, draw, spec};

/// Classification of one VM: a tenth of the pages is hot and the first tier holds as many; 5 % of all
/// pages are misplaced, half of them hot in the slow tier, half cold in the fast one.
pub struct Classify {
    pages: Pages,
    stage: Box<dyn PlaceStage>,
    room: Room,
    from: Vec<u64>,
    to: Vec<u64>,
}

impl Classify {
    /// Counts of a VM with so many 4 KiB pages after a round of eight windows.
    ///
    /// # Panics
    /// If the number of pages is 0 or over 2^32.
    #[must_use]
    pub fn new(pages: u64) -> Self {
        let ram = Ram::new(&spec(pages, 0)).expect("the number of pages is in range");
        let mut p = Pages::new(ram, 2);
        let codes: Vec<_> = (0..pages)
            .map(|page| {
                let hot = among(page, 1, 10);
                let misplaced = if hot {
                    among(page, 2, 25)
                } else {
                    draw(page, 2).is_multiple_of(36)
                };
                PageCode(u8::from(hot == misplaced))
            })
            .collect();
        p.place_run(Gfn(0), &codes);
        for (unit, page) in (0..).zip(0..pages) {
            let visits = if among(page, 1, 10) {
                5 + draw(page, 3) % 4
            } else {
                (draw(page, 3) % 8) / 6
            };
            let wrote = (draw(page, 4) % 9).min(visits);
            let count = |windows| u8::try_from(windows).unwrap_or(0);
            p.set_heat(unit, count(visits - wrote), count(wrote));
        }
        p.set_all_known();
        let held = [p.bytes(TierId::FAST), p.bytes(TierId::SLOW), 0, 0].map(|b| b / PAGE_SIZE);
        let len = usize::try_from(pages).unwrap_or(0);
        Self {
            pages: p,
            stage: Box::new(RankedPlace {
                estimator: Estimator::PageDegree { read: 1, write: 3 },
                rule: ExchangeRule {
                    min_hot_degree: 1,
                    hysteresis: 0,
                },
                slowest: false,
            }),
            room: Room {
                double_sided: false,
                paced: u64::MAX,
                held,
                fit: [held[0], u64::MAX, 0, 0],
                floor: [0; 4],
                most: pages / 2,
                ..Room::default()
            },
            from: vec![1; len],
            to: vec![0; len],
        }
    }

    /// The same VM under `terrace`, whose averages have three rounds behind them.
    ///
    /// # Panics
    /// If the number of pages is 0 or over 2^32.
    #[must_use]
    pub fn by_rates(pages: u64) -> Self {
        let mut vm = Self::new(pages);
        vm.pages.have_rates();
        vm.stage = Box::new(BenefitPlace::configured(&EngineConfig::default()));
        vm.room.seen = Seen {
            windows: 8,
            window_ns: 100_000_000,
            since_ns: 1_000_000_000,
        };
        for _ in 0..3 {
            vm.run();
        }
        vm
    }

    /// Runs the very code that the engine runs at the end of a round.
    pub fn run(&mut self) -> Proposal {
        self.stage.end_round(&mut self.pages, &self.room, &mut None);
        self.stage.propose(1, &self.pages, &self.room)
    }

    /// Copies eight bytes a page: the baseline.
    pub fn copy(&mut self) {
        self.to.copy_from_slice(std::hint::black_box(&self.from));
        std::hint::black_box(&self.to);
    }

    /// `classify_ns_per_page` and `rates_ns_per_page`: the end of a round and copying in turn; ns per page.
    pub fn measure(&mut self) -> Measured {
        let pages = self.pages.units() as f64;
        Measured::in_turns(|_| (timed(|| self.run()), timed(|| self.copy()))).per(pages)
    }
}

impl std::fmt::Debug for Classify {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Classify").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_classified_vm_is_as_described() {
        let mut bench = Classify::new(200_000);
        let proposal = bench.run();
        let per_mille = |n: usize| n * 1000 / 200_000;
        let moved: Vec<_> = proposal
            .flows
            .iter()
            .map(|f| per_mille(f.units.len()))
            .collect();
        assert_eq!(moved, [24, 24], "5 % are misplaced, half each way");
        assert!((95..=105).contains(&per_mille(usize::try_from(proposal.ranking.hot).unwrap())));
    }

    #[test]
    fn rates_of_the_same_vm_move_what_is_misplaced() {
        let mut bench = Classify::by_rates(200_000);
        let flows = bench.run().flows;
        let moved: Vec<_> = flows
            .iter()
            .map(|f| f.units.len() * 1000 / 200_000)
            .collect();
        assert!(
            moved.len() == 2 && moved.iter().all(|moved| (20..=25).contains(moved)),
            "{moved:?}"
        );
    }
}
