//! Tests of the machine against results computed by hand: translations, walks, marks.

use std::collections::BTreeMap;

use proptest::prelude::*;
use terrace_proto::PageSize;

use super::costs::Costs;
use super::faults::Faults;
use super::last_level::LastLevel;
use super::lines::Lines;
use super::pmu::{Pmu, Sample};
use super::second_stage::{SecondStage, bits};
use super::space::{Counts, Heat, Space};
use super::tables::{Guest, Level};
use super::vcpu::{Environment, Vcpu};
use super::{PS, TIERS};
use crate::base::access::{Access, Pace, Source};

const ACCESSED: u64 = 1 << 5;
const DIRTY: u64 = 1 << 6;

/// A source that gives the accesses of a list, then ends.
#[derive(Clone)]
pub(crate) struct Script(pub Vec<Access>, pub usize);

impl Source for Script {
    fn fill(&mut self, _: u64, batch: &mut [Access]) -> usize {
        let rest = &self.0[self.1..];
        let count = rest.len().min(batch.len());
        batch[..count].copy_from_slice(&rest[..count]);
        self.1 += count;
        count
    }

    fn pace(&self) -> Pace {
        Pace {
            compute_ns: 0.0,
            parallelism: 1.0,
            before_cache: true,
        }
    }

    fn fork(&self) -> Box<dyn Source> {
        Box::new(self.clone())
    }
}

/// A VM's guest pages from 0 on; even units in tier 0, odd ones in tier 1.
pub(crate) fn space(pages: u64, guest: PageSize, host: PageSize) -> Space {
    let guest = Guest::new(pages, guest, pages).expect("tables fit");
    let mut second = SecondStage::new(
        guest.frames(),
        host,
        guest.table_frames(),
        guest.first_data(),
    );
    for unit in 0..second.len() {
        second.put(unit, u8::try_from(unit % 2).ok());
    }
    Space::new(guest, second, Lines::new(1 << 26), Heat::new(4, pages))
}

pub(crate) fn environment() -> Environment {
    Environment {
        costs: Costs::default(),
        read_ps: [80_000, 300_000, 0, 0],
        write_ps: [80_000, 300_000, 0, 0],
        line: [64, 256, 64, 64],
        rewrite: [0; TIERS],
        last_tier: 1,
        end_ps: u64::MAX,
        now_ns: 0,
        copy_ps: [[0; TIERS]; TIERS],
    }
}

/// Answers to no fault: none was asked for.
struct Nobody;

impl Faults for Nobody {}

fn run(space: &mut Space, env: &Environment, script: &[Access]) -> Vcpu {
    run_with(&mut Nobody, space, env, script)
}

pub(crate) fn run_with(
    faults: &mut impl Faults,
    space: &mut Space,
    env: &Environment,
    script: &[Access],
) -> Vcpu {
    let huge = space.guest.huge() && space.second.huge();
    let source = Box::new(Script(script.to_vec(), 0));
    let mut vcpu = Vcpu::new(source, u64::MAX, &env.costs, 1, huge);
    vcpu.run(space, env, faults);
    vcpu
}

pub(crate) fn reads(pages: impl Iterator<Item = u64>) -> Vec<Access> {
    pages.map(|page| Access::new(page, 0, false)).collect()
}

#[test]
fn a_cold_walk_reads_each_level_once_and_a_hit_reads_none() {
    let env = environment();
    let c = env.costs;
    let mut space = space(512, PageSize::Base, PageSize::Base);
    let once = run(&mut space, &env, &reads(0..1));
    // A table costs what the tier costs that its own page is in; data page 0 is in tier 0.
    let table = |level| {
        let frame = space.guest.table_frame(level, 0);
        if frame.is_multiple_of(2) {
            80_000
        } else {
            300_000
        }
    };
    let guest = table(Level::Leaf) + table(Level::Pde) + table(Level::Pdpte);
    let host = 2 * 80_000;
    // A in three entries of the guest, and in the second stage's of the data.
    let marks = 4 * c.set_bit;
    assert_eq!(
        once.progress().clock(),
        c.l2_hit + guest + host + marks + 80_000
    );
    let twice = run(&mut space, &env, &[Access::new(0, 0, false); 2]);
    // All lines are in the caches now, all bits set; the second access hits the first-level TLB.
    assert_eq!(
        twice.progress().clock(),
        c.l2_hit + 5 * c.cached_line + 2 * 80_000
    );
}

