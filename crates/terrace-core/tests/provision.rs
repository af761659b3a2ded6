//! Sizes of VMs: what is ordered, refused, taken back, and replayed.

#![allow(clippy::unwrap_used, reason = "test helpers outside of test functions")]

use proptest::prelude::*;
use terrace_core::EngineConfig;
use terrace_core::session::replay::replay;
use terrace_proto::provision::{
    NotOrdered, OrderState, Ordered, ProviderError, ProviderKind, ProviderStatus, TierStatus,
    Verified,
};
use terrace_proto::{Command, Event, OrderId, ProviderId, Tick};
use terrace_testkit::log::written;
use terrace_testkit::providers::{GIB, Provided, Providers};

/// Two VMs that have half of what they could, and room for one of them to grow.
fn two() -> Providers {
    let mut host = Providers::new(EngineConfig::default(), &[GIB, 8 * GIB]);
    host.arrive(1, Provided::settled(&[2 * GIB, 2 * GIB]));
    host.arrive(2, Provided::settled(&[2 * GIB, 2 * GIB]));
    host
}

fn answer(host: &mut Providers) -> Result<Ordered, String> {
    let answer = host.answers.pop_front().expect("an answer");
    answer.map_err(|why| why.text().to_owned())
}

fn state(host: &Providers, id: u32) -> OrderState {
    let view = host.engine().provision().view(ProviderId(id), Tick(0));
    view.unwrap().order.unwrap().state
}

#[test]
fn a_resize_is_looked_at_ordered_answered_and_met() {
    let mut host = two();
    host.resize(1, &[Some(GIB), None]);
    let ordered = answer(&mut host).unwrap();
    assert_eq!(ordered.size_bytes, [Some(GIB), None]);
    assert_eq!(host.vms[&1].ordered, [[Some(GIB), None]]);
    assert_eq!(state(&host, 1), OrderState::UnderWay);
    host.vms.get_mut(&1).unwrap().obey();
    host.run_for(2);
    assert_eq!(state(&host, 1), OrderState::Met);
    let said = host.said(1);
    let has = "has reached its target: fast 1 GiB, slow 2 GiB";
    assert!(said.iter().any(|said| said == has), "{said:?}");
}

#[test]
fn a_growth_without_room_is_refused_with_figures() {
    let mut host = two();
    host.resize(1, &[Some(4 * GIB), None]);
    let why = answer(&mut host).unwrap_err();
    let has = "vm1: node 0 has 1 GiB free for VMs; at most 3 GiB of fast can be given now";
    assert_eq!(why, has);
    assert!(host.vms[&1].ordered.is_empty());
    host.resize(1, &[Some(3 * GIB), None]);
    answer(&mut host).unwrap();
}

#[test]
fn a_list_names_every_tier_and_no_more_than_there_are() {
    let mut host = Providers::new(EngineConfig::default(), &[0; 3]);
    host.arrive(1, Provided::settled(&[2 * GIB; 3]));
    host.resize(1, &[None, None, Some(GIB)]);
    assert_eq!(
        answer(&mut host).unwrap().size_bytes,
        [None, None, Some(GIB)]
    );
    host.resize(1, &[None, None, None, Some(GIB)]);
    let why = answer(&mut host).unwrap_err();
    assert_eq!(
        why,
        "vm1 has 3 tiers of resizable memory: there is no fourth one to resize"
    );
}

#[test]
fn a_query_that_hangs_is_answered_and_orders_nothing_later() {
    let mut host = two();
    host.vms.get_mut(&1).unwrap().hangs = true;
    host.run_for(6);
    host.resize(1, &[Some(GIB), None]);
    host.run_for(2);
    assert!(host.answers.is_empty());
    host.run_for(2);
    let why = answer(&mut host).unwrap_err();
    assert!(
        why.contains("HyperFlex (a test) hangs: no answer for 3.0 s; nothing was ordered"),
        "{why}"
    );
    host.run_for(60);
    assert!(host.vms[&1].ordered.is_empty());
    assert_eq!(
        host.said(1)
            .iter()
            .filter(|said| said.contains("hangs"))
            .count(),
        1
    );
}

