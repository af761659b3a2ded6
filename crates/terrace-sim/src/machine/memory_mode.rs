//! Memory mode (Intel Optane): the first tier's DRAM is a direct-mapped cache in front of the second tier.
//!
//! Responsible for: the line that each line of DRAM holds, the locations of VMs' memory in the machine, and the
//! traffic of an access on DRAM and on the medium behind it. The cache is the whole machine's: a VM's vCPUs find the
//! lines that other VMs' left. It leaves to others: the placement of all memory in the second tier (the host's),
//! latency and bandwidth ([`super::tier`]).

use rand_xoshiro::rand_core::Rng;

use super::space::Space;
use super::tables::Level;
use super::tier::Traffic;
use super::vcpu::Environment;
use crate::base::access::{LINE, LINES_PER_PAGE};
use crate::base::number::{index, low, to_usize};
use crate::base::random::{Purpose, stream};

/// 4 KiB pages of a block of host memory that is handed out as one, on a full-size machine: 2 MiB.
const BLOCK_PAGES: u64 = 512;

/// A line of DRAM that holds nothing.
const EMPTY: u16 = u16::MAX;

/// Tags that fit beside the dirty bit.
const TAGS: u64 = 0x7fff;

/// The frames of a VM that memory backs.
#[derive(Clone, Copy, Debug)]
pub struct Frames {
    /// Frames of the guest's page tables: from 0 up to this one.
    pub tables: u32,
    /// First frame of the load's memory.
    pub first_data: u32,
    /// Number of all frames.
    pub all: u64,
}

/// The DRAM cache of the machine, and the locations of VMs' memory behind it.
#[derive(Clone, Debug)]
pub struct MemoryMode {
    /// State per line of DRAM: the tag of the line that it holds, and whether that was written (bit 0).
    tags: Vec<u16>,
    /// Host blocks of the VMs' guest blocks, one VM after the other.
    blocks: Vec<u32>,
    /// The index of each VM's first block.
    starts: Vec<usize>,
    /// The index of the running VM's first block.
    running: usize,
    /// Pages of a block, as a power of two: a block has 2^shift pages.
    shift: u32,
    /// The medium's lines that were read and written last: they are still in its buffer.
    last: (u64, u64),
}

/// The result of an access to the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Touched {
    /// Whether DRAM had the line.
    pub hit: bool,
    /// Whether the line that DRAM held in its place must go back to the medium.
    pub writes_back: bool,
    /// The access's traffic on the medium.
    pub medium: Traffic,
}

impl MemoryMode {
    /// An empty cache of so many 4 KiB pages before `behind` pages of memory, in which the VMs' blocks lie in a
    /// random order. `huge`: hosts map 2 MiB. `None` if tags cannot distinguish so much memory.
    #[must_use]
    pub fn new(
        dram: u64,
        behind: u64,
        vms: &[Frames],
        (seed, scale, huge): (u64, u64, bool),
    ) -> Option<Self> {
        // A contiguous range is divided by the scale like all ranges; a page is not.
        let pages = if huge { 1 } else { scale };
        let shift = (BLOCK_PAGES / pages).max(1).ilog2();
        let in_blocks = |frames: u64| frames.div_ceil(1 << shift);
        let needed: u64 = vms
            .iter()
            .map(|vm| {
                in_blocks(u64::from(vm.tables)) + in_blocks(vm.all - u64::from(vm.first_data))
            })
            .sum();
        let all = in_blocks(behind).max(needed);
        let lines = dram * LINES_PER_PAGE;
        if ((all << shift) * LINES_PER_PAGE).div_ceil(lines) > TAGS {
            return None;
        }
        let mut hosts = shuffled(low(all), seed).into_iter();
        let (mut blocks, mut starts) = (Vec::new(), Vec::new());
        for vm in vms {
            starts.push(blocks.len());
            for block in 0..in_blocks(vm.all) {
                let first = block << shift;
                // Between tables and data nothing is.
                let backed = first < u64::from(vm.tables) || first >= u64::from(vm.first_data);
                let host = if backed { hosts.next() } else { None };
                blocks.push(host.unwrap_or(0));
            }
        }
        Some(Self {
            tags: vec![EMPTY; to_usize(lines)],
            blocks,
            starts,
            running: 0,
            shift,
            last: (u64::MAX, u64::MAX),
        })
    }

    /// Switches to the VM (by its place) whose vCPUs run from now on.
    pub fn serve(&mut self, vm: usize) {
        self.running = self.starts.get(vm).copied().unwrap_or(0);
    }

    /// The line of host memory behind a line of a frame.
    fn host_line(&self, frame: u32, line: u64) -> u64 {
        let block = self.blocks[self.running + index(frame >> self.shift)];
        let within = frame & ((1 << self.shift) - 1);
        (u64::from(block) << self.shift | u64::from(within)) * LINES_PER_PAGE + line
    }

    /// Accesses a line of a frame of the running VM; the medium's lines have `medium_line` bytes.
    pub fn touch(&mut self, frame: u32, line: u64, write: bool, medium_line: u64) -> Touched {
        let line = self.host_line(frame, line);
        let lines = self.tags.len() as u64;
        let (tag, slot) = (line / lines, line % lines);
        let tag = u16::try_from(tag << 1).unwrap_or(EMPTY);
        let held = &mut self.tags[to_usize(slot)];
        let old = *held;
        if old != EMPTY && old >> 1 == tag >> 1 {
            *held |= u16::from(write);
            return Touched {
                hit: true,
                writes_back: false,
                medium: Traffic::default(),
            };
        }
        *held = tag | u16::from(write);
        let writes_back = old != EMPTY && old & 1 != 0;
        let mut medium = Traffic::default();
        let read = line * LINE / medium_line;
        if std::mem::replace(&mut self.last.0, read) != read {
            medium.read = medium_line;
        }
        if writes_back {
            let victim = (u64::from(old >> 1) * lines + slot) * LINE / medium_line;
            if std::mem::replace(&mut self.last.1, victim) != victim {
                medium.written = medium_line;
            }
        }
        Touched {
            hit: false,
            writes_back,
            medium,
        }
    }

