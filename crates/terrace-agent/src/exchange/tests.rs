use std::collections::BTreeMap;
use std::io;

use proptest::prelude::*;

use super::*;

/// A kernel with two nodes of so many pages, all of which some process has or are free.
#[derive(Debug, Default)]
struct Fake {
    /// Node of each page.
    at: BTreeMap<(u32, u64), i32>,
    sizes: BTreeMap<(u32, u64), u64>,
    free: [u64; 2],
    busy: Vec<u64>,
    ended: Option<u32>,
    refuses: Option<(u32, i32)>,
    /// Least that was free in the first node.
    least: u64,
    calls: Vec<(u32, i32, usize)>,
}

impl Fake {
    fn put(&mut self, pid: u32, address: u64, pages: u16, node: usize) -> Piece {
        let size = u64::from(pages);
        let id = i32::try_from(node).unwrap();
        self.at.insert((pid, address), id);
        self.sizes.insert((pid, address), size);
        Piece {
            pid,
            address,
            pages,
            node: id,
            tier: TierId(u8::try_from(node).unwrap()),
            shared: false,
        }
    }

    fn on(&self, node: i32) -> u64 {
        let there = self.at.iter().filter(|(_, at)| **at == node);
        there.map(|(page, _)| self.sizes[page]).sum()
    }
}

fn error(errno: i32) -> SysError {
    SysError {
        call: "move_pages",
        what: "a fake".into(),
        source: io::Error::from_raw_os_error(errno),
    }
}

impl Pages for Fake {
    fn query(&mut self, pid: u32, addresses: &[u64], status: &mut [i32]) -> Result<(), SysError> {
        for (address, status) in addresses.iter().zip(status) {
            *status = self
                .at
                .get(&(pid, *address))
                .copied()
                .unwrap_or(-libc::ENOENT);
        }
        Ok(())
    }

