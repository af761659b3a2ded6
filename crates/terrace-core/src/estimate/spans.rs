//! Spans of degrees: the counting pass remembers them of each block, so that the next one passes over blocks of which
//! nothing moves.
//!
//! Responsible for: the degrees between which a block's units of each tier lie. It leaves to others: which degrees move
//! ([`crate::place`]).

use super::histogram::Notes;
use crate::pages::{BLOCK, Pages};

/// The degrees of the units of a block and tier that may move: none is below the first or above the second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    lowest: u8,
    highest: u8,
}

/// Spans of all blocks, block by block and tier by tier: four bytes a block of two tiers, for as long as a plan is made.
#[derive(Clone, Debug)]
pub(crate) struct Spans {
    tiers: u8,
    spans: Vec<Span>,
}

impl Spans {
    /// Of a VM, before its blocks are noted.
    pub(super) fn new(pages: &Pages) -> Self {
        let tiers = pages.tiers();
        let blocks = pages.units().div_ceil(BLOCK);
        Self {
            tiers,
            spans: Vec::with_capacity(blocks * usize::from(tiers)),
        }
    }

    /// Notes the next block by the classes and degrees of its units. Units of the first tier can only go down and those of
    /// the last only up, where the coldest and the hottest ones lead: half of the comparisons find that.
    #[inline]
    pub(super) fn note(&mut self, classes: &[u8], degrees: &[u8]) {
        for tier in 0..self.tiers {
            let mut span = Span {
                lowest: 0,
                highest: u8::MAX,
            };
            if tier + 1 < self.tiers {
                // The lowest is what is left of the highest, counted from above.
                span.lowest = !highest(tier, classes, degrees, u8::MAX);
            }
            if tier > 0 {
                span.highest = highest(tier, classes, degrees, 0);
            }
            self.spans.push(span);
        }
    }

    /// Whether units of a block and tier may have degrees from `first` to `last`.
    pub(crate) fn may_hold(&self, block: usize, tier: usize, first: u8, last: u8) -> bool {
        let span = self.spans.get(block * usize::from(self.tiers) + tier);
        span.is_none_or(|span| span.lowest <= last && span.highest >= first)
    }
}

/// The highest degree of a class, each with the bits of `flip` turned; 0 if there is none. In two steps, each of which takes
/// sixteen units at a time.
#[inline]
fn highest(class: u8, classes: &[u8], degrees: &[u8], flip: u8) -> u8 {
    let mut of_class = Notes([0_u8; BLOCK]);
    for ((slot, other), degree) in of_class.0.iter_mut().zip(classes).zip(degrees) {
        let mask = u8::from(*other == class).wrapping_neg();
        *slot = (degree ^ flip) & mask;
    }
    of_class
        .0
        .iter()
        .fold(0, |highest, degree| highest.max(*degree))
}
