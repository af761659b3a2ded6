//! The contents of the balloons, and the guest's last messages (docs/hyperflex-abi.md).

use anyhow::{Result, ensure};
use serde::Serialize;

use crate::memory::Memory;
use crate::ring::Chain;

const PAGE: u64 = 4096;
const MAGIC: u32 = 0x4648_5254;
const CONFIG: usize = 128;

/// The manner in which the device answers inflate requests.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub enum Manner {
    #[default]
    Good,
    /// Takes no entry.
    Refuse,
    /// Takes every other entry.
    RefuseHalf,
    /// Answers with length 0.
    Short,
    /// Says that it took more than there was.
    Boast,
    /// Leaves all requests of pages unanswered.
    Silent,
}

#[derive(Default, Serialize)]
pub struct Tier {
    pub target: u64,
    pub actual: u64,
    /// Entries of 4 KiB that went into the balloon; the next field counts those of 2 MiB.
    pub inflated_base: u64,
    pub inflated_huge: u64,
    pub deflated: u64,
    /// Entries that could not be right: outside of the tier, already in the balloon, or not in it.
    pub wrong: u64,
    #[serde(skip)]
    first: u64,
    #[serde(skip)]
    inside: Vec<bool>,
}

#[derive(Default)]
pub struct Balloons {
    pub tiers: Vec<Tier>,
    pub manner: Manner,
    pub generation: u32,
    /// Whether the guest has not been sent the targets.
    pub has_news: bool,
    /// The guest's last statistics: tag, tier, value.
    pub statistics: Vec<(u16, u16, u64)>,
    orders: u32,
}

impl Balloons {
    pub fn new(orders: u32, sizes: &[u64]) -> Self {
        let mut first = 0;
        let mut tiers = Vec::new();
        for size in sizes {
            let pages = size / PAGE;
            tiers.push(Tier {
                first,
                inside: vec![false; pages as usize],
                ..Tier::default()
            });
            first += pages;
        }
        Self {
            tiers,
            orders,
            ..Self::default()
        }
    }

    /// The configuration space.
    pub fn config(&self) -> Vec<u8> {
        let mut space = Vec::with_capacity(CONFIG);
        space.extend(MAGIC.to_le_bytes());
        space.extend(1_u16.to_le_bytes());
        let tiers = u16::try_from(self.tiers.len()).unwrap_or(u16::MAX);
        space.extend(tiers.to_le_bytes());
        space.extend(self.orders.to_le_bytes());
        space.extend(1_u32.to_le_bytes());
        for (node, tier) in self.tiers.iter().enumerate() {
            space.extend(tier.target.to_le_bytes());
            space.extend(tier.actual.to_le_bytes());
            space.extend((node as u64).to_le_bytes());
        }
        space.resize(CONFIG, 0);
        space
    }

    /// Gives the guest all of its memory back.
    pub fn reset(&mut self) {
        for tier in &mut self.tiers {
            tier.inside.fill(false);
            tier.actual = 0;
        }
    }

    /// Carries out a request of pages; returns the bytes of the answer.
    pub fn request(
        &mut self,
        memory: &Memory,
        chain: &Chain,
        tier: usize,
        inflate: bool,
    ) -> Result<u32> {
        let manner = if inflate { self.manner } else { Manner::Good };
        let entries = entries(memory, chain)?;
        let mut taken = 0;
        for (i, entry) in entries.iter().enumerate() {
            let refuses = match manner {
                Manner::Refuse | Manner::Short => true,
                Manner::RefuseHalf => i % 2 == 1,
                Manner::Good | Manner::Boast | Manner::Silent => false,
            };
            if !refuses && self.tiers[tier].turn(memory, *entry, inflate)? {
                taken += 1;
            }
        }
        let refused = u32::try_from(entries.len())? - taken;
        let answer = chain.buffers.iter().find(|buffer| buffer.writable);
        let Some(answer) = answer.filter(|_| manner != Manner::Short) else {
            return Ok(0);
        };
        let said = if manner == Manner::Boast {
            u32::MAX
        } else {
            taken
        };
        memory.write(answer.address, &said.to_le_bytes())?;
        memory.write(answer.address + 4, &refused.to_le_bytes())?;
        Ok(8)
    }

    /// The event with the targets.
    pub fn event(&self) -> Vec<u8> {
        let mut event = Vec::new();
        event.extend(1_u32.to_le_bytes());
        event.extend(self.generation.to_le_bytes());
        event.extend(0_u64.to_le_bytes());
        for tier in &self.tiers {
            event.extend(tier.target.to_le_bytes());
        }
        event
    }

    pub fn take_statistics(&mut self, memory: &Memory, chain: &Chain) -> Result<()> {
        self.statistics.clear();
        for entry in bytes(memory, chain)?.chunks_exact(16) {
            let half = |at: usize| u16::from_le_bytes([entry[at], entry[at + 1]]);
            let value = u64::from_le_bytes(entry[8..16].try_into()?);
            self.statistics.push((half(0), half(2), value));
        }
        Ok(())
    }
}

impl Tier {
    /// Takes a page or a block, or gives it back; returns whether that could be.
    fn turn(&mut self, memory: &Memory, entry: u64, inflate: bool) -> Result<bool> {
        let order = entry & 0x3f;
        let pages = 1 << order;
        let first = (entry / PAGE).wrapping_sub(self.first);
        let end = first.saturating_add(pages);
        let is_ours = end <= self.inside.len() as u64;
        let range = first as usize..end as usize;
        if !is_ours || self.inside[range.clone()].contains(&inflate) {
            self.wrong += 1;
            return Ok(false);
        }
        self.inside[range].fill(inflate);
        if inflate {
            memory.punch(entry & !(PAGE - 1), pages * PAGE)?;
            self.actual += pages;
            if order == 0 {
                self.inflated_base += 1;
            } else {
                self.inflated_huge += 1;
            }
        } else {
            self.actual -= pages;
            self.deflated += 1;
        }
        Ok(true)
    }
}

fn entries(memory: &Memory, chain: &Chain) -> Result<Vec<u64>> {
    let bytes = bytes(memory, chain)?;
    let words = bytes.chunks_exact(8);
    Ok(words
        .map(|word| u64::from_le_bytes([0, 1, 2, 3, 4, 5, 6, 7].map(|i| word[i])))
        .collect())
}

fn bytes(memory: &Memory, chain: &Chain) -> Result<Vec<u8>> {
    let mut all = Vec::new();
    for buffer in chain.buffers.iter().filter(|buffer| !buffer.writable) {
        ensure!(
            buffer.bytes <= 1 << 16,
            "a buffer of {} bytes",
            buffer.bytes
        );
        let begin = all.len();
        all.resize(begin + buffer.bytes as usize, 0);
        memory.read(buffer.address, &mut all[begin..])?;
    }
    Ok(all)
}