#[test]
fn an_order_that_hangs_is_taken_back() {
    let mut host = two();
    host.vms.get_mut(&1).unwrap().hangs_at_orders = true;
    host.resize(1, &[Some(GIB), None]);
    host.run_for(4);
    let why = answer(&mut host).unwrap_err();
    assert!(why.contains("the order was cancelled"), "{why}");
    assert_eq!(state(&host, 1), OrderState::Failed);
}

#[test]
fn a_vm_that_goes_answers_those_who_wait() {
    let mut host = two();
    host.vms.get_mut(&1).unwrap().hangs_at_orders = true;
    host.resize(1, &[Some(GIB), None]);
    host.hear(terrace_proto::Event::ProviderDeparted(ProviderId(1)));
    let why = answer(&mut host).unwrap_err();
    assert!(why.contains("the VM is gone"), "{why}");
    host.run_for(60);
    assert!(host.answers.is_empty());
}

/// Reports, outcomes and withdrawals that answer nothing change nothing.
#[test]
fn what_answers_nothing_is_ignored() {
    let mut host = two();
    let before = host.engine().provision().view(ProviderId(1), Tick(0));
    for order in [0, 7, u64::MAX] {
        host.hear(terrace_proto::Event::OrderWithdrawal(
            terrace_proto::provision::OrderWithdrawal {
                order: OrderId(order),
                provider: ProviderId(9),
                in_time: true,
            },
        ));
        host.hear(terrace_proto::Event::OrderOutcome(
            terrace_proto::provision::OrderOutcome {
                order: OrderId(order),
                provider: ProviderId(9),
                result: Err(ProviderError::Gone("nobody".into())),
            },
        ));
    }
    assert_eq!(
        before,
        host.engine().provision().view(ProviderId(1), Tick(0))
    );
    assert!(host.answers.is_empty());
}

#[test]
fn a_target_that_a_pinned_device_forbids_is_taken_back() {
    let mut host = two();
    host.resize(1, &[Some(GIB), None]);
    answer(&mut host).unwrap();
    host.vms.get_mut(&1).unwrap().pinned_by = Some("0000:01:00.0".into());
    host.run_for(2);
    assert_eq!(host.vms[&1].ordered.last().unwrap(), &[Some(2 * GIB), None]);
    host.resize(1, &[Some(GIB), None]);
    let refused = host.answers.pop_front().unwrap();
    assert!(matches!(refused, Err(NotOrdered::NotNow(_))), "{refused:?}");
}

#[test]
fn a_recorded_resize_is_replayed_to_the_byte() {
    let mut host = two();
    host.resize(1, &[Some(4 * GIB), None]);
    host.resize(1, &[Some(GIB), None]);
    host.vms.get_mut(&2).unwrap().hangs = true;
    host.run_for(10);
    host.resize(2, &[Some(GIB), None]);
    host.vms.get_mut(&1).unwrap().obey();
    host.run_for(30);
    let log = written(host.log());
    let replayed = replay(&log[..]).unwrap();
    assert!(replayed.actions > 20, "{replayed:?}");
    assert_eq!(replayed.unrecorded_actions, 0);
}

/// An order for another tier, or one that came to nothing, means nothing for the one before it.
#[test]
fn memory_of_an_order_on_its_way_is_given_to_nobody_else() {
    for second in [[None, Some(GIB)], [Some(3 * GIB), None]] {
        let mut host = two();
        host.memory[0].free_bytes = 2 * GIB;
        host.vms.get_mut(&1).unwrap().hangs_at_orders = true;
        host.resize(1, &[Some(4 * GIB), None]);
        host.resize(1, &second);
        host.resize(2, &[Some(4 * GIB), None]);
        let why = answer(&mut host).unwrap_err();
        assert!(why.contains("vm1 may still take 2 GiB"), "{why}");
    }
}