    fn travel(
        &mut self,
        pid: u32,
        addresses: &[u64],
        node: i32,
        _: MoveScope,
        status: &mut [i32],
    ) -> Result<MoveOutcome, SysError> {
        self.calls.push((pid, node, addresses.len()));
        if self.ended == Some(pid) {
            return Err(error(libc::ESRCH));
        }
        if let Some((_, errno)) = self.refuses.filter(|(refused, _)| *refused == pid) {
            return Err(error(errno));
        }
        let to = usize::try_from(node).unwrap();
        for (address, status) in addresses.iter().zip(status) {
            let Some(at) = self.at.get_mut(&(pid, *address)) else {
                *status = -libc::ENOENT;
                continue;
            };
            let size = self.sizes[&(pid, *address)];
            if self.busy.contains(address) {
                *status = -libc::EBUSY;
                continue;
            }
            if *at != node {
                if self.free[to] < size {
                    return Err(error(libc::ENOMEM));
                }
                self.free[usize::try_from(*at).unwrap()] += size;
                self.free[to] -= size;
                *at = node;
            }
            *status = node;
            self.least = self.least.min(self.free[0]);
        }
        Ok(MoveOutcome::Complete)
    }
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

fn pieces(fake: &mut Fake, pid: u32, from: u64, count: u64, node: usize) -> Vec<Piece> {
    let pages = from..from + count;
    pages
        .map(|page| fake.put(pid, page * 4096, 1, node))
        .collect()
}

#[test]
fn as_many_pages_go_down_as_come_up_and_free_memory_does_not_move() {
    let (_dir, room) = room(64);
    let mut fake = Fake {
        free: [64, 5000],
        least: 64,
        ..Fake::default()
    };
    let up = pieces(&mut fake, 1, 0, 2000, 1);
    let down = pieces(&mut fake, 2, 10_000, 2000, 0);
    let mut free = Free::of(&[64, 5000], 64);
    let outcome = Exchange::new(&mut fake, &room, &mut free).run(&up, &down, 0, 0);
    assert_eq!((outcome.promoted, outcome.demoted), (2000, 2000));
    assert_eq!(outcome.stopped, None);
    assert_eq!((fake.free, fake.on(0)), ([64, 5000], 2000));
    assert!(fake.calls.iter().all(|(_, _, pages)| *pages <= 512));
    assert_eq!(fake.least, 64, "free fast memory never falls");
}

#[test]
fn where_slow_memory_is_full_too_the_headroom_is_used_for_a_batch_and_given_back() {
    let (_dir, room) = room(1024);
    let mut fake = Fake {
        free: [1024, 0],
        least: 1024,
        ..Fake::default()
    };
    let up = pieces(&mut fake, 1, 0, 2000, 1);
    let down = pieces(&mut fake, 1, 10_000, 2000, 0);
    let mut free = Free::of(&[1024, 0], 1024);
    let outcome = Exchange::new(&mut fake, &room, &mut free).run(&up, &down, 0, 0);
    assert_eq!((outcome.promoted, outcome.demoted), (2000, 2000));
    assert_eq!(fake.free, [1024, 0]);
    assert!(fake.least >= 512);
}

#[test]
fn full_tiers_without_headroom_stop_the_exchange_and_nothing_moves() {
    let (_dir, room) = room(0);
    let mut fake = Fake::default();
    let up = pieces(&mut fake, 1, 0, 10, 1);
    let down = pieces(&mut fake, 1, 100, 10, 0);
    let mut free = Free::of(&[0, 0], 0);
    let outcome = Exchange::new(&mut fake, &room, &mut free).run(&up, &down, 0, 0);
    assert_eq!((outcome.promoted, outcome.demoted), (0, 0));
    assert!(outcome.stopped.unwrap().contains("neither tier has room"));
    assert!(fake.calls.is_empty());
}

#[test]
fn free_fast_memory_is_used_without_sending_anything_down() {
    let (_dir, room) = room(10);
    let mut fake = Fake {
        free: [1010, 0],
        least: 1010,
        ..Fake::default()
    };
    let up = pieces(&mut fake, 1, 0, 1000, 1);
    let mut free = Free::of(&[1010, 0], 10);
    let outcome = Exchange::new(&mut fake, &room, &mut free).run(&up, &[], 1000, 0);
    assert_eq!((outcome.promoted, outcome.demoted), (1000, 0));
    assert_eq!(fake.least, 10);
}

#[test]
fn a_process_that_ended_is_counted_and_the_others_go_on() {
    let (_dir, room) = room(0);
    let mut fake = Fake {
        free: [600, 600],
        least: 600,
        ended: Some(1),
        ..Fake::default()
    };
    let mut up = pieces(&mut fake, 1, 0, 100, 1);
    up.extend(pieces(&mut fake, 2, 0, 100, 1));
    let mut free = Free::of(&[600, 600], 0);
    let outcome = Exchange::new(&mut fake, &room, &mut free).run(&up, &[], 200, 0);
    assert_eq!(outcome.promoted, 100);
    assert_eq!(outcome.busy + outcome.failed, 100);
    assert_eq!(outcome.stopped, None);
}

#[test]
fn a_process_whose_pages_may_not_be_moved_does_not_stop_the_others_and_is_named() {
    for errno in [libc::EACCES, libc::EPERM, libc::EINVAL] {
        let (_dir, room) = room(0);
        let mut fake = Fake {
            free: [2000, 600],
            least: 2000,
            refuses: Some((1, errno)),
            ..Fake::default()
        };
        let mut up = pieces(&mut fake, 1, 0, 700, 1);
        up.extend(pieces(&mut fake, 2, 0, 100, 1));
        let mut free = Free::of(&[2000, 600], 0);
        let outcome = Exchange::new(&mut fake, &room, &mut free).run(&up, &[], 800, 0);
        assert_eq!((outcome.promoted, outcome.stopped), (100, None));
        assert_eq!(outcome.refused.keys().collect::<Vec<_>>(), [&1]);
        assert_eq!(fake.calls.len(), 2, "it is not asked for again");
    }
}

#[test]
fn what_does_not_come_up_sends_nothing_more_down() {
    let (_dir, room) = room(0);
    let mut fake = Fake {
        free: [0, 2000],
        ..Fake::default()
    };
    let up = pieces(&mut fake, 1, 0, 10, 1);
    let down = pieces(&mut fake, 2, 100, 1000, 0);
    let mut free = Free::of(&[0, 2000], 0);
    let outcome = Exchange::new(&mut fake, &room, &mut free).run(&up, &down, 0, 0);
    assert_eq!((outcome.promoted, outcome.demoted), (10, 10));
}

#[test]
fn pages_in_use_stay_and_leave_less_room_for_the_others() {
    let (_dir, room) = room(0);
    let mut fake = Fake {
        free: [0, 100],
        busy: (100..110).map(|page| page * 4096).collect(),
        ..Fake::default()
    };
    let up = pieces(&mut fake, 1, 0, 20, 1);
    let down = pieces(&mut fake, 1, 100, 20, 0);
    let mut free = Free::of(&[0, 100], 0);
    let outcome = Exchange::new(&mut fake, &room, &mut free).run(&up, &down, 0, 0);
    assert_eq!(
        (outcome.promoted, outcome.demoted, outcome.busy),
        (10, 10, 10)
    );
    assert!(outcome.stopped.unwrap().contains("no room"));
}

#[test]
fn huge_pages_are_moved_whole() {
    let (_dir, room) = room(0);
    let mut fake = Fake {
        free: [0, 1024],
        ..Fake::default()
    };
    let up: Vec<Piece> = (0..4).map(|i| fake.put(1, i << 21, 512, 1)).collect();
    let down: Vec<Piece> = (8..12).map(|i| fake.put(1, i << 21, 512, 0)).collect();
    let mut free = Free::of(&[0, 1024], 0);
    let outcome = Exchange::new(&mut fake, &room, &mut free).run(&up, &down, 0, 0);
    assert_eq!((outcome.promoted, outcome.demoted), (2048, 2048));
    assert!(fake.calls.iter().all(|(_, _, pages)| *pages == 1));
}

#[test]
fn what_is_too_much_goes_down_alone_and_no_more() {
    let (_dir, room) = room(0);
    let mut fake = Fake {
        free: [0, 1000],
        ..Fake::default()
    };
    let down = pieces(&mut fake, 1, 0, 700, 0);
    let mut free = Free::of(&[0, 1000], 0);
    let outcome = Exchange::new(&mut fake, &room, &mut free).run(&[], &down, 0, 650);
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
        let mut fake = Fake {
            free: [free_fast, free_slow],
            least: free_fast,
            busy: busy.iter().map(|n| n << 21).collect(),
            ended,
            ..Fake::default()
        };
        let mut place = 0;
        let mut put = |fake: &mut Fake, list: &[(u32, bool)], node| -> Vec<Piece> {
            let mut piece = |(pid, huge): &(u32, bool)| {
                place += 1;
                fake.put(*pid, place << 21, if *huge { 512 } else { 1 }, node)
            };
            list.iter().map(&mut piece).collect()
        };
        let (up, down) = (put(&mut fake, &up, 1), put(&mut fake, &down, 0));
        let before = (fake.on(0) + fake.free[0], fake.on(1) + fake.free[1]);
        let mut free = Free::of(&[free_fast, free_slow], headroom);
        let outcome = Exchange::new(&mut fake, &room, &mut free).run(&up, &down, into_free, more_down);
        prop_assert_eq!(before, (fake.on(0) + fake.free[0], fake.on(1) + fake.free[1]));
        prop_assert_eq!(free.with_headroom(TierId::FAST), fake.free[0]);
        // The kernel was never asked for what it does not have.
        prop_assert!(outcome.stopped.is_none_or(|why| !why.contains("kernel found no free")));
    }
}
