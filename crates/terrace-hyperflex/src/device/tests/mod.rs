mod stops;

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::abi::{ENTRY_BYTES, Entry, statistic_bytes};
use crate::config::Limits;
use crate::test_vm::{Buffer, MIB, MockRing, MockVm, NEXT, RING_SIZE, WRITE};

const PAGE: u64 = 4096;

struct Setup {
    vm: MockVm,
    device: Device,
    rings: Vec<Ring>,
    drivers: Vec<MockRing>,
}

impl Setup {
    fn new(vm: MockVm) -> Self {
        let state = Arc::new(State::in_memory(vm.config()).unwrap());
        Self::with_state(vm, state, true)
    }

    fn with_state(vm: MockVm, state: Arc<State>, event_idx: bool) -> Self {
        let mut device = Device::new(vm.config().clone(), state, GuestFiles::default());
        device.set_memory(Memory::new(vm.memory().clone()));
        device.set_event_idx(event_idx);
        let (rings, drivers) = vm.rings(event_idx);
        Self {
            vm,
            device,
            rings,
            drivers,
        }
    }

    fn kick(&mut self, queue: usize) {
        self.device.kick(queue);
        while self.device.turn(0, &self.rings) == Some(0) {}
    }

    fn entries(&mut self, queue: usize, entries: &[Entry]) -> (u32, u32) {
        let at = self.drivers[queue].post_entries(entries);
        self.kick(queue);
        let answered = self.drivers[queue].answered();
        assert_eq!(answered.len(), 1, "answered once");
        assert_eq!(answered[0].1, 8);
        self.drivers[queue].answer(at)
    }
}

fn setup() -> Setup {
    let vm = MockVm::two_tiers();
    vm.fill();
    Setup::new(vm)
}

fn small(gpa: u64) -> Entry {
    Entry::new(gpa, 0)
}

#[test]
fn both_page_sizes_go_into_the_balloon_and_come_back() {
    let mut it = setup();
    let base = it.vm.tier(1).start;
    let before = it.vm.present(1).len();
    let entries = [
        Entry::new(base + 2 * MIB, 9),
        small(base + 5 * PAGE),
        small(base + 4 * PAGE),
        small(base + 9 * PAGE),
    ];
    assert_eq!(it.entries(2, &entries), (4, 0));
    assert_eq!(it.device.actual(), [0, 515]);
    assert_eq!(it.vm.present(1).len(), before - 515);
    // Two neighbours are one hole.
    assert_eq!(it.device.counters().holes, 3);
    assert_eq!(it.vm.present(0).len(), 8 * 256);
    // A part of a large page comes back alone.
    assert_eq!(
        it.entries(3, &[small(base + 2 * MIB), small(base + 4 * PAGE)]),
        (2, 0)
    );
    assert_eq!(it.device.actual(), [0, 513]);
    let c = it.device.counters();
    assert_eq!((c.inflated_pages, c.deflated_pages, c.chains), (515, 2, 2));
    let space = it.device.config_space(48, 8);
    assert_eq!(space, 513_u64.to_le_bytes());
}

#[test]
fn entries_that_the_abi_refuses_are_counted_and_free_nothing() {
    let mut it = setup();
    let base = it.vm.tier(1).start;
    let bad = [
        small(it.vm.tier(0).start),
        small(base + it.vm.tier(1).len),
        Entry::new(base + PAGE, 9),
        Entry::new(base, 3),
        Entry(base | 1 << 6),
    ];
    assert_eq!(it.entries(2, &bad), (0, 5));
    assert_eq!(it.vm.present(1).len(), 8 * 256);
    assert_eq!(it.vm.present(0).len(), 8 * 256);
    let page = small(base + PAGE);
    assert_eq!(it.entries(2, &[page, page, Entry::new(base, 9)]), (1, 2));
    assert_eq!(it.entries(3, &[small(base), page, page]), (1, 2));
    let c = *it.device.counters();
    assert_eq!((c.refused_outside, c.refused_alignment), (2, 1));
    assert_eq!((c.refused_order, c.refused_duplicate), (2, 4));
    assert_eq!(c.refused(), 9);
}

