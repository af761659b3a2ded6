//! Why the mechanism did not carry a proposal out.
//!
//! Responsible for: the kinds and their words, and counting them. It leaves to others: the checks.

use serde::Serialize;
use terrace_proto::snapshot::Refused;

/// Why a proposed move was not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum MoveRefusal {
    /// No such tier.
    NoSuchTier,
    /// Beyond the VM's highest page.
    OutOfRange,
    /// In a hole of the guest's physical space, or a 2 MiB unit that is RAM only in part.
    OutsideRam,
    /// No host page backs it.
    Absent,
    /// Part of a huge page of the host, which moves only from its first page.
    PartOfHuge,
    /// In a plan that was not reported yet.
    InFlight,
    /// No user table of the guest maps it, so that its heat is unknown.
    Unknown,
    /// The unit is in that tier already.
    AlreadyThere,
    /// The unit moved in one of the last rounds.
    CoolDown,
    /// The VM would hold more of the tier than its ceiling.
    Ceiling,
    /// The VM would hold less of the tier than its floor.
    Floor,
    /// The tier has no free memory.
    NoFreeMemory,
    /// The unit was only to make room, and no room is needed any more.
    NotNeeded,
    /// Moves are off for this VM.
    MovesOff,
    /// The round ended early.
    RoundEnded,
    /// The VM would hold more of the first tier than its size at the pool, or its fixed size.
    Share,
    /// Only a plan was asked for.
    PlanOnly,
}

impl MoveRefusal {
    /// All there are, in order.
    pub const ALL: [Self; 17] = [
        Self::NoSuchTier,
        Self::OutOfRange,
        Self::OutsideRam,
        Self::Absent,
        Self::PartOfHuge,
        Self::InFlight,
        Self::Unknown,
        Self::AlreadyThere,
        Self::CoolDown,
        Self::Ceiling,
        Self::Floor,
        Self::NoFreeMemory,
        Self::NotNeeded,
        Self::MovesOff,
        Self::RoundEnded,
        Self::Share,
        Self::PlanOnly,
    ];

    /// For people.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            Self::NoSuchTier => "no such tier",
            Self::OutOfRange => "beyond the VM's last page",
            Self::OutsideRam => "not wholly RAM",
            Self::Absent => "no host page there",
            Self::PartOfHuge => "inside a huge page of the host",
            Self::InFlight => "already on its way",
            Self::Unknown => "not mapped by a user table",
            Self::AlreadyThere => "already there",
            Self::CoolDown => "moved recently",
            Self::Ceiling => "the VM's ceiling is reached",
            Self::Floor => "the VM's floor is reached",
            Self::NoFreeMemory => "the tier has no free memory",
            Self::NotNeeded => "its room is not needed",
            Self::MovesOff => "moves are off",
            Self::RoundEnded => "the round ended",
            Self::Share => "the VM's share of fast memory is reached",
            Self::PlanOnly => "only a plan was asked for",
        }
    }
}

/// How often each refusal happened.
#[derive(Clone, Debug, Default)]
pub(crate) struct Refusals([u64; MoveRefusal::ALL.len()]);

impl Refusals {
    pub(crate) fn add(&mut self, refusal: MoveRefusal, n: u64) {
        self.0[refusal as usize] += n;
    }

    pub(crate) fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Those that happened, for people.
    pub(crate) fn shown(&self) -> Vec<Refused> {
        let each = self.list().into_iter();
        each.map(|(why, units)| Refused {
            reason: why.text().into(),
            units,
        })
        .collect()
    }

    /// Those that happened.
    pub(crate) fn list(&self) -> Vec<(MoveRefusal, u64)> {
        MoveRefusal::ALL
            .into_iter()
            .zip(self.0)
            .filter(|(_, n)| *n > 0)
            .collect()
    }

    /// "12 the VM's ceiling is reached, 3 moved recently"; empty if none happened.
    pub(crate) fn text(&self) -> String {
        let parts: Vec<_> = self
            .list()
            .into_iter()
            .map(|(r, n)| format!("{n} {}", r.text()))
            .collect();
        parts.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_of_all_is_in_the_order_of_their_numbers() {
        for (i, refusal) in MoveRefusal::ALL.into_iter().enumerate() {
            assert_eq!(refusal as usize, i);
        }
    }
}
