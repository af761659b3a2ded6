//! News of live VMs: statistics, agents, page walks, standings and the host, with any numbers and at any times.

use proptest::prelude::*;
use terrace_core::arbiter::{ArbiterConfig, Rule};
use terrace_core::session::replay::replay;
use terrace_proto::{
    AgentMemory, Command, Event, GuestMemory, GuestWalks, HostMemory, MemoryBalance,
    MemoryStanding, ProviderId,
};
use terrace_testkit::log::written;

use crate::any::number;
use crate::world::{GIB, MIB, Machine, SECOND, World};

const FLOOR: u64 = 256 * MIB;
const CEILING: u64 = 3 * GIB;

/// Something that is heard.
#[derive(Clone, Debug)]
enum Heard {
    Statistics(u32, [Option<u64>; 9]),
    /// A guest that has so much free, swapped so much out, and read so much.
    Plausible(u32, [u64; 3]),
    Agent(u32, [Option<u64>; 3]),
    Walks(u32, u64),
    Standing(u32, [Option<bool>; 2], Option<u64>),
    Host(u64, u64, Option<u32>),
    Balance(u32, bool, bool),
    Pause(bool),
    Passes(u64),
    /// The clock jumps back.
    Back(u64),
}

fn of_guests() -> impl Strategy<Value = Heard> {
    let (id, said) = (|| 1..4_u32, || prop::option::weighted(0.9, number()));
    let age = prop_oneof![6 => Just(Some(0)), 1 => said()];
    let plausible = prop::array::uniform3(0..2 * GIB);
    prop_oneof![
        (id(), age, prop::collection::vec(said(), 8)).prop_map(|(id, age, of)| {
            let mut all = [age; 9];
            all[1..].copy_from_slice(&of);
            Heard::Statistics(id, all)
        }),
        (id(), plausible).prop_map(|(id, of)| Heard::Plausible(id, of)),
        (id(), prop::array::uniform3(said())).prop_map(|(id, of)| Heard::Agent(id, of)),
        (id(), number()).prop_map(|(id, walks)| Heard::Walks(id, walks)),
    ]
}

fn of_hosts() -> impl Strategy<Value = Heard> {
    let id = || 1..4_u32;
    let known = || prop::array::uniform2(prop::option::of(prop::bool::weighted(0.2)));
    prop_oneof![
        (id(), known(), prop::option::of(number()))
            .prop_map(|(id, is, up)| Heard::Standing(id, is, up)),
        (number(), number(), any::<Option<u32>>())
            .prop_map(|(total, has, waits)| Heard::Host(total, has, waits)),
        (id(), any::<bool>(), any::<bool>()).prop_map(|(id, on, of)| Heard::Balance(id, on, of)),
        any::<bool>().prop_map(Heard::Pause),
        (0..30 * SECOND).prop_map(Heard::Back),
    ]
}

fn heard() -> impl Strategy<Value = Heard> {
    prop_oneof![
        6 => of_guests().boxed(),
        2 => of_hosts().boxed(),
        6 => prop_oneof![Just(2 * SECOND), 0..40 * SECOND, 0..SECOND].prop_map(Heard::Passes).boxed(),
    ]
}

fn statistics(id: u32, of: [Option<u64>; 9]) -> Event {
    let [
        age,
        free,
        available,
        cache,
        faults,
        inward,
        outward,
        waited,
        read,
    ] = of;
    Event::GuestMemory(Box::new(GuestMemory {
        provider: ProviderId(id),
        age_ms: age,
        free_bytes: free,
        available_bytes: available,
        cache_bytes: cache,
        total_bytes: available,
        major_faults: faults,
        swapped_in_bytes: inward,
        swapped_out_bytes: outward,
        waited_ns: waited,
        disk_read_bytes: read,
    }))
}

fn event(heard: Heard) -> Option<Event> {
    let provider = ProviderId;
    Some(match heard {
        Heard::Statistics(id, of) => statistics(id, of),
        Heard::Plausible(id, [free, swapped, read]) => {
            let [free, swapped, read] = [free, swapped, read].map(Some);
            let (none, age) = (Some(0), Some(0));
            statistics(id, [age, free, free, free, none, none, swapped, None, read])
        }
        Heard::Agent(id, [used, free, waited]) => Event::AgentMemory(AgentMemory {
            provider: provider(id),
            used_swap_bytes: used,
            free_swap_bytes: free,
            waited_ns: waited,
        }),
        Heard::Walks(id, walks) => Event::GuestWalks(GuestWalks {
            provider: provider(id),
            walks,
        }),
        Heard::Standing(id, [is_paused, is_migrating], up_ms) => {
            Event::MemoryStanding(MemoryStanding {
                provider: provider(id),
                has_floor: true,
                is_paused,
                is_migrating,
                is_hugetlb: false,
                up_ms,
            })
        }
        Heard::Host(total_bytes, available_bytes, waits_centi) => Event::HostMemory(HostMemory {
            total_bytes,
            available_bytes,
            waits_centi,
        }),
        Heard::Balance(id, is_on, is_pause) => Event::MemoryBalance(MemoryBalance {
            provider: provider(id),
            is_on,
            is_pause,
        }),
        Heard::Pause(true) => Event::Command(Command::Pause(None)),
        Heard::Pause(false) => Event::Command(Command::Resume(None)),
        Heard::Passes(_) | Heard::Back(_) => return None,
    })
}

fn run(config: ArbiterConfig, heard: Vec<Heard>) {
    let mut world = World::new(config);
    for id in 1..4 {
        let mut vm = Machine::new(id, GIB + u64::from(id) * 100 * MIB, 4 * GIB);
        (vm.floor, vm.ceiling) = (FLOOR, CEILING);
        world.arrive(id, vm, 1000);
    }
    let all = world.held();
    let mut clock_fell = false;
    for heard in heard {
        match heard {
            Heard::Passes(ns) => world.pass(ns),
            Heard::Back(ns) => {
                world.now = world.now.saturating_sub(ns);
                clock_fell = true;
            }
            heard => world.hear(event(heard).unwrap()),
        }
        assert!(world.peak <= all, "{} of {all}", world.peak);
        for order in world.orders.drain(..) {
            assert!(order.to >= FLOOR && order.to <= CEILING, "{order:?}");
        }
    }
    if !clock_fell {
        let replayed = replay(written(world.session.log()).as_slice()).unwrap();
        assert_eq!(replayed.unrecorded_actions, 0, "{replayed:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn whatever_is_heard_of_live_vms_is_survived_within_bounds(
        heard in prop::collection::vec(heard(), 1..120),
        rule in prop_oneof![Just(Rule::Dp), Just(Rule::Fair)],
        lend_again_ms in prop_oneof![Just(0), Just(600_000)],
    ) {
        let config = ArbiterConfig {
            rule,
            lend_again_ms,
            live: true,
            ..ArbiterConfig::default()
        };
        run(config, heard);
    }
}
