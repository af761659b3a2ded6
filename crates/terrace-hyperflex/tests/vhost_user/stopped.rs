//! Rings that are stopped in mid-chain, at seeded moments: everything that the guest writes after the answer stays.
//!
//! The guest posts all of a tier and, once the hypervisor has its answer, uses every page of it again, as a driver
//! does that was unloaded. Then each byte is checked, and the state and the files beside it.

use std::io::Read as _;
use std::os::fd::AsFd as _;
use std::path::Path;
use std::time::{Duration, Instant};

use clap::Parser as _;
use rand_xoshiro::Xoshiro256StarStar;
use rand_xoshiro::rand_core::{Rng as _, SeedableRng as _};
use terrace_hyperflex::Args;
use terrace_hyperflex::abi::Entry;
use terrace_hyperflex::config::Limits;
use terrace_hyperflex::control::{Client, Status};
use terrace_sys::{first_data, memory_file};
use terrace_testkit::mock::{MIB, MockRing, MockVm};
use vm_memory::{Bytes as _, GuestAddress};

use crate::left::left_state;
use terrace_testkit::front_end::{Hypervisor, PAGE, start, wait_for};

const INFLATE: usize = 2;
const TIER_BYTES: u64 = 32 * MIB;
const PAGE_LEN: usize = 4096;
const PAGES: u64 = TIER_BYTES / PAGE;
const BLOCK: u64 = 2 * MIB;
/// Moments for each way to stop, and how many there may be until one met a chain, on a busy machine.
const MOMENTS: u64 = 8;
const MAX_MOMENTS: u64 = 20 * MOMENTS;

/// Whether there shall be another moment, after as many of which so many chains were undone.
fn goes_on(moments: u64, undone: u64) -> bool {
    moments < MOMENTS || (undone == 0 && moments < MAX_MOMENTS)
}

/// A chain: its entries and the address of its answer.
struct Chain {
    entries: Vec<Entry>,
    answer: u64,
}

/// A guest whose second tier goes into the balloon.
struct Guest {
    vm: MockVm,
    args: Args,
    random: Xoshiro256StarStar,
}

impl Guest {
    fn new(folder: &Path) -> Self {
        let limits = Limits {
            total_pages: None,
            entries_per_s: None,
            statistics_s: 0,
        };
        let path = |name: &str| folder.join(name).display().to_string();
        let args = [
            "terrace-hyperflex",
            "--socket",
            &path("hypervisor"),
            "--control",
            &path("control"),
            "--state",
            &path("state"),
            "--tier",
            "node=0,size=8MiB",
            "--tier",
            "node=1,size=32MiB",
            "--statistics",
            "0",
            "--rate",
            "0",
            "--nobody-pins",
        ];
        Self {
            vm: MockVm::new(&[8 * MIB, TIER_BYTES], 0x201, limits).unwrap(),
            args: Args::try_parse_from(args).unwrap(),
            random: Xoshiro256StarStar::seed_from_u64(3),
        }
    }

    fn client(&self) -> Client {
        Client::new(&self.args.control)
    }

    fn at(&self, page: u64) -> GuestAddress {
        GuestAddress(self.vm.tier(1).start + page * PAGE)
    }

    /// Fills each page of the tier with a byte that depends on it and on `seed`.
    fn write(&self, seed: u64) {
        self.write_to(0..PAGES, seed);
    }

    fn write_to(&self, pages: impl DoubleEndedIterator<Item = u64>, seed: u64) {
        // The last ones first: a chain comes to those last.
        for page in pages.rev() {
            let bytes = [byte(page, seed); PAGE_LEN];
            self.vm.memory().write_slice(&bytes, self.at(page)).unwrap();
        }
    }

    /// Pages that are not as they were written.
    fn lost(&self, seed: u64) -> usize {
        self.lost_of(0..PAGES, seed)
    }

    fn lost_of(&self, pages: impl Iterator<Item = u64>, seed: u64) -> usize {
        let mut bytes = [0; PAGE_LEN];
        let mut is_lost = |page: &u64| {
            let memory = self.vm.memory();
            memory.read_slice(&mut bytes, self.at(*page)).unwrap();
            bytes != [byte(*page, seed); PAGE_LEN]
        };
        pages.filter(|page| is_lost(page)).count()
    }

    /// Posts all of the tier, as blocks in one chain or several.
    fn post(&mut self, ring: &mut MockRing) -> Vec<Chain> {
        let base = self.vm.tier(1).start;
        let mut blocks: Vec<Entry> = (0..TIER_BYTES / BLOCK)
            .map(|i| Entry::new(base + i * BLOCK, 9))
            .collect();
        for i in (1..blocks.len()).rev() {
            blocks.swap(
                i,
                usize::try_from(self.random.next_u64()).unwrap() % (i + 1),
            );
        }
        let most = [16, 12, 3][usize::try_from(self.random.next_u64() % 3).unwrap()];
        let post = |entries: &[Entry]| Chain {
            entries: entries.to_vec(),
            answer: ring.post_entries(entries),
        };
        blocks.chunks(most).map(post).collect()
    }

