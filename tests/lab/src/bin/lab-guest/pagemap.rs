//! The guest frame behind each page of the region, by the guest kernel's own word.

use std::fs::File;
use std::os::unix::fs::FileExt;

use anyhow::{Context, Result, bail};
use terrace_lab::pages::PAGE_SIZE;

const PRESENT: u64 = 1 << 63;
const FRAME: u64 = (1 << 55) - 1;

/// Guest frame numbers of `pages` pages from `address` on.
pub fn frames(address: usize, pages: usize) -> Result<Vec<u64>> {
    let path = "/proc/self/pagemap";
    let file = File::open(path).with_context(|| format!("cannot open {path}"))?;
    let mut bytes = vec![0; pages * 8];
    let offset = (address / PAGE_SIZE * 8) as u64;
    file.read_exact_at(&mut bytes, offset)
        .with_context(|| format!("cannot read {path}"))?;
    let (entries, _) = bytes.as_chunks::<8>();
    entries.iter().enumerate().map(frame).collect()
}

fn frame((page, entry): (usize, &[u8; 8])) -> Result<u64> {
    let entry = u64::from_ne_bytes(*entry);
    if entry & PRESENT == 0 {
        bail!("page {page} of the region is not in the guest's memory");
    }
    Ok(entry & FRAME)
}
