//! The session with the device: memory and page queues are handed over, then requests go through them one by one.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::memory::{Memory, Tier};
use crate::wire;

const VERSION_1: u64 = 1 << 32;
const PROTOCOL_FEATURES: u64 = 1 << 30;

/// Entries of a queue, and the bytes from one to the next in the first tier.
const QUEUE_SIZE: u16 = 128;
const QUEUE_BYTES: usize = 0x4000;

/// Parts of a queue, then the one request's buffers.
const AVAILABLE: usize = 0x800;
const USED: usize = 0x1000;
const ENTRIES: usize = 0x2000;
const ANSWER: usize = 0x3000;

const NEXT: u64 = 1;
const WRITE: u64 = 2;

/// Longest time for a request.
const PATIENCE: Duration = Duration::from_secs(120);

/// A connection, with the memory that holds its queues.
pub struct Session<'a> {
    /// The connection; the device runs as long as it is open.
    _stream: UnixStream,
    queues: &'a Tier,
    kicks: Vec<File>,
}

impl<'a> Session<'a> {
    /// Connects, shares all memory and starts the page queues of each tier.
    pub fn connect(socket: &Path, memory: &'a Memory) -> Result<Self> {
        let mut stream = UnixStream::connect(socket)
            .with_context(|| format!("no device on {}", socket.display()))?;
        let features = wire::ask(&mut stream, 1)?;
        let wanted = VERSION_1 | PROTOCOL_FEATURES;
        ensure!(features & wanted == wanted, "features {features:#x}");
        wire::send(&mut stream, 3, &[], &[])?;
        wire::ask(&mut stream, 15)?;
        wire::send(&mut stream, 16, &0_u64.to_le_bytes(), &[])?;
        wire::send(&mut stream, 2, &wanted.to_le_bytes(), &[])?;
        share(&mut stream, memory)?;
        let queues = &memory.tiers[0];
        let mut kicks = Vec::new();
        for queue in 0..2 * memory.tiers.len() {
            kicks.push(start(&mut stream, queues, queue)?);
        }
        Ok(Self {
            _stream: stream,
            queues,
            kicks,
        })
    }

    /// Sends a request of pages; returns how many the device took.
    pub fn ask(&mut self, queue: usize, entries: &[u64]) -> Result<usize> {
        let at = queue * QUEUE_BYTES;
        let guest = |part: usize| self.queues.guest + (at + part) as u64;
        let set = |at: usize, value: u64| self.queues.word(at).store(value, Ordering::Relaxed);
        for (i, entry) in entries.iter().enumerate() {
            set(at + ENTRIES + 8 * i, *entry);
        }
        let bytes = size_of_val(entries) as u64;
        set(at, guest(ENTRIES));
        set(at + 8, bytes | NEXT << 32 | 1 << 48);
        set(at + 16, guest(ANSWER));
        set(at + 24, 8 | WRITE << 32);
        let available = self.queues.half(at + AVAILABLE + 2);
        let next = available.load(Ordering::Relaxed);
        let slot = at + AVAILABLE + 4 + 2 * usize::from(next % QUEUE_SIZE);
        // The chain of descriptor 0 each time: one request is under way at a time.
        self.queues.half(slot).store(0, Ordering::Relaxed);
        available.store(next.wrapping_add(1), Ordering::Release);
        self.kicks[queue].write_all(&1_u64.to_ne_bytes())?;
        let end = Instant::now() + PATIENCE;
        let used = self.queues.half(at + USED + 2);
        while used.load(Ordering::Acquire) != next.wrapping_add(1) {
            ensure!(Instant::now() < end, "queue {queue} does not answer");
            std::thread::sleep(Duration::from_millis(1));
        }
        let answer = self.queues.word(at + ANSWER).load(Ordering::Relaxed);
        // The taken ones, in the lower half.
        Ok(usize::try_from(answer & u64::from(u32::MAX))?)
    }
}

fn share(stream: &mut UnixStream, memory: &Memory) -> Result<()> {
    let mut payload = (memory.tiers.len() as u64).to_le_bytes().to_vec();
    for tier in &memory.tiers {
        for word in [tier.guest, tier.bytes() as u64, tier.address() as u64, 0] {
            payload.extend(word.to_le_bytes());
        }
    }
    let files: Vec<_> = memory.tiers.iter().map(|t| t.file.as_raw_fd()).collect();
    wire::send(stream, 5, &payload, &files)
}

/// Starts a queue; the file wakes the device.
fn start(stream: &mut UnixStream, queues: &Tier, queue: usize) -> Result<File> {
    let at = queue * QUEUE_BYTES;
    for part in (0..QUEUE_BYTES).step_by(8) {
        queues.word(at + part).store(0, Ordering::Relaxed);
    }
    let index = u32::try_from(queue)?;
    let pair = |value: u32| [index, value].map(u32::to_le_bytes).concat();
    wire::send(stream, 8, &pair(u32::from(QUEUE_SIZE)), &[])?;
    wire::send(stream, 10, &pair(0), &[])?;
    let mut addresses = pair(0);
    let address = (queues.address() + at) as u64;
    for part in [0, USED as u64, AVAILABLE as u64] {
        addresses.extend((address + part).to_le_bytes());
    }
    addresses.extend(0_u64.to_le_bytes());
    wire::send(stream, 9, &addresses, &[])?;
    let [call, kick] = [eventfd()?, eventfd()?];
    for (request, file) in [(13, &call), (12, &kick)] {
        let number = u64::from(index).to_le_bytes();
        wire::send(stream, request, &number, &[file.as_raw_fd()])?;
    }
    wire::send(stream, 18, &pair(1), &[])?;
    Ok(kick)
}

fn eventfd() -> Result<File> {
    // SAFETY: a call without pointers.
    let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    ensure!(fd >= 0, "eventfd: {}", std::io::Error::last_os_error());
    // SAFETY: it was just opened and nothing else has it.
    Ok(unsafe { File::from_raw_fd(fd) })
}
