//! The initial locations of pages.

use serde::Deserialize;

use crate::machine::TIERS;
use crate::machine::second_stage::SecondStage;

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

/// Backs all units of a VM. `fit` is the number of units that the VM has in each tier; the last tier takes the rest.
pub fn back(second: &mut SecondStage, deal: Deal, fit: &[u64]) {
    match deal {
        Deal::First => all(second, 0),
        Deal::Last => all(second, last(fit)),
        Deal::InTurn => in_turn(second, fit),
        Deal::InOrder(start) => in_order(second, start, fit),
    }
}

/// The last tier.
pub(crate) fn last(fit: &[u64]) -> u8 {
    u8::try_from(fit.len().clamp(1, TIERS) - 1).unwrap_or(0)
}

fn all(second: &mut SecondStage, tier: u8) {
    fill(second, 0..second.tables(), tier);
    fill(second, second.first_data()..second.len(), tier);
}

/// The tier of the guest's page tables: they are made first, so they lie with the first pages.
fn tiers_of_tables(start: Start, fit: &[u64]) -> u8 {
    match start {
        Start::FirstTouch => 0,
        Start::Slow => last(fit),
    }
}

fn fill(second: &mut SecondStage, units: std::ops::Range<u32>, tier: u8) {
    for unit in units {
        second.put(unit, Some(tier));
    }
}

/// Backs units in address order, the fastest tier first or the slowest first.
fn in_order(second: &mut SecondStage, start: Start, fit: &[u64]) {
    let mut tiers: Vec<(u8, u64)> = (0..).zip(fit.iter().copied()).collect();
    if start == Start::Slow {
        tiers.reverse();
    }
    let mut left = tiers.into_iter().peekable();
    let tables = tiers_of_tables(start, fit);
    fill(second, 0..second.tables(), tables);
    for unit in second.first_data()..second.len() {
        while left.peek().is_some_and(|(_, units)| *units == 0) {
            left.next();
        }
        let tier = match left.peek_mut() {
            Some((tier, units)) => {
                *units -= 1;
                *tier
            }
            // The last unit may be cut short.
            None => last(fit),
        };
        second.put(unit, Some(tier));
    }
}

/// Backs units round the tiers in proportion to the units that fit: each goes to the tier that is furthest behind its
/// share.
fn in_turn(second: &mut SecondStage, fit: &[u64]) {
    let all: u64 = fit.iter().sum::<u64>().max(1);
    let mut given = [0_u64; TIERS];
    let first = second.first_data();
    fill(second, 0..second.tables(), 0);
    for unit in first..second.len() {
        let due = |tier: usize| {
            let wanted = u128::from(fit[tier]) * u128::from(unit - first + 1);
            i128::try_from(wanted).unwrap_or(i128::MAX) - i128::from(given[tier]) * i128::from(all)
        };
        let best = (0..fit.len()).max_by_key(|tier| (due(*tier), usize::MAX - tier));
        let tier = best.unwrap_or(0);
        given[tier] += 1;
        second.put(unit, u8::try_from(tier).ok());
    }
}

#[cfg(test)]
mod tests {
    use terrace_proto::PageSize;

    use super::*;

    fn tiers(deal: Deal, fit: &[u64]) -> Vec<u8> {
        let mut second = SecondStage::new(9, PageSize::Base, 0, 0);
        back(&mut second, deal, fit);
        (0..9).filter_map(|unit| second.tier(unit)).collect()
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
}
