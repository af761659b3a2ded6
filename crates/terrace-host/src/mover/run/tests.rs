use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use terrace_proto::{Gfn, Gpa, Hva, PAGE_SIZE, PlanId, VmId};
use terrace_testkit::pages::{Call, FakePage, FakePages};

use super::*;
use crate::memory_map::Range;
use crate::mover::budget::tests::FakeClock;
use crate::mover::fake::PID;
use crate::topology::{Tier, TierSource};

/// Guest page 0 is at this host address.
const BASE: u64 = 1 << 30;
const BLOCKS: u64 = 4;

/// Tier 0 is node 0; tier 1 is nodes 2 and 1, in this order; node 3 is in no tier.
fn topology() -> Topology {
    let tier = |id, nodes: &[u32]| Tier {
        id: TierId(id),
        name: String::new(),
        nodes: nodes.iter().map(|n| NodeId(*n)).collect(),
        total_bytes: 0,
    };
    Topology {
        nodes: vec![],
        tiers: vec![tier(0, &[0]), tier(1, &[2, 1])],
        source: TierSource::Operator,
        findings: vec![],
    }
}

fn memory() -> GuestMemory {
    GuestMemory::of_ranges(vec![Range {
        gpa: Gpa(0),
        len: BLOCKS * HUGE,
        hva: Hva(BASE),
        file_index: 0,
        file_offset: 0,
        shared: true,
    }])
}

fn address(gfn: u64) -> u64 {
    BASE + gfn * PAGE_SIZE
}

struct Case {
    kernel: FakePages,
    unit: PageSize,
    config: MoverConfig,
    memory: GuestMemory,
    others_map: bool,
}

impl Case {
    fn new(pages: &[(u64, FakePage)], room: &[(i32, u64)]) -> Self {
        let kernel = FakePages::default();
        let mut state = kernel.state();
        state.room = room.iter().copied().collect();
        for (gfn, page) in pages {
            state.put(PID, address(*gfn), *page);
        }
        drop(state);
        Self {
            kernel,
            unit: PageSize::Base,
            memory: memory(),
            others_map: false,
            config: MoverConfig {
                threads: 1,
                batch_pages: 64,
                bytes_per_s: None,
                attempts: 3,
            },
        }
    }

    fn run(&self, moves: &[(u64, u8)], stop: bool) -> Vec<PageResult> {
        let page = |(gfn, to): &(u64, u8)| PageMove {
            gfn: Gfn(*gfn),
            to: TierId(*to),
        };
        let plan = MovePlan {
            id: PlanId(7),
            vm: VmId(3),
            moves: moves.iter().map(page).collect(),
        };
        let run = Run {
            kernel: &self.kernel,
            topology: &topology(),
            memory: &self.memory,
            others_map: self.others_map,
            unit: self.unit,
            config: self.config,
            budget: &Budget::new(None, FakeClock::default()),
            stop: &AtomicBool::new(stop),
        };
        let report = run.execute(&plan).report;
        assert_eq!((report.id, report.vm), (plan.id, plan.vm));
        report.results
    }

    fn statuses(&self, moves: &[(u64, u8)]) -> Vec<MoveStatus> {
        self.run(moves, false).iter().map(|r| r.status).collect()
    }

    fn calls(&self) -> Vec<Call> {
        self.kernel.state().calls.clone()
    }
}

fn base(node: i32, busy: u32) -> FakePage {
    FakePage {
        busy,
        ..FakePage::base(node)
    }
}

const PLENTY: u64 = 1 << 40;

#[test]
fn every_outcome_is_told_apart() {
    let case = Case::new(
        &[
            (0, base(1, 0)),
            (1, base(0, 0)),
            (2, base(1, 2)),
            (3, base(1, 9)),
            (5, base(3, 0)),
        ],
        &[(0, PLENTY)],
    );
    let results = case.run(
        &[(0, 0), (1, 0), (2, 0), (3, 0), (4, 0), (5, 0), (1 << 30, 0)],
        false,
    );
    let statuses: Vec<_> = results.iter().map(|r| r.status).collect();
    use MoveStatus::{Absent, AlreadyThere, Busy, Moved};
    assert_eq!(
        statuses,
        [Moved, AlreadyThere, Moved, Busy, Absent, Moved, Absent]
    );
    assert_eq!(results[3].now, PageCode::new(TierId(1), false));
    assert_eq!(results[4].now, PageCode::ABSENT);
    assert_eq!(case.calls().len(), 3, "three attempts at most");
}

