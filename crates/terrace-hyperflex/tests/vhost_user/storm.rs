//! Messages of a hypervisor in random order, at random moments, while all queues are busy.
//!
//! `TERRACE_STORM_STEPS` makes it longer, `TERRACE_STORM_SEED` another one.

use std::collections::VecDeque;
use std::path::Path;
use std::time::Duration;

use rand_xoshiro::Xoshiro256StarStar;
use rand_xoshiro::rand_core::{Rng as _, SeedableRng as _};
use terrace_hyperflex::control::Client;
use terrace_hyperflex::{Args, State};
use vm_memory::Bytes as _;

use crate::killed::{Guest, Owner, PAGES, TIERS, fill, spin};
use terrace_testkit::front_end::{Hypervisor, PAGE, args, start, wait_for};

const STEPS: u64 = 150;
const PAGE_QUEUES: usize = 2 * TIERS;

/// The hypervisor's next step.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Stops the rings of a tier and starts them at the same places.
    Stop(usize),
    /// Disables them and enables them.
    Disable(usize),
    /// Resets the device, and a new driver starts.
    Reboot,
    /// Stops all rings without a reset, and a new driver starts.
    Unload,
    /// Sends the memory table again.
    Share,
    /// Agrees on features again.
    Agree,
    /// Reads the configuration a few times.
    Config,
    /// Kicks a lot.
    Kick,
    /// Goes away and comes again, to a device that was started again.
    Vanish,
    /// Lets everything be answered.
    Rest,
}

struct Storm {
    args: Args,
    guest: Guest,
    device: Option<std::thread::JoinHandle<()>>,
    host: Option<Hypervisor>,
}

fn number(name: &str, otherwise: u64) -> u64 {
    let said = std::env::var(name).ok();
    said.map_or(otherwise, |said| said.parse().unwrap())
}

impl Storm {
    fn new(folder: &Path, seed: u64) -> Self {
        let mut guest = Guest::new();
        guest.random = Xoshiro256StarStar::seed_from_u64(seed);
        let args = args(folder, &["--rate", "0"]);
        let device = start(&args);
        let host = Hypervisor::connect(&args.socket, &guest.vm, None);
        Self {
            args,
            guest,
            device: Some(device),
            host: Some(host),
        }
    }

    fn host(&mut self) -> &mut Hypervisor {
        self.host.as_mut().unwrap()
    }

    fn choose(&mut self) -> Step {
        let tier = self.guest.below(TIERS);
        match self.guest.below(20) {
            0..5 => Step::Stop(tier),
            5..9 => Step::Disable(tier),
            9 | 10 => Step::Reboot,
            11 => Step::Unload,
            12 | 13 => Step::Share,
            14 => Step::Agree,
            15 => Step::Config,
            16 => Step::Kick,
            17 => Step::Vanish,
            18 => Step::Rest,
            _ => Step::Stop(TIERS - 1 - tier),
        }
    }

    fn harvest(&mut self) {
        let host = self.host.as_mut().unwrap();
        for queue in 0..PAGE_QUEUES {
            self.guest.harvest(queue, &mut host.drivers[queue]);
        }
    }

    /// The page queues of these tiers are idle: the guest uses all that it was not answered for, and nothing of that
    /// goes, while the others are served. The device has come to the end of a turn by the time that it reported its
    /// status.
    fn is_idle(&mut self, tiers: std::ops::Range<usize>) {
        self.harvest();
        let chains = tiers.clone().flat_map(|tier| &self.guest.waiting[2 * tier]);
        let asked: Vec<usize> = chains.flat_map(|chain| chain.blocks.clone()).collect();
        for block in &asked {
            self.guest.write(*block);
        }
        Client::new(&self.args.control).status(false).unwrap();
        for block in &asked {
            let block = &mut self.guest.blocks[*block];
            let Owner::Guest(word) = block.owner else {
                panic!("it was written to");
            };
            block.owner = Owner::Asked;
            let block = *block;
            for page in block.pages() {
                let at = self.guest.at(block.tier, page);
                let found: u64 = self.guest.vm.memory().read_obj(at).unwrap();
                assert_eq!(found, word, "page {page} of {block:?}");
            }
        }
        // A device that runs holds the lock of its own.
        let copy = self.args.state.as_ref().unwrap().with_extension("copy");
        std::fs::copy(self.args.state.as_ref().unwrap(), &copy).unwrap();
        let state = State::open(&copy, self.guest.vm.config()).unwrap();
        self.guest.compare_of(tiers.clone(), false, &state);
        for queue in 2 * tiers.start..2 * tiers.end {
            assert_eq!(state.in_flight(queue), None, "queue {queue}");
        }
    }