#[test]
fn a_malformed_chain_is_counted_and_the_queue_keeps_running() {
    let mut it = setup();
    let base = it.vm.tier(1).start;
    let at = it.drivers[2].buffer(100);
    let shapes: Vec<Vec<(u64, u32, u16)>> = vec![
        vec![(at, 0, 0)],
        vec![(at, 7, 0)],
        vec![(at, 4104, 0)],
        vec![(at, u32::MAX, 0)],
        vec![(at, 8, 0), (at, 4, WRITE)],
        vec![(at, 8, WRITE), (at, 8, 0)],
        vec![(at, 8, 0), (at, 8, WRITE), (at, 8, WRITE)],
        vec![(64 * MIB, 8, 0)],
        vec![(at, 8, 0), (64 * MIB, 8, WRITE)],
        vec![(at, 16, 4)],
        vec![(u64::MAX, 16, 4)],
    ];
    for shape in &shapes {
        it.drivers[2].post_chain(shape);
        it.kick(2);
        let answered = it.drivers[2].answered();
        assert_eq!(answered.len(), 1, "{shape:?}");
        assert_eq!(answered[0].1, 0, "{shape:?}");
    }
    // Round in circles, and out of the table.
    for (index, next) in [(120, 120), (121, 500)] {
        let buffer = Buffer {
            gpa: at,
            len: 8,
            flags: NEXT,
            next,
        };
        it.drivers[2].describe(index, buffer);
        it.drivers[2].post(index);
        it.kick(2);
        assert_eq!(it.drivers[2].answered(), [(index.into(), 0)]);
    }
    assert_eq!(
        it.device.counters().malformed_chains,
        shapes.len() as u64 + 2
    );
    assert_eq!(it.device.actual(), [0, 0]);
    assert_eq!(it.entries(2, &[small(base)]), (1, 0));
}

#[test]
fn a_broken_ring_rests_until_the_next_kick_and_others_run_on() {
    let mut it = setup();
    let base = it.vm.tier(1).start;
    let index = it.drivers[0].available() + 2;
    it.drivers[0].put(index, &1000_u16.to_le_bytes());
    it.kick(0);
    assert_eq!(it.device.counters().broken_rings, 1);
    assert_eq!(it.device.turn(0, &it.rings), None);
    assert_eq!(it.device.counters().broken_rings, 1);
    it.drivers[0].put(index, &0_u16.to_le_bytes());
    assert_eq!(it.entries(2, &[small(base)]), (1, 0));
    assert_eq!(it.entries(0, &[small(4 * MIB)]), (1, 0));
    // A head that is no descriptor cannot even be answered.
    it.drivers[0].post(RING_SIZE + 1);
    it.kick(0);
    assert_eq!(it.device.counters().broken_rings, 2);
    assert_eq!(it.entries(0, &[small(5 * MIB)]), (1, 0));
}

#[test]
fn a_long_queue_is_served_in_turns_and_at_the_guests_rate() {
    let limits = Limits {
        total_pages: None,
        entries_per_s: Some(100),
        statistics_s: 0,
    };
    let vm = MockVm::new(&[8 * MIB, 8 * MIB], 1, limits).unwrap();
    let mut it = Setup::new(vm);
    let base = it.vm.tier(1).start;
    for i in 0..60 {
        it.drivers[2].post_entries(&[small(base + i * PAGE), small(base + MIB + i * PAGE)]);
    }
    it.device.kick(2);
    assert_eq!(
        it.device.turn(0, &it.rings),
        Some(0),
        "others have their turn"
    );
    assert_eq!(it.device.actual()[1], 32);
    it.kick(2);
    assert_eq!(it.device.actual()[1], 68, "34 chains of 3 tokens");
    let at = it.device.turn(0, &it.rings).unwrap();
    assert!(at > 0);
    assert_eq!(it.device.counters().throttled, 1);
    while let Some(at) = it.device.turn(at + 2_000_000_000, &it.rings) {
        assert!(at < 1 << 62);
    }
    assert_eq!(it.device.actual()[1], 120);
    assert_eq!(it.drivers[2].answered().len(), 60);
}

