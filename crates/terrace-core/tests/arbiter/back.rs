//! Memory that did harm is taken back of those who got it, though they use it.

use super::alone::Alone;
use super::{GIB, MIB};

/// Two VMs of 2 GiB, of which the first one got memory of the second one and uses all of it. The second one loses
/// time from then on. `swaps`: the first one swaps on.
fn after_harm(swaps: bool, seconds: u64) -> (Alone, u64) {
    let mut host = Alone::dp(&[2 * GIB, 2 * GIB]);
    host.frees(2, GIB);
    host.seconds(90);
    // The reserve has some of it already, and that did no harm.
    let had = host.vm(2).size;
    host.swaps(1, 15);
    let [taker, giver] = [1, 2].map(|id| host.vm(id).size);
    assert!(
        taker > 2500 * MIB && giver < 1500 * MIB,
        "{:?}",
        host.orders
    );
    host.frees(2, 0);
    let orders = host.orders.len();
    for _ in 0..seconds {
        host.vm(2).need.lost_ns += 200_000_000;
        host.vm(2).need.major_faults += 2000;
        let more = if swaps { MIB } else { 0 };
        host.vm(1).need.used_swap_bytes += more;
        host.second();
        let [taker, giver] = [1, 2].map(|id| host.vm(id).size);
        assert!(taker >= 2 * GIB, "what it brought was taken");
        assert!(giver <= had, "it got more than it had");
    }
    host.orders.drain(..orders);
    (host, had)
}

#[test]
fn what_did_harm_is_taken_back_of_who_uses_it() {
    for swaps in [false, true] {
        let (mut host, had) = after_harm(swaps, 150);
        let giver = host.vm(2).size;
        assert!(giver >= had / 100 * 98, "{swaps}: {:?}", host.orders);
        let said = |vm: u32, what: &str| {
            let mut said = host.said.iter();
            said.any(|(id, said)| *id == vm && said.contains(what))
        };
        assert!(said(2, "is given back"), "{:?}", host.said);
        assert!(said(1, "lose more without it"), "{:?}", host.said);
    }
}

#[test]
fn what_is_taken_back_goes_in_the_allowed_pace() {
    let (host, _) = after_harm(false, 150);
    let down = host.orders.iter().filter(|(_, vm, _)| *vm == 1);
    let down: Vec<(u64, u64)> = down.map(|(at, _, size)| (*at, *size)).collect();
    assert!(down.len() > 4, "{down:?}");
    for two in down.windows(2) {
        let [(before, had), (at, has)] = two else {
            unreachable!();
        };
        assert!(at - before >= 5, "more than once a cycle: {down:?}");
        assert!(had - has <= had / 20 + 2 * MIB, "{down:?}");
    }
}

#[test]
fn what_was_taken_back_is_not_tried_again_for_minutes() {
    let (mut host, _) = after_harm(true, 150);
    let orders = host.orders.len();
    // It says again that much is free, while the other one swaps.
    host.frees(2, GIB);
    host.swaps(1, 120);
    let taken = host.orders[orders..].iter().find(|(_, vm, _)| *vm == 2);
    assert_eq!(taken, None, "{:?}", host.orders);
}