#[test]
fn memory_that_was_given_back_is_not_counted_as_present() {
    let mut host = Providers::new(EngineConfig::default(), &[8 * GIB, 8 * GIB]);
    host.arrive(1, Provided::settled(&[4 * GIB, 2 * GIB]));
    host.arrive(2, Provided::settled(&[GIB, 2 * GIB]));
    host.resize(1, &[Some(GIB), None]);
    answer(&mut host).unwrap();
    let vm = host.vms.get_mut(&1).unwrap();
    vm.obey();
    // No verification of its files ends in time.
    for tier in &mut vm.status.as_mut().unwrap().tiers {
        tier.verified = None;
    }
    host.memory[0].free_bytes = 3 * GIB;
    host.run_for(60);
    host.resize(1, &[Some(4 * GIB), None]);
    answer(&mut host).unwrap();
    host.resize(2, &[Some(4 * GIB), None]);
    answer(&mut host).unwrap_err();
}

/// Rule 17 on the way up: the guest may have more by then than it has now.
#[test]
fn a_target_is_not_lowered_below_what_the_guest_may_have() {
    let mut host = two();
    host.memory[0].free_bytes = 8 * GIB;
    host.resize(1, &[Some(4 * GIB), None]);
    answer(&mut host).unwrap();
    host.vms.get_mut(&1).unwrap().pinned_by = Some("0000:01:00.0".into());
    host.resize(1, &[Some(3 * GIB), None]);
    let why = answer(&mut host).unwrap_err();
    assert!(why.contains("a device is passed through"), "{why}");
}

#[test]
fn clients_that_ask_again_and_again_hide_no_hang() {
    let mut host = two();
    host.vms.get_mut(&1).unwrap().hangs = true;
    for _ in 0..10 {
        host.resize(1, &[Some(GIB), None]);
        host.run_for(2);
    }
    let said = host.said(1);
    assert!(
        said.iter().any(|said| said.contains("hangs: no answer")),
        "{said:?}"
    );
}

/// Any number that a device could say.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), Just(1), Just(GIB), Just(u64::MAX), any::<u64>()]
}

