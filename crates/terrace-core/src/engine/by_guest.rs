//! VMs whose guest moves its pages between its own nodes (coordinated mode; HMvisor §3.2.2).
//!
//! Responsible for: what differs from moving a page's backing. A frame stays in its tier, and another one has the data afterwards:
//! the named one is forgotten, the other one starts without history, and nothing is carried over on the guest's word. The room
//! is that of the guest's nodes. A plan's answer is a number of frames, never a list. It leaves to others: who names frames
//! to the guest, and whether it is trusted.

use std::borrow::Cow;

use terrace_proto::{
    GuestMoves, MovePlan, MoveReport, MoveStatus, PageCode, PageResult, Tick, TierId,
};

use super::moves::Flight;
use super::vm::Vm;

/// The free memory of a guest that moves its own pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GuestRoom {
    /// Of the guest's nodes in each tier, bytes, as it said last, changed by what it moved since.
    free: Vec<u64>,
}

impl Vm {
    /// Whether the guest moves pages, and not the host their backing.
    pub fn moves_by_guest(&self) -> bool {
        self.moving.by_guest.is_some()
    }

    /// Takes in who moves pages from now on, and what the guest has free.
    pub fn set_by_guest(&mut self, now: Tick, moves: &GuestMoves) {
        let was = self.moves_by_guest();
        let free = moves.free_bytes.clone();
        self.moving.by_guest = free.map(|free| GuestRoom { free });
        if was != self.moves_by_guest() {
            // What was planned for the one side is not for the other.
            self.abandon(now, "another side moves its pages now");
            self.history.say(
                now,
                match was {
                    true => "the host moves its pages",
                    false => "its guest moves its pages, by the frames that the host names",
                },
            );
        }
    }

    /// The places of frames for a guest that moves its own pages: the size of the host's pages does not matter then.
    pub fn codes_for<'a>(&self, codes: &'a [PageCode]) -> Cow<'a, [PageCode]> {
        let small = |code: &PageCode| {
            code.tier()
                .map_or(PageCode::ABSENT, |tier| PageCode::new(tier, false))
        };
        match self.moves_by_guest() {
            true => codes.iter().map(small).collect(),
            false => codes.into(),
        }
    }

    /// Bytes that the guest has free in a tier beside those that are on their way; `None` if the host moves pages.
    pub fn guest_room(&self, tier: TierId) -> Option<u64> {
        let room = self.moving.by_guest.as_ref()?;
        let free = room.free.get(tier.index()).copied().unwrap_or(0);
        Some(free.saturating_sub(self.moving.coming[tier.index()]))
    }

    /// Bytes of a tier that the guest's programs have, and those that they may have; `None` if the host moves pages. Free frames of the
    /// guest are backed by the host, too, and are no program's.
    pub fn held_by_guest(&self, tier: TierId) -> Option<(u64, u64)> {
        let room = self.guest_room(tier)?;
        let units = (0..self.pages.units()).filter_map(|unit| u32::try_from(unit).ok());
        let used =
            units.filter(|unit| self.pages.known(*unit) && self.pages.tier(*unit) == Some(tier));
        let held = used.count() as u64 * self.pages.unit_bytes();
        Some((held, held.saturating_add(room)))
    }

    /// Takes in what came of a frame that was named: it is forgotten and left alone for the rest of the round. Returns whether
    /// the guest moved what was in it.
    pub fn land_by_guest(&mut self, flight: Flight, status: MoveStatus) -> bool {
        let is_moved = status == MoveStatus::Moved;
        if let Some(room) = self.moving.by_guest.as_mut().filter(|_| is_moved) {
            for (tier, gets) in [(flight.from, true), (flight.to, false)] {
                if let Some(free) = room.free.get_mut(tier.index()) {
                    *free = match gets {
                        true => free.saturating_add(flight.bytes),
                        false => free.saturating_sub(flight.bytes),
                    };
                }
            }
        }
        is_moved
    }
}

/// The report of a plan of which the guest moved so many frames: the first ones, for want of a list.
#[must_use]
pub fn report_of_count(plan: &MovePlan, moved: u64, elapsed_ns: u64) -> MoveReport {
    let results = (0_u64..).zip(&plan.moves).map(|(at, page)| PageResult {
        gfn: page.gfn,
        status: match at < moved {
            true => MoveStatus::Moved,
            false => MoveStatus::Busy,
        },
        // The frame stays where it is.
        now: PageCode::ABSENT,
    });
    MoveReport {
        id: plan.id,
        vm: plan.vm,
        results: results.collect(),
        elapsed_ns,
    }
}
