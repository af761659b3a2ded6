//! Tests of pages that change while the host works on them.

use std::path::Path;

use terrace_core::policy::Move;
use terrace_proto::{
    Gfn, MovePlan, MoveStatus, PageMove, PlanId, Rearm, RequestId, ScanRequest, Space, TierId, VmId,
};

use crate::base::number::low;
use crate::base::side::Side;
use crate::host::guest_moves::Named;
use crate::host::migration::{Migration, MigrationMode, Wanted, Way};
use crate::host::moves::Moving;
use crate::host::scan::scan;
use crate::host::vm::Vm;
use crate::machine::TIERS;
use crate::machine::second_stage::bits;
use crate::machine::tier::Traffic;
use crate::scenario::Scenario;
use crate::simulation::{Options, Simulation};

fn simulation(policy: &str) -> Simulation {
    let text = format!(
        "[machine]\ntiers = [\"dram\", \"pmem\"]\nscale = 1\nvcpus_per_vm = 2\n\
         [[vm]]\nname = \"a\"\nfast = \"8MiB\"\nslow = \"8MiB\"\npolicy = {policy}\n\
         workload = {{ kind = \"zipf\", size = \"16MiB\", exponent = 1.0, ops = 10000 }}\n"
    );
    let scenario = Scenario::parse(&text, "test", Path::new("/s")).expect("valid");
    Simulation::new(&scenario, Options::default()).expect("it can be run")
}

#[test]
fn a_page_taken_by_a_balloon_in_mid_move_stays_absent() {
    for way in [Move::Linux, Move::WriteProtect, Move::PmlCopy] {
        let mut simulation = simulation("\"vtmm\"");
        let mut traffic = [Traffic::default(); TIERS];
        let mut free = [1000; TIERS];
        let mut memory = simulation.machine.memory(&mut traffic, &mut free);
        let vm = &mut simulation.vms[0];
        let gfn = Gfn(u64::from(vm.space.guest.first_data()));
        let to = TierId(1);
        let plan = MovePlan {
            id: PlanId(1),
            vm: vm.id,
            moves: vec![PageMove { gfn, to }],
        };
        let unit = low(gfn.0);
        assert_eq!(vm.space.second.tier(unit), Some(0));
        let mut moving = Moving::new(plan, vm, way, 512);
        // Enough for the shootdown, not for the copy.
        let begin = 2 * memory.costs.shootdown_send;
        assert!(!moving.work(vm, &mut memory, begin), "{way:?}");
        vm.space.second.put(unit, None);
        assert!(moving.work(vm, &mut memory, 1 << 40));
        assert_eq!(vm.space.second.get(unit), bits::ABSENT, "{way:?}");
        assert_eq!(*memory.free, [1000; TIERS]);
        let report = moving.report(1);
        assert_eq!(report.results[0].status, MoveStatus::Absent);
        assert_eq!((vm.account.promoted(), vm.account.demoted()), (0, 0));
    }
}

#[test]
fn a_log_that_nobody_reads_does_not_grow() {
    let request = ScanRequest {
        id: RequestId(1),
        space: Space::Guest(VmId(1)),
        rearm: Rearm::All,
        prune: false,
        discover: false,
    };
    for observe in ["guest-scan", "ept-scan"] {
        let policy = format!("{{ base = \"vtmm\", observe = \"{observe}\", move = \"pml-copy\" }}");
        let mut simulation = simulation(&policy);
        let vm = &mut simulation.vms[0];
        vm.space.pml.take_in(std::iter::repeat_n(7, 1 << 20));
        let before = vm.space.heap_bytes();
        scan(vm, &request, simulation.machine.costs());
        assert!(vm.space.heap_bytes() + (4 << 20) <= before, "{observe}");
    }
}