    /// A new driver owns all memory.
    fn starts_anew(&mut self) {
        self.guest.waiting = (0..PAGE_QUEUES).map(|_| VecDeque::new()).collect();
        for block in 0..self.guest.blocks.len() {
            self.guest.write(block);
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Stop(tier) => {
                let queues = [2 * tier, 2 * tier + 1];
                let bases = queues.map(|queue| self.host().stop(queue));
                self.is_idle(tier..tier + 1);
                for (queue, base) in queues.into_iter().zip(bases) {
                    let ring = &self.host().drivers[queue];
                    assert_eq!(ring.read(ring.used() + 2), base.to_le_bytes());
                    self.host().set_up(queue, base);
                }
            }
            Step::Disable(tier) => {
                let queues = [2 * tier, 2 * tier + 1];
                queues
                    .into_iter()
                    .for_each(|queue| self.host().enable(queue, false));
                self.is_idle(tier..tier + 1);
                queues
                    .into_iter()
                    .for_each(|queue| self.host().enable(queue, true));
            }
            Step::Reboot | Step::Unload => {
                if matches!(step, Step::Reboot) {
                    self.host().reset();
                }
                for queue in 0..PAGE_QUEUES {
                    self.host().stop(queue);
                }
                self.starts_anew();
                let host = self.host.take().unwrap();
                self.host = Some(host.restart(&self.guest.vm));
                // An unloaded driver is seen by the first kick of the next, if by no reset.
                let at = self.host().post_event_buffer(100);
                self.host().event(at);
            }
            Step::Share => {
                let host = self.host.as_ref().unwrap();
                host.share(&self.guest.vm);
            }
            Step::Agree => self.host().agree(),
            Step::Config => (0..20).for_each(|i| drop(self.host().config(i, 8))),
            Step::Kick => (0..5000).for_each(|i| self.host().kick(i % PAGE_QUEUES)),
            Step::Vanish => {
                let mut drivers = self.host.take().unwrap().disconnect();
                self.device.take().unwrap().join().unwrap();
                for (queue, ring) in drivers.iter_mut().take(PAGE_QUEUES).enumerate() {
                    self.guest.harvest(queue, ring);
                }
                self.device = Some(start(&self.args));
                let socket = &self.args.socket;
                self.host = Some(Hypervisor::connect(socket, &self.guest.vm, Some(drivers)));
            }
            Step::Rest => {
                wait_for("all chains", || {
                    self.harvest();
                    self.guest.waiting.iter().all(VecDeque::is_empty)
                });
                self.is_idle(0..TIERS);
            }
        }
    }
}

#[test]
fn messages_in_any_order_lose_no_page_and_no_answer() {
    let folder = tempfile::tempdir().unwrap();
    let mut storm = Storm::new(folder.path(), number("TERRACE_STORM_SEED", 11));
    let mut undone = 0;
    for i in 0..number("TERRACE_STORM_STEPS", STEPS) {
        storm.harvest();
        fill(&mut storm.guest, storm.host.as_mut().unwrap());
        spin(Duration::from_micros(storm.guest.random.next_u64() % 1500));
        let step = storm.choose();
        if std::env::var_os("TERRACE_STORM_SAYS").is_some() {
            eprintln!("step {i}: {step:?}");
        }
        storm.step(step);
        let status = Client::new(&storm.args.control).status(false).unwrap();
        undone = undone.max(status.counters.undone_chains);
        assert_eq!(status.counters.broken_rings, 0);
        assert_eq!(status.counters.refused(), 0);
    }
    storm.step(Step::Rest);
    let status = Client::new(&storm.args.control).status(true).unwrap();
    for (tier, said) in status.tiers.iter().enumerate() {
        let hosts =
            |block: &&crate::killed::Block| block.tier == tier && block.owner == Owner::Host;
        let hosts = storm.guest.blocks.iter().filter(hosts);
        let hosts: u64 = hosts.map(|block| block.pages().count() as u64).sum();
        assert_eq!(said.size_bytes, (PAGES - hosts) * PAGE);
        assert_eq!(said.verified.unwrap().absent_pages, hosts);
    }
    assert!(undone > 0, "no message met a chain");
    drop(storm.host.take());
    storm.device.take().unwrap().join().unwrap();
}

