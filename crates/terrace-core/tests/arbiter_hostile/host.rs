//! Pressure on the host from outside of its VMs.

use terrace_core::arbiter::ArbiterConfig;
use terrace_proto::{Event, HostMemory};

use crate::world::{GIB, MIB, World};

const FLOOR: u64 = 512 * MIB;

/// Two VMs of 2 GiB.
fn two() -> World {
    World::of(ArbiterConfig::default(), &[2 * GIB, 2 * GIB], FLOOR)
}

fn short(available_bytes: u64) -> Event {
    Event::HostMemory(HostMemory {
        total_bytes: 64 * GIB,
        available_bytes,
        waits_centi: None,
    })
}

/// Lets seconds pass in which the host has so much available.
fn seconds(world: &mut World, seconds: u32, available_bytes: u64) {
    for _ in 0..seconds {
        world.hear(short(available_bytes));
        world.second();
    }
}

#[test]
fn outside_pressure_takes_what_is_free_and_nothing_below_floors() {
    let mut world = two();
    for _ in 0..60 {
        // One uses less than its floor, the other one nearly all.
        for (id, used) in [(1, 100 * MIB), (2, 2 * GIB - 200 * MIB)] {
            let free = world.vm(id).size().saturating_sub(used);
            world.vm(id).says(free, 0);
        }
        seconds(&mut world, 1, 0);
    }
    let (idle, busy) = (world.vm(1).size(), world.vm(2).size());
    assert!(
        (FLOOR..FLOOR + 64 * MIB).contains(&idle),
        "{} MiB",
        idle / MIB
    );
    assert!(
        (2 * GIB - 200 * MIB..2 * GIB).contains(&busy),
        "{} MiB",
        busy / MIB
    );
    assert!(world.orders.iter().all(|order| order.to < order.has));
    assert!(
        world
            .said(1)
            .iter()
            .any(|said| said.contains("short of memory"))
    );
    assert!(
        world
            .said(2)
            .iter()
            .any(|said| said.contains("the host lacks"))
    );
}

#[test]
fn only_what_the_host_lacks_is_taken_and_not_given_back_at_once() {
    let mut world = two();
    world.vm(1).says(GIB, 0);
    // 5 % of 64 GiB are 3,276.8 MiB; what VMs give is available then.
    let reserve = 64 * GIB / 20;
    for _ in 0..120 {
        let given = 4 * GIB - world.held();
        seconds(&mut world, 1, reserve - 300 * MIB + given);
    }
    let given = 4 * GIB - world.held();
    assert!(
        (300 * MIB..700 * MIB).contains(&given),
        "{} MiB",
        given / MIB
    );
    assert!(world.orders.len() <= 4, "{:?}", world.orders);
    seconds(&mut world, 30, 2 * reserve);
    let said = world.said(1);
    assert!(said.iter().any(|said| said.contains("enough memory again")));
}

#[test]
fn while_the_host_is_short_nobody_grows_or_swaps_for_it() {
    let mut world = two();
    world.vm(2).says(GIB, 0);
    for second in 1..30 {
        world.vm(1).says(GIB, second * 64 * MIB);
        seconds(&mut world, 1, 0);
    }
    assert_eq!(world.vm(1).size(), 2 * GIB);
    assert!(world.vm(2).size() < 2 * GIB);
    // As soon as the host has enough, it gets what it lacks.
    world.vm(2).says(0, 0);
    for second in 30..60 {
        world.vm(1).says(0, second * 64 * MIB);
        seconds(&mut world, 1, 32 * GIB);
    }
    assert!(world.vm(1).size() > 2 * GIB);
}

#[test]
fn tasks_that_wait_are_pressure_too() {
    let mut world = two();
    world.vm(1).says(GIB, 0);
    for _ in 0..7 {
        world.hear(Event::HostMemory(HostMemory {
            total_bytes: 8 * GIB,
            available_bytes: 4 * GIB,
            waits_centi: Some(1_000),
        }));
        world.second();
    }
    let given = 4 * GIB - world.held();
    assert!(
        (40 * MIB..200 * MIB).contains(&given),
        "{} MiB",
        given / MIB
    );
}

#[test]
fn a_host_that_nobody_reads_any_more_is_short_of_nothing() {
    let mut world = two();
    world.vm(2).says(GIB, 0);
    seconds(&mut world, 1, 0);
    let has = world.vm(1).size();
    for second in 1..40 {
        world.vm(1).says(0, second * 64 * MIB);
        world.second();
    }
    assert!(world.vm(1).size() > has, "it was not relieved");
}

#[test]
fn figures_beyond_all_numbers_are_survived() {
    let mut world = two();
    world.vm(1).says(GIB, 0);
    for total_bytes in [0, 1, u64::MAX] {
        for available_bytes in [0, u64::MAX] {
            for waits_centi in [None, Some(0), Some(u32::MAX)] {
                world.hear(Event::HostMemory(HostMemory {
                    total_bytes,
                    available_bytes,
                    waits_centi,
                }));
                world.second();
            }
        }
    }
    assert!(world.vm(1).size() >= FLOOR && world.vm(2).size() == 2 * GIB);
}