#[test]
fn the_newest_targets_are_told_once_there_is_a_buffer() {
    let mut it = setup();
    it.device.set_targets(&[1, 2], 100).unwrap();
    it.kick(4);
    assert!(!it.device.has_sent_targets());
    it.device.set_targets(&[3, 4], 100).unwrap();
    let (useless, good) = (it.drivers[4].buffer(90), it.drivers[4].buffer(91));
    it.drivers[4].post_chain(&[(useless, 31, WRITE)]);
    it.drivers[4].post_chain(&[(useless, 32, 0)]);
    it.drivers[4].post_chain(&[(good, 20, WRITE), (good + 20, 20, WRITE)]);
    it.drivers[4].post_chain(&[(useless, 32, WRITE)]);
    it.kick(4);
    let answered: Vec<u32> = it.drivers[4]
        .answered()
        .iter()
        .map(|(_, len)| *len)
        .collect();
    assert_eq!(answered, [0, 0, 32]);
    let event: [u8; 32] = it.drivers[4].read(good);
    assert_eq!(event[..], abi::targets_event(101, &[3, 4]));
    assert!(it.device.has_sent_targets());
    let c = it.device.counters();
    assert_eq!((c.events, c.bad_event_buffers), (1, 2));
    assert!(it.device.set_targets(&[3, 1 << 40], 100).is_err());
    assert_eq!(it.device.config_space(40, 8), 4_u64.to_le_bytes());
}

#[test]
fn statistics_are_read_at_once_and_answered_on_the_next_request() {
    let mut it = setup();
    let at = it.drivers[5].buffer(90);
    let said = [statistic_bytes(0, 1, 77), statistic_bytes(99, 0, 1)].concat();
    it.drivers[5].put(at, &said);
    it.drivers[5].post_chain(&[(at, 32, 0)]);
    it.device.kick(5);
    let due = it.device.turn(5, &it.rings).unwrap();
    assert_eq!(due, 1_000_000_005);
    assert_eq!(it.device.statistics()[1][0], Some(77));
    assert_eq!(it.device.turn(due - 1, &it.rings), Some(due));
    assert!(it.drivers[5].answered().is_empty());
    assert_eq!(it.device.turn(due, &it.rings), None);
    assert_eq!(it.drivers[5].answered().len(), 1);
    it.drivers[5].post_chain(&[(at, 32, WRITE)]);
    assert!(it.drivers[5].wants_a_kick(), "the next ones stay unseen");
    it.device.kick(5);
    assert!(it.device.turn(due, &it.rings).is_some());
    let c = it.device.counters();
    assert_eq!((c.statistics, c.bad_statistics), (1, 1));
}

#[test]
fn statistics_that_cannot_be_are_counted_and_not_passed_on() {
    let mut it = setup();
    let at = it.drivers[5].buffer(90);
    let pages = it.vm.config().tiers()[1].pages();
    let say = |it: &mut Setup, values: [u64; 8]| {
        let said: Vec<u8> = (0..)
            .zip(values)
            .flat_map(|(tag, value)| statistic_bytes(tag, 1, value))
            .collect();
        it.drivers[5].put(at, &said);
        it.drivers[5].post_chain(&[(at, 128, 0)]);
        it.device.kick(5);
        let due = it.device.turn(0, &it.rings).unwrap();
        it.device.turn(due, &it.rings);
        it.drivers[5].answered();
        it.device.statistics()[1]
    };
    let most = [
        1 << 44,
        1 << 44,
        pages,
        1 << 48,
        1,
        1 << 48,
        1 << 48,
        1 << 48,
    ];
    assert_eq!(say(&mut it, most), most.map(Some));
    assert_eq!(it.device.counters().implausible_statistics, 0);
    assert_eq!(say(&mut it, most.map(|value| value + 1)), [None; 8]);
    assert_eq!(it.device.counters().implausible_statistics, 8);
    let lie = say(&mut it, [u64::MAX, 5, u64::MAX, 6, 0, 7, u64::MAX, 8]);
    assert_eq!(
        lie,
        [
            None,
            Some(5),
            None,
            Some(6),
            Some(0),
            Some(7),
            None,
            Some(8)
        ]
    );
    // With any value that a guest reports, a sum over as many tiers and VMs as a host can have fits.
    assert!(
        most.iter()
            .all(|value| value.checked_mul(1 << 14).is_some())
    );
}