#[test]
fn a_first_write_through_a_clean_translation_sets_d_once() {
    let env = environment();
    let mut space = space(512, PageSize::Base, PageSize::Base);
    let read = Access::new(7, 0, false);
    let write = Access::new(7, 0, true);
    let marks = |space: &Space| space.guest.entry(Level::Leaf, 7) & (ACCESSED | DIRTY);
    run(&mut space, &env, &[read, read]);
    assert_eq!((space.counts.walks, marks(&space)), (1, ACCESSED));
    run(&mut space, &env, &[read, write, write, write]);
    assert_eq!((space.counts.walks, marks(&space)), (3, ACCESSED | DIRTY));
    let unit = space.second.unit_of(space.guest.frame(7).unwrap());
    assert_ne!(space.second.get(unit) & bits::DIRTY, 0);
}

#[test]
fn only_tables_that_were_walked_are_marked() {
    let env = environment();
    let mut space = space(2048, PageSize::Base, PageSize::Base);
    run(&mut space, &env, &reads(0..2));
    assert_ne!(space.guest.entry(Level::Pde, 0) & ACCESSED, 0);
    assert_eq!(space.guest.entry(Level::Pde, 512) & ACCESSED, 0);
}

#[test]
fn huge_pages_in_both_dimensions_need_one_translation() {
    let env = environment();
    let walks = |guest, host| {
        let mut space = space(512, guest, host);
        run(&mut space, &env, &reads(0..512));
        space.counts.walks
    };
    assert_eq!(walks(PageSize::Huge, PageSize::Huge), 1);
    assert_eq!(walks(PageSize::Huge, PageSize::Base), 512, "splintered");
    assert_eq!(walks(PageSize::Base, PageSize::Huge), 512);
}

#[test]
fn an_unfilled_mapping_faults_once_and_an_unmapped_one_waits() {
    let mut env = environment();
    let mut space = space(512, PageSize::Base, PageSize::Base);
    let unit = space.second.unit_of(space.guest.frame(3).unwrap());
    space.second.raise(unit, bits::UNFILLED);
    let faulted = run(&mut space, &env, &reads(3..4));
    assert_eq!(space.counts.exits, 1);
    assert!(faulted.progress().clock() > env.costs.second_stage_fault);
    run(&mut space, &env, &reads(3..4));
    assert_eq!(space.counts.exits, 1);
    space.second.raise(unit, bits::UNMAPPED);
    env.end_ps = 50_000_000;
    let waited = run(&mut space, &env, &reads(3..4));
    assert_eq!(
        (waited.progress().clock(), space.counts.exits),
        (env.end_ps, 2)
    );
    assert_eq!(space.counts.reads.iter().sum::<u64>(), 2);
}

#[test]
fn only_writes_wait_for_a_write_protected_page() {
    let mut env = environment();
    env.end_ps = 50_000_000;
    let mut space = space(512, PageSize::Base, PageSize::Base);
    let unit = space.second.unit_of(space.guest.frame(3).unwrap());
    space.second.raise(unit, bits::PROTECTED);
    assert!(!run(&mut space, &env, &reads(3..4)).is_running());
    let write = run(&mut space, &env, &[Access::new(3, 0, true)]);
    assert!(write.is_running());
}

#[test]
fn every_512_newly_written_pages_cost_one_exit_for_the_log() {
    let env = environment();
    let mut space = space(2048, PageSize::Base, PageSize::Base);
    space.pml.switch(true);
    let script: Vec<Access> = (0..2048).map(|page| Access::new(page, 0, true)).collect();
    let mut vcpu = run(&mut space, &env, &script);
    // 2,048 data pages, and the pages of the tables in which bits were set: four of level 1, one each of
    // levels 2 and 3.
    let logged = space.pml.take().len() + vcpu.mmu().drain_pml().count();
    assert_eq!((space.counts.exits, logged), (4, 2048 + 6));
}

