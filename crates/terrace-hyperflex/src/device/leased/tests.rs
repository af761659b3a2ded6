//! A device that needs pin checks, and a test that plays their process.

use std::path::Path;

use proptest::prelude::*;

use super::super::*;
use crate::abi::Entry;
use crate::config::Limits;
use crate::lease::Holders;
use crate::test_vm::{MIB, MockRing, MockVm};

const PAGE: u64 = 4096;
const INFLATE: usize = 2;
const DEFLATE: usize = 3;
const SECOND: u64 = 1_000_000_000;

struct Setup {
    vm: MockVm,
    device: Device,
    rings: Vec<Ring>,
    drivers: Vec<MockRing>,
    now: u64,
}

fn vm() -> MockVm {
    let limits = Limits {
        total_pages: None,
        entries_per_s: None,
        statistics_s: 0,
    };
    let vm = MockVm::new(&[4 * MIB, 8 * MIB], 0x201, limits).unwrap();
    vm.fill();
    vm
}

fn device(vm: &MockVm, state: Arc<State>) -> Device {
    let config = vm.config().clone().with_leases(true);
    let mut device = Device::new(config, state, GuestFiles::default());
    device.set_memory(Memory::new(vm.memory().clone()));
    device
}

fn setup() -> Setup {
    let vm = vm();
    let state = State::in_memory(vm.config()).unwrap();
    with_state(vm, state)
}

fn with_state(vm: MockVm, state: State) -> Setup {
    let (rings, drivers) = vm.rings(true);
    Setup {
        device: device(&vm, Arc::new(state)),
        vm,
        rings,
        drivers,
        now: 0,
    }
}

impl Setup {
    /// Posts these pages of the second tier; returns the address of the answer.
    fn post(&mut self, queue: usize, pages: std::ops::Range<u64>) -> u64 {
        let start = self.vm.tier(1).start;
        let entries = pages.map(|page| Entry::new(start + page * PAGE, 0));
        let at = self.drivers[queue].post_entries(&entries.collect::<Vec<_>>());
        self.device.kick(queue);
        at
    }

    fn turn(&mut self) {
        while self.device.turn(self.now, &self.rings) == Some(self.now) {}
    }

    fn give(&mut self) -> u64 {
        self.device.next_pin_check(self.now).unwrap()
    }

    /// Plays a whole pin check, after which the queues are served.
    fn pin_check(&mut self, found: Holders) {
        let number = self.give();
        assert!(self.device.pin_checked(number, found, self.now));
        self.turn();
    }

    fn answered(&mut self, queue: usize) -> usize {
        self.drivers[queue].answered().len()
    }

    fn answer(&self, at: u64) -> (u32, u32) {
        self.drivers[INFLATE].answer(at)
    }

    /// Which of these pages have memory behind them.
    fn there(&self, pages: std::ops::Range<u64>) -> usize {
        let present = self.vm.present(1);
        present.iter().filter(|page| pages.contains(page)).count()
    }

    fn spdk() -> Holders {
        Holders::Somebody("process 7 (/usr/bin/spdk_tgt)".into())
    }
}

#[test]
fn nothing_is_punched_while_another_process_maps_the_ram() {
    let mut s = setup();
    let first = s.post(INFLATE, 0..32);
    s.turn();
    assert!(s.device.awaits_pin_check());
    s.pin_check(Setup::spdk());
    assert_eq!((s.there(0..32), s.answered(INFLATE)), (32, 1));
    assert_eq!(s.answer(first), (0, 32));
    assert_eq!(s.device.counters().refused_pinned, 32);
    // Nor while that is not known.
    s.now += 2 * SECOND;
    s.post(INFLATE, 0..32);
    s.turn();
    s.pin_check(Holders::Unknown("/proc/7/maps: permission denied".into()));
    assert_eq!((s.there(0..32), s.device.actual()[1]), (32, 0));
}

#[test]
fn without_a_daemon_nothing_is_punched_and_no_chain_hangs() {
    let mut s = setup();
    let at = s.post(INFLATE, 0..32);
    let again = s.device.turn(s.now, &s.rings).unwrap();
    assert!(again > s.now, "it comes back by itself");
    assert_eq!(s.answered(INFLATE), 0);
    s.now = again;
    s.turn();
    assert_eq!((s.answered(INFLATE), s.answer(at)), (1, (0, 32)));
    assert_eq!(s.there(0..32), 32);
    // Deflation needs no lease.
    assert!(!s.device.leases().unwrap().stands(s.now));
}

