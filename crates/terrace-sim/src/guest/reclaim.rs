//! A guest that lacks memory: its swap device and the balloon that takes its pages.
//!
//! The guest reclaims as Linux does in outline: pages that were accessed since the clock's hand last passed them get
//! a second chance. It uses the same A bits that the host's scan clears.

use std::collections::VecDeque;

use crate::base::number::low;
use crate::machine::costs::Costs;
use crate::machine::faults::Faults;
use crate::machine::space::Space;
use crate::machine::vcpu::Environment;

/// Pages that the guest takes out at a time (Linux's `SWAP_CLUSTER_MAX`).
const CLUSTER: usize = 32;

/// The guest's own memory management.
#[derive(Clone, Debug)]
pub struct Reclaim {
    /// Pages of guest memory that the load never uses. No host memory is behind them: if a balloon takes them,
    /// nothing changes.
    spare: u64,
    free: VecDeque<u32>,
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
            free: VecDeque::new(),
            balloon: Vec::new(),
            hand: 0,
            device,
        }
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
        self.device += released.swapped;
        self.free.extend(released.frames);
        leaves
    }

    /// Free 4 KiB pages of the guest, those that its load never uses included.
    #[must_use]
    pub fn free_pages(&self, space: &Space) -> u64 {
        self.spare + self.free.len() as u64 * space.guest.pages_per_leaf()
    }

    /// Free pages of the swap device.
    #[must_use]
    pub fn free_swap_pages(&self) -> u64 {
        self.device
    }

    /// Brings a page in; returns the time that this takes, ps.
    fn bring_in(&mut self, space: &mut Space, costs: &Costs, page: u32) -> u64 {
        // The pages of a leaf are filled one by one: with zeros, or from the device.
        let mut ps = costs.guest_page_work * space.guest.pages_per_leaf();
        // Its place on the device serves for what is taken out for it; otherwise a full device would
        // stop the guest for ever.
        let swapped = space.guest.is_swapped(page);
        self.device += u64::from(swapped);
        if self.free.is_empty() {
            let taken = self.take_out(space, CLUSTER);
            ps += costs.guest_page_work * taken as u64;
        }
        let Some(frame) = self.free.pop_front() else {
            self.device -= u64::from(swapped);
            return ps;
        };
        if swapped {
            space.counts.major_faults += 1;
            ps += costs.major_fault;
        }
        space.guest.map(page, frame);
        ps
    }

    /// Takes up to so many pages out to the device, those not recently used first; returns how many.
    fn take_out(&mut self, space: &mut Space, wanted: usize) -> usize {
        let guest = &mut space.guest;
        let pages = low(guest.pages());
        let mut taken = 0;
        // Twice around: the first turn takes all second chances away.
        for _ in 0..2 * u64::from(pages) {
            if taken == wanted || self.device == 0 {
                break;
            }
            let page = self.hand;
            self.hand = if page + 1 == pages { 0 } else { page + 1 };
            if guest.frame(page).is_none() || guest.age(page) {
                continue;
            }
            if let Some(frame) = guest.swap_out(page) {
                self.free.push_back(frame);
                self.device -= 1;
                taken += 1;
            }
        }
        space.shootdowns += u64::from(taken > 0);
        taken
    }

    /// Sets the balloon's size. Frames that it takes lose their host memory.
    ///
    /// # Errors
    /// If the guest has no more to give; the balloon keeps what it got.
    pub fn balloon(&mut self, space: &mut Space, pages: u64) -> Result<(), OutOfMemory> {
        let pages = pages.saturating_sub(self.spare);
        while (self.balloon.len() as u64) > pages {
            self.free.extend(self.balloon.pop());
        }
        while (self.balloon.len() as u64) < pages {
            if self.free.is_empty() && self.take_out(space, CLUSTER) == 0 {
                return Err(OutOfMemory);
            }
            if let Some(frame) = self.free.pop_front() {
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
        4 * (self.free.capacity() + self.balloon.capacity())
    }
}
