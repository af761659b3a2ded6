//! Every proposal is checked again at the moment that it would become part of a plan.
//!
//! Responsible for: what is allowed — the unit exists, is RAM, is there, is known, is not on its way
//! and did not move lately; its destination exists, differs, and has room under the VM's ceiling and
//! in the tier, and the VM's share of it; its origin stays above the VM's floor. It leaves to others: who proposed it,
//! and why.

use terrace_proto::{Gfn, PAGES_PER_HUGE, TierId};

use super::Shared;
use super::refusal::MoveRefusal;
use super::vm::Vm;

/// The mechanism's answer to a proposal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The move may go ahead.
    Allowed {
        /// The tier that holds the unit.
        from: TierId,
        /// The move only makes room for another one.
        paired: bool,
    },
    /// Not now; perhaps when something that is under way has ended.
    Later(MoveRefusal),
    /// Never in this round.
    Refused(MoveRefusal),
}

impl Vm {
    /// Checks one unit's way to a tier. `forced`: its tier must lose it whatever comes in return.
    pub fn check(&self, unit: u32, to: TierId, forced: bool, shared: &Shared) -> Verdict {
        let from = match self.check_unit(unit, to) {
            Ok(from) => from,
            Err(refusal) => return Verdict::Refused(refusal),
        };
        let bytes = self.moved_pages(unit) * terrace_proto::PAGE_SIZE;
        if let Some(why) = self.lack_of_room(to, bytes, shared) {
            return Verdict::Later(why);
        }
        if self.is_checking() {
            return Verdict::Allowed {
                from,
                paired: false,
            };
        }
        let paired = to > from && !forced;
        let mut floor = self.settings.limit(from).floor_bytes;
        // A forced demotion brings the VM down to its size, and the pool leaves each VM a lower limit.
        if forced && from == TierId::FAST {
            floor = floor.max(shared.pool.lower(self.id));
        }
        if paired {
            let ahead = self.may_run_ahead(from, shared);
            let room = self.room_in(from, shared);
            // Room that is there already counts as made, as does what earlier demotions freed and nothing has
            // taken yet: no more is demoted than the promotions that wait can use.
            let made = room.max(self.moving.owed[from.index()]);
            let made = made.saturating_add(self.leaving(from));
            if made >= ahead.min(self.moving.waiting_for(from)) {
                return Verdict::Later(MoveRefusal::NotNeeded);
            }
            // The promotion that follows brings as much back, so an exchange may dip below the floor by it.
            floor = floor.saturating_sub(ahead);
        }
        let stays = self.pages.bytes(from).saturating_sub(self.leaving(from));
        if stays < floor.saturating_add(bytes) {
            return Verdict::Later(MoveRefusal::Floor);
        }
        Verdict::Allowed { from, paired }
    }

    /// The reason why a tier has no room for so much.
    fn lack_of_room(&self, to: TierId, bytes: u64, shared: &Shared) -> Option<MoveRefusal> {
        if let Some(room) = self.guest_room(to) {
            // The guest's nodes have their sizes: neither a ceiling nor the host's free memory says more.
            return (room < bytes).then_some(MoveRefusal::NoFreeMemory);
        }
        if self.is_checking() {
            // Where nodes lie is the hypervisor's word, and an operator's ceiling stands above it.
            if self.ceiling_room(to, self.settings.limit(to).ceiling_bytes) < bytes {
                return Some(MoveRefusal::Ceiling);
            }
            return (shared.free_for(self.id, to) < bytes).then_some(MoveRefusal::NoFreeMemory);
        }
        // Ceiling, share and free memory are distinguished only for people: each of them may have room again
        // when a demotion of the same round has landed, so none of them ends the unit's chance.
        if self.ceiling_room(to, self.settings.limit(to).ceiling_bytes) < bytes {
            Some(MoveRefusal::Ceiling)
        } else if self.ceiling_room(to, self.ceiling(to, shared)) < bytes {
            Some(MoveRefusal::Share)
        } else {
            (shared.free_for(self.id, to) < bytes).then_some(MoveRefusal::NoFreeMemory)
        }
    }