/// A message that makes sense or none, to any ring.
fn nonsense(storm: &mut Storm) {
    let queue = storm.guest.below(PAGE_QUEUES + 2);
    let what = storm.guest.below(7);
    let base = u16::try_from(storm.guest.below(200)).unwrap();
    let host = storm.host.as_mut().unwrap();
    match what {
        0 => {
            host.stop(queue);
        }
        1 => host.set_up(queue, base),
        2 => host.enable(queue, base.is_multiple_of(2)),
        3 => host.agree(),
        4 => host.share(&storm.guest.vm),
        5 => drop(host.config(base.into(), 8)),
        _ => (0..100).for_each(|_| host.kick(queue)),
    }
}

#[test]
fn a_stopped_ring_is_idle_whatever_was_sent_before() {
    let folder = tempfile::tempdir().unwrap();
    let mut storm = Storm::new(folder.path(), number("TERRACE_STORM_SEED", 12));
    let client = Client::new(&storm.args.control);
    let of_tier = 2 * (TIERS - 1);
    for i in 0..number("TERRACE_STORM_STEPS", 100) {
        // The driver forgets its requests, and posts them again.
        storm.guest.waiting = (0..PAGE_QUEUES).map(|_| VecDeque::new()).collect();
        for block in &mut storm.guest.blocks {
            block.owner = Owner::Guest(0);
        }
        fill(&mut storm.guest, storm.host.as_mut().unwrap());
        for _ in 0..storm.guest.below(6) {
            nonsense(&mut storm);
        }
        spin(Duration::from_micros(storm.guest.random.next_u64() % 500));
        for queue in [of_tier, of_tier + 1] {
            storm.host().stop(queue);
        }
        let blocks = 0..storm.guest.blocks.len();
        let blocks = blocks.filter(|block| storm.guest.blocks[*block].tier == TIERS - 1);
        let blocks: Vec<usize> = blocks.collect();
        for block in &blocks {
            storm.guest.write(*block);
        }
        let before = client.status(false).unwrap().tiers[TIERS - 1].size_bytes;
        for block in &blocks {
            let block = storm.guest.blocks[*block];
            for page in block.pages() {
                let at = storm.guest.at(block.tier, page);
                let found: u64 = storm.guest.vm.memory().read_obj(at).unwrap();
                assert_eq!(Owner::Guest(found), block.owner, "step {i}, page {page}");
            }
        }
        let after = client.status(false).unwrap();
        // A new driver of another ring empties all balloons.
        let size = after.tiers[TIERS - 1].size_bytes;
        assert!(size == before || size == PAGES * PAGE);
        for queue in 0..PAGE_QUEUES + 2 {
            let base = u16::try_from(storm.guest.below(3)).unwrap();
            let ring = &storm.host().drivers[queue];
            let used = u16::from_le_bytes(ring.read(ring.used() + 2));
            storm.host().stop(queue);
            storm.host().set_up(queue, used.wrapping_add(base));
            storm.host().enable(queue, true);
        }
    }
    let counters = client.status(false).unwrap().counters;
    assert!(
        counters.undone_chains > 0 && counters.chains > 0,
        "{counters:?}"
    );
    drop(storm.host.take());
    storm.device.take().unwrap().join().unwrap();
}
