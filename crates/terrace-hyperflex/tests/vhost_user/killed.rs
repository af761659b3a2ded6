//! The real program, killed at any moment while pages go in and out of the balloons, and started again.
//!
//! The guest here knows of each block of pages whose it is. After the program's end its state and files are compared
//! with that; then the next one continues with the chains that were left.

use std::collections::VecDeque;
use std::path::Path;
use std::time::{Duration, Instant};

use rand_xoshiro::Xoshiro256StarStar;
use rand_xoshiro::rand_core::{Rng as _, SeedableRng as _};
use terrace_hyperflex::State;
use terrace_hyperflex::abi::Entry;
use terrace_hyperflex::control::Client;
use terrace_testkit::mock::{MockRing, MockVm, RINGS_BYTES};
use vm_memory::{Bytes as _, GuestAddress};

use crate::left::left_state;
use crate::process::Device;
use terrace_testkit::front_end::{Hypervisor, PAGE, wait_for};

const SEED: u64 = 7;
const KILLS: usize = 32;
pub const TIERS: usize = 2;
/// Pages of a tier.
pub const PAGES: u64 = 2048;
const HUGE_PAGES: u64 = 512;
/// Chains of a queue that wait at most: half of its ring's size.
const WAITING: usize = 32;

/// Whose a block of pages is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The guest's, which wrote this into each page.
    Guest(u64),
    /// In a chain that waits.
    Asked,
    /// The host's.
    Host,
}

/// Pages that go in and out together.
#[derive(Clone, Copy, Debug)]
pub struct Block {
    pub tier: usize,
    first: u64,
    order: u8,
    pub owner: Owner,
}

impl Block {
    pub fn pages(&self) -> std::ops::Range<u64> {
        self.first..self.first + (1 << self.order)
    }
}

/// A chain that waits: whether it inflates, its blocks, and the address of its answer.
pub struct Chain {
    pub inflate: bool,
    pub blocks: Vec<usize>,
    answer: u64,
}

/// The guest: its blocks and the chains of its queues.
pub struct Guest {
    pub vm: MockVm,
    pub blocks: Vec<Block>,
    pub waiting: Vec<VecDeque<Chain>>,
    pub random: Xoshiro256StarStar,
    written: u64,
}

impl Guest {
    /// Small pages, but for the rings and one huge page at the end of the second tier.
    pub fn new() -> Self {
        let vm = MockVm::two_tiers();
        vm.fill();
        let small = |tier, pages: std::ops::Range<u64>| pages.map(move |first| (tier, first, 0));
        let all = small(0, RINGS_BYTES / PAGE..PAGES)
            .chain(small(1, 0..PAGES - HUGE_PAGES))
            .chain([(1, PAGES - HUGE_PAGES, 9)]);
        let block = |(tier, first, order)| Block {
            tier,
            first,
            order,
            owner: Owner::Guest(0),
        };
        let mut guest = Self {
            blocks: all.map(block).collect(),
            vm,
            waiting: (0..2 * TIERS).map(|_| VecDeque::new()).collect(),
            random: Xoshiro256StarStar::seed_from_u64(SEED),
            written: 0,
        };
        (0..guest.blocks.len()).for_each(|block| guest.write(block));
        guest
    }

