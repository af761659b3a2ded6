//! A guest without a processor: memory in files, rings in that memory, and a driver that posts what it is told to,
//! sense or nonsense. The benchmark drives HyperFlex's device with it; tests and fuzz bodies do, too.
//!
//! [`Guest`] and [`MockRing`] know no type of the device, so that its inline tests use them as well.

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::os::fd::AsFd as _;

use terrace_hyperflex::FlexError;
use terrace_hyperflex::abi::queues;
use terrace_hyperflex::config::{Config, GpaRange, Limits, TierConfig};
use terrace_hyperflex::ring::Ring;
use terrace_proto::PAGE_SIZE;
use terrace_sys::{SysError, file_size, for_each_data_extent, memory_file};
use vhost_user_backend::VringT;
use vm_memory::{
    Bytes as _, FileOffset, GuestAddress, GuestMemoryAtomic, GuestMemoryMmap, GuestRegionMmap,
    MmapRegion,
};

/// Bytes of a mebibyte.
pub const MIB: u64 = 1 << 20;
/// Descriptors of each ring.
pub const RING_SIZE: u16 = 128;
/// Bytes of tier 0, from address 0 on, that hold rings and buffers.
pub const RINGS_BYTES: u64 = 2 * MIB;
/// A descriptor that another one follows.
pub const NEXT: u16 = 1;
/// A descriptor that the device writes to.
pub const WRITE: u16 = 2;

/// Per queue: descriptors, available ring, used ring, buffers.
const QUEUE_BYTES: u64 = 128 * 1024;
const AVAILABLE: u64 = 16 * 1024;
const USED: u64 = 32 * 1024;
const BUFFERS: u64 = 48 * 1024;

/// The location of a tier, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TierRange {
    /// Guest physical address of the tier's first byte.
    pub start: u64,
    /// Length of the tier.
    pub len: u64,
}

/// A VM's memory: one file per tier, one tier after the other from address 0 on.
#[derive(Debug)]
pub struct Guest {
    tiers: Vec<TierRange>,
    memory: GuestMemoryMmap,
    files: Vec<File>,
}

impl Guest {
    /// A VM with these bytes per tier.
    ///
    /// # Errors
    /// If there is no memory.
    pub fn new(sizes: &[u64]) -> Result<Self, SysError> {
        let files = sizes.iter().map(|len| memory_file(c"guest", *len));
        Self::over(files.collect::<Result<Vec<File>, _>>()?)
    }

    /// A VM with a tier for each of these files, all of it.
    ///
    /// # Errors
    /// If they cannot be mapped.
    pub fn over(files: Vec<File>) -> Result<Self, SysError> {
        let mut start = 0;
        let mut tiers = Vec::new();
        for file in &files {
            let len = file_size(file.as_fd())?;
            tiers.push(TierRange { start, len });
            start += len;
        }
        let memory = map(&tiers, &files)?;
        Ok(Self {
            tiers,
            memory,
            files,
        })
    }

    /// The locations of the tiers.
    #[must_use]
    pub fn tiers(&self) -> &[TierRange] {
        &self.tiers
    }

    /// The VM's memory.
    #[must_use]
    pub fn memory(&self) -> &GuestMemoryMmap {
        &self.memory
    }

    /// The file behind a tier.
    ///
    /// # Panics
    /// If there is no such tier.
    #[must_use]
    pub fn file(&self, tier: usize) -> &File {
        &self.files[tier]
    }

    /// The location of a tier.
    ///
    /// # Panics
    /// If there is no such tier.
    #[must_use]
    pub fn tier(&self, tier: usize) -> TierRange {
        self.tiers[tier]
    }

    /// Writes to every page but the rings', so that memory is behind it.
    pub fn fill(&self) {
        for tier in 0..self.files.len() {
            let TierRange { start, len } = self.tier(tier);
            self.touch(
                start.max(RINGS_BYTES),
                (start + len).saturating_sub(start.max(RINGS_BYTES)) / PAGE_SIZE,
            );
        }
        self.touch(0, RINGS_BYTES / PAGE_SIZE);
    }

    /// Writes eight bytes into each of these pages, unless something is there already.
    pub fn touch(&self, gpa: u64, pages: u64) {
        for page in 0..pages {
            let at = GuestAddress(gpa + page * PAGE_SIZE + PAGE_SIZE - 8);
            // Pages that are not there stay so.
            let _ = self.memory.write_obj(u64::MAX, at);
        }
    }

    /// Pages of a tier that have memory behind them, by number.
    ///
    /// # Panics
    /// If the kernel does not say.
    #[must_use]
    pub fn present(&self, tier: usize) -> Vec<u64> {
        let mut pages = Vec::new();
        let all = 0..self.tier(tier).len;
        for_each_data_extent(self.file(tier).as_fd(), all, |extent| {
            let first = extent.start / PAGE_SIZE;
            pages.extend(first..(extent.start + extent.len) / PAGE_SIZE);
        })
        .expect("a file in memory can be sought");
        pages
    }

