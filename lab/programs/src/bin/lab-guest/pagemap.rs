//! The guest frame behind each page, by the guest kernel's own word.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use anyhow::{Context, Result, bail};
use terrace_lab_programs::pages::PAGE_SIZE;

const PRESENT: u64 = 1 << 63;
const FRAME: u64 = (1 << 55) - 1;

/// Guest frame numbers of `pages` pages of this process from `address` on, all of which are there.
pub fn frames(address: usize, pages: usize) -> Result<Vec<u64>> {
    frames_of("self", address, pages)
}

/// Guest frame numbers of pages of another process.
pub fn frames_of(process: &str, address: usize, pages: usize) -> Result<Vec<u64>> {
    let entries = entries(process, address, pages)?;
    entries.into_iter().enumerate().map(frame).collect()
}

/// Every frame that any process maps.
pub fn all_mapped() -> Result<Vec<u64>> {
    let mut mapped = Vec::new();
    for entry in fs::read_dir("/proc").context("cannot list /proc")? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name.bytes().all(|byte| byte.is_ascii_digit()) {
            for (address, pages) in maps(&name)? {
                let entries = entries(&name, address, pages)?;
                let present = entries.into_iter().filter(|entry| entry & PRESENT != 0);
                mapped.extend(present.map(|entry| entry & FRAME));
            }
        }
    }
    Ok(mapped)
}

/// A process's mappings: address and number of pages. Kernel threads have none.
fn maps(process: &str) -> Result<Vec<(usize, usize)>> {
    let path = format!("/proc/{process}/maps");
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    let mapping = |line: &str| {
        let (start, rest) = line.split_once('-')?;
        let (end, _) = rest.split_once(' ')?;
        let (start, end) = (hex(start)?, hex(end)?);
        Some((start, end.checked_sub(start)? / PAGE_SIZE))
    };
    // The one page that is not in the user half: every process sees it, none has it in its tables.
    let all = text.lines().filter(|line| !line.ends_with("[vsyscall]"));
    all.map(|line| mapping(line).with_context(|| format!("{path}: {line:?}")))
        .collect()
}

fn hex(text: &str) -> Option<usize> {
    usize::from_str_radix(text, 16).ok()
}

fn entries(process: &str, address: usize, pages: usize) -> Result<Vec<u64>> {
    let path = format!("/proc/{process}/pagemap");
    let file = File::open(&path).with_context(|| format!("cannot open {path}"))?;
    let mut bytes = vec![0; pages * 8];
    let offset = (address / PAGE_SIZE * 8) as u64;
    file.read_exact_at(&mut bytes, offset)
        .with_context(|| format!("cannot read {path}"))?;
    let (entries, _) = bytes.as_chunks::<8>();
    Ok(entries.iter().map(|e| u64::from_ne_bytes(*e)).collect())
}

fn frame((page, entry): (usize, u64)) -> Result<u64> {
    if entry & PRESENT == 0 {
        bail!("page {page} of them is not in the guest's memory");
    }
    Ok(entry & FRAME)
}
