//! Two-dimensional page walks: the cost of a TLB miss, and the marks that it leaves.
//!
//! The guest's tables are themselves in guest memory, so each of their entries that is read needs a
//! translation by the second stage; caches of upper entries, of both dimensions, make most walks short.
//! An entry's line comes from the processor's caches or from the memory that it lies in.

use super::faults::Faults;
use super::lines::Table;
use super::mmu::{Mmu, Overlap};
use super::second_stage::bits;
use super::space::Space;
use super::tables::{Guest, Level};
use super::tlb::Cached;
use super::vcpu::Environment;
use crate::base::access::LINE;

/// The outcome of a translation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Walked {
    /// The tier of the page, and the time of the walk, ps.
    Found(usize, u64),
    /// The page is being copied: the access must be tried again later.
    Wait,
}

impl Mmu {
    /// Walks the tables for an access, sets A and D, fills the TLBs. `known`: a TLB has a translation of the page,
    /// for example a clean one at a first write.
    #[inline(always)]
    pub(super) fn walk<const PLAIN: bool>(
        &mut self,
        space: &mut Space,
        env: &Environment,
        faults: &mut impl Faults,
        page: u32,
        write: bool,
        known: bool,
    ) -> Walked {
        space.counts.walks += 1;
        let leaf = space.guest.level_as::<PLAIN>(page);
        let mut ps = self.upper::<PLAIN>(space, env, page, leaf);
        let (table, number) = match leaf {
            Level::Leaf => (Table::GuestLeaf, page),
            _ => (Table::GuestPde, page >> 9),
        };
        ps += match space.lines.touch(table, number) {
            true => env.costs.cached_line,
            false => guest_miss::<PLAIN>(space, env, leaf, page, self.overlap),
        };
        let mut entry = space.guest.entry(leaf, page);
        let mut waits = 0;
        if Guest::frame_as::<PLAIN>(entry, page).is_none() {
            waits += self.guest_fault(space, env, faults, page, write);
            entry = space.guest.entry(leaf, page);
        }
        // The guest's kernel had no page to give, or its mechanism holds this one: the access comes again.
        let Some(frame) = Guest::frame_as::<PLAIN>(entry, page) else {
            return Walked::Wait;
        };
        let unit = space.second.unit_as::<PLAIN>(frame);
        ps += self.host_lines::<PLAIN>(space, env, frame);
        if let Some(permissions) = &mut space.second.permissions
            && !PLAIN
        {
            waits += permissions.access(&mut space.counts, &env.costs, frame);
        }
        let state = space.second.get(unit);
        // Seldom, so that what it takes is left out of the way of all other accesses.
        if state & bits::ODD != 0 {
            match odd_page(space, env, faults, unit, write) {
                Some(ps) => waits += ps,
                None => return Walked::Wait,
            }
        }
        if write {
            waits += faults.written(space, env, unit);
        }
        if !Guest::is_marked(entry, write) && space.guest.mark(leaf, page, write) {
            ps += env.costs.set_bit;
            waits += self.written(space, env, leaf, page);
        }
        // A processor writes A and D only if they are clear; so an access to a marked entry costs nothing more,
        // and PML sees each page once until D is cleared.
        let news = bits::ACCESSED | if write { bits::DIRTY } else { 0 };
        if state & news != news {
            ps += env.costs.set_bit;
            space.second.raise(unit, news);
            if write && state & bits::DIRTY == 0 {
                waits += self.log(space, env, frame);
            }
        }
        // Read again: a fault above may have moved the unit.
        let tier = space.second.get(unit) & bits::TIER;
        // Pages of 4 KiB are never parts of a split unit.
        let small = !PLAIN && space.second.is_split(unit);
        let tier = self.fill::<PLAIN>(page, tier, write, (small, known));
        // Out-of-order processors overlap walks; faults and exits stall them.
        Walked::Found(tier, self.overlap.share(ps) + waits)
    }

    /// Reads the guest's entries above the leaf, as far as they are not cached.
    #[inline(always)]
    fn upper<const PLAIN: bool>(
        &mut self,
        space: &mut Space,
        env: &Environment,
        page: u32,
        leaf: Level,
    ) -> u64 {
        let mut ps = 0;
        if leaf == Level::Leaf {
            // A cached PDE gives the leaf table's address: the levels above are not read at all.
            let block = page >> 9;
            if self.guest.pde.find(block).is_some() {
                return 0;
            }
            ps += self.upper_line::<PLAIN>(space, env, page, (Level::Pde, Table::GuestPde, block));
            self.guest.pde.push(Cached::new(block, 0, false));
        }
        // Only where no lower entry is cached, as above.
        let giga = page >> 18;
        if self.guest.pdpte.find(giga).is_none() {
            let line = (Level::Pdpte, Table::GuestUpper, giga);
            ps += self.upper_line::<PLAIN>(space, env, page, line);
            self.guest.pdpte.push(Cached::new(giga, 0, false));
        }
        ps
    }

    /// Reads an entry above the leaf, and sets its A.
    #[inline(always)]
    fn upper_line<const PLAIN: bool>(
        &mut self,
        space: &mut Space,
        env: &Environment,
        page: u32,
        (level, table, number): (Level, Table, u32),
    ) -> u64 {
        let mut ps = match space.lines.touch(table, number) {
            true => env.costs.cached_line,
            false => upper_miss::<PLAIN>(space, env, level, page, self.overlap),
        };
        if space.guest.mark(level, page, false) {
            ps += env.costs.set_bit + self.written(space, env, level, page);
        }
        ps
    }