#[test]
fn a_rebooted_guest_has_empty_balloons_and_the_old_targets() {
    let mut it = setup();
    let base = it.vm.tier(1).start;
    it.device.set_targets(&[0, 9], 7).unwrap();
    assert_eq!(it.entries(2, &[small(base), small(base + PAGE)]), (2, 0));
    let state = Arc::clone(it.device.state());
    let vm = it.vm;
    let mut again = Setup::with_state(vm, state, true);
    again.kick(4);
    assert_eq!(again.device.actual(), [0, 0]);
    assert_eq!(again.device.state().resets(), 1);
    assert_eq!(again.device.state().targets(), [0, 9]);
    assert_eq!(again.entries(2, &[small(base)]), (1, 0));
    assert_eq!(again.device.state().resets(), 1);
}

#[test]
fn a_chain_of_a_killed_process_is_finished_by_the_next() {
    for done in [0, 1, 2] {
        let mut it = setup();
        let base = it.vm.tier(1).start;
        assert_eq!(it.entries(2, &[small(base + 8 * PAGE)]), (1, 0));
        let two = [small(base), small(base + PAGE), small(base + 8 * PAGE)];
        // The state of the process before when it was killed.
        let state = Arc::clone(it.device.state());
        state.set_in_flight(2, Some(1));
        state.put_all(1, 0, done, true);
        let answer = it.drivers[2].post_entries(&two);
        let mut device = Device::new(it.vm.config().clone(), state, GuestFiles::default());
        device.set_memory(Memory::new(it.vm.memory().clone()));
        device.kick(2);
        device.turn(0, &it.rings);
        assert_eq!(it.drivers[2].answer(answer), (3, 0), "{done}");
        assert_eq!(device.actual(), [0, 3]);
        assert!(!it.vm.present(1).contains(&0));
        assert_eq!(device.state().in_flight(2), None);
        assert_eq!(device.state().resets(), 0);
    }
}

#[test]
fn without_event_indices_kicks_are_suppressed_by_a_flag() {
    let vm = MockVm::two_tiers();
    let state = Arc::new(State::in_memory(vm.config()).unwrap());
    let mut it = Setup::with_state(vm, state, false);
    let base = it.vm.tier(1).start;
    for i in 0..300 {
        assert_eq!(it.entries(2, &[small(base + i * PAGE)]), (1, 0));
        assert_eq!(it.drivers[2].read::<2>(it.drivers[2].used()), [0, 0]);
    }
}

#[test]
fn with_event_indices_the_device_always_asks_for_the_next_kick() {
    let mut it = setup();
    let base = it.vm.tier(1).start;
    for i in 0..300_u16 {
        assert_eq!(it.entries(2, &[small(base + u64::from(i) * PAGE)]), (1, 0));
        let event = it.drivers[2].used() + 4 + 8 * u64::from(RING_SIZE);
        assert_eq!(u16::from_le_bytes(it.drivers[2].read(event)), i + 1);
    }
}

/// A file that gives nothing back.
struct Stubborn(GuestFiles);

impl Backing for Stubborn {
    fn region_of(&self, run: &Run) -> Option<usize> {
        self.0.region_of(run)
    }
    fn free(&self, _: usize, run: &Run) -> bool {
        run.first >= 16
    }
}

#[test]
fn entries_that_the_kernel_rejects_are_not_in_the_balloon() {
    let vm = MockVm::two_tiers();
    let state = Arc::new(State::in_memory(vm.config()).unwrap());
    let stubborn = Stubborn(GuestFiles::new(vm.memory()));
    let mut device = Device::new(vm.config().clone(), state, stubborn);
    device.set_ring_memory(Memory::new(vm.memory().clone()));
    let (rings, mut drivers) = vm.rings(true);
    let base = vm.tier(1).start;
    let answer =
        drivers[2].post_entries(&[small(base), small(base + PAGE), small(base + 20 * PAGE)]);
    device.kick(2);
    device.turn(0, &rings);
    assert_eq!(drivers[2].answer(answer), (1, 2));
    assert_eq!(device.actual(), [0, 1]);
    assert_eq!(device.state().bitmap(1).iter().collect::<Vec<_>>(), [20]);
    assert_eq!(device.counters().refused_punch, 2);
}