#[test]
fn pages_of_one_huge_page_share_one_address_and_its_result() {
    let case = Case::new(&[(512, FakePage::huge(0))], &[(2, PLENTY)]);
    let results = case.run(&[(700, 1), (600, 1), (512, 1)], false);
    let [call] = &case.calls()[..] else {
        panic!("one call");
    };
    assert_eq!((call.to.node, &call.addresses), (2, &vec![address(512)]));
    for result in results {
        assert_eq!(result.status, MoveStatus::Moved);
        assert_eq!(result.now, PageCode::new(TierId(1), true));
    }
}

#[test]
fn a_huge_unit_without_a_huge_page_is_moved_page_by_page() {
    let pages: Vec<_> = (0..512).map(|gfn| (gfn, base(0, 0))).collect();
    let mut case = Case::new(&pages, &[(2, 100 * PAGE_SIZE), (1, PLENTY)]);
    case.unit = PageSize::Huge;
    let results = case.run(&[(0, 1), (512, 1)], false);
    assert_eq!(results[0].status, MoveStatus::Moved);
    assert_eq!(results[0].now, PageCode::new(TierId(1), false));
    assert_eq!(results[1].status, MoveStatus::Absent);
}

#[test]
fn a_split_huge_unit_that_moves_in_part_counts_as_not_moved() {
    let part = |(gfn, busy)| (gfn, base(1, busy));
    let pages: Vec<(u64, FakePage)> = (0..512)
        .map(|gfn| part((gfn, 9 * u32::from(gfn == 77))))
        .collect();
    let mut case = Case::new(&pages, &[(0, HUGE)]);
    case.unit = PageSize::Huge;
    let [result] = case.run(&[(0, 0)], false)[..] else {
        panic!("one result");
    };
    assert_eq!(result.status, MoveStatus::Busy);
    assert_eq!(
        result.now,
        PageCode::new(TierId(1), false),
        "where the rest is"
    );
    case.kernel
        .state()
        .pages
        .get_mut(&(PID, address(77)))
        .unwrap()
        .busy = 0;
    assert_eq!(
        case.statuses(&[(0, 0)]),
        [MoveStatus::Moved],
        "the next try moves the rest"
    );
}

#[test]
fn a_full_node_passes_to_the_next_and_a_full_tier_to_no_memory() {
    let pages: Vec<_> = (0..4).map(|gfn| (gfn, base(0, 0))).collect();
    let case = Case::new(&pages, &[(2, PAGE_SIZE), (1, PAGE_SIZE)]);
    let statuses = case.statuses(&[(0, 1), (1, 1), (2, 1), (3, 1)]);
    use MoveStatus::{Moved, NoMemory};
    assert_eq!(statuses, [Moved, Moved, NoMemory, NoMemory]);
}

#[test]
fn demotions_are_done_before_the_promotions_that_use_their_room() {
    let mut pages: Vec<_> = (0..100).map(|gfn| (gfn, base(0, 0))).collect();
    pages.extend((100..200).map(|gfn| (gfn, base(1, 0))));
    let mut case = Case::new(&pages, &[(0, 0), (1, PLENTY), (2, PLENTY)]);
    case.config.threads = 4;
    case.config.batch_pages = 7;
    let moves: Vec<_> = (0..200).map(|gfn| (gfn, u8::from(gfn < 100))).collect();
    assert!(
        case.statuses(&moves)
            .iter()
            .all(|s| *s == MoveStatus::Moved)
    );
}

