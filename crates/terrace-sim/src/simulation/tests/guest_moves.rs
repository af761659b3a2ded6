//! Tests of guests that move what lies in the frames which are named to them.

use std::path::Path;

use terrace_proto::{Gfn, PageMove, TierId, VmId};

use crate::base::number::low;
use crate::host::guest_moves::Batch;
use crate::machine::TIERS;
use crate::machine::tier::Traffic;
use crate::scenario::Scenario;
use crate::simulation::{Options, Simulation};

/// A VM of 8 MiB of fast memory and so many KiB of slow memory, with a load of 16 MiB.
fn simulation(slow: u64) -> Simulation {
    let text = format!(
        "[machine]\ntiers = [\"dram\", \"pmem\"]\nscale = 1\nvcpus_per_vm = 2\n\
         [[vm]]\nname = \"a\"\nfast = \"8MiB\"\nslow = \"{slow}KiB\"\n\
         policy = {{ base = \"vtmm\", move = \"guest\" }}\n\
         workload = {{ kind = \"zipf\", size = \"16MiB\", exponent = 1.0, ops = 10000 }}\n"
    );
    start(&text)
}

fn start(text: &str) -> Simulation {
    let scenario = Scenario::parse(text, "test", Path::new("/s"));
    let scenario = scenario.unwrap_or_else(|error| panic!("{error}"));
    Simulation::new(&scenario, Options::default()).expect("it can be run")
}

/// Lets the guest move what lies in frames; returns how many it moved.
fn carried_out(simulation: &mut Simulation, moves: &[(Gfn, u8)], free: &mut [u64; TIERS]) -> u64 {
    let mut traffic = [Traffic::default(); TIERS];
    let mut memory = simulation.machine.memory(&mut traffic, free);
    let vm = &mut simulation.vms[0];
    let moves = moves.iter().map(|(gfn, to)| PageMove {
        gfn: *gfn,
        to: TierId(*to),
    });
    let mut batch = Batch::new(&moves.collect::<Vec<_>>(), vm);
    assert!(batch.work(vm, &mut memory, 1 << 40));
    batch.moved()
}

/// The frames of the load's first and last page; they are in the first and in the last tier.
fn ends(simulation: &Simulation) -> [Gfn; 2] {
    let guest = &simulation.vms[0].space.guest;
    let frame = |page: u64| Gfn(u64::from(guest.frame(low(page)).expect("it is mapped")));
    [frame(0), frame(guest.pages() - 1)]
}

fn tier(simulation: &Simulation, frame: Gfn) -> Option<u8> {
    simulation.vms[0].space.second.tier(low(frame.0))
}

#[test]
fn vcpus_pay_for_what_their_guest_moves() {
    let mut simulation = simulation(16 << 10);
    let clocks = |simulation: &Simulation| -> u64 {
        let vcpus = simulation.vms[0].vcpus.iter();
        vcpus.map(|vcpu| vcpu.progress().clock()).sum()
    };
    let ([first, _], before) = (ends(&simulation), clocks(&simulation));
    let exits = simulation.vms[0].space.counts.flush_exits;
    assert_eq!(
        carried_out(&mut simulation, &[(first, 1)], &mut [1000; TIERS]),
        1
    );
    let vm = &simulation.vms[0];
    let spent = vm.account.spent.migrate;
    assert!(spent > simulation.machine.costs().move_page);
    assert!(clocks(&simulation) >= before + spent - 1);
    assert_eq!(vm.account.demoted(), 1);
    assert_eq!(
        vm.space.counts.flush_exits, exits,
        "the host flushes nothing"
    );
}

