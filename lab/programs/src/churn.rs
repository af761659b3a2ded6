//! Processes that come and go as fast as they can, to make the guest's kernel free and reuse
//! page-table pages all the time.
//!
//! Each worker is a process that forks one child after the other. A child maps memory at addresses far
//! apart, so that it needs tables of every level, fills it with words that resemble page-table
//! entries, reads them all back and ends; its exit status is its verdict. A program that takes a reused table
//! page for a table finds entries in it that lead to more of them, and a bit changed in one is noticed.

use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::pages::PAGE_SIZE;
use anyhow::{Context, Result, bail};

const WORDS: usize = PAGE_SIZE / 8;
/// Memory of a child: this many parts of as many pages, 1 MiB in all.
const PARTS: usize = 8;
const PART_PAGES: usize = 32;
/// Distance of two parts: another entry at each level, so another table of each level below.
const STRIDE: usize = (1 << 39) + (1 << 30) + (1 << 21);
/// Address of the first part, far below what the kernel and the program's loader choose.
const BASE: usize = 1 << 44;
/// Most children that live at the same time; bounds the memory that they use.
const MAX_WORKERS: u64 = 8;

/// Flags of a word like an entry: present, writable, for users, accessed, dirty.
const LIKE_AN_ENTRY: u64 = 0x67;

/// The exit statuses of a child.
mod verdict {
    pub const INTACT: i32 = 0;
    pub const DAMAGED: i32 = 1;
    pub const NO_MEMORY: i32 = 2;
}

/// The state that the workers and their starter share.
struct Shared {
    stop: AtomicBool,
    forks: AtomicU64,
    errors: AtomicU64,
}

/// The workers.
pub struct Churn {
    shared: &'static Shared,
    workers: Vec<libc::pid_t>,
    /// Frames of RAM, to which the words point.
    frames: u64,
}

impl Churn {
    /// A churn without workers.
    ///
    /// # Errors
    /// If there is no memory for their counters.
    pub fn new() -> Result<Self> {
        let shared = map(ptr::null_mut(), size_of::<Shared>(), libc::MAP_SHARED)
            .context("cannot map the counters of the churn")?;
        // SAFETY: sysconf has no preconditions.
        let pages = unsafe { libc::sysconf(libc::_SC_PHYS_PAGES) };
        Ok(Self {
            // SAFETY: a fresh mapping of that size, page-aligned, never unmapped; zeros are valid
            // values of these atomics.
            shared: unsafe { &*shared.cast() },
            workers: Vec::new(),
            frames: u64::try_from(pages)?.max(1),
        })
    }

    /// Children forked so far.
    #[must_use]
    pub fn forks(&self) -> u64 {
        self.shared.forks.load(Ordering::Relaxed)
    }

    /// Children that found a wrong word or did not end as they should, and forks that failed.
    #[must_use]
    pub fn errors(&self) -> u64 {
        self.shared.errors.load(Ordering::Relaxed)
    }

    /// Workers that were started and not stopped.
    #[must_use]
    pub fn workers(&self) -> usize {
        self.workers.len()
    }

    /// Sets the number of workers; those that there are end first, each after its child.
    ///
    /// # Errors
    /// If they are too many or cannot be forked.
    pub fn set(&mut self, workers: u64) -> Result<()> {
        if workers > MAX_WORKERS {
            bail!("{workers} workers are too many; at most {MAX_WORKERS}");
        }
        self.stop();
        self.shared.stop.store(false, Ordering::Relaxed);
        for number in 0..workers {
            // SAFETY: the child calls system calls and works on memory of its own or shared with
            // atomics; it allocates nothing and never returns.
            match unsafe { libc::fork() } {
                -1 => {
                    let error = std::io::Error::last_os_error();
                    self.stop();
                    return Err(error).context("cannot fork a worker");
                }
                0 => work(self.shared, number, self.frames),
                pid => self.workers.push(pid),
            }
        }
        Ok(())
    }

