//! The guest's memory: files that the hypervisor shares.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::ptr::NonNull;

use anyhow::{Context, Result, bail};

use crate::wire::Message;

/// One range of guest memory, mapped here.
pub struct Region {
    guest: u64,
    size: u64,
    /// The hypervisor's own address of the range.
    user: u64,
    offset: u64,
    file: File,
    mapped: NonNull<u8>,
}

/// All of the guest's memory.
#[derive(Default)]
pub struct Memory {
    regions: Vec<Region>,
}

impl Memory {
    /// Maps the memory of a SET_MEM_TABLE.
    pub fn new(message: &mut Message) -> Result<Self> {
        let count = usize::try_from(message.u32(0)?)?;
        let files: Vec<OwnedFd> = message.files.drain(..).collect();
        if files.len() != count {
            bail!("{count} regions, {} files", files.len());
        }
        let mut regions = Vec::new();
        for (i, file) in files.into_iter().enumerate() {
            let word = |n: usize| message.u64(8 + 32 * i + 8 * n);
            let (guest, size, user, offset) = (word(0)?, word(1)?, word(2)?, word(3)?);
            let mapped = map(&file, offset, size)?;
            let file = File::from(file);
            regions.push(Region {
                guest,
                size,
                user,
                offset,
                file,
                mapped,
            });
        }
        Ok(Self { regions })
    }

    /// Address in this process of bytes of the guest, by their guest physical address.
    pub fn guest(&self, address: u64, bytes: u64) -> Result<NonNull<u8>> {
        self.find(address, bytes, |region| region.guest)
    }

    /// Address in this process of bytes of the guest, by the hypervisor's address.
    pub fn user(&self, address: u64, bytes: u64) -> Result<NonNull<u8>> {
        self.find(address, bytes, |region| region.user)
    }

    /// Copies from the guest.
    pub fn read(&self, address: u64, into: &mut [u8]) -> Result<()> {
        let from = self.guest(address, into.len() as u64)?;
        // SAFETY: that many bytes are mapped there. The guest may change them: they are plain bytes.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), into.as_mut_ptr(), into.len()) };
        Ok(())
    }

    /// Copies to the guest.
    pub fn write(&self, address: u64, bytes: &[u8]) -> Result<()> {
        let to = self.guest(address, bytes.len() as u64)?;
        // SAFETY: as above.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.as_ptr(), bytes.len()) };
        Ok(())
    }

    /// Gives the memory at an address back to the host.
    pub fn punch(&self, address: u64, bytes: u64) -> Result<()> {
        let inside = |r: &&Region| address >= r.guest && address + bytes <= r.guest + r.size;
        let region = self
            .regions
            .iter()
            .find(inside)
            .with_context(|| format!("no memory at {address:#x}"))?;
        let offset = region.offset + (address - region.guest);
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        // SAFETY: a call without pointers.
        let failed = unsafe {
            libc::fallocate(
                region.file.as_raw_fd(),
                mode,
                i64::try_from(offset)?,
                i64::try_from(bytes)?,
            )
        };
        if failed != 0 {
            return Err(std::io::Error::last_os_error()).context("punching a hole");
        }
        Ok(())
    }

    /// Bytes that the host has given each file, files in the order of their guest addresses.
    pub fn allocated_bytes(&self) -> Result<Vec<u64>> {
        let mut files = BTreeMap::new();
        for region in &self.regions {
            let about = region.file.metadata()?;
            let first = files
                .entry(about.ino())
                .or_insert((region.guest, about.blocks() * 512));
            first.0 = first.0.min(region.guest);
        }
        let mut ordered: Vec<(u64, u64)> = files.into_values().collect();
        ordered.sort_unstable();
        Ok(ordered.into_iter().map(|(_, bytes)| bytes).collect())
    }

    fn find(&self, address: u64, bytes: u64, base: fn(&Region) -> u64) -> Result<NonNull<u8>> {
        for region in &self.regions {
            let Some(into) = address.checked_sub(base(region)) else {
                continue;
            };
            if into < region.size && bytes <= region.size - into {
                // SAFETY: it lies within the mapping.
                return Ok(unsafe { region.mapped.add(usize::try_from(into)?) });
            }
        }
        bail!("no memory of {bytes} bytes at {address:#x}")
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        let size = usize::try_from(self.size).unwrap_or_default();
        // SAFETY: mapped by `map` with this size, and nothing else has the address.
        unsafe { libc::munmap(self.mapped.as_ptr().cast(), size) };
    }
}

fn map(file: &OwnedFd, offset: u64, size: u64) -> Result<NonNull<u8>> {
    // SAFETY: a new mapping at an address of the kernel's choice.
    let address = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            usize::try_from(size)?,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            i64::try_from(offset)?,
        )
    };
    if address == libc::MAP_FAILED {
        return Err(std::io::Error::last_os_error()).context("mapping guest memory");
    }
    NonNull::new(address.cast()).context("memory at address 0")
}
