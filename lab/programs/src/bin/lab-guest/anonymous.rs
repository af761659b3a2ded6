//! Plain anonymous memory, word by word.

use anyhow::{Context, Result};
use terrace_lab_programs::pages::PAGE_SIZE;

const WORDS: usize = PAGE_SIZE / 8;

/// Some 4 KiB pages that this process alone maps; a child does not get them.
pub struct Anonymous {
    words: *mut u64,
    pages: usize,
}

impl Anonymous {
    /// Maps `pages` pages; none is there before it is touched.
    pub fn new(pages: usize) -> Result<Self> {
        let bytes = pages * PAGE_SIZE;
        // SAFETY: a fresh anonymous mapping at an address of the kernel's choice.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error())
                .with_context(|| format!("cannot map {pages} pages"));
        }
        let memory = Self {
            words: start.cast(),
            pages,
        };
        memory.advise(libc::MADV_NOHUGEPAGE)?;
        memory.advise(libc::MADV_DONTFORK)?;
        Ok(memory)
    }

    /// Calls `madvise(2)` for all of the memory.
    pub fn advise(&self, advice: i32) -> Result<()> {
        // SAFETY: the range is this value's own mapping, and what it holds is plain data.
        let result = unsafe { libc::madvise(self.words.cast(), self.pages * PAGE_SIZE, advice) };
        if result != 0 {
            return Err(std::io::Error::last_os_error())
                .with_context(|| format!("madvise({advice}) of {} pages", self.pages));
        }
        Ok(())
    }

    /// Number of pages.
    pub fn pages(&self) -> usize {
        self.pages
    }

    /// Address at which the memory starts.
    pub fn address(&self) -> usize {
        self.words.addr()
    }

    /// Sets every word of a page to what `word` gives for its number.
    pub fn fill(&self, page: usize, word: impl Fn(usize) -> u64) {
        for number in 0..WORDS {
            // SAFETY: see `at`.
            unsafe { self.at(page, number).write_volatile(word(number)) };
        }
    }

    /// Whether every word of a page is what `word` gives for its number.
    pub fn holds(&self, page: usize, word: impl Fn(usize) -> u64) -> bool {
        (0..WORDS).all(|number| {
            // SAFETY: see `at`. Volatile, because a change by another program is what is tested.
            unsafe { self.at(page, number).read_volatile() == word(number) }
        })
    }

    /// Reads every word of a page, with its number.
    pub fn each(&self, page: usize, mut word: impl FnMut(usize, u64)) {
        for number in 0..WORDS {
            // SAFETY: see `at`. Volatile, because a change by another program is what is tested.
            word(number, unsafe { self.at(page, number).read_volatile() });
        }
    }

    /// The address of a word: inside of the mapping, which lives as long as this value and which one thread alone
    /// uses.
    fn at(&self, page: usize, word: usize) -> *mut u64 {
        assert!(page < self.pages && word < WORDS);
        self.words.wrapping_add(page * WORDS + word)
    }
}

impl Drop for Anonymous {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and no reference into it is ever handed out.
        unsafe { libc::munmap(self.words.cast(), self.pages * PAGE_SIZE) };
    }
}