    /// So many queues as the device sees them, set up as a hypervisor does, and the driver's side of each.
    ///
    /// # Panics
    /// If rings do not fit into the memory.
    #[must_use]
    pub fn queues<R: VringT<Memory>>(
        &self,
        count: usize,
        event_idx: bool,
    ) -> (Vec<R>, Vec<MockRing>) {
        let shared = GuestMemoryAtomic::new(self.memory.clone());
        (0..count)
            .map(|queue| {
                let ring = MockRing::new(&self.memory, queue);
                let vring = R::new(shared.clone(), RING_SIZE).expect("a power of two");
                vring.set_queue_size(RING_SIZE);
                let places = (ring.descriptors(), ring.available(), ring.used());
                vring
                    .set_queue_info(places.0, places.1, places.2)
                    .expect("aligned");
                vring.set_queue_event_idx(event_idx);
                vring.set_queue_ready(true);
                vring.set_enabled(true);
                (vring, ring)
            })
            .unzip()
    }
}

/// The type of memory that rings take.
type Memory = GuestMemoryAtomic<GuestMemoryMmap>;

fn map(tiers: &[TierRange], files: &[File]) -> Result<GuestMemoryMmap, SysError> {
    let failed = |why: &dyn std::fmt::Display| SysError {
        call: "mmap",
        what: "a guest's memory".into(),
        source: io::Error::other(why.to_string()),
    };
    let mut regions = Vec::new();
    for (tier, file) in tiers.iter().zip(files) {
        let file = file.try_clone().map_err(|e| failed(&e))?;
        let len = usize::try_from(tier.len).map_err(|e| failed(&e))?;
        let mapped =
            MmapRegion::from_file(FileOffset::new(file, 0), len).map_err(|e| failed(&e))?;
        let region = GuestRegionMmap::new(mapped, GuestAddress(tier.start));
        regions.push(region.ok_or_else(|| failed(&"addresses beyond 2^64"))?);
    }
    GuestMemoryMmap::from_regions(regions).map_err(|e| failed(&e))
}

/// A guest with a description for the device.
#[derive(Debug)]
pub struct MockVm {
    config: Config,
    guest: Guest,
}

impl Deref for MockVm {
    type Target = Guest;

    fn deref(&self) -> &Guest {
        &self.guest
    }
}

impl MockVm {
    /// A VM with these bytes per tier.
    ///
    /// # Errors
    /// If there is no memory, or sizes are not of whole pages.
    pub fn new(sizes: &[u64], orders: u32, limits: Limits) -> Result<Self, FlexError> {
        Self::of(Guest::new(sizes)?, orders, limits)
    }

    /// A VM with a tier for each of these files, all of it.
    ///
    /// # Errors
    /// If they cannot be mapped or are not of whole pages.
    pub fn over(files: Vec<File>, orders: u32, limits: Limits) -> Result<Self, FlexError> {
        Self::of(Guest::over(files)?, orders, limits)
    }

    fn of(guest: Guest, orders: u32, limits: Limits) -> Result<Self, FlexError> {
        let tier = |(node, range): (u32, &TierRange)| TierConfig {
            node,
            host_node: None,
            ranges: vec![GpaRange {
                start: range.start,
                len: range.len,
            }],
        };
        let tiers = (0..).zip(guest.tiers()).map(tier).collect();
        Ok(Self {
            config: Config::new(tiers, orders, limits)?,
            guest,
        })
    }

    /// Two tiers of 8 MiB, both page sizes, statistics every second, no limit.
    ///
    /// # Panics
    /// If there is no memory.
    #[must_use]
    pub fn two_tiers() -> Self {
        let limits = Limits {
            total_pages: None,
            entries_per_s: None,
            statistics_s: 1,
        };
        Self::new(&[8 * MIB, 8 * MIB], 0x201, limits).expect("16 MiB of memory")
    }

    /// The device's description of the VM.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The VM's queues as the device sees them, and the driver's side of each.
    ///
    /// # Panics
    /// If rings do not fit into the memory.
    #[must_use]
    pub fn rings(&self, event_idx: bool) -> (Vec<Ring>, Vec<MockRing>) {
        self.queues(queues(self.tiers().len()), event_idx)
    }
}

/// One descriptor as a driver writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// Guest physical address of the buffer.
    pub gpa: u64,
    /// Length of the buffer, bytes.
    pub len: u32,
    /// [`NEXT`], [`WRITE`], or anything.
    pub flags: u16,
    /// The descriptor that follows.
    pub next: u16,
}

/// The driver's side of a queue.
#[derive(Debug)]
pub struct MockRing {
    memory: GuestMemoryMmap,
    base: u64,
    posted: u16,
    seen: u16,
    slot: u16,
}

