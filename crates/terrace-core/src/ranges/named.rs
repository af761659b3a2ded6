//! Pages that the host named (HMvisor §3.2): the guest moves them between its own nodes.
//!
//! What the host counted decides which pages; the guest's own limits decide how many: free memory beside the headroom, the
//! budget, and what the kernel moves. Nothing is known of why a page was named.
//!
//! A page is named by its address in a managed process, or by its frame alone ([`FRAMES`]) if the guest can move frames.

use std::collections::BTreeMap;

use terrace_proto::ranges::{FRAMES, Named, NodeFree, RangesAction, Side};
use terrace_proto::{Tick, TierId};

use super::exchange::Exchange;
use super::free::Free;
use super::piece::{Piece, pieces, size};
use super::{Exchanging, Phase, Program, Range, Ranges};

impl Ranges {
    /// Begins to move named pages; they are left out if an epoch is under way, or pages are not to be moved.
    pub(super) fn named(&mut self, now: Tick, named: Named) {
        if !matches!(self.phase, Phase::Sampling) || !self.config.moves {
            return;
        }
        self.epoch = self.epoch.saturating_add(1);
        self.exchanged = None;
        self.allowance
            .save_for_named(&self.config, self.budget, now);
        self.phase = Phase::Naming(named);
        self.actions.push_back(RangesAction::ReadFree);
    }

    /// Exchanges them. As many go down as come up, as far as both were named; the rest comes up into what is free, or goes
    /// down.
    pub(super) fn exchange_named(&mut self, named: &Named, nodes: &[NodeFree]) {
        let each_way = self.allowance.pages / 2;
        let free = Free::new(&self.config.tiers, nodes, self.config.headroom_pages);
        let down = self.named_pieces(&named.down, each_way, |tier| tier == TierId::FAST);
        let going = size(&down);
        let fits = going.saturating_add(free.pages(TierId::FAST)).min(each_way);
        let up = self.named_pieces(&named.up, fits, |tier| tier != TierId::FAST);
        let coming = size(&up);
        let exchange = Exchange::new(&self.config.tiers, self.config.batch_pages, free, up, down)
            .with_swaps(self.config.swaps)
            .unbalanced(coming.saturating_sub(going), going.saturating_sub(coming));
        self.go_on_exchanging(Box::new(Exchanging {
            exchange,
            tried: BTreeMap::new(),
            pinned: false,
            named: true,
        }));
    }

    /// The pieces of managed processes that lie in such a tier, so many pages at most.
    fn named_pieces(
        &self,
        sides: &[Side],
        most: u64,
        is_wanted: impl Fn(TierId) -> bool,
    ) -> Vec<Piece> {
        let all = Range {
            start: 0,
            end: u64::MAX,
        };
        let mut left = most;
        let mut chosen = Vec::new();
        for side in sides {
            let program = self.programs.get(&side.process);
            if program.is_none() && side.process != FRAMES {
                continue;
            }
            let rests = program.is_some_and(|program| self.epoch < program.rests_until);
            let shared = program.map_or(&[][..], Program::shared);
            for run in side.pieces.iter().filter(|_| !rests) {
                let found = pieces(
                    std::slice::from_ref(run),
                    side.process,
                    all,
                    &self.config.tiers,
                    shared,
                );
                for piece in found.filter(|piece| is_wanted(piece.tier)) {
                    let pages = u64::from(piece.pages);
                    if pages > left {
                        return chosen;
                    }
                    left -= pages;
                    chosen.push(piece);
                }
            }
        }
        chosen
    }
}
