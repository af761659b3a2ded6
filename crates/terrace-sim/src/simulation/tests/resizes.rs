//! Sums that hold in every quantum of a guest that swaps while a device sizes it.

use std::fmt::Write as _;
use std::path::Path;

use rand_xoshiro::rand_core::Rng;

use crate::base::random::{Purpose, stream};
use crate::machine::TIERS;
use crate::number::low;
use crate::scenario::Scenario;
use crate::simulation::{Options, Simulation};

/// Pages of the guest's swap device: no load has more.
const SWAP: u64 = 48 * 256;

/// Two VMs that a device sizes at random times to random sizes.
fn scenario(seed: u64, by: &str, tables: &str) -> Scenario {
    let mut random = stream(seed, by, 0, Purpose::Layout);
    let mut below = |most: u64| random.next_u64() % most;
    let mut text = format!(
        "seed = {seed}\n[machine]\ntiers = [\"dram\", \"pmem\"]\nsizes = [\"64MiB\", \"64MiB\"]\nscale = 1\n\
         vcpus_per_vm = 2\n"
    );
    for name in ["a", "b"] {
        let mut resizes = String::new();
        for step in 1..=12 {
            let at = step * 10 + below(10);
            // Blocks of virtio-mem.
            let (fast, slow) = (2 * below(20), 2 * below(20));
            let _ = write!(
                resizes,
                "{{ at = \"{at}ms\", fast = \"{fast}MiB\", slow = \"{slow}MiB\" }}, "
            );
        }
        let size = 16 + below(32);
        let fresh = below(2) == 1;
        let program = |ms: u64| {
            format!(
                "{{ kind = \"hotset\", size = \"{size}MiB\", hot = 0.5, hot_access = 0.5, write = 0.5, duration = \"{ms}ms\" }}"
            )
        };
        let load = format!(
            "kind = \"phases\", fresh = {fresh}, duration = \"150ms\", of = [{}, {}]",
            program(80),
            program(200)
        );
        let _ = write!(
            text,
            "[[vm]]\nname = \"{name}\"\nfast = \"16MiB\"\nslow = \"16MiB\"\ntables = \"{tables}\"\n\
             policy = \"first-touch\"\nprovision = {{ by = \"{by}\", nodes = [\"40MiB\", \"40MiB\"] }}\n\
             swap = \"{}MiB\"\nresize = [{resizes}]\nworkload = {{ {load} }}\n",
            SWAP / 256
        );
    }
    Scenario::parse(&text, "resizes", Path::new(".")).unwrap_or_else(|error| panic!("{error}"))
}

/// Checks a VM's sums.
fn check(simulation: &Simulation, vm: usize) {
    let vm = &simulation.vms[vm];
    let space = &vm.space;
    let device = vm.provision.as_ref().expect("a device");
    let reclaim = vm.answers.reclaim.as_ref().expect("a swap device");
    let (mut mapped, mut swapped) = (0, 0);
    for page in 0..low(space.guest.pages()) {
        if let Some(frame) = space.guest.frame(page) {
            let unit = space.second.unit_of(frame);
            assert!(space.second.tier(unit).is_some(), "a mapped page is lost");
            mapped += 1;
        }
        swapped += u64::from(space.guest.is_swapped(page));
    }
    let data = space.guest.frames() - u64::from(space.guest.first_data());
    let free = reclaim.free_frames();
    assert_eq!(mapped + free, data, "each frame is mapped or free");
    assert_eq!(swapped + reclaim.free_swap_pages(), SWAP);
    let mut backed = [0; TIERS];
    for unit in space.second.first_counted()..space.second.len() {
        if let Some(tier) = space.second.tier(unit) {
            backed[usize::from(tier)] += 1;
        }
    }
    assert_eq!(backed, *space.second.held());
    let tables = match space.second.first_counted() {
        0 => u64::from(space.guest.table_frames()) - 1,
        _ => 0,
    };
    let idle: u64 = space.quota.idle().iter().sum();
    let held: u64 = backed.iter().sum();
    assert_eq!(held, mapped + idle + tables, "nothing else is backed");
    for (tier, held) in backed.iter().enumerate() {
        assert!(
            *held <= device.given()[tier],
            "{backed:?} {:?}",
            device.given()
        );
        assert!(device.given()[tier] <= device.nodes()[tier]);
    }
}

#[test]
fn frames_swap_and_balloon_add_up_after_each_quantum() {
    let (mut swaps, mut quanta) = (0, 0);
    for seed in 1..=6 {
        for (by, tables) in [
            ("balloon", "first"),
            ("hyperflex", "along"),
            ("virtio-mem", "first"),
            ("virtio-mem", "along"),
        ] {
            let scenario = scenario(seed, by, tables);
            let mut simulation = Simulation::new(&scenario, Options::default()).unwrap();
            // Quanta are shorter.
            let mut until = 0;
            while simulation.advance(until) {
                (0..2).for_each(|vm| check(&simulation, vm));
                until += 500_000;
                quanta += 1;
            }
            swaps += simulation.vms[0].space.counts.swapped_in;
            let free = simulation.machine.free(&simulation.vms);
            let held: u64 = simulation.vms.iter().map(|vm| vm.held_pages()[0]).sum();
            assert_eq!(free[0] + held, simulation.machine.capacity()[0]);
        }
    }
    assert!(swaps > 1000 && quanta > 5000, "{swaps} {quanta}");
}
