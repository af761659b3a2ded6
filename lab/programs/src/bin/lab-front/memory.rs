//! The guest's memory: a file for each tier, one behind the other in the guest's address space.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result, ensure};
use terrace_lab_programs::pages::PAGE_SIZE;

/// The first word of a page that was touched.
const TOUCHED: u64 = 0x7E22_ACE0;

/// One tier's file, mapped here.
pub struct Tier {
    pub file: OwnedFd,
    /// Guest physical address of the tier's first byte.
    pub guest: u64,
    bytes: usize,
    mapped: NonNull<u8>,
}

/// All of the guest's memory.
pub struct Memory {
    pub tiers: Vec<Tier>,
}

impl Memory {
    pub fn new(sizes: &[usize]) -> Result<Self> {
        let mut guest = 0;
        let mut tiers = Vec::new();
        for bytes in sizes {
            ensure!(bytes.is_multiple_of(2 * PAGE_SIZE) && *bytes > 0);
            let file = create(*bytes)?;
            tiers.push(Tier {
                mapped: map(&file, *bytes)?,
                file,
                guest,
                bytes: *bytes,
            });
            guest += *bytes as u64;
        }
        ensure!(!tiers.is_empty(), "no tier");
        Ok(Self { tiers })
    }
}

impl Tier {
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn pages(&self) -> usize {
        self.bytes / PAGE_SIZE
    }

    pub fn address(&self) -> usize {
        self.mapped.addr().get()
    }

    /// Writes to these pages.
    pub fn touch(&self, pages: std::ops::Range<usize>) {
        for page in pages {
            self.word(page * PAGE_SIZE)
                .store(TOUCHED, Ordering::Relaxed);
        }
    }

    /// Whether a page was not touched since the host gave it.
    pub fn is_new(&self, page: usize) -> bool {
        self.word(page * PAGE_SIZE).load(Ordering::Relaxed) == 0
    }

    /// The entries of a request for pages of 4 KiB.
    pub fn entries(&self, pages: &[usize]) -> Vec<u64> {
        let address = |page: &usize| self.guest + (page * PAGE_SIZE) as u64;
        pages.iter().map(address).collect()
    }

    /// A word that the device may use too.
    pub fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at.is_multiple_of(8) && at < self.bytes);
        // SAFETY: it is in the mapping, aligned, and only ever used as an atomic; the mapping lives as long as the
        // process.
        unsafe { AtomicU64::from_ptr(self.mapped.add(at).cast().as_ptr()) }
    }

    /// Two bytes that the device may use too, as the indices of queues.
    pub fn half(&self, at: usize) -> &std::sync::atomic::AtomicU16 {
        assert!(at.is_multiple_of(2) && at < self.bytes);
        // SAFETY: as above.
        unsafe { std::sync::atomic::AtomicU16::from_ptr(self.mapped.add(at).cast().as_ptr()) }
    }
}

fn create(bytes: usize) -> Result<OwnedFd> {
    // SAFETY: the name is a string that ends with a zero.
    let fd = unsafe { libc::memfd_create(c"tier".as_ptr(), libc::MFD_CLOEXEC) };
    ensure!(fd >= 0, "memfd: {}", std::io::Error::last_os_error());
    // SAFETY: it was just opened and nothing else has it.
    let file = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: a call without pointers.
    let failed = unsafe { libc::ftruncate(file.as_raw_fd(), i64::try_from(bytes)?) };
    ensure!(
        failed == 0,
        "{bytes} bytes: {}",
        std::io::Error::last_os_error()
    );
    Ok(file)
}

fn map(file: &OwnedFd, bytes: usize) -> Result<NonNull<u8>> {
    // SAFETY: a new mapping at an address of the kernel's choice.
    let address = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0,
        )
    };
    ensure!(
        address != libc::MAP_FAILED,
        "mapping {bytes} bytes: {}",
        std::io::Error::last_os_error()
    );
    NonNull::new(address.cast()).context("memory at address 0")
}
