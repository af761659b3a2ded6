//! A walk of two dimensions: what a TLB miss costs, and the marks that it leaves.
//!
//! The guest's tables are themselves in guest memory, so each of their entries that is read needs a
//! translation by the second stage; caches of upper entries, of both dimensions, make most walks short.
//! An entry's line comes from the processor's caches or from the memory that it lies in.

use super::faults::Faults;
use super::lines::Table;
use super::second_stage::bits;
use super::space::Space;
use super::tables::{Guest, Level};
use super::tlb::Cached;
use super::vcpu::{Environment, Vcpu, small_key};
use crate::words::access::LINE;

/// How a translation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Walked {
    /// The page is in that tier; the walk took so many ps.
    Found(usize, u64),
    /// The page is being copied: the access must be tried again later.
    Wait,
}

impl Vcpu {
    /// Walks the tables for an access, sets A and D, fills the TLBs. `known`: a translation of the page is in
    /// one of them, as where a first write goes through a clean one.
    pub(super) fn walk(
        &mut self,
        space: &mut Space,
        env: &Environment,
        faults: &mut impl Faults,
        page: u32,
        write: bool,
        known: bool,
    ) -> Walked {
        space.counts.walks += 1;
        let leaf = space.guest.leaf_level(page);
        let mut ps = self.upper(space, env, page, leaf);
        let (table, number) = match leaf {
            Level::Leaf => (Table::GuestLeaf, page),
            _ => (Table::GuestPde, page >> 9),
        };
        ps += guest_line(space, env, leaf, page, table, number);
        let mut entry = space.guest.entry(leaf, page);
        let mut waits = 0;
        if Guest::frame_of(entry, page).is_none() {
            waits += self.guest_fault(space, env, faults, page, write);
            entry = space.guest.entry(leaf, page);
        }
        let Some(frame) = Guest::frame_of(entry, page) else {
            return Walked::Wait;
        };
        let unit = space.second.unit_of(frame);
        ps += self.host_lines(space, env, frame);
        let state = space.second.get(unit);
        let stuck = state & bits::UNMAPPED != 0 || (write && state & bits::PROTECTED != 0);
        if stuck {
            return Walked::Wait;
        }
        if state & (bits::UNFILLED | bits::ABSENT) != 0 {
            waits += fill(space, env, unit);
            waits += faults.host_fault(space, env, unit, write);
        }
        if write {
            waits += faults.written(space, env, unit);
        }
        if space.guest.mark(leaf, page, write) {
            ps += env.costs.set_bit;
            let table = space.guest.table_frame(leaf, page);
            waits += self.written(space, env, table);
        }
        let news = bits::ACCESSED | if write { bits::DIRTY } else { 0 };
        if state & news != news {
            ps += env.costs.set_bit;
            space.second.raise(unit, news);
            if write && state & bits::DIRTY == 0 {
                waits += self.log(space, env, frame);
            }
        }
        let tier = space.second.get(unit) & bits::TIER;
        let small = space.second.can_split() && space.second.units_of(unit) == 1;
        let (l1, key) = match &mut self.small {
            Some(l1) if small => (l1, small_key(page)),
            _ => (&mut self.l1, page >> self.tlb_shift),
        };
        let cached = Cached::new(key, tier, write);
        if known {
            l1.fill(cached);
            self.l2.fill(cached);
        } else {
            l1.push(cached);
            self.l2.push(cached);
        }
        let ps = ps / self.walk_overlap + waits;
        Walked::Found(cached.tier(), ps)
    }

    /// The guest's entries above the leaf, as far as they are not cached.
    fn upper(&mut self, space: &mut Space, env: &Environment, page: u32, leaf: Level) -> u64 {
        let mut ps = 0;
        if leaf == Level::Leaf {
            if self.pde.find(page >> 9).is_some() {
                return 0;
            }
            ps += guest_line(space, env, Level::Pde, page, Table::GuestPde, page >> 9);
            ps += self.mark_upper(space, env, Level::Pde, page);
            self.pde.push(Cached::new(page >> 9, 0, false));
        }
        if self.pdpte.find(page >> 18).is_none() {
            let giga = page >> 18;
            ps += guest_line(space, env, Level::Pdpte, page, Table::GuestUpper, giga);
            ps += self.mark_upper(space, env, Level::Pdpte, page);
            self.pdpte.push(Cached::new(giga, 0, false));
        }
        ps
    }

