//! A file in the guest's page cache, mapped or not.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;

use anyhow::{Context, Result};
use terrace_lab_programs::pages::PAGE_SIZE;

use crate::pagemap;

const PATH: &str = "/cache";

/// A file whose pages are in memory. (The root file system has no other place for them.)
pub struct CachedFile {
    file: File,
    pages: usize,
    mapped: Option<*mut libc::c_void>,
}

impl CachedFile {
    /// Writes a file of `pages` pages and maps it.
    pub fn new(pages: usize) -> Result<Self> {
        Self::at(PATH, pages)
    }

    fn at(path: &str, pages: usize) -> Result<Self> {
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(true);
        let mut file = options
            .open(path)
            .with_context(|| format!("cannot create {path}"))?;
        for page in 0..pages {
            file.write_all(&[page.to_le_bytes()[0]; PAGE_SIZE])?;
        }
        let mut cached = Self {
            file,
            pages,
            mapped: None,
        };
        cached.map()?;
        Ok(cached)
    }

    fn map(&mut self) -> Result<()> {
        // SAFETY: a fresh mapping of a whole file at an address of the kernel's choice.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                self.pages * PAGE_SIZE,
                libc::PROT_READ,
                libc::MAP_SHARED | libc::MAP_POPULATE,
                self.file.as_raw_fd(),
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error()).context("cannot map the file");
        }
        self.mapped = Some(start);
        Ok(())
    }

    /// The guest frames of the file's pages, while it is mapped.
    pub fn frames(&self) -> Result<Vec<u64>> {
        let start = self.mapped.context("the file is not mapped")?;
        pagemap::frames(start.addr(), self.pages)
    }

    /// Unmaps the file: from now on its pages are in the page cache alone.
    pub fn unmap(&mut self) {
        if let Some(start) = self.mapped.take() {
            // SAFETY: `map` mapped it, and no reference into it was ever handed out.
            unsafe { libc::munmap(start, self.pages * PAGE_SIZE) };
        }
    }
}

impl Drop for CachedFile {
    fn drop(&mut self) {
        self.unmap();
    }
}