#[test]
fn a_medium_with_large_lines_serves_neighbours_together() {
    let env = environment();
    let mut space = space(512, PageSize::Base, PageSize::Base);
    // Page 1 is in tier 1, whose lines have 256 bytes.
    let script: Vec<Access> = (0..64).map(|line| Access::new(1, line, false)).collect();
    run(&mut space, &env, &script);
    let tables = space.traffic[1].read - 64 * 64;
    assert!(space.counts.reads[1] == 64 && tables <= 3 * 256, "{tables}");
}

#[test]
fn a_line_read_and_then_written_is_written_back_once() {
    let env = environment();
    let mut space = space(512, PageSize::Base, PageSize::Base);
    let at = |line, write| Access::new(1, line, write);
    // Page 1 is in tier 1: four lines of 64 bytes are one of the medium's.
    let script = [
        at(0, false),
        at(0, true),
        at(1, true),
        at(2, false),
        at(3, true),
        at(4, false),
    ];
    run(&mut space, &env, &script);
    assert_eq!(space.traffic[1].written, 256);
    assert_eq!(space.counts.written_bytes[1], 256);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    /// Whatever the TLBs do, the marks are those of a machine without TLBs, each access goes to the tier of its page,
    /// and none is free.
    #[test]
    fn marks_and_tiers_are_those_of_a_machine_without_caches(
        accesses in prop::collection::vec((0_u32..2048, any::<bool>()), 1..400),
        huge in any::<bool>(),
    ) {
        let env = environment();
        let host = if huge { PageSize::Huge } else { PageSize::Base };
        let mut space = space(2048, PageSize::Base, host);
        let script: Vec<Access> = accesses.iter().map(|(p, w)| Access::new(u64::from(*p), 0, *w)).collect();
        let vcpu = run(&mut space, &env, &script);
        prop_assert!(vcpu.progress().clock() >= 80 * PS * accesses.len() as u64);
        let mut written = BTreeMap::<u32, bool>::new();
        let (mut reads, mut writes) = ([0; TIERS], [0; TIERS]);
        for (page, write) in &accesses {
            let page = *page;
            *written.entry(page).or_default() |= write;
            let unit = space.second.unit_of(space.guest.frame(page).unwrap());
            let tier = usize::from(space.second.tier(unit).unwrap());
            if *write { writes[tier] += 1 } else { reads[tier] += 1 }
        }
        prop_assert_eq!((space.counts.reads, space.counts.writes), (reads, writes));
        for page in 0..2048_u32 {
            let marks = space.guest.entry(Level::Leaf, page) & (ACCESSED | DIRTY);
            let expected = match written.get(&page) {
                None => 0,
                Some(false) => ACCESSED,
                Some(true) => ACCESSED | DIRTY,
            };
            prop_assert_eq!(marks, expected, "page {}", page);
        }
    }
}

fn pmu(load_period: u64, store_period: u64, buffer: usize) -> Pmu {
    Pmu {
        load_period,
        store_period,
        buffer,
        divisor: 1,
    }
}

#[test]
fn each_period_of_loads_and_each_of_stores_gives_a_record() {
    let mut space = space(64, PageSize::Base, PageSize::Base);
    space.sampling.follow(Some(pmu(5, 3, 1)));
    // Every third access is a store.
    let script: Vec<Access> = (0..45)
        .map(|i| Access::new(i, 0, i.is_multiple_of(3)))
        .collect();
    run(&mut space, &environment(), &script);
    let sampled: Vec<(u32, bool)> = space
        .sampling
        .samples()
        .iter()
        .map(|s| (s.page, s.write))
        .collect();
    let (loads, stores): (Vec<u32>, Vec<u32>) = (0..45_u32).partition(|i| i % 3 != 0);
    let mut expected: Vec<(u32, bool)> = Vec::new();
    expected.extend(loads.chunks_exact(5).map(|of| (of[4], false)));
    // The counter of stores begins half a period later.
    expected.extend(stores.iter().skip(1).step_by(3).map(|page| (*page, true)));
    expected.sort_unstable();
    assert_eq!(sampled, expected);
    for sample in space.sampling.samples() {
        let unit = space
            .second
            .unit_of(space.guest.frame(sample.page).unwrap());
        assert_eq!(Some(sample.tier), space.second.tier(unit));
    }
}