    fn stop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        for pid in self.workers.drain(..) {
            if !ended_well(pid) {
                self.shared.errors.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

impl Drop for Churn {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Waits for a child of this process; returns whether it found all of its words intact.
fn ended_well(pid: libc::pid_t) -> bool {
    let mut status = 0;
    loop {
        // SAFETY: `status` lives through the call.
        let ended = unsafe { libc::waitpid(pid, &raw mut status, 0) };
        if ended == pid {
            return libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == verdict::INTACT;
        }
        if std::io::Error::last_os_error().raw_os_error() != Some(libc::EINTR) {
            return false;
        }
    }
}

/// The life of a worker: one child at a time, and none left behind.
fn work(shared: &Shared, number: u64, frames: u64) -> ! {
    // SAFETY: a worker must not outlive the process that can stop it; no memory is passed.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    let mut turn = 0;
    while !shared.stop.load(Ordering::Relaxed) {
        turn += 1;
        // SAFETY: as where workers are forked.
        let well = match unsafe { libc::fork() } {
            -1 => {
                // Whatever is short must not be asked for in a tight loop.
                std::thread::sleep(std::time::Duration::from_millis(10));
                false
            }
            0 => exit(live(turn * MAX_WORKERS + number, frames)),
            pid => {
                shared.forks.fetch_add(1, Ordering::Relaxed);
                ended_well(pid)
            }
        };
        if !well {
            shared.errors.fetch_add(1, Ordering::Relaxed);
        }
    }
    exit(verdict::INTACT)
}

/// Ends a forked process without the clean-up that is its parent's.
fn exit(status: i32) -> ! {
    // SAFETY: ends the process.
    unsafe { libc::_exit(status) }
}

/// The life of a child.
fn live(seed: u64, frames: u64) -> i32 {
    let mut parts = [ptr::null_mut::<u64>(); PARTS];
    for (part, words) in parts.iter_mut().enumerate() {
        // Every child uses other entries than those before it.
        let shift = usize::try_from(seed % 64).unwrap_or(0) * (PART_PAGES * PAGE_SIZE);
        let at = ptr::without_provenance_mut(BASE + part * STRIDE + shift);
        let fixed = libc::MAP_PRIVATE | libc::MAP_FIXED_NOREPLACE;
        match map(at, PART_PAGES * PAGE_SIZE, fixed) {
            Ok(mapped) if mapped == at => *words = mapped.cast(),
            _ => return verdict::NO_MEMORY,
        }
    }
    for (part, words) in parts.iter().enumerate() {
        for word in 0..PART_PAGES * WORDS {
            // SAFETY: the part was mapped with that many words and belongs to this process.
            unsafe {
                words
                    .add(word)
                    .write_volatile(pattern(seed, part, word, frames))
            };
        }
    }
    verdict_on(&parts, seed, frames)
}

fn verdict_on(parts: &[*mut u64; PARTS], seed: u64, frames: u64) -> i32 {
    for (part, words) in parts.iter().enumerate() {
        for word in 0..PART_PAGES * WORDS {
            // SAFETY: as where it is written. Volatile, because a change by another program is what is
            // tested.
            if unsafe { words.add(word).read_volatile() } != pattern(seed, part, word, frames) {
                return verdict::DAMAGED;
            }
        }
    }
    verdict::INTACT
}

/// A word like an entry that maps a frame of RAM.
fn pattern(seed: u64, part: usize, word: usize, frames: u64) -> u64 {
    let place = (part * PART_PAGES * WORDS + word) as u64;
    let mixed =
        seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ place.wrapping_mul(0xC2B2_AE3D_27D4_EB4F);
    ((mixed ^ mixed >> 29) % frames) << 12 | LIKE_AN_ENTRY
}

fn map(at: *mut libc::c_void, bytes: usize, flags: i32) -> std::io::Result<*mut libc::c_void> {
    // SAFETY: an anonymous mapping at an address of the kernel's choice or where nothing is yet.
    let start = unsafe {
        libc::mmap(
            at,
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            flags | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if start == libc::MAP_FAILED {
        return Err(std::io::Error::last_os_error());
    }
    Ok(start)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn workers_fork_until_they_are_stopped_and_leave_nobody_behind() {
        let mut churn = Churn::new().unwrap();
        churn.set(2).unwrap();
        let workers = churn.workers.clone();
        let end = Instant::now() + Duration::from_secs(60);
        while churn.forks() < 6 && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(5));
        }
        churn.set(0).unwrap();
        let forks = churn.forks();
        assert!(forks >= 6 && churn.errors() == 0);
        for pid in workers {
            // SAFETY: signal 0 only asks whether the process is there.
            assert_eq!(unsafe { libc::kill(pid, 0) }, -1);
        }
        assert_eq!((churn.forks(), churn.workers()), (forks, 0));
        assert!(churn.set(MAX_WORKERS + 1).is_err());
    }

    #[test]
    fn a_word_that_lost_a_bit_is_noticed() {
        let mut memory = vec![0_u64; PARTS * PART_PAGES * WORDS];
        for (place, word) in memory.iter_mut().enumerate() {
            let (part, at) = (place / (PART_PAGES * WORDS), place % (PART_PAGES * WORDS));
            *word = pattern(3, part, at, 1000);
            assert!(*word & 0xfff == LIKE_AN_ENTRY && *word >> 12 < 1000);
        }
        let mut verdict = || {
            let mut rest = memory.chunks_mut(PART_PAGES * WORDS);
            let parts = std::array::from_fn(|_| rest.next().unwrap().as_mut_ptr());
            let verdict = verdict_on(&parts, 3, 1000);
            memory[70_000] &= !0x20;
            verdict
        };
        assert_eq!(verdict(), verdict::INTACT);
        assert_eq!(verdict(), verdict::DAMAGED);
    }
}