    /// Bytes that may still be brought into a tier.
    fn room_in(&self, tier: TierId, shared: &Shared) -> u64 {
        self.guest_room(tier).unwrap_or_else(|| {
            let room = self.ceiling_room(tier, self.ceiling(tier, shared));
            room.min(shared.free_for(self.id, tier))
        })
    }

    /// Makes the checks that do not depend on room. Gives the unit's tier.
    pub fn check_unit(&self, unit: u32, to: TierId) -> Result<TierId, MoveRefusal> {
        let pages = &self.pages;
        if to.0 >= pages.tiers() {
            return Err(MoveRefusal::NoSuchTier);
        }
        if unit as usize >= pages.units() {
            return Err(MoveRefusal::OutOfRange);
        }
        if !pages.ram().is_whole(unit) {
            return Err(MoveRefusal::OutsideRam);
        }
        let from = pages.tier(unit).ok_or(MoveRefusal::Absent)?;
        let extent = pages.extent(unit);
        // The kernel moves a huge page whole: a part of it cannot go alone, and a whole one that reaches
        // beyond the VM's RAM would take pages along that are not the VM's.
        let moves_as_block = extent.len() as u64 == PAGES_PER_HUGE
            && pages.ram().contains(Gfn(u64::from(unit)), PAGES_PER_HUGE);
        if pages.in_huge_block(unit) && !moves_as_block {
            return Err(MoveRefusal::PartOfHuge);
        }
        let units = || extent.clone().filter_map(|u| u32::try_from(u).ok());
        // One known page speaks for a huge page; one page in flight holds all of it back.
        if units().any(|u| pages.in_flight(u)) {
            Err(MoveRefusal::InFlight)
        } else if from == to {
            Err(MoveRefusal::AlreadyThere)
        } else if self.is_checking() {
            // Where a frame has to be does not follow from what is in it.
            Ok(from)
        } else if !units().any(|u| pages.known(u)) {
            Err(MoveRefusal::Unknown)
        } else if pages.cool_down(unit) > 0 {
            Err(MoveRefusal::CoolDown)
        } else {
            Ok(from)
        }
    }

    fn leaving(&self, tier: TierId) -> u64 {
        self.moving.leaving[tier.index()]
    }

    /// Most bytes that the VM may hold of a tier: its ceiling, and its share of the first one.
    pub fn ceiling(&self, tier: TierId, shared: &Shared) -> u64 {
        let share = match tier {
            // VMs share the first tier alone; the others are bounded by their own ceilings.
            TierId::FAST => shared.pool.most(self.id),
            _ => None,
        };
        let ceiling = self.settings.limit(tier).ceiling_bytes;
        share.map_or(ceiling, |share| share.min(ceiling))
    }

    /// Bytes that the VM may still get of a tier under a ceiling.
    fn ceiling_room(&self, tier: TierId, ceiling: u64) -> u64 {
        // Bytes in flight count from the moment that they are planned: the plan may succeed in full.
        let holds = self.pages.bytes(tier) + self.moving.coming[tier.index()];
        ceiling.saturating_sub(holds)
    }

    /// How far units that make room in a tier may run ahead of those that use it, bytes: one plan, an
    /// eighth of what the VM holds there, and at least what the next unit needs.
    fn may_run_ahead(&self, tier: TierId, shared: &Shared) -> u64 {
        let config = &shared.config;
        let unit = self.pages.unit_bytes();
        let plan = config
            .plan_max_bytes
            .min(config.plan_max_pages.saturating_mul(unit));
        let next = self.moving.next_for(tier);
        let needed = next.map_or(unit, |u| self.moved_pages(u) * terrace_proto::PAGE_SIZE);
        plan.min(self.pages.bytes(tier) / 8).max(needed)
    }
}