#[test]
fn an_update_is_a_load_and_a_store_and_is_sampled_once() {
    let mut space = space(64, PageSize::Base, PageSize::Base);
    space.sampling.follow(Some(pmu(8, 8, 1)));
    let script: Vec<Access> = (0..64)
        .map(|page| Access::new(page, 0, false).updating())
        .collect();
    run(&mut space, &environment(), &script);
    let of = |write: bool| -> Vec<u32> {
        let samples = space.sampling.samples().iter().filter(|s| s.write == write);
        samples.map(|s| s.page).collect()
    };
    assert_eq!(of(false), [7, 15, 23, 31, 39, 47, 55, 63]);
    assert_eq!(of(true), [3, 11, 19, 27, 35, 43, 51, 59]);
    assert_eq!(
        (space.counts.reads[0], space.counts.reads[1]),
        (0, 0),
        "to memory it is one write"
    );
}

#[test]
fn vcpus_that_sweep_in_step_sample_different_pages() {
    let env = environment();
    let mut space = space(64, PageSize::Base, PageSize::Base);
    space.sampling.follow(Some(pmu(16, 0, 1)));
    for number in 0..4 {
        let source = Box::new(Script(reads(0..64), 0));
        Vcpu::new(source, u64::MAX, &env.costs, 1, false)
            .numbered(number)
            .run(&mut space, &env, &mut Nobody);
    }
    let mut pages: Vec<u32> = space.sampling.samples().iter().map(|s| s.page).collect();
    assert!((15..=17).contains(&pages.len()), "{pages:?}");
    pages.sort_unstable();
    let gaps: Vec<u32> = pages.windows(2).map(|two| two[1] - two[0]).collect();
    assert!(gaps.iter().all(|gap| (1..=8).contains(gap)), "{pages:?}");
}

#[test]
fn records_are_drained_on_a_full_buffer_or_a_switch() {
    let mut env = environment();
    let c = env.costs;
    let mut space = space(64, PageSize::Base, PageSize::Base);
    let plain = run(
        &mut self::space(64, PageSize::Base, PageSize::Base),
        &env,
        &reads(0..64),
    )
    .progress()
    .clock();
    space.sampling.follow(Some(pmu(1, 0, 48)));
    let source = Box::new(Script(reads(0..64), 0));
    let mut vcpu = Vcpu::new(source, u64::MAX, &c, 1, false);
    vcpu.run(&mut space, &env, &mut Nobody);
    assert_eq!(
        (space.sampling.samples().len(), space.counts.exits),
        (48, 1)
    );
    assert_eq!(
        vcpu.progress().clock(),
        plain + 64 * c.sample + c.sample_interrupt
    );
    env.now_ns = c.flush_every_ns;
    vcpu.run(&mut space, &env, &mut Nobody);
    let pages: Vec<u32> = space
        .sampling
        .samples()
        .iter()
        .map(|s: &Sample| s.page)
        .collect();
    assert_eq!(pages, (0..64).collect::<Vec<u32>>());
    assert_eq!(space.counts.exits, 1);
}

#[test]
fn a_divided_period_takes_more_samples_at_equal_cost() {
    let env = environment();
    let run = |divisor| {
        let mut space = space(64, PageSize::Base, PageSize::Base);
        space.sampling.follow(Some(Pmu {
            divisor,
            ..pmu(63, 0, 1)
        }));
        let script = reads((0..64).cycle().take(64 * 63));
        let vcpu = self::run(&mut space, &env, &script);
        (
            space.sampling.samples().len(),
            space.counts.exits,
            vcpu.progress().clock(),
        )
    };
    // 63 / 3 and 63 / 8 are 21 and, made odd, 7.
    let (one, third, ninth) = (run(1), run(3), run(8));
    assert_eq!((one.0, third.0, ninth.0), (64, 3 * 64, 9 * 64));
    assert_eq!((one.1, third.1, ninth.1), (64, 64, 9 * 64 / 8));
    // A record in three costs a third, to the ps.
    assert!(one.2.abs_diff(third.2) <= 3 * 64 * 2);
}

