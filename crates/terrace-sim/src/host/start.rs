//! The initial locations of pages.

use serde::Deserialize;
use terrace_proto::PAGES_PER_HUGE;

use crate::base::number::low;
use crate::machine::TIERS;
use crate::machine::second_stage::SecondStage;
use crate::machine::tables::Guest;

/// The initial locations of a VM's pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Start {
    /// In address order, the fastest tier first.
    #[default]
    FirstTouch,
    /// In address order, the slowest tier first.
    Slow,
}

/// The way in which a VM's pages are dealt to the tiers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deal {
    /// One tier after another, in the order of [`Start`].
    InOrder(Start),
    /// Round the tiers in turn, in proportion to the units that fit.
    InTurn,
    /// All to the first tier.
    First,
    /// All to the last tier.
    Last,
}

/// The initial locations of a guest's page tables. Nothing moves them later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Tables {
    /// As the guest's first touch goes: each table just before the first page that it maps, within the VM's sizes.
    #[default]
    Along,
    /// In the tier that [`Start`] begins with, above the VM's sizes.
    First,
    /// In the last tier, above the VM's sizes.
    Slow,
}

/// The initial locations of a VM's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Initial {
    /// The locations of the load's pages.
    pub start: Start,
    /// The locations of the guest's page tables.
    pub tables: Tables,
}

/// Backs all units of a VM that its load uses. `fit` is the number of units that the VM has in each tier; the last tier takes the rest.
pub fn back(guest: &Guest, second: &mut SecondStage, deal: Deal, tables: Tables, fit: &[u64]) {
    let mut dealer = Dealer::new(deal, fit);
    if tables != Tables::Along {
        let tier = tier_of_tables(deal, tables, fit);
        (0..second.tables()).for_each(|unit| second.put(unit, Some(tier)));
    }
    for unit in second.first_data()..second.len() {
        let page = second.first_frame(unit).0 - u64::from(guest.first_data());
        if page >= guest.pages() {
            // Memory beyond the load: nothing touches it yet.
            break;
        }
        if tables == Tables::Along && page.is_multiple_of(PAGES_PER_HUGE) {
            back_tables(guest, second, &mut dealer, low(page));
        }
        // Free frames get their memory when they are used.
        if guest.frame(low(page)).is_some() {
            second.put(unit, Some(dealer.next()));
        }
    }
    if tables == Tables::Along {
        // Pages that are on the swap device were touched too.
        for block in 0..guest.pages().div_ceil(PAGES_PER_HUGE) {
            back_tables(guest, second, &mut dealer, low(block * PAGES_PER_HUGE));
        }
    }
}

/// Backs the page tables on the way to a page that nothing backs yet.
fn back_tables(guest: &Guest, second: &mut SecondStage, dealer: &mut Dealer, page: u32) {
    for frame in guest.tables_above(page) {
        let table = second.unit_of(frame);
        if second.tier(table).is_none() {
            second.put(table, Some(dealer.next()));
        }
    }
}

/// The last tier.
pub(crate) fn last(fit: &[u64]) -> u8 {
    u8::try_from(fit.len().clamp(1, TIERS) - 1).unwrap_or(0)
}

/// The tier of page tables that all lie together.
fn tier_of_tables(deal: Deal, tables: Tables, fit: &[u64]) -> u8 {
    match (deal, tables) {
        (Deal::First, _) => 0,
        (Deal::Last | Deal::InOrder(Start::Slow), _) | (_, Tables::Slow) => last(fit),
        (Deal::InOrder(Start::FirstTouch) | Deal::InTurn, _) => 0,
    }
}

/// Deals units to the tiers, one after another.
struct Dealer {
    deal: Deal,
    fit: Vec<u64>,
    dealt: [u64; TIERS],
}

impl Dealer {
    fn new(deal: Deal, fit: &[u64]) -> Self {
        Self {
            deal,
            fit: fit.to_vec(),
            dealt: [0; TIERS],
        }
    }

    /// The tier of the next unit.
    fn next(&mut self) -> u8 {
        let last = last(&self.fit);
        let has_room = |tier: &u8| self.dealt[usize::from(*tier)] < self.fit[usize::from(*tier)];
        let tier = match self.deal {
            Deal::First => 0,
            Deal::Last => last,
            // What fits nowhere goes to the last tier.
            Deal::InOrder(Start::FirstTouch) => (0..=last).find(has_room).unwrap_or(last),
            Deal::InOrder(Start::Slow) => (0..=last).rev().find(has_room).unwrap_or(last),
            Deal::InTurn => self.furthest_behind(),
        };
        self.dealt[usize::from(tier)] += 1;
        tier
    }

