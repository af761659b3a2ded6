//! A vCPU's MMU: its TLBs, its caches of upper entries, and its log of pages that it made dirty. A miss leads to a
//! walk ([`super::walk`]).

use super::costs::Costs;
use super::faults::Faults;
use super::pml::Buffer;
use super::space::Space;
use super::tlb::{Cached, Tlb};
use super::vcpu::Environment;
use super::walk::Walked;
use crate::base::number::to_usize;

/// The MMU of one vCPU.
#[derive(Clone, Debug)]
pub struct Mmu {
    /// Size of a first-level translation, as a power of two: 2^shift pages of 4 KiB.
    shift: u32,
    pub(super) overlap: Overlap,
    l1: Tlb<4>,
    /// First-level translations of 4 KiB, if 2 MiB pages can be split.
    small: Option<Tlb<4>>,
    l2: Tlb<12>,
    /// Caches of the guest's tables.
    pub(super) guest: PagingCaches,
    /// Caches of the second stage.
    pub(super) host: PagingCaches,
    pub(super) pml: Buffer,
    /// The guest's own shootdowns that this vCPU has followed.
    shootdowns: u64,
}

/// The paging-structure caches of one dimension: the entries that lead to leaves.
#[derive(Clone, Debug)]
pub(super) struct PagingCaches {
    pub(super) pde: Tlb<4>,
    pub(super) pdpte: Tlb<4>,
}

impl PagingCaches {
    fn new(costs: &Costs, scale: u64) -> Self {
        Self {
            pde: Tlb::new(costs.pde_entries / scale),
            pdpte: Tlb::new(costs.pdpte_entries / scale),
        }
    }

    fn flush(&mut self) {
        self.pde.flush();
        self.pdpte.flush();
    }

    fn heap_bytes(&self) -> usize {
        self.pde.heap_bytes() + self.pdpte.heap_bytes()
    }
}

/// Walks in flight at a time, as the load has misses in flight: the time of a walk is divided by it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Overlap {
    walks: u64,
    /// The walks as a power of two, which they mostly are: a shift is faster.
    shift: Option<u32>,
}

impl Overlap {
    fn of(walks: u64) -> Self {
        let shift = walks.is_power_of_two().then(|| walks.trailing_zeros());
        Self { walks, shift }
    }

    pub(super) fn walks(self) -> u64 {
        self.walks
    }

    /// The part of a walk's time that its vCPU waits, ps.
    #[inline]
    pub(super) fn share(self, ps: u64) -> u64 {
        match self.shift {
            Some(shift) => ps >> shift,
            None => ps / self.walks.max(1),
        }
    }
}

impl Mmu {
    /// An MMU that knows no translation. `huge`: both dimensions map 2 MiB.
    #[must_use]
    pub fn new(costs: &Costs, scale: u64, huge: bool) -> Self {
        let l1 = if huge {
            costs.l1_huge_entries
        } else {
            costs.l1_entries
        };
        Self {
            shift: if huge { 9 } else { 0 },
            overlap: Overlap::of(1),
            l1: Tlb::new((l1 / scale).max(1)),
            small: None,
            l2: Tlb::new((costs.l2_entries / scale).max(1)),
            guest: PagingCaches::new(costs, scale),
            host: PagingCaches::new(costs, scale),
            pml: Buffer::new(costs.pml_entries),
            shootdowns: 0,
        }
    }

    /// Adds a first-level TLB for 4 KiB pages.
    pub fn add_small_pages(&mut self, costs: &Costs, scale: u64) {
        self.small = Some(Tlb::new((costs.l1_entries / scale).max(1)));
    }

    /// Sets how many walks overlap, up to the number of page walkers.
    pub fn overlap_walks(&mut self, walks: u64, costs: &Costs) {
        self.overlap = Overlap::of(walks.clamp(1, costs.walkers));
    }