impl MockRing {
    /// The ring of a queue, empty.
    #[must_use]
    pub fn new(memory: &GuestMemoryMmap, queue: usize) -> Self {
        let ring = Self {
            memory: memory.clone(),
            base: queue as u64 * QUEUE_BYTES,
            posted: 0,
            seen: 0,
            slot: 0,
        };
        // Index, heads, and the request for interrupts.
        ring.put(ring.available(), &[0; 6 + 2 * RING_SIZE as usize]);
        ring.put(ring.used(), &[0; 4]);
        ring
    }

    /// Address of the descriptors.
    #[must_use]
    pub fn descriptors(&self) -> u64 {
        self.base
    }

    /// Address of the available ring.
    #[must_use]
    pub fn available(&self) -> u64 {
        self.base + AVAILABLE
    }

    /// Address of the used ring.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.base + USED
    }

    /// Address of the buffer that belongs to a descriptor: 512 bytes each.
    #[must_use]
    pub fn buffer(&self, descriptor: u16) -> u64 {
        self.base + BUFFERS + u64::from(descriptor % RING_SIZE) * 512
    }

    /// Writes bytes of the guest.
    pub fn put(&self, gpa: u64, bytes: &[u8]) {
        // A nonsense address of a test stays without effect.
        let _ = self.memory.write_slice(bytes, GuestAddress(gpa));
    }

    /// Reads bytes of the guest; zeros where there are none.
    #[must_use]
    pub fn read<const N: usize>(&self, gpa: u64) -> [u8; N] {
        let mut bytes = [0; N];
        let _ = self.memory.read_slice(&mut bytes, GuestAddress(gpa));
        bytes
    }

    /// Writes a descriptor.
    pub fn describe(&self, index: u16, buffer: Buffer) {
        let at = self.descriptors() + 16 * u64::from(index);
        self.put(at, &buffer.gpa.to_le_bytes());
        self.put(at + 8, &buffer.len.to_le_bytes());
        self.put(at + 12, &buffer.flags.to_le_bytes());
        self.put(at + 14, &buffer.next.to_le_bytes());
    }

    /// Makes the chain that starts at a descriptor available.
    pub fn post(&mut self, head: u16) {
        let slot = self.available() + 4 + 2 * u64::from(self.posted % RING_SIZE);
        self.put(slot, &head.to_le_bytes());
        self.posted = self.posted.wrapping_add(1);
        self.put(self.available() + 2, &self.posted.to_le_bytes());
    }

    /// Posts a chain of buffers in the next free descriptors; returns its head.
    pub fn post_chain(&mut self, buffers: &[(u64, u32, u16)]) -> u16 {
        let head = self.slot;
        for (i, (gpa, len, flags)) in buffers.iter().enumerate() {
            let index = self.slot;
            self.slot = (index + 1) % RING_SIZE;
            let more = i + 1 < buffers.len();
            let buffer = Buffer {
                gpa: *gpa,
                len: *len,
                flags: flags | if more { NEXT } else { 0 },
                next: self.slot,
            };
            self.describe(index, buffer);
        }
        self.post(head);
        head
    }

    /// Posts entries of a page queue, 63 at most, with room for the answer; returns the answer's address.
    pub fn post_entries<E: Copy + Into<u64>>(&mut self, entries: &[E]) -> u64 {
        let at = self.buffer(self.slot);
        let answer = at + 504;
        let numbers = entries.iter().map(|entry| (*entry).into());
        let bytes: Vec<u8> = numbers.flat_map(u64::to_le_bytes).collect();
        self.put(at, &bytes);
        let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        self.post_chain(&[(at, len, 0), (answer, 8, WRITE)]);
        answer
    }

    /// An answer of a page queue: entries taken and refused.
    #[must_use]
    pub fn answer(&self, gpa: u64) -> (u32, u32) {
        let half = |at| u32::from_le_bytes(self.read(at));
        (half(gpa), half(gpa + 4))
    }

    /// Chains that were answered since the last call, as head and length.
    pub fn answered(&mut self) -> Vec<(u32, u32)> {
        let until = u16::from_le_bytes(self.read(self.used() + 2));
        let mut answered = Vec::new();
        // A ring holds no more than its size.
        while self.seen != until && answered.len() < usize::from(RING_SIZE) {
            let at = self.used() + 4 + 8 * u64::from(self.seen % RING_SIZE);
            let half = |at| u32::from_le_bytes(self.read(at));
            answered.push((half(at), half(at + 4)));
            self.seen = self.seen.wrapping_add(1);
        }
        // Asks for an interrupt at the next answer.
        let event = self.available() + 4 + 2 * u64::from(RING_SIZE);
        self.put(event, &self.seen.to_le_bytes());
        answered
    }

    /// Whether a driver with event indices kicks for the chain that it posted last.
    #[must_use]
    pub fn wants_a_kick(&self) -> bool {
        let event = self.used() + 4 + 8 * u64::from(RING_SIZE);
        u16::from_le_bytes(self.read(event)) == self.posted.wrapping_sub(1)
    }

    /// Number of chains that were posted.
    #[must_use]
    pub fn posted(&self) -> u16 {
        self.posted
    }
}
