//! Passes over parts against the naive walker, and against a pass over all.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng as _, SeedableRng as _};
use terrace_pagetable::entry::WRITABLE;
use terrace_pagetable::{GuestTables as _, Leaf, LeafSize, Scanner, SimulatedMemory, Vectors};
use terrace_proto::{
    Gfn, PageBitmap, Part, PartAnswer, PartRequest, Rearm, RequestId, Space, VmId, Vpn,
};

use crate::common::{Naive, bitmap, cases, load, paging, request, snapshot, store};
use crate::faults::{USED, guest};
use crate::naive_walker::Case;

pub fn part_request(part: Part, clear: bool, prune: bool) -> PartRequest {
    PartRequest {
        id: RequestId(7),
        space: Space::Guest(VmId(1)),
        part,
        clear,
        prune,
        discover: false,
    }
}

/// Mapped, accessed and written pages, and blocks of huge leaves, as a whole pass tells them.
fn sets(answer: &PartAnswer, frames: u64) -> [PageBitmap; 4] {
    let pages = || PageBitmap::new(frames);
    let mut sets = [
        pages(),
        pages(),
        pages(),
        PageBitmap::new(frames.div_ceil(512)),
    ];
    for (i, cell) in answer.cells.iter().enumerate() {
        let at = cell.at as usize;
        sets[0].set_word(at, cell.mapped);
        sets[1].set_word(at, cell.accessed);
        if let Some(written) = &answer.written {
            sets[2].set_word(at, written[i]);
        }
    }
    answer
        .huge
        .iter()
        .for_each(|block| sets[3].set(u64::from(*block)));
    sets
}

#[test]
fn passes_over_parts_of_random_tables_equal_the_naive_walkers() {
    let mut found = 0;
    for seed in 0..cases() {
        let mut case = Case::new(seed);
        let paging = paging(4 + u8::from(case.below(2) == 1), 0);
        let roots: Vec<_> = (0..1 + case.below(3))
            .map(|_| Gfn(case.below(case.tables + 1)))
            .collect();
        let mut scanner = Scanner::new(case.frames);
        let vectors = Vectors::all();
        scanner.use_vectors(vectors[usize::try_from(seed).unwrap() % vectors.len()]);
        let mut naive = Naive::new(case.frames, paging);
        if case.below(2) == 1 {
            scanner.tell_writes(true);
            naive = naive.with_writes();
        }
        for turn in 0..6 {
            let shift = [0, 1, 2, 4][usize::try_from(case.below(4)).unwrap()];
            let index = u32::try_from(case.below(1 << shift)).unwrap();
            let part = Part::new(case.random.next_u64(), shift, index).unwrap();
            let request = part_request(part, case.below(3) > 0, case.below(2) == 1);
            naive.entries = snapshot(&case.memory);
            naive.scan_part(&roots, &request);
            scanner.name_tables(true);
            let answer = scanner.scan_part(&case.memory, paging, &roots, &request, |_| true);
            let say = format!("seed {seed}, turn {turn}");
            assert!(answer.fits(case.frames), "{say}");
            let [known, accessed, written, huge] = sets(&answer, case.frames);
            assert_eq!(answer.stats, naive.stats, "{say}");
            assert_eq!(scanner.take_tables(), naive.named, "{say}");
            assert_eq!(known, naive.known, "{say}");
            assert_eq!(accessed, naive.accessed, "{say}");
            assert_eq!(
                answer.written.is_some().then_some(written),
                naive.written,
                "{say}"
            );
            assert_eq!(huge, naive.huge, "{say}");
            assert_eq!(snapshot(&case.memory), naive.entries, "{say}");
            found += accessed.count();
            for _ in 0..case.below(40) {
                let at = Vpn(case.below(1 << 45));
                case.memory.touch(paging.with_root(roots[0]), at, turn == 1);
            }
        }
    }
    assert!(found > cases(), "the cases say nothing");
}

/// A guest with leaf tables and huge pages, some of the pages mapped twice, most of them accessed.
fn mapped_guest(seed: u64) -> SimulatedMemory {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
    let mut memory = SimulatedMemory::new(8_192);
    let mut tables = (4_096..).map(Gfn);
    memory.add_table(Gfn(4_095)).unwrap();
    for _ in 0..200 {
        let huge = random.next_u64().is_multiple_of(4);
        let (size, frame) = match huge {
            true => (LeafSize::Huge, 4_608 + random.next_u64() % 7 * 512),
            false => (LeafSize::Base, random.next_u64() % 4_095),
        };
        let at = Vpn(random.next_u64() % (64 << 9) + (u64::from(huge) << 20));
        let leaf = Leaf {
            frame: Gfn(frame),
            size,
            entry: WRITABLE,
        };
        let mapped = memory.map(paging(4, 4_095), at, leaf, &mut || tables.next());
        if mapped.is_ok() && !random.next_u64().is_multiple_of(3) {
            memory.touch(paging(4, 4_095), at, false);
        }
    }
    memory
}

