use std::collections::BTreeMap;

use proptest::prelude::*;
use terrace_proto::ranges::NodeFree;

use super::*;

/// A kernel with two nodes of so many pages, all of which some process has or are free.
#[derive(Debug, Default)]
struct Fake {
    /// Node of each page.
    at: BTreeMap<(u32, u64), u32>,
    sizes: BTreeMap<(u32, u64), u64>,
    free: [u64; 2],
    busy: Vec<u64>,
    ended: Option<u32>,
    refuses: Option<u32>,
    /// Pages can be exchanged in place: the exchange's word, and the kernel's.
    swaps: bool,
    swaps_not: bool,
    /// Least that was free in the first node.
    least: u64,
    calls: Vec<(u32, u32, usize)>,
}

impl Fake {
    fn put(&mut self, process: u32, page: u64, pages: u16, node: u32) -> Piece {
        self.at.insert((process, page), node);
        self.sizes.insert((process, page), u64::from(pages));
        Piece {
            process,
            page,
            pages,
            node,
            tier: TierId(u8::try_from(node).unwrap()),
            shared: false,
        }
    }

    fn on(&self, node: u32) -> u64 {
        let there = self.at.iter().filter(|(_, at)| **at == node);
        there.map(|(page, _)| self.sizes[page]).sum()
    }
}

/// Each piece's state, and the reason if the call failed.
type Answer = (Vec<(u32, PieceState)>, Option<KernelRefusal>);

impl Fake {
    fn answer(&mut self, call: &Call) -> Answer {
        match call {
            Call::Move(call) => self.migrate(call),
            Call::Swap(swap) => self.swap(swap),
        }
    }

    /// A model of an exchange in place.
    fn swap(&mut self, swap: &Swap) -> Answer {
        assert_eq!(swap.up.len(), swap.down.len(), "pairs");
        let ended = |piece: &Piece| self.ended == Some(piece.process);
        let refusal = match (self.swaps_not, swap.up.iter().chain(&swap.down).any(ended)) {
            (true, _) => Some(KernelRefusal::NotSupported),
            (_, true) => Some(KernelRefusal::Process),
            _ => None,
        };
        for (up, down) in swap.up.iter().zip(&swap.down) {
            assert!(up.pages == 1 && down.pages == 1 && !up.shared && !down.shared);
            let busy = self.busy.contains(&up.page) || self.busy.contains(&down.page);
            let keys = [up, down].map(|piece| (piece.process, piece.page));
            if refusal.is_none() && !busy {
                let nodes = keys.map(|key| self.at[&key]);
                assert_ne!(nodes[0], nodes[1], "a pair is of two nodes");
                self.at.insert(keys[0], nodes[1]);
                self.at.insert(keys[1], nodes[0]);
            }
        }
        let state = |piece: &Piece| match self.ended == Some(piece.process) {
            true => (1, PieceState::Absent),
            false => (1, PieceState::On(self.at[&(piece.process, piece.page)])),
        };
        let states = swap.up.iter().chain(&swap.down).map(state);
        (states.collect(), refusal)
    }

    /// A model of `move_pages`.
    fn migrate(&mut self, call: &Move) -> Answer {
        self.calls
            .push((call.process, call.node, call.pieces.len()));
        let mut refusal = None;
        if self.ended == Some(call.process) {
            let gone = call.pieces.iter().map(|_| (1, PieceState::Absent));
            return (gone.collect(), Some(KernelRefusal::Process));
        }
        if self.refuses == Some(call.process) {
            refusal = Some(KernelRefusal::Process);
        }
        let mut states = Vec::new();
        for piece in &call.pieces {
            let key = (piece.process, piece.page);
            let Some(at) = self.at.get_mut(&key) else {
                states.push((1, PieceState::Absent));
                continue;
            };
            if self.busy.contains(&piece.page) {
                states.push((1, PieceState::Busy));
                continue;
            }
            if *at != call.node && refusal.is_none() {
                let size = self.sizes[&key];
                let (from, to) = (index(*at), index(call.node));
                if self.free[to] < size {
                    refusal = Some(KernelRefusal::NoMemory);
                } else {
                    self.free[from] += size;
                    self.free[to] -= size;
                    *at = call.node;
                }
            }
            states.push((1, PieceState::On(*at)));
            self.least = self.least.min(self.free[0]);
        }
        (states, refusal)
    }

