//! The module's device, and its ioctls.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

use super::abi;
use crate::opener::{self, How};

/// Error number of a call that fails as a whole.
pub type Errno = i32;

/// One call with its argument and its lists. The addresses of the lists in the argument are the device's to fill in.
#[derive(Debug)]
pub enum Call<'a> {
    /// The calls that work.
    Info(&'a mut abi::Info),
    /// Accessed bits: one entry for each page of the range.
    Scan(&'a mut abi::Scan, &'a mut [u64]),
    /// Pages into one block: addresses and as many statuses.
    Consolidate(&'a mut abi::Consolidate, &'a [u64], &'a mut [i32]),
    /// Pairs: two lists of addresses and as many statuses.
    Exchange(&'a mut abi::Exchange, [&'a [u64]; 2], &'a mut [i32]),
    /// Frames to a node: their numbers and as many statuses.
    Migrate(&'a mut abi::Migrate, &'a [u64], &'a mut [i32]),
}

/// The port to the module, so that tests bring one of their own.
pub trait Calls: Send + Sync {
    /// Carries out one call.
    ///
    /// # Errors
    /// The error number, if it fails as a whole.
    fn carry_out(&self, call: Call<'_>) -> Result<(), Errno>;
}

/// The open device. Who opens it needs `CAP_SYS_ADMIN`; it works after that was dropped.
#[derive(Debug)]
pub struct Device(File);

impl Device {
    /// Opens the device at a path.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        // Something else of this name, such as a pipe, does not block the caller.
        opener::open(path, How::ReadWrite).map(Self)
    }

    fn ioctl<T>(&self, number: u64, argument: &mut T) -> Result<(), Errno> {
        let number = request::<T>(number);
        let pointer: *mut T = argument;
        // SAFETY: `argument` is a structure of the size that the number names; the addresses in it are of slices that
        // the caller holds for this call, of the lengths that it names.
        let rc = unsafe { libc::ioctl(self.0.as_raw_fd(), number, pointer) };
        match rc {
            0.. => Ok(()),
            _ => Err(io::Error::last_os_error()
                .raw_os_error()
                .unwrap_or(libc::EIO)),
        }
    }
}

/// `_IOWR('t', number, T)`; INFO is `_IOR`.
#[allow(
    clippy::cast_possible_truncation,
    reason = "the type differs between C libraries"
)]
const fn request<T>(number: u64) -> libc::Ioctl {
    let direction = if number == INFO { 2 } else { 3 };
    (direction << 30 | (size_of::<T>() as u64) << 16 | (b't' as u64) << 8 | number) as libc::Ioctl
}

const INFO: u64 = 0x60;
const SCAN: u64 = 0x61;
const CONSOLIDATE: u64 = 0x62;
const EXCHANGE: u64 = 0x63;
const MIGRATE: u64 = 0x64;

impl Calls for Device {
    fn carry_out(&self, call: Call<'_>) -> Result<(), Errno> {
        match call {
            Call::Info(info) => self.ioctl(INFO, info),
            Call::Scan(scan, entries) => {
                scan.entries = entries.as_mut_ptr() as u64;
                self.ioctl(SCAN, scan)
            }
            Call::Consolidate(call, addresses, statuses) => {
                call.addresses = addresses.as_ptr() as u64;
                call.statuses = statuses.as_mut_ptr() as u64;
                self.ioctl(CONSOLIDATE, call)
            }
            Call::Exchange(call, [first, second], statuses) => {
                call.first = first.as_ptr() as u64;
                call.second = second.as_ptr() as u64;
                call.statuses = statuses.as_mut_ptr() as u64;
                self.ioctl(EXCHANGE, call)
            }
            Call::Migrate(call, frames, statuses) => {
                call.frames = frames.as_ptr() as u64;
                call.statuses = statuses.as_mut_ptr() as u64;
                self.ioctl(MIGRATE, call)
            }
        }
    }
}
