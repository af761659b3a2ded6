//! A thread that maps and unmaps memory as fast as it can, so that any view of the process's address space is old as
//! soon as it was read.

use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};

use anyhow::{Result, anyhow};
use terrace_lab_programs::hotset::Xorshift;
use terrace_lab_programs::pages::PAGE_SIZE;

/// Mappings that live at the same time.
const ALIVE: usize = 16;
/// Largest mapping. Huge pages fit in.
const MAX_PAGES: usize = 1024;

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    mapped: AtomicU64,
    errors: AtomicU64,
}

/// The thread, if it runs.
#[derive(Default)]
pub struct Mappings {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Mappings {
    /// Mappings made so far.
    pub fn mapped(&self) -> u64 {
        self.shared.mapped.load(Ordering::Relaxed)
    }

    /// Mappings that could not be made, and words that were not as written.
    pub fn errors(&self) -> u64 {
        self.shared.errors.load(Ordering::Relaxed)
    }

    /// Starts or stops the thread.
    pub fn set(&mut self, running: bool) -> Result<()> {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread
                .join()
                .map_err(|_| anyhow!("the thread that maps memory panicked"))?;
        }
        if running {
            self.shared.stop.store(false, Ordering::Relaxed);
            let shared = Arc::clone(&self.shared);
            self.thread = Some(thread::Builder::new().spawn(move || work(&shared))?);
        }
        Ok(())
    }
}

fn work(shared: &Shared) {
    let mut random = Xorshift::new(7);
    let mut alive: Vec<Mapping> = Vec::new();
    while !shared.stop.load(Ordering::Relaxed) {
        if alive.len() == ALIVE {
            let oldest = alive.remove(random.below(ALIVE));
            if !oldest.is_intact() {
                shared.errors.fetch_add(1, Ordering::Relaxed);
            }
        }
        let number = shared.mapped.fetch_add(1, Ordering::Relaxed);
        match Mapping::new(1 + random.below(MAX_PAGES), number) {
            Some(mapping) => alive.push(mapping),
            None => {
                shared.errors.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
    let damaged = alive.iter().filter(|mapping| !mapping.is_intact()).count();
    shared.errors.fetch_add(damaged as u64, Ordering::Relaxed);
}

/// Memory with a word in each page that names it.
struct Mapping {
    words: *mut u64,
    pages: usize,
    number: u64,
}

impl Mapping {
    fn new(pages: usize, number: u64) -> Option<Self> {
        // SAFETY: a fresh anonymous mapping at an address of the kernel's choice.
        let start = unsafe {
            libc::mmap(
                ptr::null_mut(),
                pages * PAGE_SIZE,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return None;
        }
        let mapping = Self {
            words: start.cast(),
            pages,
            number,
        };
        for page in 0..pages {
            // SAFETY: inside of the mapping, which this value owns.
            unsafe { mapping.at(page).write_volatile(mapping.word(page)) };
        }
        Some(mapping)
    }

    fn is_intact(&self) -> bool {
        // SAFETY: inside of the mapping, which this value owns.
        (0..self.pages).all(|page| unsafe { self.at(page).read_volatile() } == self.word(page))
    }

    fn at(&self, page: usize) -> *mut u64 {
        self.words.wrapping_add(page * PAGE_SIZE / 8)
    }

    fn word(&self, page: usize) -> u64 {
        (self.number << 20) | page as u64
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and no reference into it is ever handed out.
        unsafe { libc::munmap(self.words.cast(), self.pages * PAGE_SIZE) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_come_and_go_until_they_are_stopped() {
        let mut mappings = Mappings::default();
        mappings.set(true).unwrap();
        while mappings.mapped() < 100 {
            thread::yield_now();
        }
        mappings.set(false).unwrap();
        let made = mappings.mapped();
        assert_eq!((mappings.errors(), mappings.mapped()), (0, made));
    }

    #[test]
    fn a_changed_word_is_noticed() {
        let mapping = Mapping::new(3, 1).unwrap();
        assert!(mapping.is_intact());
        // SAFETY: inside of the mapping.
        unsafe { mapping.at(2).write_volatile(0) };
        assert!(!mapping.is_intact());
    }
}
