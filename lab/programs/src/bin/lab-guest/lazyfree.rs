//! Pages given back with `MADV_FREE`: the kernel drops those that are short of memory's need and keeps
//! those that were written since, which it knows by their dirty bits alone.

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use terrace_lab_programs::pages::coalesce;

use crate::anonymous::Anonymous;
use crate::pagemap;

/// Pages that were freed lazily, and how many of them, from the first on, were written again.
pub struct LazyFree {
    memory: Anonymous,
    rewritten: usize,
}

impl LazyFree {
    /// Fills `pages` pages and frees them lazily.
    pub fn new(pages: usize) -> Result<Self> {
        let memory = Anonymous::new(pages)?;
        for page in 0..pages {
            memory.fill(page, |word| before(page, word));
        }
        memory.advise(libc::MADV_FREE)?;
        Ok(Self {
            memory,
            rewritten: 0,
        })
    }

    /// The guest frame of each page, in order.
    pub fn frames(&self) -> Result<Vec<u64>> {
        pagemap::frames(self.memory.address(), self.memory.pages())
    }

    /// Writes the first `pages` pages again.
    pub fn rewrite(&mut self, pages: usize) -> Result<()> {
        ensure!(pages <= self.memory.pages(), "there are fewer pages");
        for page in 0..pages {
            self.memory.fill(page, |word| after(page, word));
        }
        self.rewritten = pages;
        Ok(())
    }

    /// The numbers of the pages that hold what was last written to them, of those that hold zeros, and
    /// of those that hold anything else.
    pub fn contents(&self) -> Value {
        let (mut intact, mut dropped, mut damaged) = (Vec::new(), Vec::new(), Vec::new());
        for page in 0..self.memory.pages() {
            let last = |word| match page < self.rewritten {
                true => after(page, word),
                false => before(page, word),
            };
            let list = if self.memory.holds(page, last) {
                &mut intact
            } else if self.memory.holds(page, |_| 0) {
                &mut dropped
            } else {
                &mut damaged
            };
            list.push(page as u64);
        }
        json!({
            "intact": coalesce(intact),
            "dropped": coalesce(dropped),
            "damaged": coalesce(damaged),
        })
    }
}

fn before(page: usize, word: usize) -> u64 {
    0xBEF0_0000_0000_0000 | ((page as u64) << 16) | word as u64
}

fn after(page: usize, word: usize) -> u64 {
    0xAF7E_0000_0000_0000 | ((page as u64) << 16) | word as u64
}

/// Takes all the memory that there is, in a process that the kernel ends for it.
pub fn pressure() -> Result<Value> {
    // SAFETY: the child calls system calls and works on memory that it maps itself; it never returns.
    match unsafe { libc::fork() } {
        -1 => Err(std::io::Error::last_os_error().into()),
        0 => devour(),
        pid => {
            let mut status = 0;
            // SAFETY: `status` lives through the call.
            let ended = unsafe { libc::waitpid(pid, &raw mut status, 0) };
            ensure!(ended == pid, "the child that takes memory is gone");
            Ok(json!({ "killed": libc::WIFSIGNALED(status) }))
        }
    }
}

fn devour() -> ! {
    // It alone is to be killed: init cannot be, and the guest would end.
    if std::fs::write("/proc/self/oom_score_adj", "1000").is_ok() {
        while let Ok(memory) = Anonymous::new(256) {
            for page in 0..memory.pages() {
                memory.fill(page, |_| 1);
            }
            std::mem::forget(memory);
        }
    }
    // SAFETY: ends the process.
    unsafe { libc::_exit(1) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_told_apart_by_what_was_written_last() {
        let mut pages = LazyFree::new(8).unwrap();
        assert_eq!(pages.frames().map(|frames| frames.len()).unwrap_or(8), 8);
        pages.rewrite(4).unwrap();
        pages.memory.fill(1, |_| 0);
        pages.memory.fill(2, |word| before(2, word));
        pages.memory.fill(6, |_| 0);
        let contents = pages.contents();
        assert_eq!(contents["dropped"], json!([[1, 1], [6, 1]]));
        assert_eq!(contents["damaged"], json!([[2, 1]]));
        assert!(pages.rewrite(9).is_err());
    }
}
