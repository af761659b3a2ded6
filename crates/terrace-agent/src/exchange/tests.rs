use proptest::prelude::*;
use terrace_testkit::pages::{FakePage, FakePages};

use super::*;

const PAGE: u64 = 4096;

/// A kernel with two nodes, of which so many pages are free.
fn kernel(free: [u64; 2]) -> FakePages {
    let kernel = FakePages::default();
    kernel.state().room = (0..).zip(free.map(|pages| pages * PAGE)).collect();
    kernel
}

/// A process gets a page.
fn put(kernel: &FakePages, pid: u32, address: u64, pages: u16, node: u8) -> Piece {
    let page = FakePage {
        huge: pages > 1,
        ..FakePage::base(node.into())
    };
    kernel.state().put(pid, address, page);
    Piece {
        pid,
        address,
        pages,
        node: node.into(),
        tier: TierId(node),
        shared: false,
    }
}

/// Pages at these addresses are in use for good.
fn pin(kernel: &FakePages, addresses: &[u64]) {
    for ((_, address), page) in &mut kernel.state().pages {
        if addresses.contains(address) {
            page.busy = u32::MAX;
        }
    }
}

/// Free pages of both nodes.
fn free_of(kernel: &FakePages) -> [u64; 2] {
    [0, 1].map(|node| kernel.state().room[&node] / PAGE)
}

/// Fewest pages that were free in the first node.
fn least(kernel: &FakePages) -> u64 {
    let state = kernel.state();
    state.least.get(&0).unwrap_or(&state.room[&0]) / PAGE
}

fn on(kernel: &FakePages, node: i32) -> u64 {
    kernel.state().bytes_on(node) / PAGE
}