#[test]
fn a_lease_of_an_old_look_does_not_count() {
    let mut s = setup();
    s.post(INFLATE, 0..32);
    s.turn();
    let old = s.give();
    let new = s.give();
    assert!(!s.device.pin_checked(old, Holders::Nobody, s.now));
    s.turn();
    assert_eq!(s.there(0..32), 32, "an old look punched");
    assert!(s.device.pin_checked(new, Holders::Nobody, s.now));
    // A pin check that began before the holes does not cover them.
    let early = s.give();
    s.turn();
    assert_eq!(s.there(0..32), 0);
    assert!(s.device.pin_checked(early, Holders::Nobody, s.now));
    s.turn();
    assert_eq!(s.answered(INFLATE), 0, "an early look answered");
    assert!(
        !s.device.pin_checked(early, Holders::Nobody, s.now),
        "twice"
    );
    s.pin_check(Holders::Nobody);
    assert_eq!((s.answered(INFLATE), s.device.actual()[1]), (1, 32));
    assert_eq!(s.device.counters().stale_pin_checks, 2);
    // And one that is too long ago allows nothing.
    s.now += 10 * SECOND;
    s.post(INFLATE, 32..64);
    s.turn();
    assert_eq!(s.there(32..64), 32);
}

#[test]
fn one_pin_check_serves_many_chains_in_order() {
    let mut s = setup();
    for chain in 0..8 {
        s.post(INFLATE, 32 * chain..32 * chain + 32);
    }
    s.turn();
    s.pin_check(Holders::Nobody);
    assert_eq!((s.there(0..256), s.answered(INFLATE)), (0, 0));
    s.pin_check(Holders::Nobody);
    let heads: Vec<u32> = s.drivers[INFLATE].answered().iter().map(|a| a.0).collect();
    assert_eq!(heads, [0, 2, 4, 6, 8, 10, 12, 14]);
    assert_eq!(s.device.actual()[1], 256);
    assert!(!s.device.awaits_pin_check());
}

#[test]
fn what_was_punched_as_somebody_came_stays_out_of_use() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state");
    let vm = vm();
    let state = State::open(&path, vm.config()).unwrap();
    let mut s = with_state(vm, state);
    s.post(INFLATE, 100..132);
    s.turn();
    s.pin_check(Holders::Nobody);
    s.pin_check(Holders::Nobody);
    assert_eq!(s.answered(INFLATE), 1);
    s.post(INFLATE, 0..32);
    s.turn();
    assert_eq!(s.there(0..32), 0);
    s.pin_check(Setup::spdk());
    assert_eq!(s.answered(INFLATE), 0);
    // The process that appeared may go: pages that it pinned before may stay pinned.
    s.now += 10 * SECOND;
    for _ in 0..3 {
        s.pin_check(Holders::Nobody);
    }
    s.post(INFLATE, 64..96);
    s.turn();
    s.pin_check(Holders::Nobody);
    assert_eq!((s.answered(INFLATE), s.there(64..96)), (0, 32));
    assert!(s.device.state().is_withheld(1));
    assert_eq!(s.device.state().unproven(1), 32);
    assert_eq!(s.device.counters().withheld_pages, 32);
    // They are not handed back; the other pages are.
    let wrong = s.post(DEFLATE, 0..32);
    let right = s.post(DEFLATE, 100..132);
    s.turn();
    assert_eq!(s.drivers[DEFLATE].answer(wrong), (0, 32));
    assert_eq!(s.drivers[DEFLATE].answer(right), (32, 0));
    // Nor by stopping the queue, nor by a new process.
    s.rings[INFLATE].set_queue_ready(false);
    assert_eq!(s.rings[INFLATE].queue_next_avail(), 1);
    s.rings[INFLATE].set_queue_ready(true);
    s.device.kick(INFLATE);
    s.turn();
    s.pin_check(Holders::Nobody);
    assert_eq!(s.answered(INFLATE), 0);
    let Setup {
        vm,
        rings,
        device: old,
        mut drivers,
        ..
    } = s;
    drop(old);
    let state = Arc::new(State::open(&path, vm.config()).unwrap());
    assert!(state.is_withheld(1));
    let mut new = device(&vm, state);
    new.kick(INFLATE);
    let number = new.next_pin_check(0).unwrap();
    new.pin_checked(number, Holders::Nobody, 0);
    while new.turn(0, &rings) == Some(0) {}
    assert!(drivers[INFLATE].answered().is_empty());
    // A guest that starts anew has them, and they are counted.
    new.reset();
    assert_eq!(
        (new.state().unproven(1), new.counters().retaken_pages),
        (0, 32)
    );
    assert!(!new.state().is_withheld(1));
}