    /// Bytes on the heap.
    #[must_use]
    pub fn heap_bytes(&self) -> u64 {
        let tags = self.tags.capacity() * size_of::<u16>();
        (tags + self.blocks.capacity() * size_of::<u32>()) as u64
    }
}

/// Numbers below `count` in a random order.
fn shuffled(count: u32, seed: u64) -> Vec<u32> {
    let mut random = stream(seed, "", 0, Purpose::HostMemory);
    let mut all: Vec<u32> = (0..count).collect();
    for at in (1..all.len()).rev() {
        let below = u128::from(random.next_u64()) * (at as u128 + 1);
        let other = u64::try_from(below >> 64).unwrap_or(0);
        all.swap(at, to_usize(other));
    }
    all
}

impl Space {
    /// Accesses a line of a frame, under memory mode: the traffic of DRAM and of the medium behind it is counted, but
    /// for the line itself from or to DRAM.
    pub(super) fn through_dram(
        &mut self,
        env: &Environment,
        frame: u32,
        line: u64,
        write: bool,
    ) -> Option<Touched> {
        let touched = self
            .caches
            .memory_mode
            .as_mut()?
            .touch(frame, line, write, env.line[1]);
        if !touched.hit {
            self.traffic[0].written += env.line[0];
            self.traffic[1].read += touched.medium.read;
            self.traffic[1].written += touched.medium.written;
        }
        Some(touched)
    }

    /// Reads a page's entry of a level of the guest's tables, under memory mode; returns the time that this takes,
    /// ps.
    #[cold]
    pub(super) fn table_through_dram(&mut self, env: &Environment, level: Level, page: u32) -> u64 {
        let frame = self.guest.table_frame(level, page);
        let line = self.guest.table_line(level, page);
        self.traffic[0].read += env.line[0];
        let touched = self.through_dram(env, frame, line, false);
        let longer = touched.map_or(0, |t| t.longer(env.read_ps[1], env.write_ps[1]));
        env.read_ps[0] + longer
    }
}

impl Touched {
    /// The extra time of a miss, by the prices of reads and writes: the medium is read and, if a line goes back to
    /// it, the access waits for its bandwidth too.
    #[must_use]
    pub fn longer(&self, read: u64, write: u64) -> u64 {
        match (self.hit, self.writes_back) {
            (true, _) => 0,
            (false, false) => read,
            (false, true) => write,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A cache of one page before memory that holds one VM.
    fn one_page(pages: u64) -> MemoryMode {
        let vm = Frames {
            tables: 0,
            first_data: 0,
            all: pages,
        };
        MemoryMode::new(1, pages, &[vm], (1, 512, false)).expect("tags suffice")
    }

    #[test]
    fn two_lines_of_one_place_in_dram_drive_each_other_out() {
        let mut cache = one_page(2);
        let mut touch = |frame| cache.touch(frame, 5, false, 64).hit;
        let hits = [touch(0), touch(0), touch(1), touch(0), touch(0)];
        assert_eq!(hits, [false, true, false, false, true]);
    }

    #[test]
    fn what_was_written_goes_back_once() {
        let mut cache = one_page(2);
        let mut back = |frame, write| cache.touch(frame, 0, write, 64).writes_back;
        assert!(!back(0, true) && !back(0, false), "nothing is in its place");
        assert!(back(1, false), "the other line was written");
        assert!(!back(0, false) && !back(1, false), "and is clean since");
    }

    #[test]
    fn the_medium_serves_its_own_lines() {
        let mut cache = one_page(4);
        let mut sum = Traffic::default();
        for (frame, write) in [(0, true), (1, false)] {
            for line in 0..8 {
                let medium = cache.touch(frame, line, write, 256).medium;
                sum.read += medium.read;
                sum.written += medium.written;
            }
        }
        // 512 bytes of each page were read, those of the first went back: in 256-byte lines.
        assert_eq!((sum.read, sum.written), (1024, 512));
    }

    #[test]
    fn no_two_vms_have_the_same_line_of_memory() {
        let vm = Frames {
            tables: 2,
            first_data: 512,
            all: 520,
        };
        let mut cache = MemoryMode::new(1, 22, &[vm, vm], (1, 256, false)).expect("tags suffice");
        let mut lines = Vec::new();
        for at in 0..2 {
            cache.serve(at);
            lines.extend(
                (0..2)
                    .chain(512..520)
                    .map(|frame| cache.host_line(frame, 0)),
            );
        }
        lines.sort_unstable();
        lines.dedup();
        assert_eq!(lines.len(), 20);
        assert!(lines.iter().all(|line| *line < 22 * LINES_PER_PAGE));
    }

    #[test]
    fn memory_that_tags_cannot_tell_apart_is_refused() {
        let vm = Frames {
            tables: 0,
            first_data: 0,
            all: 1,
        };
        assert!(MemoryMode::new(1, TAGS, &[vm], (1, 512, false)).is_some());
        assert!(MemoryMode::new(1, TAGS + 1, &[vm], (1, 512, false)).is_none());
    }
}
