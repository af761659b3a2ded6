//! A guest that lacks memory: its swap device and the balloon that takes its pages.
//!
//! The guest reclaims as Linux does in outline: pages that were accessed since the clock's hand last passed them get
//! a second chance. It uses the same A bits that the host's scan clears.

use super::frames::Frames;
use super::zones::Zones;
use crate::base::number::low;
use crate::machine::TIERS;
use crate::machine::costs::Costs;
use crate::machine::faults::Faults;
use crate::machine::space::Space;
use crate::machine::vcpu::Environment;

/// Pages that the guest takes out at a time (Linux's `SWAP_CLUSTER_MAX`).
const CLUSTER: u64 = 32;

/// Leaves of a guest that reclaim takes at a time: one, if that has as many pages.
#[must_use]
pub fn cluster(space: &Space) -> u64 {
    (CLUSTER / space.guest.pages_per_leaf()).max(1)
}

/// The guest's own memory management.
#[derive(Clone, Debug)]
pub struct Reclaim {
    /// Pages of guest memory that the load never uses. No host memory is behind them: if a balloon takes them,
    /// nothing changes.
    spare: u64,
    free: Frames,
    /// The nodes, if they are told apart.
    zones: Option<Zones>,
    /// Frames that the balloon holds.
    balloon: Vec<u32>,
    /// The next page that the clock tests.
    hand: u32,
    /// Free pages of the swap device.
    device: u64,
}

/// A balloon's size from a given time on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BalloonStep {
    /// Time since the start, ns.
    pub at_ns: u64,
    /// Size of the balloon from then on, bytes.
    pub bytes: u64,
}

impl Faults for Reclaim {
    fn guest_fault(&mut self, space: &mut Space, env: &Environment, page: u32, _: bool) -> u64 {
        self.bring_in(space, &env.costs, page)
    }
}

/// Pages that were taken out to the swap device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TakenOut {
    /// Number of leaves.
    pub leaves: u64,
    /// Time that their reclaimer spends, ps.
    pub ps: u64,
}

/// The error of a guest that cannot give the memory that is asked of it: nothing is left to take out, or the device
/// is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfMemory;

impl Reclaim {
    /// A guest with so many pages that its load never uses, and a swap device of so many pages.
    #[must_use]
    pub fn new(spare: u64, device: u64) -> Self {
        Self {
            spare,
            free: Frames::default(),
            zones: None,
            balloon: Vec::new(),
            hand: 0,
            device,
        }
    }

    /// A guest whose nodes are told apart, and whose free memory is what they have; with a swap device of so many pages.
    #[must_use]
    pub fn sized(zones: Zones, device: u64) -> Self {
        Self {
            free: Frames::sized(),
            zones: Some(zones),
            ..Self::new(0, device)
        }
    }

    /// Whether the guest's nodes are told apart.
    #[must_use]
    pub fn is_sized(&self) -> bool {
        self.free.is_sized()
    }

    /// The guest's nodes, if they are told apart.
    #[must_use]
    pub fn zones(&self) -> Option<Zones> {
        self.zones
    }

    /// Takes in the frames beyond the load's memory, which are free.
    pub fn take_in_spare(&mut self, space: &mut Space) {
        for frame in space.guest.spare() {
            self.free.free(space, frame);
        }
    }

    /// The free frames.
    pub fn frames(&mut self) -> &mut Frames {
        &mut self.free
    }

    /// Frees all memory of a program that ended, on the swap device too; returns the time that this takes, ps. The host
    /// sees nothing of it: what backs the frames stays.
    pub fn end_program(&mut self, space: &mut Space, costs: &Costs) -> u64 {
        let freed = self.release(space, 0);
        space.shootdowns += 1;
        costs.guest_page_work * freed
    }

    /// Frees the load's pages from `first` on; returns the number of leaves.
    pub fn release(&mut self, space: &mut Space, first: u32) -> u64 {
        let released = space.guest.release(first);
        let leaves = released.frames.len() as u64 + released.swapped;
        self.device += released.swapped * space.guest.pages_per_leaf();
        for frame in released.frames {
            self.free.free(space, frame);
        }
        leaves
    }

    /// Free 4 KiB pages of the guest, those that its load never uses included.
    #[must_use]
    pub fn free_pages(&self, space: &Space) -> u64 {
        if self.is_sized() {
            return (0..TIERS).map(|tier| space.free_pages(tier)).sum();
        }
        self.spare + self.free.len() as u64 * space.guest.pages_per_leaf()
    }

    /// Free frames of the load's memory, those without host memory included.
    #[cfg(test)]
    pub fn free_frames(&self) -> u64 {
        self.free.len() as u64
    }

