//! Processes that own memory and sleep: no virtual CPU ever shows their page tables.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;

use anyhow::{Context, Result, ensure};
use terrace_lab_programs::pages::PAGE_SIZE;

use crate::pagemap;

/// Pages of each process.
const PAGES: usize = 64;
/// Most sleepers at a time; bounds the memory that they use.
const MAX: u64 = 160;

/// The sleeping processes.
#[derive(Default)]
pub struct Sleepers {
    /// Process id of each, with the address of its pages in its address space.
    processes: Vec<(libc::pid_t, usize)>,
}

impl Sleepers {
    /// Starts so many processes, which all sleep when this returns; those of before end.
    pub fn set(&mut self, processes: u64) -> Result<()> {
        ensure!(processes <= MAX, "at most {MAX} processes can sleep");
        self.end();
        let (reader, writer) = pipe()?;
        for _ in 0..processes {
            let address = reserve()?;
            // SAFETY: the child calls system calls and writes to memory of its own; it never returns.
            match unsafe { libc::fork() } {
                -1 => return Err(io::Error::last_os_error()).context("cannot fork a sleeper"),
                0 => sleep(address, &writer),
                pid => self.processes.push((pid, address)),
            }
            // The child has its own mapping by now.
            // SAFETY: `reserve` mapped it, and nothing in this process points there.
            unsafe { libc::munmap(ptr::with_exposed_provenance_mut(address), PAGES * PAGE_SIZE) };
            let mut ready = 0_u8;
            // SAFETY: one byte is read into one byte.
            let read = unsafe { libc::read(reader.as_raw_fd(), (&raw mut ready).cast(), 1) };
            ensure!(read == 1, "a sleeper ended");
        }
        Ok(())
    }

    /// The guest frames of all their pages.
    pub fn frames(&self) -> Result<Vec<u64>> {
        let mut frames = Vec::new();
        for (pid, address) in &self.processes {
            frames.extend(pagemap::frames_of(&pid.to_string(), *address, PAGES)?);
        }
        Ok(frames)
    }

    fn end(&mut self) {
        for (pid, _) in self.processes.drain(..) {
            // SAFETY: a child that was not waited for yet, so that its number is still its own.
            unsafe {
                libc::kill(pid, libc::SIGKILL);
                libc::waitpid(pid, ptr::null_mut(), 0);
            }
        }
    }
}

impl Drop for Sleepers {
    fn drop(&mut self) {
        self.end();
    }
}

fn pipe() -> Result<(OwnedFd, OwnedFd)> {
    let mut ends = [0; 2];
    // SAFETY: two descriptors are written into room for two.
    if unsafe { libc::pipe(ends.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error()).context("cannot make a pipe");
    }
    // SAFETY: the kernel just made both, and nothing else has them.
    Ok(unsafe { (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])) })
}

/// Room for the pages of a child; none of it is there yet.
fn reserve() -> Result<usize> {
    // SAFETY: a fresh anonymous mapping at an address of the kernel's choice.
    let start = unsafe {
        libc::mmap(
            ptr::null_mut(),
            PAGES * PAGE_SIZE,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if start == libc::MAP_FAILED {
        return Err(io::Error::last_os_error()).context("cannot map a sleeper's pages");
    }
    Ok(start.expose_provenance())
}

/// The life of a sleeper.
fn sleep(address: usize, ready: &OwnedFd) -> ! {
    let words = ptr::with_exposed_provenance_mut::<u64>(address);
    for page in 0..PAGES {
        // SAFETY: the range was reserved right before the fork, writable and this long.
        unsafe { words.add(page * PAGE_SIZE / 8).write_volatile(1) };
    }
    // SAFETY: these calls take no memory but one byte that lives through the write.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        libc::write(ready.as_raw_fd(), (&raw const *b"!").cast(), 1);
        loop {
            libc::pause();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sleepers_sleep_until_they_are_ended_and_none_is_left_behind() {
        let mut sleepers = Sleepers::default();
        sleepers.set(3).unwrap();
        let pids: Vec<_> = sleepers.processes.iter().map(|(pid, _)| *pid).collect();
        assert_eq!(pids.len(), 3);
        sleepers.set(0).unwrap();
        for pid in pids {
            // SAFETY: signal 0 only asks whether the process is there.
            assert_eq!(unsafe { libc::kill(pid, 0) }, -1);
        }
        assert!(sleepers.set(MAX + 1).is_err());
    }
}