/// A VM of two blocks that can be split; the first in tier 0, the second in tier 1.
fn splittable(by_host: bool) -> Space {
    let guest = Guest::splittable(1024, 1024).expect("tables fit");
    let (tables, data) = (guest.table_frames(), guest.first_data());
    let mut second = SecondStage::new(guest.frames(), PageSize::Huge, tables, data);
    for unit in 0..second.len() {
        second.put(unit, u8::try_from(1 - unit % 2).ok());
    }
    Space::new(
        guest,
        second.splittable(by_host),
        Lines::new(1 << 26),
        Heat::new(4, 1024),
    )
}

#[test]
fn a_split_page_keeps_frames_and_marks_with_tiers_per_part() {
    let env = environment();
    let mut space = splittable(false);
    let run = |space: &mut Space, script: &[Access]| {
        let source = Box::new(Script(script.to_vec(), 0));
        Vcpu::new(source, u64::MAX, &env.costs, 1, true)
            .with_small_pages(&env.costs, 1)
            .run(space, &env, &mut Nobody);
    };
    run(&mut space, &[Access::new(3, 0, true)]);
    let first = space.guest.first_data();
    let held = *space.second.held();
    let frames: Vec<Option<u32>> = (0..1024).map(|page| space.guest.frame(page)).collect();
    assert_eq!(space.second.unit_of(first + 3), first);
    assert!(space.guest.split(3) && !space.guest.split(4));
    space.second.split(first);
    let after: Vec<Option<u32>> = (0..1024).map(|page| space.guest.frame(page)).collect();
    assert_eq!((frames, held), (after, *space.second.held()));
    for page in [0, 3, 511] {
        let marks = space.guest.entry(Level::Leaf, page) & (ACCESSED | DIRTY);
        assert_eq!(marks, ACCESSED | DIRTY);
    }
    space.second.put(first + 7, Some(1));
    assert_eq!([space.second.held()[0], space.second.held()[1]], [511, 513]);
    let reads: Vec<Access> = [6, 7, 7, 8, 512, 1023]
        .map(|page| Access::new(page, 0, false))
        .into();
    space.counts = Counts::default();
    run(&mut space, &reads);
    // Pages 7 and of the second block are in tier 1; three walks of parts, one of the whole block.
    assert_eq!(space.counts.reads[..2], [2, 4]);
    assert_eq!(space.counts.walks, 4);
}

#[test]
fn a_moved_part_of_a_split_page_is_not_found_by_old_translation() {
    let mut env = environment();
    let mut space = splittable(false);
    let first = space.guest.first_data();
    assert!(space.guest.split(7));
    space.second.split(first);
    let script = Script(vec![Access::new(7, 0, false); 2], 0);
    let mut vcpu =
        Vcpu::new(Box::new(script), u64::MAX, &env.costs, 1, true).with_small_pages(&env.costs, 1);
    let end = std::mem::replace(&mut env.end_ps, 1);
    vcpu.run(&mut space, &env, &mut Nobody);
    assert_eq!(space.counts.reads[..2], [1, 0]);
    space.second.put(first + 7, Some(1));
    vcpu.mmu().forget(7);
    env.end_ps = end;
    vcpu.run(&mut space, &env, &mut Nobody);
    assert_eq!(space.counts.reads[..2], [1, 1]);
}

/// A space with a last-level cache of the least size before it.
fn cached_space() -> Space {
    let mut space = space(512, PageSize::Base, PageSize::Base);
    let cache = LastLevel::new(1, 11, [512].into_iter());
    space.caches.last_level = Some(Box::new(cache));
    space
}

