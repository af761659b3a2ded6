use proptest::prelude::*;

use super::*;

const ROOMY: Sizes = sizes(10_000, 10_000);

const fn sizes(fast_bytes: u64, slow_bytes: u64) -> Sizes {
    Sizes {
        fast_bytes,
        slow_bytes,
    }
}

/// 4 to 1, from 100 and 400 bytes on.
fn trade() -> Trade {
    let terms = Terms {
        ratio: 4000,
        page_bytes: 4,
        granule_bytes: 4,
        floors: sizes(20, 100),
        ceilings: sizes(300, 700),
    };
    Trade::new(terms, sizes(100, 400))
}

fn faults(major_faults: u64) -> TradeWindow {
    TradeWindow {
        least_bytes: 0,
        major_faults,
        unused_slow_bytes: 0,
        waiting_hot_bytes: 0,
    }
}

fn waiting(unused_slow_bytes: u64, waiting_hot_bytes: u64) -> TradeWindow {
    TradeWindow {
        least_bytes: 0,
        major_faults: 0,
        unused_slow_bytes,
        waiting_hot_bytes,
    }
}

#[test]
fn faults_buy_slow_memory_for_fast_in_this_order() {
    let mut trade = trade();
    let first = trade.end_window(&faults(20), sizes(100, 400), ROOMY);
    assert_eq!(first, Some(Step::DeflateSlow(480)), "1 * 20 * 4 bytes");
    assert_eq!(trade.end_step(sizes(100, 480)), Some(Step::MigrateDown(20)));
    let last = trade.end_step(sizes(100, 480));
    assert_eq!(last, Some(Step::InflateFast(80)));
    assert_eq!(trade.end_step(sizes(80, 480)), None);
    assert_eq!(trade.cost(sizes(80, 480)), trade.first_cost());
}

#[test]
fn unused_slow_memory_buys_fast_where_hot_pages_wait() {
    let mut trade = trade();
    let have = sizes(100, 400);
    assert_eq!(trade.end_window(&waiting(0, 50), have, ROOMY), None);
    assert_eq!(trade.end_window(&waiting(90, 0), have, ROOMY), None);
    let first = trade.end_window(&waiting(90, 50), have, ROOMY);
    assert_eq!(
        first,
        Some(Step::InflateSlow(320)),
        "80 for 20, all that is unused"
    );
    assert_eq!(
        trade.end_step(sizes(100, 320)),
        Some(Step::DeflateFast(120))
    );
    assert_eq!(trade.end_step(sizes(120, 320)), Some(Step::MigrateUp(20)));
    assert_eq!(trade.end_step(sizes(120, 320)), None);
}

#[test]
fn base_doubles_while_faults_rise_and_falls_by_one() {
    let mut trade = trade();
    let none = sizes(0, 0);
    let bases: Vec<u64> = [5, 6, 7, 8, 8, 7, 6, 6, 0]
        .into_iter()
        .map(|count| {
            trade.end_window(&faults(count), sizes(100, 400), none);
            trade.base()
        })
        .collect();
    assert_eq!(bases, [1, 2, 4, 8, 8, 7, 6, 6, 5]);
    assert!(trade.is_double_sided(), "the host has nothing to trade");
    trade.end_window(&faults(1), sizes(100, 400), ROOMY);
    assert!(!trade.is_double_sided());
}

#[test]
fn a_trade_is_limited_by_floors_ceilings_and_the_host() {
    let first = |seen: TradeWindow, have, room| trade().end_window(&seen, have, room);
    let have = sizes(100, 400);
    let step = first(faults(1 << 60), have, sizes(0, 90));
    assert_eq!(step, Some(Step::DeflateSlow(488)), "room for 90, by fours");
    let step = first(faults(1 << 60), have, ROOMY);
    assert_eq!(step, Some(Step::DeflateSlow(700)), "the ceiling");
    let step = first(faults(1 << 60), sizes(40, 640), ROOMY);
    assert_eq!(step, Some(Step::DeflateSlow(700)));
    let step = first(faults(1 << 60), sizes(20, 640), ROOMY);
    assert_eq!(step, Some(Step::DeflateSlow(700)), "paid for before");
    assert_eq!(first(faults(1), have, sizes(99, 3)), None);
    assert_eq!(first(waiting(1000, 1000), have, sizes(3, 99)), None);
    let step = first(waiting(1000, 1000), have, ROOMY);
    assert_eq!(
        step,
        Some(Step::InflateSlow(112)),
        "72 more: 288 of 300 less"
    );
}