#[test]
fn a_stopped_ring_awaits_no_pin_check_and_undoes_its_chain() {
    let mut s = setup();
    let at = s.post(INFLATE, 0..32);
    s.turn();
    s.pin_check(Holders::Nobody);
    assert_eq!((s.there(0..32), s.answered(INFLATE)), (0, 0));
    // No pin check runs: this returns all the same.
    s.rings[INFLATE].set_queue_ready(false);
    assert_eq!(
        s.rings[INFLATE].queue_next_avail(),
        0,
        "it is the first without an answer"
    );
    s.turn();
    assert_eq!(
        (s.device.actual()[1], s.device.state().position(INFLATE)),
        (0, Some(0))
    );
    // Pages that the driver writes while it has them back are not punched.
    s.vm.touch(s.vm.tier(1).start, 32);
    s.pin_check(Holders::Nobody);
    assert_eq!((s.there(0..32), s.answered(INFLATE)), (32, 0));
    s.rings[INFLATE].set_queue_ready(true);
    s.device.kick(INFLATE);
    s.turn();
    s.pin_check(Holders::Nobody);
    s.pin_check(Holders::Nobody);
    assert_eq!((s.there(0..32), s.answered(INFLATE)), (0, 1));
    assert_eq!(
        (s.answer(at), s.device.counters().undone_chains),
        ((32, 0), 1)
    );
}

#[test]
fn somebody_who_came_before_a_ring_was_stopped_is_not_forgotten() {
    let mut s = setup();
    s.post(INFLATE, 0..32);
    s.turn();
    s.pin_check(Holders::Nobody);
    s.rings[INFLATE].set_enabled(false);
    s.turn();
    s.pin_check(Setup::spdk());
    s.rings[INFLATE].set_enabled(true);
    s.now += 10 * SECOND;
    s.device.kick(INFLATE);
    s.turn();
    s.pin_check(Holders::Nobody);
    assert_eq!(s.answered(INFLATE), 0, "the pages were handed back");
    assert_eq!(s.device.state().unproven(1), 32);
}

#[test]
fn a_chain_whose_daemon_died_waits_for_the_next_daemon() {
    let mut s = setup();
    let at = s.post(INFLATE, 0..32);
    s.turn();
    s.pin_check(Holders::Nobody);
    s.now += 3600 * SECOND;
    s.turn();
    assert_eq!(s.answered(INFLATE), 0);
    s.pin_check(Holders::Unknown("it has just come".into()));
    assert_eq!(s.answered(INFLATE), 0);
    s.pin_check(Holders::Nobody);
    assert_eq!((s.answered(INFLATE), s.answer(at)), (1, (32, 0)));
}

/// A device that is killed after its holes, and the one after it.
fn killed(path: &Path) -> Setup {
    let vm = vm();
    let state = State::open(path, vm.config()).unwrap();
    let mut s = with_state(vm, state);
    s.post(INFLATE, 0..32);
    s.turn();
    s.pin_check(Holders::Nobody);
    let Setup {
        vm,
        drivers,
        device: old,
        ..
    } = s;
    drop(old);
    let state = Arc::new(State::open(path, vm.config()).unwrap());
    assert_eq!((state.unproven(1), state.pages_in(1)), (32, 0));
    let (rings, _) = vm.rings(true);
    // As the hypervisor sets it: the first without an answer.
    let mut s = Setup {
        device: device(&vm, state),
        vm,
        rings,
        drivers,
        now: 0,
    };
    s.drivers[INFLATE].post(0);
    s.device.kick(INFLATE);
    s
}