#[test]
fn a_cached_line_costs_a_hit_and_reaches_no_tier() {
    let env = environment();
    let mut space = cached_space();
    let read = Access::new(0, 0, false);
    let once = run(&mut space, &env, &[read]).progress().clock();
    let traffic = space.traffic[0];
    let again = run(&mut space, &env, &[read]).progress().clock();
    // The walk finds its lines cached and its bits set.
    let c = env.costs;
    assert_eq!(again, c.l2_hit + 5 * c.cached_line + c.cached_line);
    assert!(once > again + 80_000);
    assert_eq!(space.traffic[0], traffic);
    let counts = space.counts;
    assert_eq!((counts.memory_accesses(), counts.accesses()), (1, 2));
    assert_eq!(counts.cache_hit_ratio(), Some(0.5));
    assert_eq!(space.heat.cells.iter().sum::<u32>(), 1);
}

#[test]
fn a_hit_sets_a_and_d() {
    let env = environment();
    let mut space = cached_space();
    run(&mut space, &env, &[Access::new(7, 0, false)]);
    run(&mut space, &env, &[Access::new(7, 0, true)]);
    let marks = space.guest.entry(Level::Leaf, 7) & (ACCESSED | DIRTY);
    assert_eq!((marks, space.counts.cache_hits), (ACCESSED | DIRTY, 1));
}

#[test]
fn a_line_that_becomes_dirty_in_the_cache_is_written_back_once() {
    let env = environment();
    let mut space = cached_space();
    let frame = space.guest.frame(1).unwrap();
    let tier = usize::from(space.second.tier(space.second.unit_of(frame)).unwrap());
    let [read, write] = [false, true].map(|write| Access::new(1, 0, write));
    let other = Access::new(1, 63, false);
    run(&mut space, &env, &[read, other, write, other, write]);
    assert_eq!(space.counts.written_bytes[tier], env.line[tier]);
    assert_eq!(space.traffic[tier].written, env.line[tier]);
    assert_eq!(space.counts.writes, [0; TIERS], "no write reached memory");
    // A write that misses is charged as without a cache, and its line is dirty then.
    run(&mut space, &env, &[Access::new(1, 9, true); 3]);
    assert_eq!(space.counts.written_bytes[tier], 2 * env.line[tier]);
    assert_eq!(space.counts.writes[tier], 1);
}

#[test]
fn counters_see_all_stores_and_the_loads_that_miss() {
    let env = environment();
    let mut space = cached_space();
    space.sampling.follow(Some(Pmu {
        load_period: 1,
        store_period: 1,
        buffer: 1,
        divisor: 1,
    }));
    let [read, write] = [false, true].map(|write| Access::new(3, 0, write));
    run(&mut space, &env, &[read, read, write, write.updating()]);
    let samples: Vec<bool> = space.sampling.samples().iter().map(|s| s.write).collect();
    assert_eq!(samples, [false, true, true]);
}

#[test]
fn accesses_after_the_cache_neither_hit_nor_fill_it() {
    let env = environment();
    let mut space = cached_space();
    let script = Script(vec![Access::new(0, 0, false); 3], 0);
    let source = Box::new(After(script));
    let mut vcpu = Vcpu::new(source, u64::MAX, &env.costs, 1, false);
    vcpu.run(&mut space, &env, &mut Nobody);
    assert_eq!(space.counts.memory_accesses(), 3);
    assert_eq!(space.counts.cache_hit_ratio(), None);
    run(&mut space, &env, &[Access::new(0, 0, false)]);
    assert_eq!(space.counts.cache_hits, 0);
}

/// A source of recorded misses.
#[derive(Clone)]
struct After(Script);

impl Source for After {
    fn fill(&mut self, now_ns: u64, batch: &mut [Access]) -> usize {
        self.0.fill(now_ns, batch)
    }

    fn pace(&self) -> Pace {
        Pace {
            before_cache: false,
            ..self.0.pace()
        }
    }

    fn fork(&self) -> Box<dyn Source> {
        Box::new(self.clone())
    }
}