/// Passes over all parts of a draw find together what one pass over all finds, each leaf once, and re-arm the same leaves.
#[test]
fn the_parts_together_are_the_whole() {
    for seed in 0..cases() / 10 {
        let (one, other) = (mapped_guest(seed), mapped_guest(seed));
        let (frames, paging, roots) = (one.frames(), paging(4, 4_095), [Gfn(4_095)]);
        let all = request(false, Rearm::All);
        let whole = Scanner::new(frames).scan(&one, paging, &roots, &all);
        let mut scanner = Scanner::new(frames);
        let mut together = [PageBitmap::new(frames), PageBitmap::new(frames)];
        let (mut leaves, mut cleared) = (0, 0);
        let mut part = Part::new(seed, 3, 0).ok();
        while let Some(now) = part {
            let request = part_request(now, true, false);
            let answer = scanner.scan_part(&other, paging, &roots, &request, |_| true);
            let [known, accessed, ..] = sets(&answer, frames);
            for (sum, of_part) in together.iter_mut().zip([known, accessed]) {
                of_part.iter().for_each(|page| sum.set(page));
            }
            leaves += answer.stats.leaves;
            cleared += answer.stats.cleared;
            part = now.next();
        }
        let [known, accessed] = together;
        let say = format!("seed {seed}");
        assert_eq!((known, accessed), (whole.known, whole.accessed), "{say}");
        assert_eq!(leaves, whole.stats.leaves, "{say}");
        assert_eq!(cleared, whole.stats.cleared, "{say}");
        assert!(cleared > 50, "{say}");
    }
}

/// Shares of a pass, each by a scanner of its own and side by side, find and re-arm what one pass does; also what was known before.
#[test]
fn shares_side_by_side_are_one_pass() {
    for seed in 0..cases() / 20 {
        let (one, other) = (mapped_guest(seed), mapped_guest(seed));
        let (frames, paging, roots) = (one.frames(), paging(4, 4_095), [Gfn(4_095)]);
        let mut whole = Scanner::new(frames);
        let mut shares: Vec<(Part, Scanner)> = (0..4)
            .map(|index| (Part::new(0, 2, index).unwrap(), Scanner::new(frames)))
            .collect();
        for (prune, touched) in [(false, 3), (true, 9), (true, 50)] {
            let some = bitmap(frames, (0..frames).filter(|page| page % 3 > 0));
            let request = request(prune, Rearm::Only(some));
            let wanted = whole.scan(&one, paging, &roots, &request);
            let found = std::thread::scope(|threads| {
                let running: Vec<_> = shares
                    .iter_mut()
                    .map(|(part, scanner)| {
                        let work = (&request, *part);
                        let other = &other;
                        threads.spawn(move || {
                            scanner.scan_share(other, paging, &roots, work, |_| true)
                        })
                    })
                    .collect();
                let join = |thread: std::thread::ScopedJoinHandle<'_, _>| thread.join().unwrap();
                running.into_iter().map(join).reduce(|mut all, share| {
                    all.known.add(&share.known);
                    all.accessed.add(&share.accessed);
                    all.huge_leaf.add(&share.huge_leaf);
                    all.stats.cleared += share.stats.cleared;
                    all
                })
            })
            .unwrap();
            let say = format!("seed {seed}, {touched}");
            assert_eq!(found.known, wanted.known, "{say}");
            assert_eq!(found.accessed, wanted.accessed, "{say}");
            assert_eq!(found.huge_leaf, wanted.huge_leaf, "{say}");
            assert_eq!(found.stats.cleared, wanted.stats.cleared, "{say}");
            for at in (0..64 * 512).step_by(touched) {
                let access = |memory: &SimulatedMemory| memory.touch(paging, Vpn(at), false);
                assert_eq!(access(&one).is_some(), access(&other).is_some());
            }
        }
    }
}

/// The bit of an entry above other parts' tables is theirs as well: a pruned pass over them still comes by.
#[test]
fn a_part_leaves_the_bits_above_other_parts() {
    let mut memory = guest(4);
    memory.add_table(Gfn(5)).unwrap();
    store(&memory, 3, 1, 5 << 12 | USED);
    store(&memory, 4, 0, 99 << 12 | USED);
    store(&memory, 5, 0, 98 << 12 | USED);
    let part_of = |seed, index| Part::new(seed, 1, index).unwrap();
    let apart = |seed: &u64| part_of(*seed, 0).has(Gfn(4)) != part_of(*seed, 0).has(Gfn(5));
    let seed = (0..).find(apart).unwrap();
    let part = |index| part_of(seed, index);
    let first = u32::from(!part(0).has(Gfn(4)));
    let mut scanner = Scanner::new(memory.frames());
    let mut seen = Vec::new();
    for index in [first, 1 - first] {
        let request = part_request(part(index), true, true);
        let answer = scanner.scan_part(&memory, paging(4, 1), &[Gfn(1)], &request, |_| true);
        seen.push(sets(&answer, memory.frames())[1].iter().collect::<Vec<_>>());
        assert_eq!(load(&memory, 2, 0), 3 << 12 | USED);
    }
    assert_eq!(seen, [[99], [98]]);
    let pruned = request(true, Rearm::All);
    let whole = scanner.scan(&memory, paging(4, 1), &[Gfn(1)], &pruned);
    assert_eq!((whole.stats.accessed, whole.stats.pruned), (0, 2));
}
