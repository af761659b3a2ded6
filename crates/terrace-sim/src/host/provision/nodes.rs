//! The parts of a guest's nodes that a device holds.

use std::ops::Range;

use crate::host::device::Device;
use crate::machine::TIERS;

/// A guest's nodes, one for each tier: their full sizes, their target sizes, and the pages that the device took.
/// Pages are of 4 KiB, as simulated.
#[derive(Debug)]
pub(super) struct Nodes {
    by: Device,
    tiers: usize,
    /// Pages that are taken or given as one.
    leaf: u64,
    whole: [u64; TIERS],
    wanted: [u64; TIERS],
    taken: [u64; TIERS],
    /// The balloon's pages in the order in which it took them: runs of tier and number of pages.
    runs: Vec<(u8, u64)>,
}

impl Nodes {
    /// So many nodes, which have `booted` of their `whole` pages.
    pub(super) fn new(by: Device, tiers: usize, whole: [u64; TIERS], booted: [u64; TIERS]) -> Self {
        Self {
            by,
            tiers,
            leaf: 1,
            whole,
            wanted: booted,
            taken: std::array::from_fn(|tier| whole[tier] - booted[tier]),
            runs: Vec::new(),
        }
    }

    /// The same nodes of a guest whose leaves have so many pages.
    pub(super) fn of_leaves(self, leaf: u64) -> Self {
        Self { leaf, ..self }
    }

    /// Pages that are taken or given as one.
    pub(super) fn leaf(&self) -> u64 {
        self.leaf
    }

    /// The device.
    pub(super) fn by(&self) -> Device {
        self.by
    }

    /// The number of nodes.
    pub(super) fn count(&self) -> usize {
        self.tiers
    }

    /// Pages that each node can have.
    pub(super) fn whole(&self) -> [u64; TIERS] {
        self.whole
    }

    /// Target pages of each node.
    pub(super) fn wanted(&self) -> [u64; TIERS] {
        self.wanted
    }

    /// Sets the target pages of each node.
    pub(super) fn want(&mut self, pages: [u64; TIERS]) {
        self.wanted = pages;
    }

    /// Sizes of the nodes whose sum is `sum`, as near to `pages` as can be: what is missing or too much is of the last
    /// tiers.
    pub(super) fn parts(&self, mut pages: [u64; TIERS], sum: u64) -> [u64; TIERS] {
        for tier in (0..self.tiers).rev() {
            let all: u64 = pages.iter().sum();
            let room = self.whole[tier].saturating_sub(pages[tier]);
            pages[tier] += sum.saturating_sub(all).min(room);
            pages[tier] -= all.saturating_sub(sum).min(pages[tier]);
        }
        pages
    }

    /// Pages that the guest has of each node.
    pub(super) fn given(&self) -> [u64; TIERS] {
        std::array::from_fn(|tier| self.whole[tier] - self.taken[tier])
    }

    /// Pages that the guest may use of each tier: 0 of tiers that it has no node of.
    pub(super) fn limits(&self) -> [u64; TIERS] {
        let given = self.given();
        std::array::from_fn(|tier| if tier < self.tiers { given[tier] } else { 0 })
    }

    /// Pages of a tier that the device is to hold.
    fn target(&self, tier: usize) -> u64 {
        self.whole[tier] - self.wanted[tier]
    }

    /// Pages of a tier that the device must still take; negative: pages to give back. For the balloon, the sum over
    /// all tiers.
    pub(super) fn lacks(&self, tier: usize) -> i128 {
        let leaf = i128::from(self.leaf);
        let less = |target: u64, taken: u64| (i128::from(target) - i128::from(taken)) / leaf * leaf;
        if self.by == Device::Balloon {
            let target = (0..self.tiers).map(|tier| self.target(tier)).sum();
            return less(target, self.taken.iter().sum());
        }
        less(self.target(tier), self.taken[tier])
    }

    /// The tiers that an allocation for a tier goes through.
    pub(super) fn reach(&self, tier: usize) -> Range<usize> {
        match self.by {
            Device::Balloon => 0..self.tiers,
            Device::Hyperflex | Device::VirtioMem => tier..tier + 1,
        }
    }

    /// Queues that the device works on: one for each tier, if it knows tiers.
    pub(super) fn queues(&self) -> usize {
        match self.by {
            Device::Balloon => 1,
            Device::Hyperflex | Device::VirtioMem => self.tiers,
        }
    }

    /// Takes a leaf of a tier into the balloon.
    pub(super) fn take(&mut self, tier: usize) {
        let leaf = self.leaf;
        self.taken[tier] += leaf;
        let of = u8::try_from(tier).unwrap_or(u8::MAX);
        if self.by == Device::Balloon {
            match self.runs.last_mut() {
                Some((last, pages)) if *last == of => *pages += leaf,
                _ => self.runs.push((of, leaf)),
            }
        }
    }

    /// Gives a leaf back: one of a tier, or the one that the balloon took last.
    pub(super) fn give(&mut self, tier: usize) {
        let mut tier = tier;
        if let Some((last, pages)) = self.runs.last_mut() {
            tier = usize::from(*last);
            *pages -= self.leaf;
            if *pages == 0 {
                self.runs.pop();
            }
        }
        self.taken[tier] -= self.leaf;
    }

    /// Unplugs a block of so many pages of a tier.
    pub(super) fn unplug(&mut self, tier: usize, pages: u64) {
        self.taken[tier] += pages;
    }

    /// Plugs a block of so many pages of a tier.
    pub(super) fn plug(&mut self, tier: usize, pages: u64) {
        self.taken[tier] -= pages;
    }
}
