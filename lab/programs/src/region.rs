//! The memory that the workload uses, filled so that every page can be checked.
//!
//! A page holds a tag that names it, a pattern, and in its last word a counter of writes.

use crate::pages::PAGE_SIZE;
use anyhow::{Context, Result, bail};

const WORDS: usize = PAGE_SIZE / 8;
const COUNTER: usize = WORDS - 1;
const HUGE_PAGE: usize = 2 << 20;
const MAGIC: u64 = 0x7E22_ACE0_0000_0000;

/// The place of a region's mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MappingAddress {
    /// Away from all that the kernel reads and writes for this process, so that no entry of a top-level
    /// table serves both.
    FarAway,
    /// A place that the kernel chooses.
    Anywhere,
    /// On the heap: what `brk(2)` gives.
    Heap,
}

/// A run of anonymous memory, aligned to a huge page.
pub struct Region {
    words: *mut u64,
    pages: usize,
}

impl Region {
    /// Maps and fills `mib` MiB.
    ///
    /// # Errors
    /// If there is no such memory.
    pub fn new(mib: usize, huge_pages: bool, at: MappingAddress) -> Result<Self> {
        let bytes = mib << 20;
        if bytes == 0 {
            bail!("a region of 0 MiB; give at least 1");
        }
        let start = match at {
            MappingAddress::FarAway => map(std::ptr::without_provenance_mut(FAR_AWAY), bytes),
            MappingAddress::Anywhere => map(std::ptr::null_mut(), bytes),
            MappingAddress::Heap => extend_heap(bytes),
        };
        let start = start.with_context(|| format!("cannot map a region of {mib} MiB"))?;
        let region = Self {
            words: start
                .map_addr(|address| address.next_multiple_of(HUGE_PAGE))
                .cast(),
            pages: bytes / PAGE_SIZE,
        };
        region.advise(bytes, huge_pages)?;
        for page in 0..region.pages {
            region.fill(page);
        }
        Ok(region)
    }

    /// Number of pages.
    #[must_use]
    pub fn pages(&self) -> usize {
        self.pages
    }

    /// The address at which the region starts.
    #[must_use]
    pub fn address(&self) -> usize {
        self.words.addr()
    }

    /// One read and, if asked, one write; false if the page is not the one that it should be.
    #[must_use]
    pub fn touch(&self, page: usize, write: bool) -> bool {
        if write {
            let count = self.load(page, COUNTER);
            self.store(page, COUNTER, count + 1);
        }
        self.load(page, 0) == tag(page)
    }

    /// Whether every word of the page is right and it was written `writes` times.
    #[must_use]
    pub fn is_intact(&self, page: usize, writes: u64) -> bool {
        self.load(page, 0) == tag(page)
            && self.load(page, COUNTER) == writes
            && (1..COUNTER).all(|word| self.load(page, word) == pattern(page, word))
    }

    fn advise(&self, bytes: usize, huge_pages: bool) -> Result<()> {
        let advice = if huge_pages {
            libc::MADV_HUGEPAGE
        } else {
            libc::MADV_NOHUGEPAGE
        };
        // A child would share the pages until the next write, which goes to a copy elsewhere.
        for advice in [advice, libc::MADV_DONTFORK] {
            // SAFETY: the range was mapped by `map_aligned`; the advice changes no content.
            let result = unsafe { libc::madvise(self.words.cast(), bytes, advice) };
            if result != 0 {
                return Err(std::io::Error::last_os_error()).context("madvise of the region");
            }
        }
        Ok(())
    }

    fn fill(&self, page: usize) {
        self.store(page, 0, tag(page));
        for word in 1..COUNTER {
            self.store(page, word, pattern(page, word));
        }
        self.store(page, COUNTER, 0);
    }

    fn load(&self, page: usize, word: usize) -> u64 {
        assert!(page < self.pages && word < WORDS);
        // SAFETY: the index was just checked against the mapping, which lives as long as the
        // process. Volatile, because each access is the point of the program.
        unsafe { self.words.add(page * WORDS + word).read_volatile() }
    }

    fn store(&self, page: usize, word: usize, value: u64) {
        assert!(page < self.pages && word < WORDS);
        // SAFETY: as in `load`; one thread alone uses the region.
        unsafe { self.words.add(page * WORDS + word).write_volatile(value) }
    }
}

fn tag(page: usize) -> u64 {
    MAGIC ^ page as u64
}

fn pattern(page: usize, word: usize) -> u64 {
    let mixed = (page as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15)
        ^ (word as u64).wrapping_mul(0xC2B2_AE3D_27D4_EB4F);
    mixed ^ (mixed >> 29)
}

/// Address of [`MappingAddress::FarAway`], if nothing is there.
const FAR_AWAY: usize = 1 << 45;

/// Maps room for `bytes` and to align them.
fn map(hint: *mut libc::c_void, bytes: usize) -> std::io::Result<*mut libc::c_void> {
    // SAFETY: a fresh anonymous mapping where nothing is yet; the address is a hint.
    let start = unsafe {
        libc::mmap(
            hint,
            bytes + HUGE_PAGE,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if start == libc::MAP_FAILED {
        return Err(std::io::Error::last_os_error());
    }
    Ok(start)
}

/// Extends the heap by room for `bytes` and to align them.
fn extend_heap(bytes: usize) -> std::io::Result<*mut libc::c_void> {
    // SAFETY: the heap only grows, and the allocator takes what it did not ask for as another's.
    let start = unsafe { libc::sbrk(libc::intptr_t::try_from(bytes + HUGE_PAGE).unwrap_or(0)) };
    if start.addr() == usize::MAX {
        return Err(std::io::Error::last_os_error());
    }
    Ok(start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_word_or_a_lost_write_is_noticed() {
        let region = Region::new(1, false, MappingAddress::FarAway).unwrap();
        assert_eq!(region.address() % HUGE_PAGE, 0);
        assert!((0..region.pages()).all(|page| region.is_intact(page, 0)));
        assert!(region.touch(3, true));
        assert!(region.is_intact(3, 1) && !region.is_intact(3, 0));
        region.store(5, 100, 1);
        assert!(!region.is_intact(5, 0));
        region.store(7, 0, tag(8));
        assert!(!region.touch(7, false));
    }

    #[test]
    fn a_region_may_be_anywhere_or_on_the_heap() {
        for at in [MappingAddress::Anywhere, MappingAddress::Heap] {
            let region = Region::new(1, false, at).unwrap();
            assert_eq!(region.address() % HUGE_PAGE, 0);
            assert!((0..region.pages()).all(|page| region.is_intact(page, 0)));
        }
    }
}