#[test]
fn pages_exchanged_without_free_memory_leave_none_free() {
    let mut simulation = simulation("\"first-touch\"");
    let mut traffic = [Traffic::default(); TIERS];
    let mut free = [0; TIERS];
    let mut memory = simulation.machine.memory(&mut traffic, &mut free);
    let vm = &mut simulation.vms[0];
    let (first, last) = (vm.space.second.first_data(), vm.space.second.len() - 1);
    let tiers = |vm: &Vm| [first, last].map(|unit| vm.space.second.tier(unit));
    assert_eq!(tiers(vm), [Some(0), Some(1)]);
    let wanted = [(first, TierId(1)), (last, TierId(0))].map(|(unit, to)| Wanted { unit, to });
    let way = Way {
        kind: MigrationMode::Exchange,
        side: Side::Host,
        batch: 2,
    };
    let mut migration = Migration::new(wanted.to_vec(), way);
    assert!(migration.work(vm, &mut memory, 1 << 40));
    assert_eq!(tiers(vm), [Some(1), Some(0)]);
    assert_eq!(*memory.free, [0; TIERS]);
}

/// A guest's plan: which frames go to which tier, and what the guest says of each.
fn carried_out(
    simulation: &mut Simulation,
    moves: &[(Gfn, u8)],
    free: &mut [u64; TIERS],
) -> Vec<MoveStatus> {
    let mut traffic = [Traffic::default(); TIERS];
    let mut memory = simulation.machine.memory(&mut traffic, free);
    let vm = &mut simulation.vms[0];
    let moves = moves.iter().map(|(gfn, to)| PageMove {
        gfn: *gfn,
        to: TierId(*to),
    });
    let mut named = Named::new(MovePlan {
        id: PlanId(1),
        vm: vm.id,
        moves: moves.collect(),
    });
    assert!(named.work(vm, &mut memory, 1 << 40));
    let report = named.report(vm, 1);
    report.results.iter().map(|result| result.status).collect()
}

/// The first and the last frame of the load's memory; they are in the first and in the last tier.
fn ends(simulation: &Simulation) -> [Gfn; 2] {
    let guest = &simulation.vms[0].space.guest;
    [u64::from(guest.first_data()), guest.frames() - 1].map(Gfn)
}

const BY_GUEST: &str = "{ base = \"vtmm\", move = \"guest\" }";

#[test]
fn vcpus_pay_for_what_their_guest_moves() {
    let mut simulation = simulation(BY_GUEST);
    let clocks = |simulation: &Simulation| -> u64 {
        let vcpus = simulation.vms[0].vcpus.iter();
        vcpus.map(|vcpu| vcpu.progress().clock()).sum()
    };
    let ([first, _], before) = (ends(&simulation), clocks(&simulation));
    let mut free = [1000; TIERS];
    let said = carried_out(&mut simulation, &[(first, 1)], &mut free);
    assert_eq!(said, [MoveStatus::Moved]);
    assert_eq!(free[..2], [1001, 999]);
    let vm = &simulation.vms[0];
    assert_eq!(vm.space.second.tier(low(first.0)), Some(1));
    let spent = vm.account.spent.migrate;
    assert!(spent > simulation.machine.costs().move_page);
    assert!(clocks(&simulation) >= before + spent - 1);
    assert_eq!(simulation.vms[0].account.demoted(), 1);
}

#[test]
fn full_nodes_of_a_guest_exchange_their_pages() {
    let mut simulation = simulation(BY_GUEST);
    let [first, last] = ends(&simulation);
    let held = *simulation.vms[0].space.second.held();
    let mut free = [0; TIERS];
    let said = carried_out(&mut simulation, &[(first, 1), (last, 0)], &mut free);
    assert_eq!(said, [MoveStatus::Moved; 2]);
    let second = &simulation.vms[0].space.second;
    let tiers = [first, last].map(|frame| second.tier(low(frame.0)));
    assert_eq!(tiers, [Some(1), Some(0)]);
    assert_eq!((*second.held(), free), (held, [0; TIERS]));
}

#[test]
fn a_guest_refuses_frames_that_hold_none_of_its_load() {
    let mut simulation = simulation(BY_GUEST);
    let [first, last] = ends(&simulation);
    let outside = Gfn(last.0 + 1000);
    let named = [(Gfn(1), 1), (first, 1), (first, 1), (last, 1), (outside, 0)];
    let mut free = [1000; TIERS];
    let said = carried_out(&mut simulation, &named, &mut free);
    let moved = said.iter().filter(|status| **status == MoveStatus::Moved);
    assert_eq!(moved.count(), 1, "{said:?}");
    assert_eq!(said[0], MoveStatus::Busy);
    assert_eq!(said[3], MoveStatus::AlreadyThere);
    assert_eq!(said[4], MoveStatus::Busy);
}
