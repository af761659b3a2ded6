//! HyperFlex's device: bytes in, the device's faults out.
//!
//! [`rings`] takes bytes as whatever a guest may write into descriptors, rings and buffers; [`entries`] takes them as
//! well-formed chains and compares each answer with a naive model of `docs/hyperflex-abi.md`.

use std::collections::BTreeSet;
use std::sync::Arc;

use terrace_hyperflex::abi::{Entry, PAGE_BYTES, QueueRole, queues, role};
use terrace_hyperflex::config::Limits;
use terrace_hyperflex::memory::{Backing, GuestFiles};
use terrace_hyperflex::ring::Memory;
use terrace_hyperflex::ring::Ring;
use terrace_hyperflex::tier::{Admit, admit};
use terrace_hyperflex::{Device, State};

use crate::mock::{Buffer, MIB, MockRing, MockVm, RING_SIZE};

const TIERS: usize = 2;
const TIER_BYTES: u64 = 4 * MIB;
const TIER_PAGES: u64 = TIER_BYTES / PAGE_BYTES;
/// Turns within which a device must come to rest: one chain each would do.
const MAX_TURNS: usize = 4096;
/// Most steps of an input.
const MAX_STEPS: usize = 64;

/// The device under test with its guest.
struct Lab<B: Backing> {
    vm: MockVm,
    device: Device<B>,
    rings: Vec<Ring>,
    drivers: Vec<MockRing>,
    /// Pages that were ever in a balloon.
    ever: Vec<BTreeSet<u64>>,
    now_ns: u64,
}

impl<B: Backing> Lab<B> {
    fn new(admit: Admit, backing: impl FnOnce(GuestFiles) -> B) -> Self {
        let limits = Limits {
            total_pages: None,
            entries_per_s: None,
            statistics_s: 1,
        };
        let vm = MockVm::new(&[TIER_BYTES; TIERS], 0x201, limits).expect("8 MiB of memory");
        vm.fill();
        let state = State::in_memory(vm.config()).expect("a page of memory");
        let files = GuestFiles::new(vm.memory());
        let mut device = Device::new(vm.config().clone(), Arc::new(state), backing(files));
        device.set_admit(admit);
        device.set_ring_memory(Memory::new(vm.memory().clone()));
        let (rings, drivers) = vm.rings(true);
        Self {
            vm,
            device,
            rings,
            drivers,
            ever: vec![BTreeSet::new(); TIERS],
            now_ns: 0,
        }
    }

    /// Kicks a queue and lets the device come to rest.
    fn kick(&mut self, queue: usize) -> Result<(), String> {
        self.device.kick(queue);
        let mut turns = 0;
        while self.device.turn(self.now_ns, &self.rings) == Some(self.now_ns) {
            turns += 1;
            if turns > MAX_TURNS {
                return Err("the device never comes to rest".into());
            }
        }
        self.now_ns += 1_000_000_000;
        for (tier, ever) in self.ever.iter_mut().enumerate() {
            ever.extend(self.device.state().bitmap(tier).iter());
            if self.device.actual().get(tier) != Some(&self.device.state().pages_in(tier)) {
                return Err(format!("the count of tier {tier} is not that of its bits"));
            }
        }
        Ok(())
    }

    /// Whether memory is behind every page that was never in its tier's balloon. Pages that a driver wrote to are
    /// there again, which hides nothing: what must not be freed is not written.
    fn freed_only_its_own(&self) -> Result<(), String> {
        for tier in 0..TIERS {
            let present: BTreeSet<u64> = self.vm.present(tier).into_iter().collect();
            let ever = self.ever.get(tier);
            let lost = (0..TIER_PAGES)
                .find(|page| !present.contains(page) && ever.is_none_or(|e| !e.contains(page)));
            if let Some(page) = lost {
                return Err(format!("page {page} of tier {tier} is gone"));
            }
        }
        Ok(())
    }
}

/// Bytes as a stream of numbers that ends.
struct Source<'a>(&'a [u8]);

impl Source<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (now, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*now)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take::<1>().map(|[byte]| byte)
    }

    fn half(&mut self) -> Option<u16> {
        self.take().map(u16::from_le_bytes)
    }
}

/// Whatever a guest may write: descriptors, indices, buffers, kicks.
///
/// # Errors
/// The fault of the device.
pub fn rings(bytes: &[u8]) -> Result<(), String> {
    rings_with(bytes, admit, |files| files)
}

/// [`rings`], with another rule of admission and another way to free.
///
/// # Errors
/// The fault of the device.
pub fn rings_with<B: Backing>(
    bytes: &[u8],
    admit: Admit,
    backing: impl FnOnce(GuestFiles) -> B,
) -> Result<(), String> {
    let mut lab = Lab::new(admit, backing);
    let mut source = Source(bytes);
    for _ in 0..MAX_STEPS {
        let Some(queue) = source.byte() else { break };
        let queue = usize::from(queue) % queues(TIERS);
        if ring_step(&mut lab, queue, &mut source).is_none() {
            break;
        }
        lab.kick(queue)?;
    }
    for queue in 0..queues(TIERS) {
        lab.kick(queue)?;
    }
    lab.freed_only_its_own()
}