    /// Kicks, and waits until a random page of those that the first chain punches first is gone: most of it is still to
    /// do.
    fn kick(&mut self, host: &Hypervisor, chains: &[Chain]) {
        host.kick(INFLATE);
        let first = self.pages_of(&chains[..1]);
        let page = first[usize::try_from(self.random.next_u64()).unwrap() % (first.len() / 4)];
        let at = page * PAGE..(page + 1) * PAGE;
        let end = Instant::now() + Duration::from_secs(60);
        while first_data(self.vm.file(1).as_fd(), at.clone())
            .unwrap()
            .is_some()
        {
            assert!(Instant::now() < end, "in vain: page {page} to go");
        }
    }

    /// Pages of these chains.
    fn pages_of(&self, chains: &[Chain]) -> Vec<u64> {
        let first = |entry: &Entry| (entry.gpa() - self.vm.tier(1).start) / PAGE;
        let entries = chains.iter().flat_map(|chain| &chain.entries);
        let pages = entries.flat_map(|e| first(e)..first(e) + BLOCK / PAGE);
        let mut pages: Vec<u64> = pages.collect();
        pages.sort_unstable();
        pages
    }

    /// The device's status once it has come to the end of its turn, with any outcome.
    fn status(&self) -> Status {
        self.client().status(true).unwrap()
    }
}

fn byte(page: u64, seed: u64) -> u8 {
    // Never the value that a hole reads as.
    1 + u8::try_from((page * 7 + seed * 31) % 255).unwrap()
}

/// How far the device is with a ring.
fn used(ring: &MockRing) -> u16 {
    u16::from_le_bytes(ring.read(ring.used() + 2))
}

/// Entries that were taken, and refused.
fn answers(ring: &MockRing, chains: &[Chain]) -> (u64, u64) {
    let each = chains.iter().map(|chain| ring.answer(chain.answer));
    each.fold((0, 0), |(t, r), (taken, refused)| {
        (t + u64::from(taken), r + u64::from(refused))
    })
}

/// Waits until the chains that were left are done, all of them taken.
fn finish(host: &Hypervisor, chains: &[Chain]) {
    let ring = &host.drivers[INFLATE];
    wait_for("all answers", || used(ring) == ring.posted());
    assert_eq!(answers(ring, chains), (TIER_BYTES / BLOCK, 0));
}

/// Every page is with the host, by state, count and files.
fn is_all_the_hosts(status: &Status) {
    let seen = status.tiers[1].verified.unwrap();
    assert_eq!((seen.claimed_pages, seen.absent_pages), (PAGES, PAGES));
    assert_eq!((status.tiers[1].size_bytes, status.resets), (0, 0));
}

#[test]
fn a_ring_stopped_in_mid_chain_resumes_at_base() {
    let (mut seed, mut undone) = (0, 0);
    while goes_on(seed, undone) {
        let folder = tempfile::tempdir().unwrap();
        let mut guest = Guest::new(folder.path());
        guest.random = Xoshiro256StarStar::seed_from_u64(seed);
        guest.write(seed);
        let device = start(&guest.args);
        let mut host = Hypervisor::connect(&guest.args.socket, &guest.vm, None);
        let chains = guest.post(&mut host.drivers[INFLATE]);
        guest.kick(&host, &chains);
        let base = host.stop(INFLATE);
        let answered = used(&host.drivers[INFLATE]);
        let (done, left) = chains.split_at(answered.into());
        let left = guest.pages_of(left);
        guest.write_to(left.iter().copied(), seed + 1);
        let status = guest.status();
        let lost = guest.lost_of(left.iter().copied(), seed + 1);
        assert_eq!(lost, 0, "of {} pages", left.len());
        undone += status.counters.undone_chains;
        // Only answered pages are in the balloon.
        let ring = &host.drivers[INFLATE];
        assert_eq!((base, used(ring)), (answered, answered));
        let taken = answers(ring, done).0;
        assert_eq!(TIER_BYTES - status.tiers[1].size_bytes, taken * BLOCK);
        let seen = status.tiers[1].verified.unwrap();
        assert_eq!(seen.absent_pages, taken * BLOCK / PAGE);
        // The same driver continues.
        host.set_up(INFLATE, base);
        finish(&host, &chains);
        is_all_the_hosts(&guest.status());
        drop(host);
        device.join().unwrap();
        seed += 1;
    }
    assert!(undone > 0, "no moment met a chain");
}

