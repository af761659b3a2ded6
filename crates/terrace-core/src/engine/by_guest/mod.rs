//! VMs whose guest moves its pages between its own nodes (coordinated mode; HMvisor §3.2.2).
//!
//! Responsible for: what differs from moving a page's backing. A frame stays in its tier, and another one has the data afterwards:
//! the named one is forgotten, the other one starts without history, and nothing is carried over on the guest's word. The room
//! is that of the guest's nodes. A plan's answer is a number of frames, never a list. It leaves to others: who names frames
//! to the guest, and whether its agent is trusted.

mod doubt;
mod nodes;

use std::borrow::Cow;

use terrace_proto::{
    GuestMoves, GuestNode, MovePlan, MoveReport, MoveStatus, PageCode, PageResult, Tick, TierId,
};

use super::Shared;
use super::moves::Flight;
use super::vm::Vm;
use doubt::Doubt;

/// A guest that moves its own pages, or is to.
#[derive(Debug, Default)]
pub(crate) struct ByGuest {
    /// The guest's nodes. If none are known, each round queries where its frames are.
    nodes: Vec<GuestNode>,
    /// The host moves nothing in its place.
    only_guest: bool,
    room: Option<GuestRoom>,
    stand: Stand,
    doubt: Doubt,
}

/// The free memory of a guest that moves its own pages.
#[derive(Clone, Debug, PartialEq, Eq)]
struct GuestRoom {
    /// Of the guest's nodes in each tier, bytes, as it said last, changed by what it moved since.
    free: Vec<u64>,
}

/// Who moves a VM's pages, and why.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Stand {
    /// The host: its guest cannot, or is not to.
    #[default]
    Host,
    /// The host, until each frame lies in the tier of its node; so many rounds were spent on that.
    Checking(u8),
    /// The guest. Its frames' tiers are those of their nodes from then on.
    Guest {
        /// The tiers were taken over.
        is_placed: bool,
    },
    /// The host, although its guest could, for this reason.
    Refused(String),
}

impl ByGuest {
    /// Of a VM whose memory is another one: nothing, but how its guest did before.
    pub fn of_before(&self) -> Self {
        Self {
            doubt: self.doubt.of_before(),
            ..Self::default()
        }
    }

    /// Bytes on the heap.
    pub fn heap_bytes(&self) -> usize {
        self.nodes.capacity() * size_of::<GuestNode>() + self.doubt.heap_bytes()
    }
}

impl Vm {
    /// Whether the guest moves pages, and not the host their backing.
    pub fn moves_by_guest(&self) -> bool {
        matches!(self.moving.by_guest.stand, Stand::Guest { .. })
    }

    /// Who moves its pages.
    pub fn stand(&self) -> &Stand {
        &self.moving.by_guest.stand
    }

    /// Whether pages may be moved now: by the guest, or by the host if it may in the guest's place.
    pub fn may_move(&self) -> bool {
        self.settings.moves_on && (self.moves_by_guest() || !self.moving.by_guest.only_guest)
    }

    /// Takes in who is to move pages from now on, and what the guest has free.
    pub fn set_by_guest(&mut self, now: Tick, moves: &GuestMoves, shared: &Shared) {
        let free = moves.free_bytes.clone();
        let guest = &mut self.moving.by_guest;
        guest.room = free.map(|free| GuestRoom { free });
        match (&guest.room, &guest.stand) {
            (Some(_), Stand::Host) => self.begin_by_guest(now, shared),
            (None, Stand::Host) | (Some(_), _) => {}
            (None, _) => self.end_by_guest(now, Stand::Host, "the host moves its pages"),
        }
    }

    /// Believes a guest again, and tries it again if it was refused, as an operator's word has it.
    pub fn believe_guest(&mut self, now: Tick, shared: &Shared) {
        self.moving.by_guest.doubt = Doubt::default();
        self.try_guest_again(now, shared);
    }

    /// Tries a guest again that was refused.
    pub fn try_guest_again(&mut self, now: Tick, shared: &Shared) {
        if matches!(self.moving.by_guest.stand, Stand::Refused(_)) {
            self.begin_by_guest(now, shared);
        }
    }

    fn begin_by_guest(&mut self, now: Tick, shared: &Shared) {
        // What was planned for the one side is not for the other.
        self.abandon(now, "another side moves its pages now");
        let guest = &mut self.moving.by_guest;
        if guest.nodes.is_empty() {
            self.hand_over(now);
        } else {
            guest.stand = Stand::Checking(0);
            self.round_soon(now, shared);
        }
    }

    /// The guest moves pages from now on.
    fn hand_over(&mut self, now: Tick) {
        let guest = &mut self.moving.by_guest;
        guest.stand = Stand::Guest { is_placed: false };
        guest.doubt = guest.doubt.of_before();
        let text = "its guest moves its pages, by the frames that the host names";
        self.history.say(now, text);
    }

    fn end_by_guest(&mut self, now: Tick, stand: Stand, text: &str) {
        self.abandon(now, "another side moves its pages now");
        let guest = &mut self.moving.by_guest;
        guest.stand = stand;
        guest.doubt = guest.doubt.of_before();
        self.history.say(now, text);
    }

    fn round_soon(&mut self, now: Tick, shared: &Shared) {
        if self.rounds.is_scheduled() {
            let rhythm = self.rhythm(&shared.config);
            self.rounds.restart(now, rhythm, &shared.config);
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
        let room = self.guest_free()?;
        let free = room.free.get(tier.index()).copied().unwrap_or(0);
        Some(free.saturating_sub(self.moving.coming[tier.index()]))
    }

    fn guest_free(&self) -> Option<&GuestRoom> {
        let room = self.moving.by_guest.room.as_ref();
        room.filter(|_| self.moves_by_guest())
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
        if let Some(room) = self.moving.by_guest.room.as_mut().filter(|_| is_moved) {
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

/// The report of a plan of which the guest moved so many frames and left so many: the first ones, for want of a list. The others
/// were not answered.
#[must_use]
pub fn report_of_count(plan: &MovePlan, moved: u64, left: u64, elapsed_ns: u64) -> MoveReport {
    let results = (0_u64..).zip(&plan.moves).map(|(at, page)| PageResult {
        gfn: page.gfn,
        status: match at {
            at if at < moved => MoveStatus::Moved,
            at if at < moved.saturating_add(left) => MoveStatus::Busy,
            _ => MoveStatus::NotTried,
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