    /// Free pages of the swap device.
    #[must_use]
    pub fn free_swap_pages(&self) -> u64 {
        self.device
    }

    /// Brings a page in; returns the time that this takes, ps.
    fn bring_in(&mut self, space: &mut Space, costs: &Costs, page: u32) -> u64 {
        // The pages of a leaf are filled one by one: with zeros, or from the device.
        let leaf = space.guest.pages_per_leaf();
        let mut ps = costs.guest_page_work * leaf;
        // Its place on the device serves for what is taken out for it; otherwise a full device would
        // stop the guest for ever.
        let swapped = space.guest.is_swapped(page);
        let place = u64::from(swapped) * leaf;
        self.device += place;
        let (frame, waited) = self.allocate(space, costs);
        ps += waited;
        space.counts.memory_wait += waited;
        let Some(frame) = frame else {
            self.device -= place;
            return ps;
        };
        if swapped {
            space.counts.major_faults += 1;
            space.counts.swapped_in += leaf;
            let read = costs.major_fault + costs.swap_next_read * (leaf - 1);
            space.counts.memory_wait += read;
            ps += read;
        }
        space.guest.map(page, frame);
        ps
    }

    /// Allocates a frame for the load, after direct reclaim if that is needed; the time of the reclaim is in ps.
    fn allocate(&mut self, space: &mut Space, costs: &Costs) -> (Option<u32>, u64) {
        let Some(zones) = self.zones else {
            let mut ps = 0;
            if self.free.is_empty() {
                ps = self.take_out(space, costs, cluster(space), None).ps;
            }
            return (self.free.pop(), ps);
        };
        let mut ps = 0;
        let mut found = zones.find(space, 0..TIERS);
        if found.is_none() {
            ps = self.take_out(space, costs, cluster(space), None).ps;
            found = zones.find(space, 0..TIERS);
        }
        let first = found.map_or(0, |(tier, _)| tier);
        // What the watermarks keep is better than none. The host may lack the memory that a node has.
        let mut tiers = (first..TIERS).chain(0..first);
        (tiers.find_map(|tier| self.free.pop_of(space, tier)), ps)
    }

    /// Takes up to so many leaves out to the device, of one tier or of all, those not recently used first.
    pub fn take_out(
        &mut self,
        space: &mut Space,
        costs: &Costs,
        wanted: u64,
        tier: Option<usize>,
    ) -> TakenOut {
        let (pages, leaf) = (low(space.guest.pages()), space.guest.pages_per_leaf());
        let mut taken = 0;
        // Twice around: the first turn takes all second chances away.
        for _ in 0..2 * u64::from(pages).div_ceil(leaf) {
            if taken == wanted || self.device < leaf {
                break;
            }
            let page = self.hand;
            self.hand = match page.saturating_add(low(leaf)) {
                next if next < pages => next,
                _ => 0,
            };
            let Some(frame) = space.guest.frame(page) else {
                continue;
            };
            let of = |space: &Space| {
                space
                    .second
                    .tier(space.second.unit_of(frame))
                    .map(usize::from)
            };
            if tier.is_some_and(|tier| of(space) != Some(tier)) || space.guest.age(page) {
                continue;
            }
            if let Some(frame) = space.guest.swap_out(page) {
                self.free.free(space, frame);
                self.device -= leaf;
                taken += 1;
            }
        }
        space.shootdowns += u64::from(taken > 0);
        space.counts.swapped_out += taken * leaf;
        TakenOut {
            leaves: taken,
            ps: (costs.guest_page_work + costs.swap_write + costs.swap_next_write * (leaf - 1))
                * taken,
        }
    }

    /// Sets the size of the balloon of a guest whose nodes no device sizes
    /// Frames that it takes lose their host memory.
    ///
    /// # Errors
    /// If the guest has no more to give; the balloon keeps what it got.
    pub fn balloon(
        &mut self,
        space: &mut Space,
        costs: &Costs,
        pages: u64,
    ) -> Result<(), OutOfMemory> {
        let pages = pages.saturating_sub(self.spare);
        while (self.balloon.len() as u64) > pages {
            if let Some(frame) = self.balloon.pop() {
                self.free.free(space, frame);
            }
        }
        while (self.balloon.len() as u64) < pages {
            if self.free.is_empty() && self.take_out(space, costs, CLUSTER, None).leaves == 0 {
                return Err(OutOfMemory);
            }
            if let Some(frame) = self.free.pop() {
                let unit = space.second.unit_of(frame);
                space.second.put(unit, None);
                self.balloon.push(frame);
            }
        }
        Ok(())
    }

    /// Bytes on the heap.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        4 * self.balloon.capacity() + self.free.heap_bytes()
    }
}
