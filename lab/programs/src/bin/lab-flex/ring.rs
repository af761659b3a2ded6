//! Split virtqueues, without indirect descriptors or event indices: neither is offered.

use std::fs::File;
use std::io::Write;
use std::ptr::NonNull;
use std::sync::atomic::{Ordering, fence};

use anyhow::{Context, Result, bail};

use crate::memory::Memory;

const NEXT: u16 = 1;
const WRITE: u16 = 2;
const NO_INTERRUPT: u16 = 1;

/// A queue as the hypervisor describes it; addresses are the hypervisor's.
#[derive(Default)]
pub struct Ring {
    pub size: u16,
    pub descriptors: u64,
    pub available: u64,
    pub used: u64,
    pub next: u16,
    pub kick: Option<File>,
    pub call: Option<File>,
}

/// A buffer of the guest.
pub struct Buffer {
    pub address: u64,
    pub bytes: u32,
    pub writable: bool,
}

/// A request: buffers in a row.
pub struct Chain {
    pub head: u16,
    pub buffers: Vec<Buffer>,
}

impl Ring {
    /// The next request, if there is one.
    pub fn pop(&mut self, memory: &Memory) -> Result<Option<Chain>> {
        if self.size == 0 || self.kick.is_none() {
            return Ok(None);
        }
        let available = memory.user(self.available, 4 + 2 * u64::from(self.size))?;
        if read::<u16>(available, 2) == self.next {
            return Ok(None);
        }
        fence(Ordering::Acquire);
        let slot = usize::from(self.next % self.size);
        let head: u16 = read(available, 4 + 2 * slot);
        self.next = self.next.wrapping_add(1);
        let table = memory.user(self.descriptors, 16 * u64::from(self.size))?;
        let mut buffers = Vec::new();
        let mut index = head;
        loop {
            if index >= self.size || buffers.len() > usize::from(self.size) {
                bail!("a broken chain");
            }
            let at = 16 * usize::from(index);
            let flags: u16 = read(table, at + 12);
            buffers.push(Buffer {
                address: read(table, at),
                bytes: read(table, at + 8),
                writable: flags & WRITE != 0,
            });
            if flags & NEXT == 0 {
                return Ok(Some(Chain { head, buffers }));
            }
            index = read(table, at + 14);
        }
    }

    /// Answers a request of which `written` bytes were filled.
    pub fn push(&mut self, memory: &Memory, head: u16, written: u32) -> Result<()> {
        let used = memory.user(self.used, 4 + 8 * u64::from(self.size))?;
        let index: u16 = read(used, 2);
        let slot = 4 + 8 * usize::from(index % self.size);
        write(used, slot, u32::from(head));
        write(used, slot + 4, written);
        fence(Ordering::Release);
        write(used, 2, index.wrapping_add(1));
        fence(Ordering::SeqCst);
        let available = memory.user(self.available, 2)?;
        if read::<u16>(available, 0) & NO_INTERRUPT == 0 {
            let call = self.call.as_mut().context("a queue without interrupts")?;
            call.write_all(&1_u64.to_ne_bytes())?;
        }
        Ok(())
    }
}

/// Reads a value that the guest may be changing, at an offset that the caller has checked.
fn read<T: Copy>(base: NonNull<u8>, at: usize) -> T {
    // SAFETY: callers have looked up a range that holds it; rings are aligned by the protocol.
    unsafe { base.add(at).cast::<T>().read_volatile() }
}

fn write<T: Copy>(base: NonNull<u8>, at: usize, value: T) {
    // SAFETY: as above.
    unsafe { base.add(at).cast::<T>().write_volatile(value) }
}