#[test]
fn a_guest_that_does_not_pay_gives_back_what_it_bought() {
    let mut trade = trade();
    trade.end_window(&faults(20), sizes(100, 400), ROOMY);
    // The driver gave 40 of 80 bytes: half is paid.
    assert_eq!(trade.end_step(sizes(100, 440)), Some(Step::MigrateDown(12)));
    let pays = trade.end_step(sizes(100, 440));
    assert_eq!(pays, Some(Step::InflateFast(88)));
    let back = Some(Step::InflateSlow(400));
    assert_eq!(trade.end_step(sizes(100, 440)), back);
    assert_eq!(trade.end_step(sizes(100, 440)), back, "nothing else before");
    assert_eq!(trade.end_window(&faults(99), sizes(100, 440), ROOMY), back);
    assert_eq!(trade.end_step(sizes(100, 400)), None);
}

#[test]
fn a_step_that_changes_nothing_ends_the_trade() {
    let mut trade = trade();
    let have = sizes(100, 400);
    assert!(trade.end_window(&faults(20), have, ROOMY).is_some());
    assert_eq!(trade.end_step(have), None);
    assert!(trade.end_window(&waiting(90, 50), have, ROOMY).is_some());
    assert_eq!(trade.end_step(have), None);
    assert_eq!(trade.end_step(have), None, "no step is open");
}

/// A guest that carries out so many thousandths of a step.
fn carry_out(step: Step, have: Sizes, thousandths: u64) -> Sizes {
    let part = |from: u64, to: u64| {
        let way = from.abs_diff(to) * thousandths / 1000;
        if to > from { from + way } else { from - way }
    };
    let (fast, slow) = (have.fast_bytes, have.slow_bytes);
    match step {
        Step::DeflateSlow(to) | Step::InflateSlow(to) => sizes(fast, part(slow, to)),
        Step::DeflateFast(to) | Step::InflateFast(to) => sizes(part(fast, to), slow),
        Step::MigrateDown(_) | Step::MigrateUp(_) => have,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    /// Whatever happens and however little of a step is done: floors and ceilings hold, the host is never asked for more
    /// than its room, and between trades the price is no higher than at first.
    #[test]
    fn price_floors_and_ceilings_hold(
        ratio in 1..9000_u32,
        granule_bytes in 1..9_u64,
        first in (50..500_u64, 50..500_u64),
        windows in prop::collection::vec(
            ((0..30_u64, 0..300_u64, 0..300_u64), (0..200_u64, 0..200_u64),
             prop::collection::vec(prop::sample::select(vec![0, 300, 900, 1000, 1000]), 9)),
            1..20,
        ),
    ) {
        let first = sizes(first.0, first.1);
        let terms = Terms {
            ratio,
            page_bytes: 4,
            granule_bytes,
            floors: sizes(40, 45),
            ceilings: sizes(600, 700),
        };
        let mut trade = Trade::new(terms, first);
        let mut have = first;
        for ((major_faults, unused, waiting), room, done) in windows {
            let room = sizes(room.0, room.1);
            let seen = TradeWindow {
                least_bytes: 0,
                major_faults,
                unused_slow_bytes: unused,
                waiting_hot_bytes: waiting,
            };
            let (new, began) = (trade.step().is_none(), have);
            let mut step = trade.end_window(&seen, have, room);
            for part in done {
                let Some(open) = step else { break };
                have = carry_out(open, have, part);
                prop_assert!((40..=600).contains(&have.fast_bytes), "{have:?} after {open:?}");
                prop_assert!((45..=700).contains(&have.slow_bytes), "{have:?} after {open:?}");
                if new {
                    prop_assert!(have.fast_bytes <= began.fast_bytes + room.fast_bytes);
                    prop_assert!(have.slow_bytes <= began.slow_bytes + room.slow_bytes);
                }
                step = trade.end_step(have);
            }
            prop_assert_eq!(step, trade.step());
            prop_assert!(step.is_some() || trade.cost(have) <= trade.first_cost());
        }
        // A guest that does as it is told is back at its price after a few steps.
        for _ in 0..6 {
            let Some(open) = trade.step() else { break };
            have = carry_out(open, have, 1000);
            trade.end_step(have);
        }
        prop_assert_eq!(trade.step(), None);
        prop_assert!(trade.cost(have) <= trade.first_cost());
    }
}
