//! Rings and devices that are stopped while a chain is worked on, at a chosen hole of it.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;

use proptest::prelude::*;

use super::super::*;
use crate::abi::{Entry, statistic_bytes};
use crate::config::Limits;
use crate::test_vm::{MIB, MockRing, MockVm, WRITE};

const PAGE: u64 = 4096;
const INFLATE: usize = 2;

/// A hook that runs at each hole, on the thread that punches.
type AtHole = Box<dyn FnMut(usize) + Send>;

/// Files with something that happens before each hole.
struct Watched {
    files: GuestFiles,
    holes: Arc<AtomicUsize>,
    largest: Arc<AtomicUsize>,
    at_hole: Arc<Mutex<AtHole>>,
}

impl Backing for Watched {
    fn region_of(&self, run: &Run) -> Option<usize> {
        self.files.region_of(run)
    }

    fn free(&self, region: usize, run: &Run) -> bool {
        let hole = self.holes.fetch_add(1, Ordering::SeqCst);
        let bytes = usize::try_from(run.bytes()).unwrap();
        self.largest.fetch_max(bytes, Ordering::SeqCst);
        (self.at_hole.lock().unwrap())(hole);
        self.files.free(region, run)
    }
}

struct Setup {
    vm: MockVm,
    device: Device<Watched>,
    rings: Vec<Ring>,
    drivers: Vec<MockRing>,
    holes: Arc<AtomicUsize>,
    largest: Arc<AtomicUsize>,
    at_hole: Arc<Mutex<AtHole>>,
}

fn limits(entries_per_s: Option<u64>) -> Limits {
    Limits {
        total_pages: None,
        entries_per_s,
        statistics_s: 1,
    }
}

fn setup(bytes: u64, entries_per_s: Option<u64>) -> Setup {
    let vm = MockVm::new(&[8 * MIB, bytes], 0x201, limits(entries_per_s)).unwrap();
    vm.fill();
    let holes = Arc::new(AtomicUsize::new(0));
    let largest = Arc::new(AtomicUsize::new(0));
    let at_hole: Arc<Mutex<AtHole>> = Arc::new(Mutex::new(Box::new(|_| {})));
    let backing = Watched {
        files: GuestFiles::new(vm.memory()),
        holes: Arc::clone(&holes),
        largest: Arc::clone(&largest),
        at_hole: Arc::clone(&at_hole),
    };
    let state = Arc::new(State::in_memory(vm.config()).unwrap());
    let mut device = Device::new(vm.config().clone(), state, backing);
    device.set_ring_memory(Memory::new(vm.memory().clone()));
    device.set_event_idx(true);
    let (rings, drivers) = vm.rings(true);
    Setup {
        vm,
        device,
        rings,
        drivers,
        holes,
        largest,
        at_hole,
    }
}

impl Setup {
    /// Has this done at a hole, from another thread, which comes to it while the hole is punched and may end after
    /// that.
    fn meanwhile(
        &self,
        hole: usize,
        change: impl FnOnce(&Ring) + Send + 'static,
    ) -> Arc<Mutex<Option<JoinHandle<()>>>> {
        let ring = self.rings[INFLATE].clone();
        let thread = Arc::new(Mutex::new(None));
        let started = Arc::clone(&thread);
        let mut change = Some(change);
        *self.at_hole.lock().unwrap() = Box::new(move |at| {
            let Some(change) = change.take_if(|_| at == hole) else {
                return;
            };
            let other = ring.clone();
            let thread = std::thread::spawn(move || change(&other));
            while !ring.halt().is_requested() && !thread.is_finished() {
                std::thread::yield_now();
            }
            *started.lock().unwrap() = Some(thread);
        });
        thread
    }

    fn used(&self, queue: usize) -> u16 {
        let ring = &self.drivers[queue];
        u16::from_le_bytes(ring.read(ring.used() + 2))
    }

    fn next(&self, queue: usize) -> u16 {
        self.rings[queue].queue_next_avail()
    }

    fn inside(&self) -> Vec<u64> {
        self.device.state().bitmap(1).iter().collect()
    }

    fn run(&mut self, queue: usize) {
        self.device.kick(queue);
        while self.device.turn(0, &self.rings) == Some(0) {}
    }