    pub fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.random.next_u64() % end as u64).unwrap()
    }

    pub fn at(&self, tier: usize, page: u64) -> GuestAddress {
        GuestAddress(self.vm.tier(tier).start + page * PAGE)
    }

    /// Uses a block that is the guest's.
    pub fn write(&mut self, number: usize) {
        self.written += 1;
        let word = self.written;
        self.blocks[number].owner = Owner::Guest(word);
        let block = self.blocks[number];
        for page in block.pages() {
            let at = self.at(block.tier, page);
            self.vm.memory().write_obj(word, at).unwrap();
        }
    }

    /// As many chains as fit into a queue, of random blocks that are the guest's (inflate) or the host's (deflate).
    fn choose(&mut self, queue: usize) -> Vec<Vec<usize>> {
        let (tier, inflate) = (queue / 2, queue.is_multiple_of(2));
        let fits = |block: &Block| match block.owner {
            Owner::Guest(_) => inflate,
            Owner::Host => !inflate,
            Owner::Asked => false,
        };
        let all = 0..self.blocks.len();
        let mut blocks: Vec<usize> = all
            .filter(|i| self.blocks[*i].tier == tier && fits(&self.blocks[*i]))
            .collect();
        for i in (1..blocks.len()).rev() {
            let other = self.below(i + 1);
            blocks.swap(i, other);
        }
        let mut chains = Vec::new();
        while !blocks.is_empty() && chains.len() + self.waiting[queue].len() < WAITING {
            let most = 1 + self.below(63);
            let rest = blocks.split_off(most.min(blocks.len()));
            chains.push(std::mem::replace(&mut blocks, rest));
        }
        chains
    }

    fn post(&mut self, queue: usize, ring: &mut MockRing, blocks: Vec<usize>) {
        let entry = |i: &usize| {
            let Block {
                tier, first, order, ..
            } = self.blocks[*i];
            Entry::new(self.at(tier, first).0, order)
        };
        let entries: Vec<Entry> = blocks.iter().map(entry).collect();
        for i in &blocks {
            self.blocks[*i].owner = Owner::Asked;
        }
        let answer = ring.post_entries(&entries);
        self.waiting[queue].push_back(Chain {
            inflate: queue.is_multiple_of(2),
            blocks,
            answer,
        });
    }

    /// Takes the answers of a queue; returns how many.
    pub fn harvest(&mut self, queue: usize, ring: &mut MockRing) -> usize {
        let answered = ring.answered();
        for (_, len) in &answered {
            let chain = self.waiting[queue].pop_front().unwrap();
            assert_eq!(*len, 8);
            let all = u32::try_from(chain.blocks.len()).unwrap();
            assert_eq!(ring.answer(chain.answer), (all, 0), "all are taken, once");
            for number in chain.blocks {
                if chain.inflate {
                    self.blocks[number].owner = Owner::Host;
                } else {
                    self.write(number);
                }
            }
        }
        answered.len()
    }

    /// Compares each block with the files and with the balloons in the state. The first chain of each queue may be done
    /// in part, as the device was killed.
    fn compare(&self, state: &State) {
        self.compare_of(0..TIERS, true, state);
    }

    /// The same of some tiers, if the first chains are known to be done or not (`begun`).
    pub fn compare_of(&self, tiers: std::ops::Range<usize>, is_begun: bool, state: &State) {
        let mut begun = vec![false; self.blocks.len()];
        let mut inflate = vec![false; self.blocks.len()];
        for chains in &self.waiting {
            for (i, chain) in chains.iter().enumerate() {
                for block in &chain.blocks {
                    begun[*block] = is_begun && i == 0;
                    inflate[*block] = chain.inflate;
                }
            }
        }
        let present: Vec<Vec<u64>> = (0..TIERS).map(|tier| self.vm.present(tier)).collect();
        for (i, block) in self.blocks.iter().enumerate() {
            if !tiers.contains(&block.tier) {
                continue;
            }
            let is_guests = match block.owner {
                Owner::Asked if begun[i] => continue,
                Owner::Asked => inflate[i],
                Owner::Guest(_) => true,
                Owner::Host => false,
            };
            let pages = 1 << block.order;
            assert!(
                state.all_are(block.tier, block.first, pages, !is_guests),
                "the state of {block:?}"
            );
            for page in block.pages() {
                let there = present[block.tier].binary_search(&page).is_ok();
                assert_eq!(there, is_guests, "page {page} of {block:?}");
                if let Owner::Guest(word) = block.owner {
                    let at = self.at(block.tier, page);
                    let found: u64 = self.vm.memory().read_obj(at).unwrap();
                    assert_eq!(found, word, "page {page} of {block:?}");
                }
            }
        }
    }
}

