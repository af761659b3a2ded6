//! Guests that try to stop trades: none stops a VM from trading, none is for nothing, and none is repeated without end.

use super::{Follows, GIB, Host, MIB};

/// A host of one VM of 512 MiB and 3 GiB, most of it unused, whose hot pages wait.
fn seller(floor: u64) -> Host {
    let mut host = Host::new(4, [2 * GIB, 8 * GIB], &[[512 * MIB, 3 * GIB]], floor);
    (host.guest(1).uses, host.guest(1).hot) = (GIB, 2 * GIB);
    host
}

#[test]
fn a_vm_at_its_floor_that_cannot_sell_still_buys() {
    for floor in [3584 * MIB, 3 * GIB] {
        let mut host = seller(floor);
        (0..30).for_each(|_| host.second());
        (host.guest(1).uses, host.guest(1).hot) = (4 * GIB, 0);
        (0..600).for_each(|_| host.second());
        let [fast, slow] = host.sizes(1);
        assert!(fast + slow > 3600 * MIB, "{floor}: {:?}", host.sizes(1));
    }
}

#[test]
fn a_sale_that_swapping_stops_does_not_stop_a_purchase() {
    let mut host = seller(256 * MIB);
    host.guest(1).uses = 2 * GIB;
    for second in 0..7 {
        // Idle pages are swapped out, and nobody misses them.
        host.guest(1).swap = Some(second * 4 * MIB);
        host.second();
    }
    host.guest(1).swap = None;
    (host.guest(1).uses, host.guest(1).hot) = (4 * GIB, 0);
    (0..600).for_each(|_| host.second());
    assert!(host.sizes(1)[1] > 3 * GIB, "{:?}", host.sizes(1));
}

#[test]
fn one_that_faults_with_much_free_memory_buys_nothing() {
    for faults in [101, 2000] {
        let mut host = Host::new(4, [4 * GIB, 8 * GIB], &[[2 * GIB, 2 * GIB]], 256 * MIB);
        host.guest(1).faults_per_s = Some(faults);
        host.guest(1).free = Some(2 * GIB);
        (0..600).for_each(|_| host.second());
        assert_eq!(host.orders(), [], "{faults}");
    }
}

#[test]
fn a_handful_of_faults_sells_no_fast_memory() {
    let first = [2 * GIB, GIB];
    let mut host = Host::new(4, [4 * GIB, 16 * GIB], &[first], 256 * MIB);
    host.guest(1).uses = GIB;
    for second in 0..600_u64 {
        let faults = if second % 5 == 2 { second / 5 % 3 } else { 0 };
        host.guest(1).faults_per_s = Some(faults);
        host.second();
    }
    assert_eq!(host.sizes(1), first);
}

#[test]
fn what_a_vm_buys_and_does_not_take_is_for_others_again() {
    let (a, b) = ([2 * GIB, 2 * GIB], [GIB, GIB]);
    let mut host = Host::new(4, [4 * GIB, 4 * GIB], &[a, b], 256 * MIB);
    host.guest(1).follows = Follows::Nothing;
    host.guest(1).faults_per_s = Some(50_000);
    (0..60).for_each(|_| host.second());
    assert!(!host.orders().is_empty());
    host.guest(1).faults_per_s = Some(0);
    (0..120).for_each(|_| host.second());
    assert_eq!(host.tiers(1)[1].1, a[1]);
}

#[test]
fn two_that_sell_do_not_pay_for_the_same_fast_memory() {
    let first = [512 * MIB, 3 * GIB];
    let capacity = [GIB + 300 * MIB, 8 * GIB];
    let mut host = Host::new(4, capacity, &[first, first], 256 * MIB);
    (host.guest(1).uses, host.guest(1).hot) = (0, 2 * GIB);
    (host.guest(2).uses, host.guest(2).hot) = (GIB, 700 * MIB);
    (0..600).for_each(|_| host.second());
    for id in 1..=2 {
        let sizes = host.sizes(id);
        assert!(
            host.cost(sizes) + 64 * MIB >= host.cost(first),
            "{id}: {sizes:?}"
        );
    }
}

#[test]
fn one_that_stays_a_block_short_trades_again() {
    let mut host = seller(256 * MIB);
    host.guest(1).follows = Follows::ShortOfFast;
    (host.guest(1).uses, host.guest(1).hot) = (2 * GIB, 700 * MIB);
    (0..120).for_each(|_| host.second());
    let sold = host.sizes(1);
    assert!(sold[1] < 3 * GIB, "{sold:?}");
    (host.guest(1).uses, host.guest(1).hot) = (3 * GIB + 512 * MIB, 0);
    (0..600).for_each(|_| host.second());
    assert!(host.sizes(1)[1] > sold[1], "{:?}", host.sizes(1));
}

#[test]
fn blocks_of_odd_sizes_end_no_trade() {
    for blocks in [[3, 2], [7, 5], [2, 3]] {
        let mut host = seller(256 * MIB);
        let vm = host.providers.vms.get_mut(&1).unwrap();
        let tiers = &mut vm.status.as_mut().unwrap().tiers;
        for (tier, block) in tiers.iter_mut().zip(blocks) {
            tier.block_bytes = block * MIB;
        }
        (host.guest(1).uses, host.guest(1).hot) = (4 * GIB, 0);
        (0..60).for_each(|_| host.second());
        let before = host.orders().len();
        (0..600).for_each(|_| host.second());
        assert!(host.orders().len() > before, "{blocks:?}: {before}");
    }
}