    /// Everything of a queue that the device may write to.
    fn written(&self, queue: usize) -> Vec<u8> {
        let ring = &self.drivers[queue];
        let used: [u8; 2048] = ring.read(ring.used());
        let buffers: [u8; 8192] = ring.read(ring.buffer(0));
        [&used[..], &buffers[..]].concat()
    }

    /// The answers and results of chains on a device that is never stopped, and the number of holes.
    fn unstopped(entries: &[&[Entry]]) -> (Vec<(u32, u32)>, Vec<u64>, usize) {
        let mut it = setup(8 * MIB, None);
        let mut answers = Vec::new();
        for chain in entries {
            let at = it.drivers[INFLATE].post_entries(chain);
            it.run(INFLATE);
            answers.push(it.drivers[INFLATE].answer(at));
        }
        let inside = it.inside();
        (answers, inside, it.holes.load(Ordering::SeqCst))
    }
}

fn join(thread: &Arc<Mutex<Option<JoinHandle<()>>>>) {
    let thread = thread.lock().unwrap().take();
    thread.expect("the hole was come to").join().unwrap();
}

/// A way to stop a ring, and to have it continue from the same place.
#[derive(Clone, Copy, Debug)]
enum Stop {
    Base,
    Disable,
}

impl Stop {
    fn stop(self, ring: &Ring) {
        match self {
            Self::Base => ring.set_queue_ready(false),
            Self::Disable => ring.set_enabled(false),
        }
    }