    /// Runs an exchange to its end against the model.
    fn run(
        &mut self,
        free: Free,
        (up, down): (&[Piece], &[Piece]),
        into_free: u64,
        more_down: u64,
    ) -> (Exchanged, Free) {
        let tiers = [vec![0], vec![1]];
        let exchange = Exchange::new(&tiers, 512, free, up.to_vec(), down.to_vec());
        let mut exchange = exchange
            .unbalanced(into_free, more_down)
            .with_swaps(self.swaps);
        while let Some(call) = exchange.next_call() {
            let (states, refusal) = self.answer(&call);
            exchange.migrated(&states, refusal);
        }
        let free = exchange.free().clone();
        (exchange.outcome(), free)
    }
}

fn index(node: u32) -> usize {
    usize::try_from(node).unwrap()
}

fn free(pages: [u64; 2], headroom: u64) -> Free {
    let nodes = [0, 1].map(|node| NodeFree {
        node,
        pages: pages[index(node)],
    });
    Free::new(&[vec![0], vec![1]], &nodes, headroom)
}

fn pieces(fake: &mut Fake, pid: u32, from: u64, count: u64, node: u32) -> Vec<Piece> {
    let pages = from..from + count;
    pages.map(|page| fake.put(pid, page, 1, node)).collect()
}

#[test]
fn as_many_pages_are_demoted_as_promoted() {
    let mut fake = Fake {
        free: [64, 5000],
        least: 64,
        ..Fake::default()
    };
    let up = pieces(&mut fake, 1, 0, 2000, 1);
    let down = pieces(&mut fake, 2, 10_000, 2000, 0);
    let free = free([64, 5000], 64);
    let (outcome, _) = fake.run(free, (&up, &down), 0, 0);
    assert_eq!((outcome.promoted, outcome.demoted), (2000, 2000));
    assert_eq!(outcome.stopped, None);
    assert_eq!((fake.free, fake.on(0)), ([64, 5000], 2000));
    assert!(fake.calls.iter().all(|(_, _, pages)| *pages <= 512));
    assert_eq!(fake.least, 64, "free fast memory never falls");
}

#[test]
fn headroom_of_full_tiers_is_lent_to_a_batch_and_returned() {
    let mut fake = Fake {
        free: [1024, 0],
        least: 1024,
        ..Fake::default()
    };
    let up = pieces(&mut fake, 1, 0, 2000, 1);
    let down = pieces(&mut fake, 1, 10_000, 2000, 0);
    let free = free([1024, 0], 1024);
    let (outcome, _) = fake.run(free, (&up, &down), 0, 0);
    assert_eq!((outcome.promoted, outcome.demoted), (2000, 2000));
    assert_eq!(fake.free, [1024, 0]);
    assert!(fake.least >= 512);
}

#[test]
fn full_tiers_without_headroom_stop_the_exchange() {
    let mut fake = Fake::default();
    let up = pieces(&mut fake, 1, 0, 10, 1);
    let down = pieces(&mut fake, 1, 100, 10, 0);
    let free = free([0, 0], 0);
    let (outcome, _) = fake.run(free, (&up, &down), 0, 0);
    assert_eq!((outcome.promoted, outcome.demoted), (0, 0));
    assert!(outcome.stopped == Some(Stopped::BothFull));
    assert!(fake.calls.is_empty());
}

/// Both tiers full, and pages can be exchanged in place.
fn full() -> Fake {
    Fake {
        swaps: true,
        ..Fake::default()
    }
}

#[test]
fn pages_of_full_tiers_are_exchanged_in_place() {
    let mut fake = full();
    let up = pieces(&mut fake, 1, 0, 2000, 1);
    let mut down = pieces(&mut fake, 1, 10_000, 700, 0);
    down.extend(pieces(&mut fake, 2, 10_000, 1500, 0));
    fake.busy = vec![10_003];
    let (outcome, left) = fake.run(free([0, 0], 0), (&up, &down), 0, 0);
    // Page 10,003 of both processes, and their partners.
    assert_eq!((outcome.promoted, outcome.demoted), (1998, 1998));
    assert_eq!((outcome.busy, outcome.failed), (4, 0));
    assert_eq!(
        (outcome.stopped, outcome.refused.as_slice()),
        (None, &[][..])
    );
    assert_eq!((fake.on(0), fake.on(1)), (2200, 2000));
    assert_eq!(left.with_headroom(TierId::FAST), 0);
    assert!(fake.calls.is_empty(), "nothing goes through free pages");
}