#[test]
fn pages_punched_by_a_killed_process_are_proven_or_withheld() {
    let folder = tempfile::tempdir().unwrap();
    let mut s = killed(&folder.path().join("a"));
    assert!(s.device.awaits_pin_check());
    s.turn();
    s.pin_check(Setup::spdk());
    assert_eq!(
        (s.answered(INFLATE), s.device.state().is_withheld(1)),
        (0, true)
    );
    let mut s = killed(&folder.path().join("b"));
    s.turn();
    s.pin_check(Holders::Nobody);
    s.pin_check(Holders::Nobody);
    assert_eq!(
        (s.device.state().unproven(1), s.device.actual()[1]),
        (0, 32)
    );
}

#[test]
fn by_the_operators_word_no_look_is_needed() {
    let vm = vm();
    let state = State::in_memory(vm.config()).unwrap();
    let mut s = with_state(vm, state);
    let state = Arc::new(State::in_memory(s.vm.config()).unwrap());
    s.device = Device::new(s.vm.config().clone(), state, GuestFiles::default());
    s.device.set_memory(Memory::new(s.vm.memory().clone()));
    assert_eq!(s.device.next_pin_check(0), None);
    let at = s.post(INFLATE, 0..32);
    s.turn();
    assert_eq!((s.answered(INFLATE), s.answer(at)), (1, (32, 0)));
}

/// A step in a run of random events.
#[derive(Clone, Copy, Debug)]
enum Step {
    Post,
    Turn,
    Give,
    Check,
    Answer,
    Come,
    Stop,
    Wait,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    use Step::{Answer, Check, Come, Give, Post, Stop, Turn, Wait};
    let all = [
        Post, Post, Turn, Turn, Turn, Give, Check, Answer, Give, Check, Answer, Stop, Come, Wait,
    ];
    prop::collection::vec(prop::sample::select(all.to_vec()), 0..60)
}

/// Checks that a page that was punched while another process had it is never answered, taken or refused.
fn check(steps: Vec<Step>) -> Result<(), TestCaseError> {
    let mut s = setup();
    let (mut chains, mut tainted) = (Vec::new(), Vec::new());
    let (mut here, mut given, mut seen) = (false, None, None);
    let mut answered = 0;
    for step in steps {
        let before = if here { s.vm.present(1) } else { Vec::new() };
        match step {
            Step::Post if chains.len() < 60 => {
                let first = 32 * chains.len() as u64;
                chains.push(first..first + 32);
                s.post(INFLATE, first..first + 32);
            }
            Step::Post => {}
            Step::Turn => s.turn(),
            Step::Give => (given, seen) = (Some(s.give()), None),
            Step::Check => seen = Some(here),
            Step::Answer => {
                if let (Some(number), Some(seen)) = (given.take(), seen.take()) {
                    let found = if seen { Setup::spdk() } else { Holders::Nobody };
                    s.device.pin_checked(number, found, s.now);
                }
            }
            // The process never goes: pages that it has pinned stay pinned.
            Step::Come => here = true,
            Step::Stop => {
                s.rings[INFLATE].set_queue_ready(false);
                s.rings[INFLATE].set_queue_ready(true);
                s.device.kick(INFLATE);
            }
            Step::Wait => s.now += SECOND / 2,
        }
        if here {
            let after = s.vm.present(1);
            tainted.extend(
                before
                    .into_iter()
                    .filter(|page| after.binary_search(page).is_err()),
            );
        }
        answered += s.answered(INFLATE);
        for chain in chains.iter().take(answered) {
            prop_assert!(
                !tainted.iter().any(|page| chain.contains(page)),
                "{chain:?}"
            );
        }
    }
    Ok(())
}

#[test]
fn a_punched_and_undone_chain_is_not_refused_before_a_pin_check() {
    use Step::{Answer, Check, Come, Give, Post, Stop, Turn, Wait};
    let steps = [
        Give, Post, Check, Come, Wait, Wait, Answer, Turn, Stop, Wait, Wait, Turn, Wait, Turn,
    ];
    check(steps.to_vec()).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(50))]
    #[test]
    fn no_page_punched_after_a_holder_came_is_answered(steps in steps()) {
        check(steps)?;
    }
}