#[test]
fn a_ring_disabled_in_mid_chain_frees_nothing_after_the_answer() {
    let folder = tempfile::tempdir().unwrap();
    let mut guest = Guest::new(folder.path());
    let device = start(&guest.args);
    let mut host = Hypervisor::connect(&guest.args.socket, &guest.vm, None);
    let (mut seed, mut lost, mut undone) = (0, 0, 0);
    while goes_on(seed, undone) {
        guest.write(seed);
        let chains = guest.post(&mut host.drivers[INFLATE]);
        guest.kick(&host, &chains);
        host.enable(INFLATE, false);
        guest.write(seed + 1);
        undone += guest.status().counters.undone_chains;
        lost += guest.lost(seed + 1);
        // A new driver.
        host = host.reboot(&guest.vm);
        assert_eq!(guest.status().tiers[1].size_bytes, TIER_BYTES);
        seed += 1;
    }
    assert_eq!(lost, 0, "of {} pages", seed * PAGES);
    assert!(undone > 0, "no moment met a chain");
    let chains = guest.post(&mut host.drivers[INFLATE]);
    guest.kick(&host, &chains);
    host.enable(INFLATE, false);
    host.enable(INFLATE, true);
    finish(&host, &chains);
    drop(host);
    device.join().unwrap();
}

#[test]
fn a_reset_in_mid_chain_frees_nothing_later_and_counts_once() {
    let folder = tempfile::tempdir().unwrap();
    let mut guest = Guest::new(folder.path());
    let device = start(&guest.args);
    let mut host = Hypervisor::connect(&guest.args.socket, &guest.vm, None);
    let (mut seed, mut lost, mut undone) = (0, 0, 0);
    while goes_on(seed, undone) {
        guest.write(seed);
        let chains = guest.post(&mut host.drivers[INFLATE]);
        guest.kick(&host, &chains);
        host.reset();
        guest.write(seed + 1);
        let status = guest.status();
        undone += status.counters.undone_chains;
        lost += guest.lost(seed + 1);
        assert_eq!(status.tiers[1].size_bytes, TIER_BYTES);
        host = host.restart(&guest.vm);
        // The device notices that at the first kick.
        assert_eq!(host.entries(0, &[Entry::new(5 * MIB, 0)]), (1, 0));
        assert_eq!(guest.status().resets, seed + 1);
        seed += 1;
    }
    assert_eq!(lost, 0, "of {} pages", seed * PAGES);
    assert!(undone > 0, "no moment met a chain");
    drop(host);
    device.join().unwrap();
}

#[test]
fn a_vanished_hypervisor_leaves_no_half_known_chain() {
    for seed in 0..MOMENTS {
        let folder = tempfile::tempdir().unwrap();
        let mut guest = Guest::new(folder.path());
        guest.random = Xoshiro256StarStar::seed_from_u64(seed);
        guest.write(seed);
        let device = start(&guest.args);
        let mut host = Hypervisor::connect(&guest.args.socket, &guest.vm, None);
        let chains = guest.post(&mut host.drivers[INFLATE]);
        guest.kick(&host, &chains);
        let drivers = host.disconnect();
        device.join().unwrap();
        let (done, left) = chains.split_at(used(&drivers[INFLATE]).into());
        let left = guest.pages_of(left);
        guest.write_to(left.iter().copied(), seed + 1);
        let state = left_state(&folder.path().join("state"), guest.vm.config());
        let taken = answers(&drivers[INFLATE], done).0;
        assert_eq!(state.pages_in(1), taken * (BLOCK / PAGE));
        assert_eq!(state.in_flight(INFLATE), None);
        drop(state);
        let device = start(&guest.args);
        assert_eq!(guest.lost_of(left.into_iter(), seed + 1), 0);
        let host = Hypervisor::connect(&guest.args.socket, &guest.vm, Some(drivers));
        finish(&host, &chains);
        is_all_the_hosts(&guest.status());
        drop(host);
        device.join().unwrap();
    }
}

#[test]
fn a_memory_table_replaced_in_mid_chain_frees_no_old_file() {
    let folder = tempfile::tempdir().unwrap();
    let mut guest = Guest::new(folder.path());
    let device = start(&guest.args);
    let mut host = Hypervisor::connect(&guest.args.socket, &guest.vm, None);
    let (mut seed, mut undone) = (0, 0);
    while goes_on(seed, undone) {
        guest.write(seed);
        // A file that the device has not seen, with memory behind all of it.
        let mut other = memory_file(c"other", TIER_BYTES).unwrap();
        std::io::copy(&mut std::io::repeat(7).take(TIER_BYTES), &mut other).unwrap();
        let chains = guest.post(&mut host.drivers[INFLATE]);
        guest.kick(&host, &chains);
        host.share_files(&guest.vm, &[guest.vm.file(0), &other]);
        let answered = used(&host.drivers[INFLATE]);
        guest.write(seed + 1);
        finish(&host, &chains);
        assert_eq!(guest.lost(seed + 1), 0, "of {PAGES} pages");
        // The chain that was undone is done in the new one, and so are those behind it.
        let seen = guest.status().tiers[1].verified.unwrap();
        assert_eq!(seen.claimed_pages, PAGES);
        let (_, left) = chains.split_at(answered.into());
        let left = guest.pages_of(left).len() as u64;
        assert!(
            (left..=PAGES).contains(&seen.absent_pages),
            "{left} {seen:?}"
        );
        host.share(&guest.vm);
        host = host.reboot(&guest.vm);
        undone = guest.status().counters.undone_chains;
        seed += 1;
    }
    assert!(undone > 0, "no moment met a chain");
    drop(host);
    device.join().unwrap();
}
