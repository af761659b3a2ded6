//! Any sequence of lies and failures: what must hold after every event, and that who obeys pays.

use std::collections::BTreeSet;

use proptest::prelude::*;
use terrace_proto::{Event, MemoryNeed, MemoryTiers, ProviderId};

use super::{Follows, GIB, Host, MIB};

/// A second of a hostile or unlucky VM.
#[derive(Clone, Debug)]
enum Turn {
    Uses(u32, u64),
    Hot(u32, u64),
    Follows(u32, Follows),
    Hangs(u32),
    Lies(u32, u64, u64),
    /// A guest says that so much is free and in swap, and that it faulted so often.
    Says(u32, [u64; 4]),
    Nothing(u8),
}

fn turns() -> impl Strategy<Value = Turn> {
    let id = 1..4_u32;
    let follows = prop_oneof![
        Just(Follows::All),
        Just(Follows::All),
        Just(Follows::Half),
        Just(Follows::Growth),
        Just(Follows::NeverPays),
        Just(Follows::Nothing)
    ];
    let number = || prop_oneof![0..4 * GIB, 0..1_000_000_u64, any::<u64>()];
    let says = (id.clone(), [number(), number(), number(), number()]);
    prop_oneof![
        (id.clone(), 0..4 * GIB).prop_map(|(id, bytes)| Turn::Uses(id, bytes)),
        (id.clone(), 0..2 * GIB).prop_map(|(id, bytes)| Turn::Hot(id, bytes)),
        (id.clone(), follows).prop_map(|(id, how)| Turn::Follows(id, how)),
        id.clone().prop_map(Turn::Hangs),
        (id, any::<u64>(), any::<u64>()).prop_map(|(id, a, b)| Turn::Lies(id, a, b)),
        says.prop_map(|(id, of)| Turn::Says(id, of)),
        (1..20_u8).prop_map(Turn::Nothing),
        (1..20_u8).prop_map(Turn::Nothing),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn whatever_guests_do_floors_sums_reserve_and_price_hold(
        sizes in prop::collection::vec([128..1024_u64, 256..1024_u64], 3),
        ratio in 1..6_u64,
        turns in prop::collection::vec(turns(), 1..40),
    ) {
        let sizes: Vec<[u64; 2]> = sizes.iter().map(|s| s.map(|mib| mib * MIB)).collect();
        let mut host = Host::new(ratio, [4 * GIB, 6 * GIB], &sizes, 256 * MIB);
        // A look that hung once is never answered.
        let mut silent = BTreeSet::new();
        for turn in turns {
            match turn {
                Turn::Uses(id, bytes) => host.guest(id).uses = bytes,
                Turn::Hot(id, bytes) => host.guest(id).hot = bytes,
                Turn::Follows(id, how) => host.guest(id).follows = how,
                Turn::Hangs(id) => {
                    host.providers.vms.get_mut(&id).unwrap().hangs = true;
                    silent.insert(id);
                }
                Turn::Lies(id, a, b) => {
                    host.providers.hear(Event::MemoryTiers(MemoryTiers {
                        provider: ProviderId(id),
                        free_bytes: [a, b, a, b],
                        waiting_hot_bytes: a,
                    }));
                }
                Turn::Says(id, [free_bytes, used_swap_bytes, major_faults, lost_ns]) => {
                    host.providers.hear(Event::MemoryNeed(MemoryNeed {
                        provider: ProviderId(id),
                        free_bytes,
                        used_swap_bytes,
                        major_faults,
                        lost_ns,
                        huge_percent: 0,
                    }));
                }
                Turn::Nothing(seconds) => (0..seconds).for_each(|_| host.second()),
            }
            host.second();
        }
        // Who obeys pays.
        for id in 1..4 {
            host.guest(id).follows = Follows::All;
            (host.guest(id).uses, host.guest(id).hot) = (0, 0);
        }
        (0..120).for_each(|_| host.second());
        for id in (1..4).filter(|id| !silent.contains(id)) {
            let first = host.guest(id).first;
            prop_assert!(host.cost(host.sizes(id)) <= host.cost(first), "{:?} of {first:?}", host.sizes(id));
        }
    }
}
