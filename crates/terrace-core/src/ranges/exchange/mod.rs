//! Symmetric exchange: as many pages go down as come up (HyperTier §4.2.4).
//!
//! Responsible for: batches in which both directions are balanced, so that free memory never falls below
//! the kernel's watermarks and its reclaim is not woken; what is done if a tier is full. It leaves to
//! others: which pages, and the calls. One call is asked for at a time, and the next one goes by what became of it.

mod swap;

use std::collections::{BTreeSet, VecDeque};

use terrace_proto::TierId;
use terrace_proto::ranges::{Exchanged, KernelRefusal, PieceState, Stopped};

use super::free::{Free, tier_of};
use super::piece::{Piece, size};

use swap::InPlace;
pub use swap::Swap;

/// One exchange.
#[derive(Clone, Debug)]
pub struct Exchange {
    tiers: Vec<Vec<u32>>,
    /// Most pages of a batch.
    batch: u64,
    free: Free,
    up: VecDeque<Piece>,
    down: VecDeque<Piece>,
    unbalanced: Unbalanced,
    legs: VecDeque<Leg>,
    calls: VecDeque<Call>,
    under_way: Option<Call>,
    refused: BTreeSet<u32>,
    in_place: InPlace,
    outcome: Exchanged,
}

/// Pages that go one way alone.
#[derive(Clone, Copy, Debug, Default)]
struct Unbalanced {
    /// Those that come up without others that go down.
    into_free: u64,
    /// Those that go down once nothing comes up any more.
    more_down: u64,
}

/// A call that is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    /// Through free pages.
    Move(Move),
    /// In place, if no tier has room.
    Swap(Swap),
}

/// Pieces of one process that go to a node together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Move {
    /// The process whose pages move.
    pub process: u32,
    /// Other processes may map them.
    pub shared: bool,
    /// The pieces to move.
    pub pieces: Vec<Piece>,
    /// The target node.
    pub node: u32,
    /// That node's tier.
    to: TierId,
}

/// One direction of a batch.
#[derive(Clone, Debug)]
struct Leg {
    way: Way,
    pieces: Vec<Piece>,
    /// Left out if the exchange was stopped.
    unless_stopped: bool,
}

/// A direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Up,
    Down,
}

impl Exchange {
    /// Brings `up` to the first tier, in batches of so many pages. `down` makes room for what does not fit into
    /// `into_free` pages of it, and `more_down` pages of it go down whatever comes up.
    #[must_use]
    pub fn new(
        tiers: &[Vec<u32>],
        batch: u64,
        free: Free,
        up: Vec<Piece>,
        down: Vec<Piece>,
    ) -> Self {
        Self {
            tiers: tiers.to_vec(),
            batch,
            free,
            up: up.into(),
            down: down.into(),
            unbalanced: Unbalanced::default(),
            legs: VecDeque::new(),
            calls: VecDeque::new(),
            under_way: None,
            refused: BTreeSet::new(),
            in_place: InPlace::default(),
            outcome: Exchanged::default(),
        }
    }

    /// So many pages come up without others that go down, and so many go down whatever comes up.
    #[must_use]
    pub fn unbalanced(mut self, into_free: u64, more_down: u64) -> Self {
        self.unbalanced = Unbalanced {
            into_free,
            more_down,
        };
        self
    }

    /// Whether pages can be exchanged in place if no tier has room.
    #[must_use]
    pub fn with_swaps(mut self, swaps: bool) -> Self {
        self.in_place.works = swaps;
        self
    }

    /// The next call; none if all is done.
    pub fn next_call(&mut self) -> Option<Call> {
        loop {
            if let Some(call) = self.calls.pop_front() {
                if call
                    .processes()
                    .any(|process| self.refused.contains(&process))
                {
                    self.outcome.failed += call
                        .pieces()
                        .map(|piece| u64::from(piece.pages))
                        .sum::<u64>();
                    continue;
                }
                self.under_way = Some(call.clone());
                return Some(call);
            }
            match self.legs.pop_front() {
                Some(leg) if leg.unless_stopped && self.is_stopped() => {}
                Some(leg) => self.begin(leg),
                None if self.is_stopped() => return None,
                None if !self.up.is_empty() => self.batch(),
                None => {
                    let going = take(&mut self.down, self.unbalanced.more_down.min(self.batch));
                    self.unbalanced.more_down =
                        self.unbalanced.more_down.saturating_sub(size(&going));
                    if going.is_empty() {
                        return None;
                    }
                    self.leg(Way::Down, going, true);
                }
            }
        }
    }

    /// The result of the exchange.
    #[must_use]
    pub fn outcome(self) -> Exchanged {
        Exchanged {
            stopped: self.outcome.stopped.or(self.left_out()),
            refused: self.refused.into_iter().collect(),
            ..self.outcome
        }
    }

    /// Free memory at this moment.
    #[must_use]
    pub fn free(&self) -> &Free {
        &self.free
    }

    fn is_stopped(&self) -> bool {
        self.outcome.stopped.is_some()
    }

    fn stop(&mut self, why: Stopped) {
        self.outcome.stopped.get_or_insert(why);
    }

    fn leg(&mut self, way: Way, pieces: Vec<Piece>, unless_stopped: bool) {
        self.legs.push_back(Leg {
            way,
            pieces,
            unless_stopped,
        });
    }

