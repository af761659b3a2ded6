//! Place: which units should travel where, given their degrees and the room there is.
//!
//! Responsible for: proposals. It leaves to others: whether a proposal is carried out. A stage here
//! only ranks and proposes; [`crate::engine`] checks each unit again, against the room of that moment.

#[cfg(test)]
mod any_state;
mod benefit;
mod collect;
mod exchange;
mod likely;
mod ranked;
#[cfg(test)]
mod reference;
mod sides;
mod top_lists;

pub use benefit::BenefitPlace;
pub use exchange::{ExchangeRule, Quotas};
pub use ranked::RankedPlace;
pub use top_lists::TopListsPlace;

use terrace_proto::TierId;
use terrace_proto::snapshot::Benefit;

use std::time::Duration;

use crate::estimate::{Sampled, Seen};
use crate::pages::Pages;

/// The room that a VM has in each tier, in units, and how much may be proposed.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Room {
    /// Units that the VM has there now, unknown ones included.
    pub held: [u64; TierId::MAX],
    /// Units that it may have there at most: its ceiling, or what it has plus what is free.
    pub fit: [u64; TierId::MAX],
    /// Units that it may not fall below.
    pub floor: [u64; TierId::MAX],
    /// Most units to propose in all.
    pub most: u64,
    /// Whether hot and cold units change places in equal numbers, whatever the policy says (HMvisor §3.3).
    pub double_sided: bool,
    /// Most units to propose now in either direction, under a policy that moves so many in a time. What must leave a
    /// tier is not counted.
    pub paced: u64,
    /// Times of the round that ends, which its counts are about.
    pub seen: Seen,
}

/// Units that should go to one tier, most wanted first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flow {
    /// The target tier.
    pub to: TierId,
    /// Unit numbers (guest page number / pages of a unit).
    pub units: Vec<u32>,
    /// So many of the first ones must leave because their tier holds too much; the others only make
    /// room for units that go there.
    pub forced: usize,
}

/// The result of a ranking.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Ranking {
    /// Known units.
    pub known: u64,
    /// Units in the hot set: the hottest known ones that fit into the first tier.
    pub hot: u64,
    /// Of these, the units that are in the first tier now; among units of the lowest hot degree, those
    /// count first.
    pub hot_here: u64,
    /// Lowest degree in the hot set.
    pub threshold: u8,
    /// Known units by degree, up to the highest there is.
    pub histogram: Vec<u64>,
}

/// A stage's proposal.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Proposal {
    /// The ranking that it follows from.
    pub ranking: Ranking,
    /// The time that its moves are expected to save, ns, by a stage that says so; else 0.
    pub saves_ns: u64,
    /// The proposed flows: demotions before the promotions that use their room.
    pub flows: Vec<Flow>,
}

/// The use of fast memory that has room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Useful {
    /// The lowest degree of a unit that is worth a move.
    pub least: u8,
    /// Degrees by which the VM's load as a whole lies below what its units' degrees say.
    pub fallen: u8,
}

/// The end of a round: counts in, proposals out.
pub trait PlaceStage: Send {
    /// Takes a round's end in, before the proposals: what the stage stores of each unit beyond a round. Samples of the round, if there are some,
    /// stand beside its counts.
    fn end_round(&mut self, _pages: &mut Pages, _room: &Room, _samples: &mut Option<Box<Sampled>>) {
    }

    /// Proposes moves between two rankings, if the stage moves pages while scans run.
    fn propose_between(&mut self, _round: u64, _pages: &Pages, _room: &Room) -> Vec<Flow> {
        Vec::new()
    }

    /// Lets go of what it knows of units: they are others now.
    fn forget(&mut self) {}

    /// The length of the next round's windows, if the stage chooses it.
    fn window(&self) -> Option<Duration> {
        None
    }

    /// Ranks the units and proposes moves.
    fn propose(&mut self, round: u64, pages: &Pages, room: &Room) -> Proposal;

    /// The use of fast memory that has room; none if the stage does not weigh moves.
    fn useful(&self) -> Option<Useful> {
        None
    }

    /// The degree that a unit was given in a round, for people.
    fn degree(&self, round: u64, pages: &Pages, unit: u32) -> Option<u8>;

    /// The sum by which a unit of a degree, in the first tier or not, changes places with another, for people; none if the stage makes no such sum.
    fn benefit(&self, _degree: u8, _is_fast: bool) -> Option<Benefit> {
        None
    }
}