#[test]
fn pages_smaller_than_what_backs_them_are_refused() {
    struct Huge;
    impl Backing for Huge {
        fn region_of(&self, run: &Run) -> Option<usize> {
            run.pages.is_multiple_of(512).then_some(0)
        }
        fn free(&self, _: usize, _: &Run) -> bool {
            true
        }
    }
    let vm = MockVm::two_tiers();
    let state = Arc::new(State::in_memory(vm.config()).unwrap());
    let mut device = Device::new(vm.config().clone(), state, Huge);
    device.set_ring_memory(Memory::new(vm.memory().clone()));
    let (rings, mut drivers) = vm.rings(true);
    let base = vm.tier(1).start;
    let answer = drivers[2].post_entries(&[small(base), Entry::new(base, 9)]);
    device.kick(2);
    device.turn(0, &rings);
    assert_eq!(drivers[2].answer(answer), (1, 1));
    assert_eq!(device.counters().refused_backing, 1);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]
    /// Checks that with any request all freed memory was in the tier of its queue and is marked there.
    #[test]
    fn nothing_outside_of_the_queues_own_tier_is_ever_freed(
        ops in prop::collection::vec((0usize..4, prop::collection::vec((0u64..1100, 0u8..3), 1..20)), 1..6),
    ) {
        let limits = Limits { total_pages: None, entries_per_s: None, statistics_s: 0 };
        let vm = MockVm::new(&[2 * MIB, 2 * MIB], 0x201, limits).unwrap();
        vm.fill();
        let mut it = Setup::new(vm);
        // Tier 0 holds the rings: only its last pages are requested.
        let mut ever: BTreeSet<(usize, u64)> = BTreeSet::new();
        for (queue, entries) in ops {
            let of = |(page, kind): (u64, u8)| match kind {
                0 => Entry::new((480 + page) * PAGE, 9),
                1 => Entry(((480 + page) * PAGE) | (page & 0xfff)),
                _ => small((480 + page) * PAGE),
            };
            let entries: Vec<Entry> = entries.into_iter().map(of).collect();
            let (taken, refused) = it.entries(queue, &entries);
            prop_assert_eq!((taken + refused) as usize, entries.len());
            for tier in 0..2 {
                ever.extend(it.device.state().bitmap(tier).iter().map(|page| (tier, page)));
            }
        }
        for tier in 0..2 {
            let present: BTreeSet<u64> = it.vm.present(tier).into_iter().collect();
            for page in 0..512 {
                prop_assert!(present.contains(&page) || ever.contains(&(tier, page)), "tier {} page {}", tier, page);
            }
            prop_assert_eq!(it.device.actual()[tier], it.device.state().pages_in(tier));
        }
    }
}

#[test]
fn a_chain_holds_as_many_entries_as_the_document_says() {
    let mut it = setup();
    let base = it.vm.tier(1).start;
    let at = it.vm.tier(0).start + 4 * MIB;
    let bytes: Vec<u8> = (0..513_u64)
        .flat_map(|i| small(base + i * PAGE).0.to_le_bytes())
        .collect();
    it.drivers[2].put(at, &bytes);
    let most = 512 * u32::try_from(ENTRY_BYTES).unwrap();
    it.drivers[2].post_chain(&[(at, most + 8, 0)]);
    it.kick(2);
    assert_eq!(it.device.actual()[1], 0);
    // In pieces that end inside of an entry.
    it.drivers[2].post_chain(&[(at, 12, 0), (at + 12, most - 12, 0)]);
    it.kick(2);
    assert_eq!(it.device.actual()[1], 512);
    assert_eq!(it.device.counters().holes, 1);
}
