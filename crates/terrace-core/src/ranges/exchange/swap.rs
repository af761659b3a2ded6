//! Pages that change places in pairs, if no tier has room.

use std::collections::VecDeque;

use terrace_proto::TierId;
use terrace_proto::ranges::{FRAMES, Stopped};

use super::{Call, Exchange, Piece};

/// Exchanges in place.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct InPlace {
    /// Pages can be exchanged in place.
    pub works: bool,
    /// Pages stayed because they cannot be, and no tier had room.
    pub left_out: bool,
}

/// Pairs of pages that change nodes: those of each side are of one process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Swap {
    /// Those that come up.
    pub up: Vec<Piece>,
    /// As many that go down.
    pub down: Vec<Piece>,
}

/// Whether a page can change places: a base page that one process maps, and it is known which.
fn fits(piece: &Piece) -> bool {
    piece.pages == 1 && !piece.shared && piece.process != FRAMES
}

impl Exchange {
    /// Asks for pairs of the pages of a batch. What has no partner yet is tried with the next ones; what cannot change
    /// places stays where it is.
    pub(super) fn swap(&mut self, coming: Vec<Piece>, going: Vec<Piece>) {
        let all = coming.len() + going.len();
        let mut up: VecDeque<Piece> = coming.into_iter().filter(fits).collect();
        let mut down: VecDeque<Piece> = going.into_iter().filter(fits).collect();
        self.in_place.left_out |= up.len() + down.len() < all;
        let pairs = up.len().min(down.len());
        let pairs: Vec<(Piece, Piece)> = up.drain(..pairs).zip(down.drain(..pairs)).collect();
        let of_two =
            pairs.chunk_by(|a, b| (a.0.process, a.1.process) == (b.0.process, b.1.process));
        self.calls.extend(of_two.map(|pairs| {
            let (up, down) = pairs.iter().copied().unzip();
            Call::Swap(Swap { up, down })
        }));
        put_back(&mut self.up, up);
        put_back(&mut self.down, down);
    }

    /// The reason to report if nothing else ended the exchange.
    pub(super) fn left_out(&self) -> Option<Stopped> {
        self.in_place.left_out.then_some(Stopped::BothFull)
    }
}

fn put_back(to: &mut VecDeque<Piece>, mut pieces: VecDeque<Piece>) {
    pieces.append(to);
    *to = pieces;
}

impl Call {
    /// The pieces, of a swap those that come up first.
    pub(super) fn pieces(&self) -> impl Iterator<Item = &Piece> {
        let (first, second) = match self {
            Self::Move(call) => (&call.pieces[..], &[][..]),
            Self::Swap(swap) => (&swap.up[..], &swap.down[..]),
        };
        first.iter().chain(second)
    }

    /// The tier to which each piece goes, in their order.
    pub(super) fn targets(&self) -> Vec<TierId> {
        match self {
            Self::Move(call) => vec![call.to; call.pieces.len()],
            Self::Swap(swap) => {
                let partners = swap.down.iter().chain(&swap.up);
                partners.map(|partner| partner.tier).collect()
            }
        }
    }

    /// The processes that have the pieces, each once.
    pub(super) fn processes(&self) -> impl Iterator<Item = u32> + use<> {
        let (first, second) = match self {
            Self::Move(call) => (Some(call.process), None),
            Self::Swap(swap) => {
                let of = |pieces: &[Piece]| pieces.first().map(|piece| piece.process);
                let first = of(&swap.up);
                (
                    first,
                    of(&swap.down).filter(|process| Some(*process) != first),
                )
            }
        };
        first.into_iter().chain(second)
    }
}
