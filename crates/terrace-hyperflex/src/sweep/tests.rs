use std::cell::Cell;

use super::*;
use crate::memory::Backing as _;
use crate::test_vm::{MIB, MockVm};
use crate::tier::Run;

struct Setup {
    vm: MockVm,
    files: GuestFiles,
    maps: Vec<TierMap>,
    state: State,
    sweeps: Sweeps,
}

impl Setup {
    fn new() -> Self {
        let vm = MockVm::two_tiers();
        vm.fill();
        Self {
            files: GuestFiles::new(vm.memory()),
            maps: vm.config().tiers().iter().map(TierMap::new).collect(),
            state: State::in_memory(vm.config()).unwrap(),
            sweeps: Sweeps::default(),
            vm,
        }
    }

    fn run(&self, tier: usize, page: u64, pages: u64) -> Run {
        let gpa = self.vm.tier(tier).start + page * PAGE_BYTES;
        self.maps[tier].find(gpa, pages).unwrap()
    }

    fn claim(&self, tier: usize, page: u64, pages: u64) -> Run {
        let run = self.run(tier, page, pages);
        self.state.put_all(tier, run.first, run.pages, true);
        run
    }

    fn free(&self, run: &Run) {
        assert!(self.files.free(self.files.region_of(run).unwrap(), run));
    }

    /// A request that has time for `steps` steps.
    fn request(&mut self, steps: u64) -> [Option<Verified>; 2] {
        let left = Cell::new(steps);
        let in_time = || {
            left.set(left.get().saturating_sub(1));
            left.get() > 0
        };
        let scope = Scope {
            files: &self.files,
            maps: &self.maps,
            state: &self.state,
        };
        self.sweeps.go_on(&scope, || (), in_time);
        let said: Vec<_> = self.sweeps.verdicts().collect();
        [0, 1].map(|tier| said[tier].map(|(seen, _)| seen))
    }

    fn whole(&mut self) -> [Verified; 2] {
        self.request(u64::MAX).map(Option::unwrap)
    }
}

#[test]
fn pages_that_came_back_after_they_were_claimed_cost_honesty() {
    let mut it = Setup::new();
    let run = it.claim(1, 256, 64);
    assert_eq!(it.whole()[1].absent_pages, 0);
    it.free(&run);
    let honest = it.whole()[1];
    assert_eq!((honest.claimed_pages, honest.absent_pages), (64, 64));
    assert_eq!(honest.present_bytes, it.vm.tier(1).len - run.bytes());
    assert_eq!(honest.file_bytes, honest.present_bytes);
    it.vm.touch(run.gpa, 16);
    let caught = it.whole()[1];
    assert_eq!(caught.present_bytes, honest.present_bytes + 16 * PAGE_BYTES);
    assert!((caught.verified_ratio() - 0.75).abs() < 1e-9, "{caught:?}");
}

#[test]
fn a_checkerboard_slows_a_sweep_and_starves_no_tier() {
    let mut it = Setup::new();
    for tier in 0..2 {
        for page in (1024..2048).step_by(2) {
            let run = it.claim(tier, page, 1);
            it.free(&run);
        }
    }
    let mut through = [None; 2];
    for request in 0..100 {
        let said = it.request(50);
        for tier in 0..2 {
            if let (Some(seen), None) = (said[tier], through[tier]) {
                assert_eq!((seen.claimed_pages, seen.absent_pages), (512, 512));
                assert_eq!(seen.present_bytes, 8 * MIB - 512 * PAGE_BYTES);
                through[tier] = Some(request);
            }
        }
    }
    // 513 steps each, in turns.
    let [first, second] = through.map(Option::unwrap);
    assert!((15..=30_i32).contains(&first), "{first}");
    assert!(first.abs_diff(second) <= 2, "{first} {second}");
}

#[test]
fn a_request_without_time_still_advances_a_sweep() {
    let mut it = Setup::new();
    for page in (0..1024).step_by(2) {
        let run = it.claim(1, page, 1);
        it.free(&run);
    }
    let said = (0..2000)
        .map(|_| it.request(0))
        .find(|said| said[1].is_some());
    assert_eq!(said.unwrap()[1].unwrap().absent_pages, 512);
}