/// Of a VM half of which is free whatever it faults.
#[test]
fn bursts_of_faults_do_not_buy_and_sell_without_end() {
    for (period, burst) in [(30, 5), (40, 10), (60, 20), (120, 20)] {
        let mut host = Host::new(4, [4 * GIB, 8 * GIB], &[[2 * GIB, 2 * GIB]], 256 * MIB);
        (host.guest(1).uses, host.guest(1).hot) = (2 * GIB, 4 * GIB);
        host.guest(1).free = Some(2 * GIB);
        for second in 0..600 {
            let faults = if second % period < burst { 2000 } else { 0 };
            host.guest(1).faults_per_s = Some(faults);
            host.second();
        }
        let orders = host.orders().len();
        assert!(orders <= 20, "{period} {burst}: {orders}");
    }
}

#[test]
fn a_block_that_is_too_large_to_pay_with_buys_nothing() {
    let first = [512 * MIB, 1536 * MIB];
    let mut host = Host::new(4, [16 * GIB, 16 * GIB], &[first], 256 * MIB);
    let vm = host.providers.vms.get_mut(&1).unwrap();
    for tier in &mut vm.status.as_mut().unwrap().tiers {
        // More than a twentieth of its memory, which it may be asked for at once.
        tier.block_bytes = 128 * MIB;
    }
    // Until it is read again.
    (0..60).for_each(|_| host.second());
    host.guest(1).uses = 3 * GIB;
    let mut above = 0;
    for _ in 0..600 {
        host.second();
        above += u64::from(host.cost(host.sizes(1)) > host.cost(first));
    }
    assert!(above <= 60, "above its price for {above} of 600 s");
}

/// Guests whose faults no memory ends: they read files, or fault on purpose.
#[test]
fn what_did_not_help_is_not_bought_for_minutes() {
    let constant: fn(u64) -> u64 = |_| 101;
    let bursts: fn(u64) -> u64 = |second| if second % 30 < 5 { 2000 } else { 0 };
    for faults in [constant, |_| 2000, |second| 101 + second % 7, bursts] {
        let mut host = Host::new(4, [2 * GIB, 8 * GIB], &[[GIB, 2 * GIB]], 256 * MIB);
        for second in 0..600 {
            host.guest(1).faults_per_s = Some(faults(second));
            host.guest(1).free = (faults(second) == 0).then_some(0);
            host.second();
        }
        // Two series of a tenth of its memory, in steps of at least a fiftieth: bought and paid for.
        assert!(!host.orders().is_empty());
        assert!(host.orders().len() <= 24, "{:?}", host.orders());
    }
}

#[test]
fn one_with_far_more_in_swap_than_it_has_still_buys() {
    let mut host = Host::new(4, [4 * GIB, 16 * GIB], &[[2 * GIB, 2 * GIB]], 256 * MIB);
    host.guest(1).uses = 16 * GIB;
    (0..600).for_each(|_| host.second());
    // All that its node has.
    assert_eq!(host.sizes(1)[1], 4 * GIB);
}

/// Seconds until a VM of 2 GiB has all that it uses; it faults so often while it lacks some.
fn has_all_after(uses: u64, wait: u64, swap: Option<u64>, faults: impl Fn(u64) -> u64) -> u64 {
    let mut host = Host::new(4, [8 * GIB, 32 * GIB], &[[GIB, GIB]], 256 * MIB);
    (host.guest(1).uses, host.guest(1).swap) = (uses, swap);
    for second in 0..7200 {
        host.guest(1).follows = if second < wait {
            Follows::Nothing
        } else {
            Follows::All
        };
        let lacks = uses.saturating_sub(host.sizes(1).iter().sum());
        if lacks == 0 {
            return second;
        }
        host.guest(1).faults_per_s = Some(faults(lacks));
        host.second();
    }
    7200
}

/// A pause of purchases made 18, 33 and 63 s minutes and hours: it is one program that goes around in its memory.
#[test]
fn one_that_faults_as_often_until_all_fits_is_helped_soon() {
    for (uses, most) in [(2600, 120), (3000, 300), (4000, 900)] {
        let after = has_all_after(uses * MIB, 0, None, |_| 10_000);
        assert!(after <= most, "{uses} MiB after {after} s");
    }
}

/// Memory that it does not take is no purchase in vain.
#[test]
fn one_that_took_nothing_for_a_minute_is_helped_once_it_does() {
    let after = has_all_after(2600 * MIB, 60, None, |lacks| lacks / 65_536);
    assert!(after <= 60 + 60, "{after} s");
}

/// The faults of one fall as they should, but its used swap is not known (it swapped before it was found: a page) or is none (mapped files).
#[test]
fn one_whose_used_swap_is_unknown_buys_all_that_it_can_pay() {
    for swap in [None, Some(0), Some(4096)] {
        let mut host = Host::new(4, [8 * GIB, 32 * GIB], &[[512 * MIB, 512 * MIB]], 256 * MIB);
        (host.guest(1).uses, host.guest(1).swap) = (4 * GIB, swap);
        for _ in 0..300 {
            let lacks = 4 * GIB - host.sizes(1).iter().sum::<u64>();
            host.guest(1).faults_per_s = Some(lacks / 65_536);
            host.second();
        }
        assert!(
            host.sizes(1)[1] >= 1900 * MIB,
            "{swap:?}: {:?}",
            host.sizes(1)
        );
    }
}