    #[inline(always)]
    fn mark_upper(&mut self, space: &mut Space, env: &Environment, level: Level, page: u32) -> u64 {
        if !space.guest.mark(level, page, false) {
            return 0;
        }
        let table = space.guest.table_frame(level, page);
        env.costs.set_bit + self.written(space, env, table)
    }

    /// The second stage's entries for the data's frame.
    fn host_lines(&mut self, space: &mut Space, env: &Environment, frame: u32) -> u64 {
        let mut ps = 0;
        let block = frame >> 9;
        if space.second.maps_huge(frame) {
            if self.host_pdpte.find(frame >> 18).is_none() {
                ps += env.costs.cached_line;
                self.host_pdpte.push(Cached::new(frame >> 18, 0, false));
            }
            return ps + host_line(space, env, Table::HostPde, block);
        }
        if self.host_pde.find(block).is_none() {
            ps += host_line(space, env, Table::HostPde, block);
            self.host_pde.push(Cached::new(block, 0, false));
        }
        ps + host_line(space, env, Table::HostLeaf, frame)
    }

    /// The processor wrote to a table page of the guest.
    fn written(&mut self, space: &mut Space, env: &Environment, frame: u32) -> u64 {
        if space.table_written(frame) {
            self.log(space, env, frame)
        } else {
            0
        }
    }

    /// D was set in the second stage.
    fn log(&mut self, space: &mut Space, env: &Environment, frame: u32) -> u64 {
        if !space.pml || !self.pml.log(frame) {
            return 0;
        }
        space.logged.extend(self.pml.drain());
        space.counts.exits += 1;
        env.costs.exit
    }

    /// The guest's page fault. What its kernel took out for it is found through no old translation.
    fn guest_fault(
        &mut self,
        space: &mut Space,
        env: &Environment,
        faults: &mut impl Faults,
        page: u32,
        write: bool,
    ) -> u64 {
        let ps = faults.guest_fault(space, env, page, write);
        self.follow_reclaim(space);
        ps
    }
}

/// A second-stage fault: the host fills the mapping, and backs the page if nothing does.
fn fill(space: &mut Space, env: &Environment, unit: u32) -> u64 {
    if space.second.tier(unit).is_none() {
        let tier = (0_u8..).zip(&space.grant).find(|(_, units)| **units > 0);
        // A host without any free page takes the last tier: its own reclaim is not modelled.
        let tier = tier.map_or(env.last_tier, |(tier, _)| tier);
        let grant = &mut space.grant[usize::from(tier)];
        *grant = grant.saturating_sub(1);
        space.second.put(unit, Some(tier));
    }
    space.second.lower(unit, bits::UNFILLED);
    space.counts.exits += 1;
    env.costs.second_stage_fault
}

/// Reads an entry of the guest's tables: its table's translation, then its line. Where it is a call of
/// its own, a run takes a tenth longer.
#[inline(always)]
fn guest_line(
    space: &mut Space,
    env: &Environment,
    level: Level,
    page: u32,
    table: Table,
    number: u32,
) -> u64 {
    if space.lines.touch(table, number) {
        return env.costs.cached_line;
    }
    if space.memory_mode.is_some() {
        return space.table_through_dram(env, level, page);
    }
    let frame = space.guest.table_frame(level, page);
    let unit = space.second.unit_of(frame);
    let tier = usize::from(space.second.tier(unit).unwrap_or(0));
    space.traffic[tier].read += env.line[tier];
    env.read_ps[tier]
}

/// Reads an entry of the second stage, which lies in the host's own memory: the first tier.
#[inline]
fn host_line(space: &mut Space, env: &Environment, table: Table, number: u32) -> u64 {
    if space.lines.touch(table, number) {
        return env.costs.cached_line;
    }
    space.traffic[0].read += LINE;
    env.read_ps[0]
}