prop_compose! {
    fn tier()(numbers in prop::array::uniform10(number()), verified in any::<bool>(), stuck in any::<bool>()) -> TierStatus {
        let [whole, least, block, page, target, size, age, withheld, present, retained] = numbers;
        TierStatus {
            whole_bytes: whole,
            least_bytes: least,
            block_bytes: block,
            page_bytes: page,
            target_bytes: target,
            size_bytes: size,
            verified: verified.then_some(Verified {
                present_bytes: present,
                claimed_bytes: whole,
                retained_bytes: retained,
            }),
            verified_age_ns: age,
            withheld_bytes: withheld,
            stuck: stuck.then(|| "stuck".to_owned()),
            ..TierStatus::default()
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// A device that was taken over reports what it likes: requests for sizes are answered all the same, and all of it
    /// is decided again from the log.
    #[test]
    fn whatever_a_device_says_is_survived_and_replayed(
        steps in prop::collection::vec((prop::collection::vec(tier(), 0..6), any::<(bool, bool, bool)>(), number(), number()), 1..8),
    ) {
        let mut host = two();
        let mut wanted = 0;
        for (tiers, (connected, targets_sent, hangs), resets, size) in steps {
            let vm = host.vms.get_mut(&1).unwrap();
            vm.hangs = hangs;
            vm.status = Ok(ProviderStatus {
                connected,
                targets_sent,
                resets,
                total_bytes: Some(size),
                tiers,
                ..ProviderStatus::default()
            });
            host.resize(1, &[Some(size), None]);
            host.resize(2, &[Some(size), Some(resets)]);
            wanted += 2;
            host.run_for(5);
        }
        host.run_for(10);
        prop_assert_eq!(host.answers.len(), wanted);
        let view = host.engine().provision().view(ProviderId(1), Tick(u64::MAX));
        prop_assert!(view.is_some());
        let over = host.engine().provision().overcommitted(&host.memory);
        prop_assert!(over.iter().all(|said| !said.is_empty()));
        let log = written(host.log());
        prop_assert!(replay(&log[..]).is_ok());
    }
}

/// An engine that makes huge pages, and a VM with a balloon of which 100 blocks have single pages.
fn ballooned(bytes_per_s: u64) -> Providers {
    let mut config = EngineConfig::default();
    config.provision.collapse_bytes_per_s = bytes_per_s;
    let mut host = Providers::new(config, &[8 * GIB]);
    let mut vm = Provided::settled(&[GIB]);
    vm.kind = ProviderKind::Balloon;
    vm.single_blocks = 100;
    host.arrive(1, vm);
    host.run_for(5);
    host
}

/// Orders a size, and lets the guest take it.
fn take_size(host: &mut Providers, bytes: u64) {
    host.resize(1, &[Some(bytes)]);
    answer(host).unwrap();
    host.vms.get_mut(&1).unwrap().obey();
    host.run_for(60);
}

#[test]
fn a_balloon_that_gave_back_gets_huge_pages_within_the_budget() {
    let mut host = ballooned(64 << 20);
    take_size(&mut host, 2 * GIB);
    let steps = &host.vms[&1].collapses;
    // A second's budget is 32 blocks; the rest of the minute is a pass that finds them huge again.
    let first: Vec<_> = steps
        .iter()
        .take(4)
        .map(|step| (step.from, step.blocks))
        .collect();
    assert_eq!(first, [(0, 32), (32, 32), (64, 32), (96, 32)]);
    let said = host.said(1);
    let has =
        "huge pages were made of 200 MiB: 0 % of its memory had them before, 100 % has them now";
    assert!(said.iter().any(|said| said == has), "{said:?}");
    let view = host
        .engine()
        .provision()
        .view(ProviderId(1), Tick(0))
        .unwrap();
    assert_eq!(view.huge.unwrap().after_percent, Some(100.0));
    let log: Vec<u8> = written(host.log());
    let replayed = replay(&log[..]).unwrap();
    assert_eq!((replayed.unrecorded_actions, replayed.skipped), (0, 0));
}

#[test]
fn a_vm_that_shrank_or_has_no_balloon_gets_no_huge_pages() {
    let mut shrunk = ballooned(64 << 20);
    take_size(&mut shrunk, GIB / 2);
    let mut off = ballooned(0);
    take_size(&mut off, 2 * GIB);
    let mut other = ballooned(64 << 20);
    other.vms.get_mut(&1).unwrap().kind = ProviderKind::VirtioMem;
    take_size(&mut other, 2 * GIB);
    for host in [shrunk, off, other] {
        assert!(host.vms[&1].collapses.is_empty());
        let view = host.engine().provision().view(ProviderId(1), Tick(0));
        assert_eq!(view.unwrap().huge, None);
    }
}

#[test]
fn what_pins_memory_and_a_pause_are_in_the_way_of_huge_pages() {
    let mut host = ballooned(64 << 20);
    host.vms.get_mut(&1).unwrap().pinned_by = Some("/dev/vfio/1".into());
    take_size(&mut host, 2 * GIB);
    let why = |host: &Providers| {
        assert!(host.vms[&1].collapses.is_empty());
        let view = host.engine().provision().view(ProviderId(1), Tick(0));
        view.unwrap().huge.unwrap().why_not.unwrap()
    };
    assert_eq!(why(&host), "a device pins its memory");
    host.hear(Event::Command(Command::Pause(None)));
    host.vms.get_mut(&1).unwrap().pinned_by = None;
    host.run_for(60);
    assert!(why(&host).starts_with("an operator paused all VMs"));
    host.hear(Event::Command(Command::Resume(None)));
    host.run_for(10);
    assert!(!host.vms[&1].collapses.is_empty());
}