/// One write of the guest; `None` where the input ends.
fn ring_step<B: Backing>(lab: &mut Lab<B>, queue: usize, source: &mut Source<'_>) -> Option<()> {
    let kind = source.byte()?;
    let driver = lab.drivers.get_mut(queue)?;
    match kind % 4 {
        0 => {
            let gpa = pick_gpa(driver, source)?;
            let buffer = Buffer {
                gpa,
                len: u32::from(source.half()?) << (kind >> 4),
                flags: source.byte()?.into(),
                next: source.byte()?.into(),
            };
            driver.describe(u16::from(source.byte()?) % RING_SIZE, buffer);
        }
        1 => driver.post(source.byte()?.into()),
        2 => {
            let index = driver.available() + 2;
            driver.put(index, &source.take::<2>()?);
        }
        _ => {
            let at = driver.buffer(u16::from(source.byte()?));
            let entry = Entry((u64::from(source.half()?) << 12) | u64::from(source.byte()?));
            driver.put(at, &entry.0.to_le_bytes());
        }
    }
    Some(())
}

fn pick_gpa(driver: &MockRing, source: &mut Source<'_>) -> Option<u64> {
    let number = source.byte()?;
    Some(match number {
        0 => u64::MAX - 4,
        1 => 2 * TIER_BYTES - 4,
        2 => driver.descriptors(),
        3 => driver.used(),
        _ => driver.buffer(number.into()),
    })
}

/// Well-formed chains of any entries, each answer beside that of a naive model.
///
/// # Errors
/// The device's deviation from the model.
pub fn entries(bytes: &[u8]) -> Result<(), String> {
    entries_with(bytes, admit, |files| files)
}

/// [`entries`], with another rule of admission and another way to free.
///
/// # Errors
/// The device's deviation from the model.
pub fn entries_with<B: Backing>(
    bytes: &[u8],
    admit: Admit,
    backing: impl FnOnce(GuestFiles) -> B,
) -> Result<(), String> {
    let mut lab = Lab::new(admit, backing);
    let mut model = vec![BTreeSet::new(); TIERS];
    let mut source = Source(bytes);
    for _ in 0..MAX_STEPS {
        let Some([queue, count]) = source.take::<2>() else {
            break;
        };
        let queue = usize::from(queue) % (2 * TIERS);
        let chain: Vec<Entry> = (0..1 + count % 32)
            .map_while(|_| {
                let [low, high, order] = source.take::<3>()?;
                let page =
                    u64::from(u16::from_le_bytes([low, high])) % (TIERS as u64 * TIER_PAGES + 8);
                Some(Entry((page * PAGE_BYTES) | u64::from(order)))
            })
            .collect();
        if chain.is_empty() {
            break;
        }
        let want = modelled(&mut model, queue, &chain);
        let driver = lab.drivers.get_mut(queue).ok_or("no such queue")?;
        let answer = driver.post_entries(&chain);
        lab.kick(queue)?;
        let driver = lab.drivers.get_mut(queue).ok_or("no such queue")?;
        let (answered, got) = (driver.answered(), driver.answer(answer));
        if answered.len() != 1 || got != want {
            return Err(format!("{chain:x?} is answered {got:?}, not {want:?}"));
        }
        for (tier, set) in model.iter().enumerate() {
            if !lab
                .device
                .state()
                .bitmap(tier)
                .iter()
                .eq(set.iter().copied())
            {
                return Err(format!(
                    "after {chain:x?} the balloon of tier {tier} differs"
                ));
            }
        }
        lab.freed_only_its_own()?;
    }
    Ok(())
}

/// The answer to a chain by `docs/hyperflex-abi.md`: entries taken and refused.
fn modelled(model: &mut [BTreeSet<u64>], queue: usize, chain: &[Entry]) -> (u32, u32) {
    let (tier, inflate) = match role(queue, TIERS) {
        Some(QueueRole::Inflate(tier)) => (tier, true),
        Some(QueueRole::Deflate(tier)) => (tier, false),
        _ => return (0, 0),
    };
    let (mut taken, mut refused) = (0, 0);
    for entry in chain {
        let (page, order) = (entry.0 >> 12, entry.0 & 0xfff);
        let pages = if order == 9 { 512 } else { 1 };
        let first = tier as u64 * TIER_PAGES;
        let inside = page >= first && page + pages <= first + TIER_PAGES;
        let offered = order == 0 || order == 9;
        let all = page.wrapping_sub(first)..page.wrapping_sub(first).wrapping_add(pages);
        let fits = model
            .get(tier)
            .is_some_and(|set| all.clone().all(|p| set.contains(&p) != inflate));
        if !offered || !page.is_multiple_of(pages) || !inside || !fits {
            refused += 1;
            continue;
        }
        taken += 1;
        let Some(set) = model.get_mut(tier) else {
            continue;
        };
        for page in all {
            if inflate {
                set.insert(page);
            } else {
                set.remove(&page);
            }
        }
    }
    (taken, refused)
}