    /// Reads the second stage's entries for the data's frame.
    #[inline(always)]
    fn host_lines<const PLAIN: bool>(
        &mut self,
        space: &mut Space,
        env: &Environment,
        frame: u32,
    ) -> u64 {
        let mut ps = 0;
        let block = frame >> 9;
        if space.second.maps_huge::<PLAIN>(frame) {
            if self.host.pdpte.find(frame >> 18).is_none() {
                // One line covers 8 GiB, so it is as good as always in the processor's cache.
                ps += env.costs.cached_line;
                self.host.pdpte.push(Cached::new(frame >> 18, 0, false));
            }
            return ps + host_line::<PLAIN>(space, env, Table::HostPde, block, self.overlap);
        }
        if self.host.pde.find(block).is_none() {
            ps += host_line::<PLAIN>(space, env, Table::HostPde, block, self.overlap);
            self.host.pde.push(Cached::new(block, 0, false));
        }
        ps + host_line::<PLAIN>(space, env, Table::HostLeaf, frame, self.overlap)
    }

    /// Marks the page of the guest's tables that holds an entry as written by the processor.
    #[cold]
    fn written(&mut self, space: &mut Space, env: &Environment, level: Level, page: u32) -> u64 {
        let frame = space.guest.table_frame(level, page);
        if space.table_written(frame) {
            self.log(space, env, frame)
        } else {
            0
        }
    }

    /// Logs a frame whose D bit was set in the second stage.
    fn log(&mut self, space: &mut Space, env: &Environment, frame: u32) -> u64 {
        if !space.pml.is_on() || !self.pml.log(frame) {
            return 0;
        }
        space.pml.take_in(self.pml.drain());
        space.counts.exits += 1;
        env.costs.exit
    }

    /// Raises the guest's page fault. No old translation leads to a page that the guest's kernel took out for it.
    #[cold]
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

/// The time that an access waits for a page in an odd state, ps; `None` if it must come again.
#[cold]
fn odd_page(
    space: &mut Space,
    env: &Environment,
    faults: &mut impl Faults,
    unit: u32,
    write: bool,
) -> Option<u64> {
    let state = space.second.get(unit);
    // Both stand for a move under way: pages are unmapped or write-protected while they are copied.
    if state & bits::UNMAPPED != 0 || (write && state & bits::PROTECTED != 0) {
        return None;
    }
    if state & (bits::UNFILLED | bits::ABSENT) == 0 {
        return Some(0);
    }
    // Filled before the fault is reported, so that a placer finds a page that is somewhere.
    let ps = fill(space, env, unit);
    Some(ps + faults.host_fault(space, env, unit, write))
}

/// Serves a second-stage fault: the host fills the mapping, and backs the page if nothing does.
#[cold]
fn fill(space: &mut Space, env: &Environment, unit: u32) -> u64 {
    if space.second.tier(unit).is_none() {
        let tier = space.quota.take(env.last_tier);
        space.second.put(unit, Some(tier));
    }
    space.second.lower(unit, bits::UNFILLED);
    space.counts.exits += 1;
    env.costs.second_stage_fault
}

/// One of two numbers, without a branch: which lines are cached cannot be foreseen.
#[inline(always)]
fn select(first: bool, one: u64, other: u64) -> u64 {
    let mask = u64::from(first).wrapping_neg();
    (one & mask) | (other & !mask)
}

/// Reads an entry of the guest's tables from memory: its table's translation, then its line.
#[inline(always)]
fn guest_miss<const PLAIN: bool>(
    space: &mut Space,
    env: &Environment,
    level: Level,
    page: u32,
    overlap: Overlap,
) -> u64 {
    if !PLAIN && space.caches.memory_mode.is_some() {
        return space.table_through_dram(env, level, page);
    }
    let frame = space.guest.table_frame(level, page);
    let unit = space.second.unit_as::<PLAIN>(frame);
    let tier = usize::from(space.second.tier(unit).unwrap_or(0));
    let moves = match space.second.get(unit) & (bits::UNMAPPED | bits::UNFILLED) {
        0 => 0,
        _ => moved_table(space, env, unit),
    };
    space.traffic[tier].read += env.line[tier];
    if let Some(profile) = &mut space.profile
        && !PLAIN
    {
        profile.table_line(frame, env.read_ps[tier], overlap.walks());
    }
    env.read_ps[tier] + moves
}

/// The time that a walk waits for a table's page that is being moved, or was since it was read last, ps: the processor faults in the second stage, as at a page
/// of data. The wait for the copy is that for one page.
#[cold]
fn moved_table(space: &mut Space, env: &Environment, unit: u32) -> u64 {
    space.counts.exits += 1;
    if space.second.get(unit) & bits::UNMAPPED != 0 {
        return env.costs.second_stage_fault + env.costs.move_page;
    }
    space.second.lower(unit, bits::UNFILLED);
    env.costs.second_stage_fault
}

/// Reads an entry above the leaf from memory. Not inlined, because those of leaves are by far the most.
#[inline(never)]
fn upper_miss<const PLAIN: bool>(
    space: &mut Space,
    env: &Environment,
    level: Level,
    page: u32,
    overlap: Overlap,
) -> u64 {
    guest_miss::<PLAIN>(space, env, level, page, overlap)
}

/// Reads an entry of the second stage, which lies in the host's own memory: the first tier.
#[inline(always)]
fn host_line<const PLAIN: bool>(
    space: &mut Space,
    env: &Environment,
    table: Table,
    number: u32,
    overlap: Overlap,
) -> u64 {
    let hit = space.lines.touch(table, number);
    if PLAIN {
        space.traffic[0].read += select(hit, 0, LINE);
        return select(hit, env.costs.cached_line, env.read_ps[0]);
    }
    if hit {
        return env.costs.cached_line;
    }
    space.traffic[0].read += LINE;
    if let Some(profile) = &mut space.profile {
        profile.host_line(env.read_ps[0], overlap.walks());
    }
    env.read_ps[0]
}