    /// The tier that is furthest behind its share of the units, of those with room.
    fn furthest_behind(&self) -> u8 {
        let all: u64 = self.fit.iter().sum::<u64>().max(1);
        let number: u64 = self.dealt.iter().sum::<u64>() + 1;
        let due = |tier: &u8| {
            let tier = usize::from(*tier);
            let wanted = u128::from(self.fit[tier]) * u128::from(number);
            i128::try_from(wanted).unwrap_or(i128::MAX)
                - i128::from(self.dealt[tier]) * i128::from(all)
        };
        let last = last(&self.fit);
        let tiers =
            (0..=last).filter(|tier| self.dealt[usize::from(*tier)] < self.fit[usize::from(*tier)]);
        tiers
            .max_by_key(|tier| (due(tier), u8::MAX - tier))
            .unwrap_or(last)
    }
}

#[cfg(test)]
mod tests {
    use terrace_proto::PageSize;

    use super::*;

    /// A guest of three blocks and its second stage.
    fn vm(unit: PageSize) -> (Guest, SecondStage) {
        let guest = Guest::new(3 * 512, PageSize::Base, 3 * 512).unwrap();
        let (tables, data) = (guest.table_frames(), guest.first_data());
        let second = SecondStage::new(guest.frames(), unit, tables, data);
        (guest, second)
    }

    /// The tiers of the load's first units.
    fn tiers(deal: Deal, fit: &[u64]) -> Vec<u8> {
        let (guest, mut second) = vm(PageSize::Base);
        back(&guest, &mut second, deal, Tables::First, fit);
        let first = second.first_data();
        (first..first + 9)
            .filter_map(|unit| second.tier(unit))
            .collect()
    }

    #[test]
    fn first_touch_fills_the_fastest_tier_in_address_order() {
        let found = tiers(Deal::InOrder(Start::FirstTouch), &[3, 5]);
        assert_eq!(found, [0, 0, 0, 1, 1, 1, 1, 1, 1]);
        let slow = tiers(Deal::InOrder(Start::Slow), &[3, 7]);
        assert_eq!(slow, [1, 1, 1, 1, 1, 1, 1, 0, 0]);
    }

    #[test]
    fn interleave_deals_in_proportion() {
        let found = tiers(Deal::InTurn, &[3, 6]);
        assert_eq!(found, [1, 0, 1, 1, 0, 1, 1, 0, 1]);
    }

    #[test]
    fn what_interleave_has_no_room_for_goes_to_the_last_tier() {
        let found = tiers(Deal::InTurn, &[2, 3]);
        assert_eq!(
            found.iter().filter(|tier| **tier == 0).count(),
            2,
            "{found:?}"
        );
    }

    #[test]
    fn tables_of_pages_on_the_swap_device_are_backed_too() {
        let guest = Guest::new(8 * 512, PageSize::Base, 512).unwrap();
        let (tables, data) = (guest.table_frames(), guest.first_data());
        let second = SecondStage::new(guest.frames(), PageSize::Base, tables, data);
        let mut second = second.counting_tables();
        let deal = Deal::InOrder(Start::FirstTouch);
        back(&guest, &mut second, deal, Tables::Along, &[600, 600]);
        assert!((1..tables).all(|frame| second.tier(frame).is_some()));
    }

    #[test]
    fn tables_lie_along_with_their_pages_and_within_the_sizes() {
        let (guest, second) = vm(PageSize::Base);
        let mut second = second.counting_tables();
        // Room for the first block, its leaf table and the three above it, and for half of the second block.
        let fit = [512 + 4 + 256, 4096];
        let deal = Deal::InOrder(Start::FirstTouch);
        back(&guest, &mut second, deal, Tables::Along, &fit);
        let tier = |block: u32| {
            let frame = guest.table_frame(crate::machine::tables::Level::Leaf, block * 512);
            second.tier(second.unit_of(frame))
        };
        assert_eq!([tier(0), tier(1), tier(2)], [Some(0), Some(0), Some(1)]);
        assert_eq!(second.held()[..2], [772, 3 * 512 + 6 - 772]);
    }

    #[test]
    fn tables_that_lie_together_are_not_counted() {
        for (tables, tier) in [(Tables::First, 0), (Tables::Slow, 1)] {
            let (guest, mut second) = vm(PageSize::Base);
            let deal = Deal::InOrder(Start::FirstTouch);
            back(&guest, &mut second, deal, tables, &[512, 1024]);
            assert!((0..second.tables()).all(|unit| second.tier(unit) == Some(tier)));
            assert_eq!(second.held()[..2], [512, 1024]);
        }
    }

    #[test]
    fn tables_of_huge_units_go_along_too() {
        let (guest, second) = vm(PageSize::Huge);
        let mut second = second.counting_tables();
        let deal = Deal::InOrder(Start::Slow);
        back(&guest, &mut second, deal, Tables::Along, &[1, 3]);
        assert_eq!(second.held()[..2], [1, 3]);
        assert_eq!(second.tier(0), Some(1));
    }
}