pub fn spin(time: Duration) {
    let end = Instant::now() + time;
    while Instant::now() < end {
        std::hint::spin_loop();
    }
}

fn start(folder: &Path) -> Device {
    let args = [
        "--tier",
        "node=0,size=8MiB",
        "--tier",
        "node=1,size=8MiB",
        "--rate",
        "0",
    ];
    Device::start_with(folder, &args, std::process::Stdio::null())
}

/// Fills the page queues, all at once.
pub fn fill(guest: &mut Guest, host: &mut Hypervisor) {
    for queue in 0..2 * TIERS {
        for blocks in guest.choose(queue) {
            guest.post(queue, &mut host.drivers[queue], blocks);
        }
    }
    (0..2 * TIERS).for_each(|queue| host.kick(queue));
}

/// Keeps the page queues full until so many chains are answered, and leaves them full.
fn storm(guest: &mut Guest, host: &mut Hypervisor, chains: usize) {
    let mut answered = 0;
    wait_for("a device that serves", || {
        fill(guest, host);
        for queue in 0..2 * TIERS {
            answered += guest.harvest(queue, &mut host.drivers[queue]);
        }
        answered >= chains
    });
    fill(guest, host);
}

#[test]
fn a_device_killed_in_mid_chain_punches_nothing_of_the_guest() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("hypervisor");
    let client = Client::new(&folder.path().join("control"));
    let mut guest = Guest::new();
    let mut drivers = None;
    let (mut kills, mut mid_chain) = (0, 0);
    // On a busy machine the device may not be at work when it is killed.
    while kills < KILLS || (mid_chain == 0 && kills < 10 * KILLS) {
        kills += 1;
        let mut device = start(folder.path());
        let mut host = Hypervisor::connect(&socket, &guest.vm, drivers.take());
        let chains = 1 + guest.below(150);
        storm(&mut guest, &mut host, chains);
        spin(Duration::from_micros(guest.random.next_u64() % 2000));
        device.0.kill().unwrap();
        device.0.wait().unwrap();
        let mut left = host.disconnect();
        for (queue, ring) in left.iter_mut().take(2 * TIERS).enumerate() {
            guest.harvest(queue, ring);
        }
        drivers = Some(left);
        let state = left_state(&folder.path().join("state"), guest.vm.config());
        mid_chain += (0..2 * TIERS)
            .filter(|q| state.in_flight(*q).is_some())
            .count();
        guest.compare(&state);
    }
    assert!(mid_chain > 0, "no kill met a chain");

    // The last one finishes the chains that were left, and goes when its hypervisor goes.
    let mut device = start(folder.path());
    let mut host = Hypervisor::connect(&socket, &guest.vm, drivers);
    wait_for("the chains that were left", || {
        (0..2 * TIERS).for_each(|queue| {
            guest.harvest(queue, &mut host.drivers[queue]);
        });
        guest.waiting.iter().all(VecDeque::is_empty)
    });
    wait_for("the memory", || client.status(false).unwrap().connected);
    let status = client.status(true).unwrap();
    assert_eq!(status.resets, 0);
    for (tier, said) in status.tiers.iter().enumerate() {
        let gone = |block: &&Block| block.tier == tier && block.owner == Owner::Host;
        let gone = guest.blocks.iter().filter(gone);
        let gone: u64 = gone.map(|block| 1 << block.order).sum();
        assert_eq!(said.verified.unwrap().absent_pages, gone);
        assert_eq!(said.size_bytes, (PAGES - gone) * PAGE);
    }
    drop(host.disconnect());
    assert!(device.0.wait().unwrap().success());
    let state = left_state(&folder.path().join("state"), guest.vm.config());
    guest.compare(&state);
    eprintln!("of {kills} kills in a storm {mid_chain} queues had begun a chain");
}
