//! The active and the inactive list of each tier, like the kernel's LRU lists.

use crate::mechanisms::lists::Lists;
use crate::mechanisms::{Context, Setup, Unit};

/// Kinds of lists, of which each tier has all.
const INACTIVE: u8 = 0;
const ACTIVE: u8 = 1;
const KINDS: u8 = 2;

/// Lists of pages, with the units on each.
#[derive(Debug)]
pub(super) struct Lru {
    tiers: u8,
    lists: Lists,
    /// Units on each list.
    units: Vec<u64>,
}

impl Lru {
    /// Lists that are all empty.
    pub(super) fn new(setup: &Setup) -> Self {
        let tiers = u8::try_from(setup.tiers).unwrap_or(u8::MAX / KINDS);
        Self {
            tiers,
            lists: Lists::new(tiers * KINDS, setup.units),
            units: vec![0; usize::from(tiers * KINDS)],
        }
    }

    pub(super) fn tiers(&self) -> u8 {
        self.tiers
    }

    /// Whether a page is on a list: a page that is migrated is on none.
    pub(super) fn has(&self, unit: Unit) -> bool {
        self.lists.list_of(unit).is_some()
    }

    /// Puts a page on a list of its tier, unless it is there already.
    pub(super) fn put(&mut self, context: &Context, unit: Unit, is_active: bool) {
        let kind = if is_active { ACTIVE } else { INACTIVE };
        let list = context.tier(unit).unwrap_or(0) * KINDS + kind;
        if self.lists.list_of(unit) != Some(list) {
            self.remove(context, unit);
            self.lists.push(list, unit);
            self.units[usize::from(list)] += context.units_of(unit);
        }
    }

    pub(super) fn remove(&mut self, context: &Context, unit: Unit) {
        if let Some(list) = self.lists.list_of(unit) {
            self.lists.remove(unit);
            self.units[usize::from(list)] -= context.units_of(unit);
        }
    }

    fn pop(&mut self, context: &Context, list: u8) -> Option<Unit> {
        let unit = self.lists.tail(list)?;
        self.remove(context, unit);
        Some(unit)
    }

    /// Takes off the page that has been on a tier's active list longest.
    pub(super) fn pop_active(&mut self, context: &Context, tier: u8) -> Option<Unit> {
        self.pop(context, tier * KINDS + ACTIVE)
    }

    /// Takes off the page that has been on fast memory's inactive list longest.
    pub(super) fn pop_victim(&mut self, context: &Context) -> Option<Unit> {
        self.pop(context, INACTIVE)
    }

    /// Number of pages on fast memory's inactive list.
    pub(super) fn victims(&self) -> u64 {
        self.lists.len(INACTIVE)
    }

    /// Number of units that are hot and not in fast memory.
    pub(super) fn waiting(&self) -> u64 {
        (1..self.tiers)
            .map(|tier| self.units[usize::from(tier * KINDS + ACTIVE)])
            .sum()
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.lists.heap_bytes()
    }
}
