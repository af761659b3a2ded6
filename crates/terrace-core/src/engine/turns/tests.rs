use proptest::prelude::*;

use super::*;

const MIB: u64 = 1 << 20;
/// In which 4 MiB of the rate come.
const STEP: u64 = 62_500_000;
const SECONDS: u64 = 60;

/// VMs that always want to move, each with its weight and the size of its plans, under 64 MiB/s; what each
/// has moved after so many seconds.
fn moved(vms: &[(u32, u64)], seconds: u64) -> Vec<u64> {
    let mut budget = MoveBudget::new(TokenBucket::new(64 * MIB, 64 * MIB), true);
    let mut sums = vec![0; vms.len()];
    let end = Tick(seconds * 1_000_000_000);
    let mut now = Tick(0);
    while now < end {
        budget.refill(now);
        let mut next = end;
        loop {
            let before = budget.spent;
            // As the engine does: who waits first, then the others.
            let all = (0_u32..).take(vms.len()).map(VmId);
            let turns = budget.turns();
            let others = all.filter(|vm| !turns.contains(vm));
            let order: Vec<VmId> = turns.iter().copied().chain(others).collect();
            for vm in order {
                let at = vm.0 as usize;
                let (weight, plan) = vms[at];
                loop {
                    match budget.ask(vm, weight, plan) {
                        Ok(()) => sums[at] += budget.spend(vm, plan).bytes,
                        Err(at) => break next = next.min(at),
                    }
                }
            }
            if budget.spent == before {
                break;
            }
            next = end;
        }
        assert!(next > now, "nobody may move, and nobody may ever");
        now = next;
    }
    sums
}

#[test]
fn the_rate_goes_by_weight_whatever_the_size_of_plans() {
    // The first second's burst goes to who came first.
    let equal = moved(&[(1000, 4 * MIB), (1000, 4 * MIB)], 101);
    assert!(equal[1].abs_diff(3232 * MIB) <= 4 * MIB, "{equal:?}");
    let three = moved(&[(3000, 4 * MIB), (1000, 4 * MIB)], 101);
    assert!(three[0].abs_diff(3 * three[1]) <= 80 * MIB, "{three:?}");
    let mixed = moved(&[(1000, 64 * MIB), (1000, MIB)], 101);
    assert!(mixed[0].abs_diff(mixed[1]) <= 128 * MIB, "{mixed:?}");
}

#[test]
fn alone_a_vm_has_all_of_it() {
    assert_eq!(moved(&[(1, 4 * MIB)], 10), [(64 + 10 * 64 - 4) * MIB]);
}

#[test]
fn who_was_idle_gets_its_part_at_once_and_has_saved_up_nothing() {
    let (a, b) = (VmId(1), VmId(2));
    let mut budget = MoveBudget::new(TokenBucket::new(64 * MIB, 4 * MIB), true);
    let spend = |budget: &mut MoveBudget, vm, now| {
        budget.refill(Tick(now));
        budget
            .ask(vm, 1000, 4 * MIB)
            .map(|()| budget.spend(vm, 4 * MIB).held_up)
    };
    for step in 0..100 {
        assert_eq!(spend(&mut budget, a, step * STEP), Ok(0));
    }
    let wants_both = |budget: &mut MoveBudget, step: u64| {
        let turns = budget.turns();
        let order = if turns.first() == Some(&b) {
            [b, a]
        } else {
            [a, b]
        };
        order.map(|vm| (vm, spend(budget, vm, step * STEP).is_ok()))
    };
    let mut got = [0; 2];
    for step in 100..200 {
        for (vm, ok) in wants_both(&mut budget, step) {
            got[usize::from(vm == b)] += u64::from(ok);
        }
    }
    assert_eq!(got.iter().sum::<u64>(), 100, "no part of the rate is lost");
    assert!(got[0].abs_diff(got[1]) <= 2, "{got:?}");
}

#[test]
fn who_does_not_wait_any_more_holds_up_nobody() {
    let (a, b) = (VmId(1), VmId(2));
    let mut budget = MoveBudget::new(TokenBucket::new(MIB, MIB), true);
    assert!(budget.ask(a, 1, MIB).is_ok());
    budget.spend(a, MIB);
    assert_eq!(budget.ask(b, 1, MIB), Err(Tick(1_000_000_000)));
    budget.refill(Tick(1_000_000_000));
    assert!(budget.ask(a, 1, MIB).is_err(), "it is the other's turn");
    budget.only_waits(|vm| vm == a);
    assert!(budget.ask(a, 1, MIB).is_ok());
    assert_eq!(budget.spend(a, MIB).held_up, 1);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Whatever plans the first VM makes: each other VM that always wants to move gets its part by weight, less
    /// one plan of its own, one of each other, and what is not spent yet.
    #[test]
    fn no_vm_eats_anothers_part_of_the_move_budget(
        first in (1_u32..5000, 1_u64..64),
        others in prop::collection::vec((1_u32..5000, 1_u64..64), 1..4),
    ) {
        let mut vms = vec![(first.0, first.1 * MIB)];
        vms.extend(others.iter().map(|(weight, plan)| (*weight, plan * MIB)));
        let got = moved(&vms, SECONDS);
        let weights: u64 = vms.iter().map(|v| u64::from(v.0)).sum();
        let plans: u64 = vms.iter().map(|v| v.1).sum();
        for ((weight, plan), got) in vms.iter().zip(&got).skip(1) {
            let part = SECONDS * 64 * MIB * u64::from(*weight) / weights;
            prop_assert!(*got + plans + plan + 64 * MIB >= part, "{got} of {part}: {vms:?}");
        }
    }
}