    /// The tier of a page and the time of finding it, ps; `None` while the page is being copied.
    #[inline]
    pub fn translate<const PLAIN: bool>(
        &mut self,
        space: &mut Space,
        env: &Environment,
        faults: &mut impl Faults,
        page: u32,
        write: bool,
    ) -> Option<(usize, u64)> {
        let key = self.key::<PLAIN>(page);
        let mut known = false;
        if let Some(cached) = self.l1.find(key) {
            if cached.dirty() || !write {
                return Some((cached.tier(), 0));
            }
            known = true;
        } else if let Some(cached) = self.l2.find(key) {
            if cached.dirty() || !write {
                self.l1.push(cached);
                return Some((cached.tier(), env.costs.l2_hit));
            }
            known = true;
        } else if !PLAIN && let Some((cached, ps)) = self.find_small(env, page) {
            if cached.dirty() || !write {
                return Some((cached.tier(), ps));
            }
            known = true;
        }
        match self.walk::<PLAIN>(space, env, faults, page, write, known) {
            Walked::Found(tier, ps) => Some((tier, ps + env.costs.l2_hit)),
            Walked::Wait => None,
        }
    }

    /// The key of a page's translation.
    #[inline(always)]
    fn key<const PLAIN: bool>(&self, page: u32) -> u32 {
        if PLAIN { page } else { page >> self.shift }
    }

    /// A cached translation of a page of a split block and the time of finding it, ps.
    fn find_small(&mut self, env: &Environment, page: u32) -> Option<(Cached, u64)> {
        let l1 = self.small.as_mut()?;
        let key = small_key(page);
        if let Some(cached) = l1.find(key) {
            return Some((cached, 0));
        }
        let cached = self.l2.find(key)?;
        l1.push(cached);
        Some((cached, env.costs.l2_hit))
    }

    /// Fills the TLBs with the translation that a walk found; returns its tier. `small`: of a split block. `known`:
    /// there is an older translation of the page.
    #[inline]
    pub(super) fn fill<const PLAIN: bool>(
        &mut self,
        page: u32,
        tier: u8,
        write: bool,
        (small, known): (bool, bool),
    ) -> usize {
        let key = self.key::<PLAIN>(page);
        let (l1, key) = match &mut self.small {
            Some(l1) if !PLAIN && small => (l1, small_key(page)),
            _ => (&mut self.l1, key),
        };
        let cached = Cached::new(key, tier, write);
        // A first write through a clean entry renews it in place; a second one would push another out.
        if known {
            l1.fill(cached);
            self.l2.fill(cached);
        } else {
            l1.push(cached);
            self.l2.push(cached);
        }
        cached.tier()
    }

    /// Forgets all translations: a TLB shootdown's work on this vCPU.
    pub fn flush(&mut self) {
        self.l1.flush();
        self.l2.flush();
        self.guest.flush();
        self.host.flush();
        if let Some(small) = &mut self.small {
            small.flush();
        }
    }

    /// Forgets the translations of one page of the load and the upper entries that lead to them, as INVLPG does.
    pub fn forget(&mut self, page: u32) {
        let key = page >> self.shift;
        self.l1.forget(key);
        self.l2.forget(key);
        if let Some(small) = &mut self.small {
            small.forget(small_key(page));
            self.l2.forget(small_key(page));
        }
        self.guest.flush();
    }

    /// Forgets all translations if the guest took pages out since the last call.
    pub fn follow_reclaim(&mut self, space: &Space) {
        if space.shootdowns != self.shootdowns {
            self.shootdowns = space.shootdowns;
            self.flush();
        }
    }

    /// Takes out the frames in the PML buffer, full or not.
    pub fn drain_pml(&mut self) -> impl Iterator<Item = u32> + '_ {
        self.pml.drain()
    }

    /// Follows pages that changed tier for free: cached translations get the new tiers.
    pub fn retier(&mut self, tier: impl Fn(u32) -> u8 + Copy) {
        self.l1.retier(tier);
        self.l2.retier(tier);
    }

    /// Bytes on the heap.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        let upper = self.guest.heap_bytes() + self.host.heap_bytes();
        let small = self.small.as_ref().map_or(0, Tlb::heap_bytes);
        self.l1.heap_bytes() + self.l2.heap_bytes() + upper + small + to_usize(4 * 512)
    }
}

/// The key of a 4 KiB translation in a TLB that also has 2 MiB ones, whose keys are block numbers.
fn small_key(page: u32) -> u32 {
    page | 1 << 28
}