#[test]
fn stops_deaths_and_refusals_leave_pages_in_place() {
    let stopped = Case::new(&[(0, base(1, 0))], &[(0, PLENTY)]);
    assert_eq!(stopped.run(&[(0, 0)], true)[0].status, MoveStatus::NotTried);
    assert_eq!(
        stopped.run(&[(0, 0)], true)[0].now,
        PageCode::new(TierId(1), false)
    );
    let dead = Case::new(&[(0, base(1, 0))], &[(0, PLENTY)]);
    dead.kernel.state().ended.insert(PID);
    assert_eq!(dead.run(&[(0, 0)], false)[0].status, MoveStatus::NotTried);
    assert!(dead.calls().is_empty());
    let refused = Case::new(&[(0, base(1, 0))], &[(0, PLENTY)]);
    refused.kernel.state().refuses.insert(PID, libc::EACCES);
    assert_eq!(
        refused.statuses(&[(0, 0)]),
        [MoveStatus::Failed(libc::EACCES)]
    );
    assert_eq!(
        refused.statuses(&[(0, 9)]),
        [MoveStatus::Failed(libc::EINVAL)]
    );
}

#[test]
fn a_vm_gone_mid_move_has_moved_nothing_and_is_not_asked_again() {
    let pages: Vec<_> = (0..6).map(|gfn| (gfn, base(1, 0))).collect();
    let mut case = Case::new(&pages, &[(0, PLENTY)]);
    case.config.batch_pages = 2;
    case.kernel.state().ends_after = Some(1);
    let moves: Vec<_> = (0..6).map(|gfn| (gfn, 0)).collect();
    let results = case.run(&moves, false);
    assert!(
        case.calls().len() <= 2,
        "a dead process is asked again and again"
    );
    for result in &results {
        assert_ne!(result.status, MoveStatus::Moved, "{results:?}");
        assert_eq!(result.now, PageCode::ABSENT, "its pages are gone with it");
    }
}

#[test]
fn a_plan_in_one_direction_is_shared_by_all_threads() {
    let pages: Vec<_> = (0..1024).map(|gfn| (gfn, base(1, 0))).collect();
    let sizes = |moves: u64, threads| {
        let mut case = Case::new(&pages, &[(0, PLENTY)]);
        case.config.threads = threads;
        case.config.batch_pages = 1024;
        let moves: Vec<_> = (0..moves).map(|gfn| (gfn, 0)).collect();
        let statuses = case.statuses(&moves);
        assert!(statuses.iter().all(|s| *s == MoveStatus::Moved));
        let mut sizes: Vec<_> = case
            .calls()
            .iter()
            .map(|call| call.addresses.len())
            .collect();
        sizes.sort_unstable();
        sizes
    };
    assert_eq!(sizes(1024, 4), [256; 4]);
    assert_eq!(sizes(1024, 1), [1024]);
    assert_eq!(sizes(1000, 3), [332, 334, 334]);
    assert_eq!(sizes(100, 4), [36, 64]);
}

#[test]
fn threads_that_cannot_be_started_are_done_without() {
    let done = AtomicUsize::new(0);
    let work = || {
        done.fetch_add(1, Ordering::Relaxed);
    };
    // A stack that no system has room for.
    let builder = || thread::Builder::new().stack_size(1 << 62);
    on_threads(3, builder, &work);
    assert_eq!(done.load(Ordering::Relaxed), 1);
    on_threads(3, thread::Builder::new, &work);
    assert!(done.load(Ordering::Relaxed) >= 2);
}

prop_compose! {
    /// Blocks that are huge, split or partly absent, some pages busy.
    fn pages()(
        blocks in prop::collection::vec((any::<bool>(), 0_i32..4), 4),
        small in prop::collection::vec((0_u64..BLOCKS * 512, 0_i32..4, 0_u32..5), 0..60),
    ) -> Vec<(u64, FakePage)> {
        let mut pages = BTreeMap::new();
        for (block, (is_huge, node)) in blocks.iter().enumerate() {
            if *is_huge {
                pages.insert(block as u64 * 512, FakePage::huge(*node));
            }
        }
        for (gfn, node, busy) in small {
            if !blocks[usize::try_from(gfn / 512).unwrap()].0 {
                pages.insert(gfn, base(node, busy));
            }
        }
        pages.into_iter().collect()
    }
}