#[test]
fn with_time_a_verdict_is_current_even_during_a_sweep() {
    let mut it = Setup::new();
    let run = it.claim(0, 1024, 4);
    it.free(&run);
    let far = it.claim(0, 2000, 4);
    it.free(&far);
    assert_eq!(it.request(1), [None, None]);
    assert_eq!(it.sweeps.tiers[0].going.as_ref().unwrap().next, 1024);
    it.request(2);
    it.request(2);
    assert!(it.sweeps.tiers[0].going.as_ref().unwrap().next > 1028);
    // Behind the sweep that is under way.
    it.vm.touch(run.gpa, 4);
    let [fast, slow] = it.whole();
    assert_eq!((fast.claimed_pages, fast.absent_pages), (8, 4));
    assert_eq!(slow.claimed_pages, 0);
}

#[test]
fn a_rebooted_guest_has_no_verdict_before_a_whole_sweep() {
    let mut it = Setup::new();
    let run = it.claim(0, 1024, 1);
    assert_eq!(it.whole()[0].verified_ratio(), 0.0);
    it.free(&run);
    it.state.reset();
    assert_eq!(it.request(1)[1], None);
    assert_eq!(it.whole()[0].verified_ratio(), 1.0);
}

#[test]
fn pages_that_are_claimed_while_they_are_looked_at_are_no_lie() {
    let it = Setup::new();
    let runs: Vec<Run> = (0..300).map(|i| it.claim(1, 4 * i, 2)).collect();
    // The chain that claims them is served while the sweep has seen them still there.
    let hold = || runs.iter().for_each(|run| it.free(run));
    let scope = Scope {
        files: &it.files,
        maps: &it.maps,
        state: &it.state,
    };
    let mut sweeps = Sweeps::default();
    sweeps.go_on(&scope, hold, || true);
    let seen = sweeps.verdicts().nth(1).unwrap().unwrap().0;
    assert_eq!((seen.claimed_pages, seen.absent_pages), (600, 600));
    assert_eq!(seen.present_bytes, 8 * MIB - 600 * PAGE_BYTES);
}

#[test]
fn claims_that_no_file_shows_are_not_known_to_be_gone() {
    let mut it = Setup::new();
    it.claim(1, 0, 10);
    it.files = GuestFiles::default();
    let seen = it.whole()[1];
    assert_eq!((seen.claimed_pages, seen.absent_pages), (10, 0));
    assert_eq!(seen.present_bytes, 0);
}

#[test]
fn a_file_that_is_behind_two_parts_of_a_tier_counts_once() {
    let it = Setup::new();
    let mut sweep = Sweep::new();
    // 6 of 8 MiB are present; the tier is the first 3 MiB and the last 5.
    let parts = FileSeen {
        bytes: 8 * MIB,
        there_bytes: 6 * MIB,
        of_tier_bytes: 3 * MIB + 5 * MIB,
        claimed_pages: 256 + 768,
    };
    sweep.files.insert((1, 7), parts);
    let seen = sweep.said(&it.maps[1]);
    assert_eq!((seen.claimed_pages, seen.absent_pages), (1024, 512));
    assert_eq!((seen.present_bytes, seen.file_bytes), (6 * MIB, 6 * MIB));
    // Of a file that others use as well no more can be the tier's than the tier has.
    let large = FileSeen {
        bytes: 64 * MIB,
        there_bytes: 64 * MIB,
        of_tier_bytes: 5 * MIB,
        claimed_pages: 0,
    };
    sweep.files.insert((1, 8), large);
    let seen = sweep.said(&it.maps[1]);
    assert_eq!((seen.present_bytes, seen.file_bytes), (8 * MIB, 70 * MIB));
}

#[test]
fn claims_on_two_parts_of_a_file_on_hugetlbfs_are_added_up() {
    let huge = || terrace_sys::huge_memory_file(c"huge", 8 * MIB).unwrap();
    // Nothing of them is touched, so no page of the pool is needed.
    let limits = MockVm::two_tiers().config().limits();
    let vm = MockVm::over(vec![huge(), huge()], 0x200, limits).unwrap();
    let mut it = Setup::new();
    it.files = GuestFiles::new(vm.memory());
    let mut tier = vm.config().tiers()[1].clone();
    tier.ranges = [(8, 2), (12, 4)]
        .map(|(start, len)| crate::config::GpaRange {
            start: start * MIB,
            len: len * MIB,
        })
        .to_vec();
    it.maps[1] = TierMap::new(&tier);
    it.state.put_all(1, 0, 1024, true);
    let seen = it.whole()[1];
    assert_eq!((seen.claimed_pages, seen.absent_pages), (1024, 1024));
    assert_eq!((seen.present_bytes, seen.file_bytes), (0, 0));
}