/// A guest with two nodes.
fn room(headroom_pages: u64) -> (tempfile::TempDir, Room) {
    let dir = tempfile::tempdir().unwrap();
    let put = |path: &str, text: &str| {
        let path = dir.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    put("sys/devices/system/node/online", "0-1\n");
    for (id, cpus) in [(0, "0\n"), (1, "\n")] {
        let base = format!("sys/devices/system/node/node{id}");
        put(&format!("{base}/cpulist"), cpus);
        put(&format!("{base}/distance"), "10 20\n");
        put(
            &format!("{base}/meminfo"),
            &format!("Node {id} MemTotal: 1024 kB\n"),
        );
    }
    put("proc/zoneinfo", "");
    let root = terrace_sys::HostRoot::new(dir.path());
    let room = Room::read(root, &[], headroom_pages * 4096).unwrap();
    (dir, room)
}

fn pieces(fake: &FakePages, pid: u32, from: u64, count: u64, node: u8) -> Vec<Piece> {
    let pages = from..from + count;
    pages
        .map(|page| put(fake, pid, page * PAGE, 1, node))
        .collect()
}

#[test]
fn as_many_pages_go_down_as_come_up_and_free_memory_does_not_move() {
    let (_dir, room) = room(64);
    let fake = kernel([64, 5000]);
    let up = pieces(&fake, 1, 0, 2000, 1);
    let down = pieces(&fake, 2, 10_000, 2000, 0);
    let mut free = Free::of(&[64, 5000], 64);
    let outcome = Exchange::new(&fake, &room, &mut free).run(&up, &down, 0, 0);
    assert_eq!((outcome.promoted, outcome.demoted), (2000, 2000));
    assert_eq!(outcome.stopped, None);
    assert_eq!((free_of(&fake), on(&fake, 0)), ([64, 5000], 2000));
    assert!(
        fake.state()
            .calls
            .iter()
            .all(|call| call.addresses.len() <= 512)
    );
    assert_eq!(least(&fake), 64, "free fast memory never falls");
}

#[test]
fn where_slow_memory_is_full_too_the_headroom_is_used_for_a_batch_and_given_back() {
    let (_dir, room) = room(1024);
    let fake = kernel([1024, 0]);
    let up = pieces(&fake, 1, 0, 2000, 1);
    let down = pieces(&fake, 1, 10_000, 2000, 0);
    let mut free = Free::of(&[1024, 0], 1024);
    let outcome = Exchange::new(&fake, &room, &mut free).run(&up, &down, 0, 0);
    assert_eq!((outcome.promoted, outcome.demoted), (2000, 2000));
    assert_eq!(free_of(&fake), [1024, 0]);
    assert!(least(&fake) >= 512);
}

#[test]
fn full_tiers_without_headroom_stop_the_exchange_and_nothing_moves() {
    let (_dir, room) = room(0);
    let fake = kernel([0, 0]);
    let up = pieces(&fake, 1, 0, 10, 1);
    let down = pieces(&fake, 1, 100, 10, 0);
    let mut free = Free::of(&[0, 0], 0);
    let outcome = Exchange::new(&fake, &room, &mut free).run(&up, &down, 0, 0);
    assert_eq!((outcome.promoted, outcome.demoted), (0, 0));
    assert!(outcome.stopped.unwrap().contains("neither tier has room"));
    assert!(fake.state().calls.is_empty());
}

#[test]
fn free_fast_memory_is_used_without_sending_anything_down() {
    let (_dir, room) = room(10);
    let fake = kernel([1010, 0]);
    let up = pieces(&fake, 1, 0, 1000, 1);
    let mut free = Free::of(&[1010, 0], 10);
    let outcome = Exchange::new(&fake, &room, &mut free).run(&up, &[], 1000, 0);
    assert_eq!((outcome.promoted, outcome.demoted), (1000, 0));
    assert_eq!(least(&fake), 10);
}

#[test]
fn a_process_that_ended_is_counted_and_the_others_go_on() {
    let (_dir, room) = room(0);
    let fake = kernel([600, 600]);
    fake.state().ended.insert(1);
    let mut up = pieces(&fake, 1, 0, 100, 1);
    up.extend(pieces(&fake, 2, 0, 100, 1));
    let mut free = Free::of(&[600, 600], 0);
    let outcome = Exchange::new(&fake, &room, &mut free).run(&up, &[], 200, 0);
    assert_eq!(outcome.promoted, 100);
    assert_eq!(outcome.busy + outcome.failed, 100);
    assert_eq!(outcome.stopped, None);
}

#[test]
fn a_process_whose_pages_may_not_be_moved_does_not_stop_the_others_and_is_named() {
    for errno in [libc::EACCES, libc::EPERM, libc::EINVAL] {
        let (_dir, room) = room(0);
        let fake = kernel([2000, 600]);
        fake.state().refuses.insert(1, errno);
        let mut up = pieces(&fake, 1, 0, 700, 1);
        up.extend(pieces(&fake, 2, 0, 100, 1));
        let mut free = Free::of(&[2000, 600], 0);
        let outcome = Exchange::new(&fake, &room, &mut free).run(&up, &[], 800, 0);
        assert_eq!((outcome.promoted, outcome.stopped), (100, None));
        assert_eq!(outcome.refused.keys().collect::<Vec<_>>(), [&1]);
        assert_eq!(fake.state().calls.len(), 2, "it is not asked for again");
    }
}

#[test]
fn what_does_not_come_up_sends_nothing_more_down() {
    let (_dir, room) = room(0);
    let fake = kernel([0, 2000]);
    let up = pieces(&fake, 1, 0, 10, 1);
    let down = pieces(&fake, 2, 100, 1000, 0);
    let mut free = Free::of(&[0, 2000], 0);
    let outcome = Exchange::new(&fake, &room, &mut free).run(&up, &down, 0, 0);
    assert_eq!((outcome.promoted, outcome.demoted), (10, 10));
}

#[test]
fn pages_in_use_stay_and_leave_less_room_for_the_others() {
    let (_dir, room) = room(0);
    let fake = kernel([0, 100]);
    let up = pieces(&fake, 1, 0, 20, 1);
    let down = pieces(&fake, 1, 100, 20, 0);
    let busy: Vec<u64> = (100..110).map(|page| page * PAGE).collect();
    pin(&fake, &busy);
    let mut free = Free::of(&[0, 100], 0);
    let outcome = Exchange::new(&fake, &room, &mut free).run(&up, &down, 0, 0);
    assert_eq!(
        (outcome.promoted, outcome.demoted, outcome.busy),
        (10, 10, 10)
    );
    assert!(outcome.stopped.unwrap().contains("no room"));
}

#[test]
fn huge_pages_are_moved_whole() {
    let (_dir, room) = room(0);
    let fake = kernel([0, 1024]);
    let up: Vec<Piece> = (0..4).map(|i| put(&fake, 1, i << 21, 512, 1)).collect();
    let down: Vec<Piece> = (8..12).map(|i| put(&fake, 1, i << 21, 512, 0)).collect();
    let mut free = Free::of(&[0, 1024], 0);
    let outcome = Exchange::new(&fake, &room, &mut free).run(&up, &down, 0, 0);
    assert_eq!((outcome.promoted, outcome.demoted), (2048, 2048));
    assert!(
        fake.state()
            .calls
            .iter()
            .all(|call| call.addresses.len() == 1)
    );
}

#[test]
fn what_is_too_much_goes_down_alone_and_no_more() {
    let (_dir, room) = room(0);
    let fake = kernel([0, 1000]);
    let down = pieces(&fake, 1, 0, 700, 0);
    let mut free = Free::of(&[0, 1000], 0);
    let outcome = Exchange::new(&fake, &room, &mut free).run(&[], &down, 0, 650);
    assert_eq!((outcome.promoted, outcome.demoted), (0, 650));
}

proptest! {
    #[test]
    fn whatever_is_asked_for_free_memory_stays_within_bounds_and_no_page_is_lost(
        more_down in 0_u64..200,
        up in proptest::collection::vec((0_u32..3, any::<bool>()), 0..60),
        down in proptest::collection::vec((0_u32..3, any::<bool>()), 0..60),
        free_fast in 0_u64..2000,
        free_slow in 0_u64..2000,
        headroom in 0_u64..1500,
        into_free in 0_u64..3000,
        busy in proptest::collection::vec(0_u64..120, 0..8),
        ended in proptest::option::of(0_u32..3),
    ) {
        let (_dir, room) = room(headroom);
        let fake = kernel([free_fast, free_slow]);
        fake.state().ended.extend(ended);
        let mut place = 0;
        let mut put_all = |list: &[(u32, bool)], node| -> Vec<Piece> {
            let mut piece = |(pid, huge): &(u32, bool)| {
                place += 1;
                put(&fake, *pid, place << 21, if *huge { 512 } else { 1 }, node)
            };
            list.iter().map(&mut piece).collect()
        };
        let (up, down) = (put_all(&up, 1), put_all(&down, 0));
        pin(&fake, &busy.iter().map(|n| n << 21).collect::<Vec<_>>());
        let all = || (on(&fake, 0) + free_of(&fake)[0], on(&fake, 1) + free_of(&fake)[1]);
        let before = all();
        let mut free = Free::of(&[free_fast, free_slow], headroom);
        let outcome = Exchange::new(&fake, &room, &mut free).run(&up, &down, into_free, more_down);
        prop_assert_eq!(before, all());
        prop_assert_eq!(free.with_headroom(TierId::FAST), free_of(&fake)[0]);
        // The kernel was never asked for what it does not have.
        prop_assert!(outcome.stopped.is_none_or(|why| !why.contains("kernel found no free")));
    }
}