proptest! {
    #[test]
    fn whatever_the_kernel_does_the_report_is_true(
        pages in pages(),
        moves in prop::collection::vec((0_u64..BLOCKS * 512 + 9, 0_u8..3), 1..120),
        room in prop::collection::vec(0_u64..40 * PAGE_SIZE, 3),
        threads in 1_usize..4,
        batch_pages in 1_usize..20,
    ) {
        let room: Vec<_> = (0..3).zip(room).collect();
        let mut case = Case::new(&pages, &room);
        case.config.threads = threads;
        case.config.batch_pages = batch_pages;
        let before = case.kernel.state().pages.clone();
        let results = case.run(&moves, false);
        let topology = topology();
        let state = case.kernel.state();
        prop_assert_eq!(
            results.iter().map(|r| r.gfn.0).collect::<Vec<_>>(),
            moves.iter().map(|m| m.0).collect::<Vec<_>>()
        );
        for (result, (gfn, to)) in results.iter().zip(&moves) {
            let once = moves.iter().filter(|m| m.0 / 512 == gfn / 512).all(|m| m.1 == *to);
            if !once {
                continue; // a later part of the plan moved it on
            }
            let start = state.page_at(PID, address(*gfn));
            let tier = |page: FakePage| topology.tier_of(NodeId(u32::try_from(page.node).unwrap()));
            let (was, is) = match start {
                Some(start) => (tier(before[&(PID, start)]), tier(state.pages[&(PID, start)])),
                None => (None, None),
            };
            prop_assert_eq!(result.now.tier(), is);
            let to = Some(TierId(*to));
            match result.status {
                MoveStatus::Moved => prop_assert!(was != to && is == to),
                MoveStatus::AlreadyThere => prop_assert!(was == to && is == to),
                MoveStatus::Absent => prop_assert!(start.is_none()),
                _ => prop_assert!(is != to && start.is_some()),
            }
        }
        for Call { addresses, .. } in &state.calls {
            let distinct: BTreeSet<_> = addresses.iter().collect();
            prop_assert_eq!(distinct.len(), addresses.len());
            prop_assert!(addresses.len() <= batch_pages.max(1));
            for address in addresses {
                let start = state.page_at(PID, *address);
                prop_assert!(start.is_none_or(|s| s == *address), "inside of a huge page");
            }
        }
    }
}

/// RAM whose first block is shared and whose second one is private.
fn half_private() -> GuestMemory {
    let block = |n: u64, shared| Range {
        gpa: Gpa(n * HUGE),
        len: HUGE,
        hva: Hva(BASE + n * HUGE),
        file_index: 0,
        file_offset: n * HUGE,
        shared,
    };
    GuestMemory::of_ranges(vec![block(0, true), block(1, false)])
}

#[test]
fn pages_that_others_map_stay() {
    let shared = FakePage {
        others: true,
        ..base(0, 0)
    };
    let pages = [
        (0, base(0, 0)),
        (1, shared),
        (512, base(0, 0)),
        (513, shared),
    ];
    let moves = [(0, 1), (1, 1), (512, 1), (513, 1)];
    let (moved, stays) = (MoveStatus::Moved, MoveStatus::MappedByOthers);
    for (others_map, want) in [
        // Of shared RAM it is our worker that maps it too.
        (false, [moved, moved, moved, stays]),
        (true, [moved, stays, moved, stays]),
    ] {
        let mut case = Case::new(&pages, &[(2, 1 << 30)]);
        case.memory = half_private();
        case.others_map = others_map;
        let results = case.run(&moves, false);
        let statuses: Vec<_> = results.iter().map(|r| r.status).collect();
        assert_eq!(statuses, want, "others map the file: {others_map}");
        assert_eq!(
            results[3].now.tier(),
            Some(TierId(0)),
            "it stayed where it was"
        );
        // The kernel is asked to move what others map nowhere but in RAM that is shared with our worker alone.
        let state = case.kernel.state();
        for Call { addresses, to, .. } in &state.calls {
            let is_shared = addresses.iter().all(|a| *a < BASE + HUGE);
            let all = to.scope == MoveScope::Shared;
            assert_eq!(all, is_shared && !others_map, "{addresses:x?}");
        }
    }
}

/// A huge page that begins in private RAM is private, whatever follows it.
#[test]
fn an_address_among_private_and_shared_ram_counts_as_private() {
    let memory = half_private();
    assert!(memory.is_shared(BASE, BASE + HUGE));
    assert!(!memory.is_shared(BASE, BASE + HUGE + 1));
    assert!(!memory.is_shared(BASE + HUGE, BASE + 2 * HUGE));
    assert!(!memory.is_shared(0, BASE), "no RAM");
}