#[test]
fn a_page_that_moves_gets_another_frame() {
    let mut simulation = simulation(16 << 10);
    let ([first, _], mut free) = (ends(&simulation), [1000; TIERS]);
    let (used, held) = (
        simulation.vms[0].pages_in_use(),
        simulation.vms[0].held_pages(),
    );
    carried_out(&mut simulation, &[(first, 1)], &mut free);
    let [now, _] = ends(&simulation);
    assert_ne!(now, first);
    assert_eq!(
        [first, now].map(|frame| tier(&simulation, frame)),
        [Some(0), Some(1)]
    );
    // The frame that it left is free, and the host's memory stays behind it.
    let vm = &simulation.vms[0];
    assert_eq!(vm.pages_in_use()[..2], [used[0] - 1, used[1] + 1]);
    assert_eq!(vm.held_pages()[..2], [held[0], held[1] + 1]);
    assert_eq!(free[..2], [1000, 999]);
    // It is the first that the fast node has, once that has more than its kernel leaves.
    let others: Vec<(Gfn, u8)> = (1..300).map(|at| (Gfn(first.0 + at), 1)).collect();
    carried_out(&mut simulation, &others, &mut free);
    let held = simulation.vms[0].held_pages();
    carried_out(&mut simulation, &[(now, 0)], &mut free);
    assert_eq!(ends(&simulation)[0], first);
    assert_eq!(simulation.vms[0].held_pages(), held);
}

#[test]
fn full_nodes_of_a_guest_exchange_their_frames() {
    let mut simulation = simulation((8 << 10) + 64);
    let [first, last] = ends(&simulation);
    let held = simulation.vms[0].held_pages();
    let mut free = [0; TIERS];
    let named = [(first, 1), (last, 0)];
    assert_eq!(carried_out(&mut simulation, &named, &mut free), 2);
    assert_eq!(ends(&simulation), [last, first]);
    assert_eq!(
        [first, last].map(|frame| tier(&simulation, frame)),
        [Some(0), Some(1)]
    );
    assert_eq!((simulation.vms[0].held_pages(), free), (held, [0; TIERS]));
}

#[test]
fn a_guest_leaves_frames_that_hold_none_of_its_load() {
    let mut simulation = simulation(16 << 10);
    let [first, last] = ends(&simulation);
    let (free, outside) = (Gfn(last.0 + 1), Gfn(last.0 + (1 << 20)));
    let named = [
        (Gfn(1), 1),
        (first, 1),
        (first, 1),
        (last, 1),
        (free, 0),
        (outside, 0),
    ];
    assert_eq!(carried_out(&mut simulation, &named, &mut [1000; TIERS]), 1);
    assert_eq!(ends(&simulation)[1], last);
}

/// A VM whose hot pages begin on slow memory.
const HOT: &str = "[machine]\ntiers = [\"dram\", \"pmem\"]\nscale = 16\nvcpus_per_vm = 2\ncache = \"none\"\n\
    [[vm]]\nname = \"a\"\nfast = \"48MiB\"\nslow = \"128MiB\"\nstart = \"slow\"\n\
    policy = { base = \"vtmm\", move = \"guest\" }\n\
    workload = { kind = \"hotset\", size = \"64MiB\", hot = 0.25, hot_access = 0.95, compute_ns = 2000, duration = \"200s\" }\n";

#[test]
fn a_moved_page_has_a_frame_without_history() {
    let mut simulation = start(HOT);
    let frames = |simulation: &Simulation| -> Vec<Option<u32>> {
        let guest = &simulation.vms[0].space.guest;
        (0..low(guest.pages()))
            .map(|page| guest.frame(page))
            .collect()
    };
    let before = frames(&simulation);
    let mut until = 0;
    while simulation.vms[0].account.promoted() == 0 {
        until += 50_000_000;
        assert!(simulation.advance(until), "nothing was promoted");
    }
    let explain = |frame: Option<u32>| {
        let gfn = Gfn(u64::from(frame.expect("it is mapped")));
        let said = simulation
            .engine()
            .explain_page(VmId(1), gfn, simulation.now());
        said.expect("RAM of the VM")
    };
    let (mut moved, mut stayed) = (0, 0);
    for (old, new) in before.into_iter().zip(frames(&simulation)) {
        if old == new {
            stayed += u64::from(explain(new).reads > 0);
            continue;
        }
        for frame in [old, new] {
            let said = explain(frame);
            assert!(
                said.in_flight || (said.reads, said.degree) == (0, 0),
                "{said:?}"
            );
        }
        moved += 1;
    }
    assert!(moved > 0 && stayed > 0, "{moved} moved, {stayed} stayed");
}
