//! Constant demand under `trade`: once it fits nothing is ordered any more, and nobody turns.

use super::{GIB, Host, MIB};

/// Checks that each tier of a VM went one way alone.
fn turns_nowhere(host: &Host, id: u32) {
    for tier in [0, 1] {
        let mut way = vec![host.guests[&id].first[tier]];
        let orders = host.orders();
        let own = orders.iter().filter(|(vm, _)| *vm == id);
        way.extend(own.filter_map(|(_, sizes)| sizes[tier]));
        let is_up = way.is_sorted();
        let is_down = way.is_sorted_by(|a, b| a >= b);
        assert!(is_up || is_down, "tier {tier} of VM {id} turns: {way:?}");
    }
}

#[test]
fn constant_faults_that_memory_ends_move_nobody_twice() {
    let first = [400 * MIB, 900 * MIB];
    for uses in [1400 * MIB, 1600 * MIB] {
        let mut host = Host::new(4, [2 * GIB, 4 * GIB], &[first], 256 * MIB);
        host.guest(1).uses = uses;
        (0..120).for_each(|_| host.second());
        let (orders, faults) = (host.orders().len(), host.guest(1).faults);
        assert!(orders > 0 && host.sizes(1).iter().sum::<u64>() >= uses);
        assert!(orders <= 24, "{orders} orders");
        (0..900).for_each(|_| host.second());
        assert_eq!(host.guest(1).faults, faults, "it does not fit");
        assert_eq!(host.orders().len(), orders, "{:?}", host.orders());
        turns_nowhere(&host, 1);
    }
}