    fn go_on(self, ring: &Ring, base: u16) {
        match self {
            Self::Base => {
                ring.set_queue_next_avail(base);
                ring.set_queue_ready(true);
            }
            Self::Disable => ring.set_enabled(true),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    /// Whatever the chain and wherever it is stopped: it is as if it had not been begun, and then as if it had not
    /// been stopped.
    #[test]
    fn a_chain_stopped_at_any_hole_is_undone_and_redone(
        first in prop::collection::vec(0u64..600, 1..8),
        second in prop::collection::vec((0u64..1536, 0u8..8), 1..60),
        hole in 0usize..40,
        begun in any::<bool>(),
        disable in any::<bool>(),
    ) {
        let base = 8 * MIB;
        let entry = |(page, kind): (u64, u8)| match kind {
            0 => Entry::new(base + page / 512 * 2 * MIB, 9),
            1 => Entry((base + page * PAGE) | 0x80),
            _ => Entry::new(base + page * PAGE, 0),
        };
        let first: Vec<Entry> = first.into_iter().map(|page| entry((page, 7))).collect();
        let second: Vec<Entry> = second.into_iter().map(entry).collect();
        let stop = if disable { Stop::Disable } else { Stop::Base };
        let mut it = setup(8 * MIB, None);
        it.drivers[INFLATE].post_entries(&first);
        it.run(INFLATE);
        let (inside, counters, holes) = (it.inside(), *it.device.counters(), it.holes.load(Ordering::SeqCst));
        let answer = it.drivers[INFLATE].post_entries(&second);
        if begun {
            // As a killed process leaves it that came to nothing of it.
            it.device.state().set_in_flight(INFLATE, Some(1));
        }
        let thread = it.meanwhile(holes + hole, move |ring| stop.stop(ring));
        it.device.kick(INFLATE);
        it.device.turn(0, &it.rings);
        let met = thread.lock().unwrap().is_some();
        if met {
            join(&thread);
        }
        prop_assert_eq!(it.device.actual()[1], it.device.state().pages_in(1));
        prop_assert_eq!(it.device.state().in_flight(INFLATE), None);
        let (want, all, all_holes) = Setup::unstopped(&[&first, &second]);
        if !begun {
            prop_assert_eq!(it.used(INFLATE) == 1, holes + hole + 1 < all_holes);
        }
        if it.used(INFLATE) == 1 {
            prop_assert_eq!(it.next(INFLATE), 1);
            prop_assert_eq!(it.device.state().position(INFLATE), Some(1));
            prop_assert_eq!(it.drivers[INFLATE].answer(answer), (0, 0));
            prop_assert_eq!(it.holes.load(Ordering::SeqCst), holes + hole + 1, "the hole at hand is the last");
            if !begun {
                prop_assert_eq!(it.inside(), inside);
            }
            let undone = it.device.counters().undone_chains;
            prop_assert_eq!(undone, 1);
            prop_assert_eq!(*it.device.counters(), Counters { undone_chains: 1, ..counters });
            it.run(INFLATE);
            prop_assert_eq!(it.holes.load(Ordering::SeqCst), holes + hole + 1, "it is stopped");
            stop.go_on(&it.rings[INFLATE], 1);
            it.run(INFLATE);
        }
        prop_assert_eq!(it.used(INFLATE), 2);
        prop_assert_eq!(it.device.actual()[1], it.device.state().pages_in(1));
        if !begun {
            prop_assert_eq!(it.drivers[INFLATE].answer(answer), want[1]);
            prop_assert_eq!(it.inside(), all);
        }
        let present = it.vm.present(1);
        prop_assert!(it.inside().iter().all(|page| present.binary_search(page).is_err()));
    }
}

#[test]
fn no_hole_is_larger_than_what_is_punched_within_a_moment() {
    let mut it = setup(64 * MIB, None);
    let blocks: Vec<Entry> = (0..32)
        .map(|i| Entry::new(8 * MIB + i * 2 * MIB, 9))
        .collect();
    let answer = it.drivers[INFLATE].post_entries(&blocks);
    it.run(INFLATE);
    assert_eq!(it.drivers[INFLATE].answer(answer), (32, 0));
    assert_eq!(it.largest.load(Ordering::SeqCst) as u64, 8 * MIB);
    assert_eq!(it.holes.load(Ordering::SeqCst), 8);
    assert!(it.vm.present(1).is_empty());
}

#[test]
fn who_waits_for_the_device_gets_it_between_two_holes() {
    let mut it = setup(8 * MIB, None);
    let entries: Vec<Entry> = (0..20)
        .map(|i| Entry::new(8 * MIB + 2 * i * PAGE, 0))
        .collect();
    let answer = it.drivers[INFLATE].post_entries(&entries);
    it.drivers[0].post_entries(&[Entry::new(5 * MIB, 0), Entry::new(6 * MIB, 0)]);
    let (halt, holes) = (it.device.halt().clone(), Arc::clone(&it.holes));
    let device = Arc::new(Mutex::new(it.device));
    // At the first hole of the second chain, which is of another ring.
    let (waited, seen) = (Arc::clone(&device), Arc::clone(&holes));
    let thread: Arc<Mutex<Option<JoinHandle<usize>>>> = Arc::default();
    let started = Arc::clone(&thread);
    *it.at_hole.lock().unwrap() = Box::new(move |at| {
        if at != 5 {
            return;
        }
        let (halt, waited, seen) = (halt.clone(), Arc::clone(&waited), Arc::clone(&seen));
        let requested = halt.clone();
        let wait = move || {
            let _request = halt.request();
            let _device = waited.lock().unwrap();
            seen.load(Ordering::SeqCst)
        };
        *started.lock().unwrap() = Some(std::thread::spawn(wait));
        while !requested.is_requested() {
            std::thread::yield_now();
        }
    });
    let turn = |kick: usize| {
        let mut device = device.lock().unwrap();
        device.kick(kick);
        device.turn(0, &it.rings)
    };
    turn(0);
    assert_eq!(turn(INFLATE), Some(0), "it wants to go on");
    let seen = thread.lock().unwrap().take().unwrap().join().unwrap();
    assert_eq!(seen, 6);
    while turn(INFLATE) == Some(0) {}
    assert_eq!(it.drivers[INFLATE].answer(answer), (20, 0));
    assert_eq!(device.lock().unwrap().actual(), [2, 20]);
}

#[test]
fn a_driver_restart_beside_a_busy_ring_precedes_its_first_chain() {
    let mut it = setup(8 * MIB, None);
    let base = 8 * MIB;
    it.drivers[INFLATE].post_entries(&[Entry::new(base, 0)]);
    it.run(INFLATE);
    it.drivers[0].post_entries(&[Entry::new(5 * MIB, 0)]);
    it.drivers[INFLATE] = MockRing::new(it.vm.memory(), INFLATE);
    let answer = it.drivers[INFLATE].post_entries(&[Entry::new(base + PAGE, 0)]);
    let ring = it.rings[INFLATE].clone();
    *it.at_hole.lock().unwrap() = Box::new(move |at| {
        if at == 1 {
            ring.set_queue_ready(false);
            ring.set_queue_next_avail(0);
            ring.set_queue_next_used(0);
            ring.set_queue_ready(true);
        }
    });
    it.device.kick(0);
    it.run(INFLATE);
    assert_eq!(it.drivers[INFLATE].answer(answer), (1, 0));
    assert_eq!(it.device.state().resets(), 1);
    assert_eq!(it.inside(), [1]);
    assert_eq!(it.device.state().position(INFLATE), Some(1));
    it.run(INFLATE);
    assert_eq!((it.inside(), it.device.state().resets()), (vec![1], 1));
}

#[test]
fn a_timer_that_comes_after_the_stop_finds_nothing_to_do() {
    let mut it = setup(8 * MIB, Some(10));
    let base = 8 * MIB;
    for i in 0..8 {
        it.drivers[INFLATE].post_entries(&[Entry::new(base + i * PAGE, 0); 3]);
    }
    it.device.kick(INFLATE);
    let at = it.device.turn(0, &it.rings).unwrap();
    let (used, inside) = (it.used(INFLATE), it.inside());
    assert!(at > 0 && used < 8);
    it.rings[INFLATE].set_queue_ready(false);
    let before = it.written(INFLATE);
    assert_eq!(it.device.turn(at + 5_000_000_000, &it.rings), None);
    assert_eq!((it.next(INFLATE), it.inside()), (used, inside));
    assert_eq!(it.written(INFLATE), before);
    it.rings[INFLATE].set_queue_ready(true);
    let mut at = at + 5_000_000_000;
    while let Some(next) = it.device.turn(at, &it.rings) {
        at = next;
    }
    assert_eq!(it.used(INFLATE), 8);
}

#[test]
fn a_queue_of_any_kind_that_is_stopped_is_not_written_to() {
    let mut it = setup(8 * MIB, None);
    let at = it.drivers[5].buffer(3);
    it.drivers[5].put(at, &statistic_bytes(0, 1, 77));
    it.drivers[5].post_chain(&[(at, 16, 0)]);
    it.device.kick(5);
    let due = it.device.turn(0, &it.rings).unwrap();
    let at = it.drivers[4].buffer(3);
    it.drivers[4].post_chain(&[(at, 32, WRITE)]);
    it.drivers[3].post_entries(&[Entry::new(8 * MIB, 0)]);
    it.rings.iter().for_each(|ring| ring.set_enabled(false));
    it.device.set_targets(&[0, 5], 7).unwrap();
    let before: Vec<Vec<u8>> = (0..6).map(|queue| it.written(queue)).collect();
    (0..6).for_each(|queue| it.device.kick(queue));
    assert_eq!(it.device.turn(due, &it.rings), None);
    let after: Vec<Vec<u8>> = (0..6).map(|queue| it.written(queue)).collect();
    assert!(before == after, "a stopped queue was written to");
    it.rings.iter().for_each(|ring| ring.set_enabled(true));
    it.device.turn(due, &it.rings);
    assert_eq!([3, 4, 5].map(|queue| it.used(queue)), [1, 1, 1]);
}

#[test]
fn a_hypervisor_that_is_gone_has_nothing_served_any_more() {
    let mut it = setup(8 * MIB, None);
    it.drivers[INFLATE].post_entries(&[Entry::new(8 * MIB, 0)]);
    it.device.end();
    it.run(INFLATE);
    assert_eq!((it.used(INFLATE), it.inside()), (0, vec![]));
    assert_eq!(it.holes.load(Ordering::SeqCst), 0);
}

#[test]
fn a_half_marked_large_page_of_a_killed_process_is_finished() {
    for (queue, half) in [(INFLATE, true), (INFLATE + 1, false)] {
        let mut it = setup(8 * MIB, None);
        let block = Entry::new(8 * MIB + 2 * MIB, 9);
        // Words of the bits are stored one by one.
        it.device.state().put_all(1, 512, 512, !half);
        it.device.state().put_all(1, 512, 192, half);
        it.device.balloons.recount();
        it.device.state().set_in_flight(queue, Some(0));
        let answer = it.drivers[queue].post_entries(&[block]);
        it.run(queue);
        assert_eq!(it.drivers[queue].answer(answer), (1, 0));
        let pages = if half { 512 } else { 0 };
        assert_eq!(it.device.actual(), [0, pages]);
        assert_eq!(it.device.state().pages_in(1), pages);
    }
}