#[test]
fn free_pages_are_used_before_pages_are_exchanged_in_place() {
    let mut fake = Fake {
        free: [10, 0],
        least: 10,
        ..full()
    };
    let up = pieces(&mut fake, 1, 0, 100, 1);
    let down = pieces(&mut fake, 1, 10_000, 90, 0);
    let (outcome, _) = fake.run(free([10, 0], 0), (&up, &down), 10, 0);
    assert_eq!((outcome.promoted, outcome.demoted), (100, 90));
    assert_eq!((fake.free, outcome.stopped), ([0, 10], None));
}

#[test]
fn huge_and_shared_pages_of_full_tiers_stay() {
    let mut fake = full();
    let mut up = vec![fake.put(1, 1 << 20, 512, 1)];
    up.extend(pieces(&mut fake, 1, 0, 100, 1));
    let mut down = pieces(&mut fake, 1, 10_000, 80, 0);
    down.push(Piece {
        shared: true,
        ..fake.put(1, 20_000, 1, 0)
    });
    down.extend(pieces(&mut fake, 1, 30_000, 80, 0));
    let (outcome, _) = fake.run(free([0, 0], 0), (&up, &down), 0, 0);
    assert_eq!((outcome.promoted, outcome.demoted), (100, 100));
    assert_eq!(outcome.stopped, Some(Stopped::BothFull));
}

#[test]
fn a_kernel_that_exchanges_nothing_in_place_is_asked_once() {
    let mut fake = Fake {
        swaps_not: true,
        ..full()
    };
    let up = pieces(&mut fake, 1, 0, 2000, 1);
    let down = pieces(&mut fake, 2, 10_000, 2000, 0);
    let (outcome, _) = fake.run(free([0, 0], 0), (&up, &down), 0, 0);
    assert_eq!((outcome.promoted, outcome.demoted), (0, 0));
    assert_eq!(outcome.stopped, Some(Stopped::BothFull));
    assert!(outcome.refused.is_empty(), "no process is to blame");
}

#[test]
fn the_partner_of_a_process_that_ended_is_not_refused() {
    let mut fake = Fake {
        ended: Some(2),
        ..full()
    };
    let up = pieces(&mut fake, 1, 0, 600, 1);
    let mut down = pieces(&mut fake, 2, 10_000, 100, 0);
    down.extend(pieces(&mut fake, 1, 20_000, 500, 0));
    let (outcome, _) = fake.run(free([0, 0], 0), (&up, &down), 0, 0);
    assert_eq!(outcome.refused, [2]);
    assert_eq!((outcome.promoted, outcome.demoted), (500, 500));
}

#[test]
fn free_fast_memory_is_used_without_sending_anything_down() {
    let mut fake = Fake {
        free: [1010, 0],
        least: 1010,
        ..Fake::default()
    };
    let up = pieces(&mut fake, 1, 0, 1000, 1);
    let free = free([1010, 0], 10);
    let (outcome, _) = fake.run(free, (&up, &[]), 1000, 0);
    assert_eq!((outcome.promoted, outcome.demoted), (1000, 0));
    assert_eq!(fake.least, 10);
}

#[test]
fn a_process_that_ended_is_counted_and_the_others_go_on() {
    let mut fake = Fake {
        free: [600, 600],
        least: 600,
        ended: Some(1),
        ..Fake::default()
    };
    let mut up = pieces(&mut fake, 1, 0, 100, 1);
    up.extend(pieces(&mut fake, 2, 0, 100, 1));
    let free = free([600, 600], 0);
    let (outcome, _) = fake.run(free, (&up, &[]), 200, 0);
    assert_eq!(outcome.promoted, 100);
    assert_eq!(outcome.busy + outcome.failed, 100);
    assert_eq!(outcome.stopped, None);
}

#[test]
fn a_process_whose_pages_cannot_move_is_named_and_skipped() {
    let mut fake = Fake {
        free: [2000, 600],
        least: 2000,
        refuses: Some(1),
        ..Fake::default()
    };
    let mut up = pieces(&mut fake, 1, 0, 700, 1);
    up.extend(pieces(&mut fake, 2, 0, 100, 1));
    let free = free([2000, 600], 0);
    let (outcome, _) = fake.run(free, (&up, &[]), 800, 0);
    assert_eq!((outcome.promoted, outcome.stopped), (100, None));
    assert_eq!(outcome.refused, [1]);
    assert_eq!(fake.calls.len(), 2, "it is not asked for again");
}