    fn batch(&mut self) {
        let coming = take(&mut self.up, self.batch);
        let wanted = size(&coming);
        let free = self.free.pages(TierId::FAST);
        let taken = wanted.min(self.unbalanced.into_free).min(free);
        self.unbalanced.into_free -= taken;
        let going = take(&mut self.down, wanted - taken);
        let leaving = size(&going);
        if leaving == 0 && free < wanted {
            self.stop(Stopped::NothingColder);
        } else if leaving == 0 || self.free.below(leaving).is_some() {
            self.leg(Way::Down, going, false);
            self.leg(Way::Up, coming, true);
        } else if self.free.with_headroom(TierId::FAST) >= wanted {
            // Slow memory is full: what comes up first leaves the room that what goes down needs.
            self.leg(Way::Up, coming, false);
            self.leg(Way::Down, going, false);
        } else if self.in_place.works {
            self.unbalanced.into_free += taken;
            self.swap(coming, going);
        } else {
            self.stop(Stopped::BothFull);
        }
    }

    /// Cuts a leg into calls, by what is free now.
    fn begin(&mut self, leg: Leg) {
        let mut pieces = leg.pieces;
        let place = match leg.way {
            Way::Up => self.free.node(TierId::FAST).map(|(node, mut room)| {
                // Pages that did not go down leave less room.
                let fits = pieces.iter().take_while(|piece| {
                    let pages = u64::from(piece.pages);
                    let fits = pages <= room;
                    room = room.saturating_sub(pages);
                    fits
                });
                let fits = fits.count();
                if fits < pieces.len() {
                    self.outcome.stopped.get_or_insert(Stopped::FastFull);
                }
                pieces.truncate(fits);
                (TierId::FAST, node)
            }),
            Way::Down if pieces.is_empty() => return,
            Way::Down => {
                let place = self.free.below(size(&pieces));
                if place.is_none() {
                    self.stop(Stopped::SlowFull);
                }
                place
            }
        };
        let Some((to, node)) = place else {
            return;
        };
        let of_one = pieces.chunk_by(|a, b| (a.process, a.shared) == (b.process, b.shared));
        self.calls.extend(of_one.filter_map(|pieces| {
            let first = pieces.first()?;
            Some(Call::Move(Move {
                process: first.process,
                shared: first.shared,
                pieces: pieces.to_vec(),
                node,
                to,
            }))
        }));
    }

    /// Takes in what became of the call: the state of each of its pieces, in order. Returns which piece is where; one
    /// that no state was reported of is counted as absent.
    pub fn migrated(
        &mut self,
        states: &[(u32, PieceState)],
        refusal: Option<KernelRefusal>,
    ) -> Vec<Settled> {
        let Some(call) = self.under_way.take() else {
            return Vec::new();
        };
        let each = states
            .iter()
            .flat_map(|(n, state)| (0..*n).map(move |_| *state));
        let each = each.chain(std::iter::repeat(PieceState::Absent));
        let all: Vec<(Piece, PieceState)> = call.pieces().copied().zip(each).collect();
        if let Some(refusal) = refusal {
            self.refused(&call, refusal, &all);
        }
        let settled: Vec<Settled> = all
            .into_iter()
            .zip(call.targets())
            .map(|((piece, state), to)| self.settle(piece, state, to))
            .collect();
        // A swap leaves on each node what was free. (A half of one does not, and free memory is read anew each epoch.)
        if let Call::Move(call) = &call {
            let arrived = settled.iter().filter(|settled| settled.arrived);
            for Settled { piece, .. } in arrived {
                self.free
                    .moved(piece.node, call.node, u64::from(piece.pages));
            }
        }
        settled
    }

    /// Takes in that the kernel refused a call.
    fn refused(&mut self, call: &Call, refusal: KernelRefusal, all: &[(Piece, PieceState)]) {
        match (refusal, call) {
            (KernelRefusal::NoMemory, _) => self.stop(Stopped::NoFreePage),
            (KernelRefusal::NotSupported, _) => {
                self.in_place.works = false;
                self.calls.clear();
                return self.stop(Stopped::BothFull);
            }
            (KernelRefusal::Process, _) => {}
        }
        // Of one process's cpuset, policy or end the others know nothing: they continue. Of a pair the kernel does not
        // say whose fault it was: it is the one that has no page any more.
        let is_refused = |process: u32| match call {
            Call::Move(_) => true,
            Call::Swap(_) => all
                .iter()
                .filter(|(piece, _)| piece.process == process)
                .all(|(_, state)| *state == PieceState::Absent),
        };
        self.refused
            .extend(call.processes().filter(|process| is_refused(*process)));
    }

    fn settle(&mut self, piece: Piece, state: PieceState, to: TierId) -> Settled {
        let pages = u64::from(piece.pages);
        let (now, outcome) = match state {
            PieceState::On(node) => (tier_of(&self.tiers, node), &mut self.outcome.busy),
            PieceState::Busy => (Some(piece.tier), &mut self.outcome.busy),
            PieceState::Refused => (Some(piece.tier), &mut self.outcome.failed),
            PieceState::Absent => (None, &mut self.outcome.failed),
        };
        let arrived = now == Some(to) && matches!(state, PieceState::On(_));
        if !arrived {
            *outcome += pages;
        } else if to == TierId::FAST {
            self.outcome.promoted += pages;
        } else {
            self.outcome.demoted += pages;
        }
        Settled {
            piece,
            now,
            arrived,
        }
    }
}

/// The location of a piece after a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settled {
    /// Which, with the place where it was.
    pub piece: Piece,
    /// The tier where it is now; none if it is in none.
    pub now: Option<TierId>,
    /// The piece is on its target node.
    pub arrived: bool,
}

/// Takes pieces of about so many pages together: at least one, unless none are wanted.
fn take(pieces: &mut VecDeque<Piece>, pages: u64) -> Vec<Piece> {
    let mut sum = 0;
    let enough = pieces.iter().take_while(|piece| {
        let more = sum < pages;
        sum += u64::from(piece.pages);
        more
    });
    let enough = enough.count();
    pieces.drain(..enough).collect()
}

#[cfg(test)]
mod tests;
