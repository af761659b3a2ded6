//! Tests of pages that change while the host works on them.

use std::path::Path;

use terrace_core::policy::Move;
use terrace_proto::{
    Gfn, MovePlan, MoveStatus, PageMove, PlanId, Rearm, RequestId, ScanRequest, Space, TierId, VmId,
};

use crate::base::number::low;
use crate::base::side::Side;
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