#[test]
fn what_does_not_come_up_sends_nothing_more_down() {
    let mut fake = Fake {
        free: [0, 2000],
        ..Fake::default()
    };
    let up = pieces(&mut fake, 1, 0, 10, 1);
    let down = pieces(&mut fake, 2, 100, 1000, 0);
    let free = free([0, 2000], 0);
    let (outcome, _) = fake.run(free, (&up, &down), 0, 0);
    assert_eq!((outcome.promoted, outcome.demoted), (10, 10));
}

#[test]
fn pages_in_use_stay_and_leave_less_room_for_the_others() {
    let mut fake = Fake {
        free: [0, 100],
        busy: (100..110).collect(),
        ..Fake::default()
    };
    let up = pieces(&mut fake, 1, 0, 20, 1);
    let down = pieces(&mut fake, 1, 100, 20, 0);
    let free = free([0, 100], 0);
    let (outcome, _) = fake.run(free, (&up, &down), 0, 0);
    assert_eq!(
        (outcome.promoted, outcome.demoted, outcome.busy),
        (10, 10, 10)
    );
    assert!(outcome.stopped == Some(Stopped::FastFull));
}

#[test]
fn huge_pages_are_moved_whole() {
    let mut fake = Fake {
        free: [0, 1024],
        ..Fake::default()
    };
    let up: Vec<Piece> = (0..4).map(|i| fake.put(1, i << 9, 512, 1)).collect();
    let down: Vec<Piece> = (8..12).map(|i| fake.put(1, i << 9, 512, 0)).collect();
    let free = free([0, 1024], 0);
    let (outcome, _) = fake.run(free, (&up, &down), 0, 0);
    assert_eq!((outcome.promoted, outcome.demoted), (2048, 2048));
    assert!(fake.calls.iter().all(|(_, _, pages)| *pages == 1));
}

#[test]
fn what_is_too_much_goes_down_alone_and_no_more() {
    let mut fake = Fake {
        free: [0, 1000],
        ..Fake::default()
    };
    let down = pieces(&mut fake, 1, 0, 700, 0);
    let free = free([0, 1000], 0);
    let (outcome, _) = fake.run(free, (&[], &down), 0, 650);
    assert_eq!((outcome.promoted, outcome.demoted), (0, 650));
}

proptest! {
    #[test]
    fn free_memory_stays_within_bounds_and_no_page_is_lost(
        more_down in 0_u64..200,
        up in proptest::collection::vec((0_u32..3, any::<bool>()), 0..60),
        down in proptest::collection::vec((0_u32..3, any::<bool>()), 0..60),
        free_fast in 0_u64..2000,
        free_slow in 0_u64..2000,
        headroom in 0_u64..1500,
        into_free in 0_u64..3000,
        busy in proptest::collection::vec(0_u64..120, 0..8),
        ended in proptest::option::of(0_u32..3),
        swaps in any::<bool>(),
    ) {
        let mut fake = Fake {
            free: [free_fast, free_slow],
            least: free_fast,
            busy: busy.iter().map(|n| n << 9).collect(),
            ended,
            swaps,
            ..Fake::default()
        };
        let mut place = 0;
        let mut put = |fake: &mut Fake, list: &[(u32, bool)], node| -> Vec<Piece> {
            let mut piece = |(pid, huge): &(u32, bool)| {
                place += 1;
                fake.put(*pid, place << 9, if *huge { 512 } else { 1 }, node)
            };
            list.iter().map(&mut piece).collect()
        };
        let (up, down) = (put(&mut fake, &up, 1), put(&mut fake, &down, 0));
        let before = (fake.on(0) + fake.free[0], fake.on(1) + fake.free[1]);
        let free = free([free_fast, free_slow], headroom);
        let (outcome, free) = fake.run(free, (&up, &down), into_free, more_down);
        prop_assert_eq!(before, (fake.on(0) + fake.free[0], fake.on(1) + fake.free[1]));
        prop_assert_eq!(free.with_headroom(TierId::FAST), fake.free[0]);
        // The kernel was never asked for what it does not have.
        prop_assert!(outcome.stopped != Some(Stopped::NoFreePage));
    }
}
