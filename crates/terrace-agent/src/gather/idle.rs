//! Accessed bits by the kernel's idle-page tracking (`/sys/kernel/mm/page_idle/bitmap`, `CONFIG_IDLE_PAGE_TRACKING`): the
//! source of the paper (GPAC §4.3.1). Debian's kernels lack it.
//!
//! A frame is marked as idle; the kernel takes the mark away once it sees that the frame was accessed. A page that got another
//! frame meanwhile counts as accessed.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt as _;

use anyhow::{Context as _, Result};
use terrace_core::ranges::Range;
use terrace_sys::{HostRoot, PageEntry, Pagemap};

use super::location::FrameFlags;
use super::watch::{AccessedBits, Seen};

const BITMAP: &str = "sys/kernel/mm/page_idle/bitmap";
/// Frames of a word of the bitmap.
const WORD: u64 = 64;

/// The kernel's marks.
pub struct IdleBits {
    root: HostRoot,
    bitmap: File,
    flags: FrameFlags,
}

impl IdleBits {
    /// The marks, if this kernel has them.
    ///
    /// # Errors
    /// If the files may not be opened.
    pub fn open(root: &HostRoot) -> Result<Option<Self>> {
        let path = root.join(BITMAP);
        if !path.exists() {
            return Ok(None);
        }
        let open = OpenOptions::new().read(true).write(true).open(&path);
        Ok(Some(Self {
            root: root.clone(),
            bitmap: open.with_context(|| format!("opening {}", path.display()))?,
            flags: FrameFlags::open(root)?,
        }))
    }

    /// The entries of a range; none of a process that has ended.
    fn entries(&self, pid: u32, range: Range) -> Vec<PageEntry> {
        let numbers: Vec<u64> = (range.start..range.end).collect();
        let pagemap = Pagemap::open(&self.root.process(pid, "pagemap"));
        pagemap
            .and_then(|map| map.entries(&numbers))
            .unwrap_or_default()
    }

    /// Marks frames as idle.
    fn mark(&self, entries: &[PageEntry]) -> Result<()> {
        let mut marks: Vec<(u64, u64)> = Vec::new();
        for frame in entries.iter().filter_map(|entry| entry.frame()) {
            let (word, bit) = (frame / WORD, 1 << (frame % WORD));
            match marks.last_mut() {
                Some((last, bits)) if *last == word => *bits |= bit,
                _ => marks.push((word, bit)),
            }
        }
        for (word, bits) in marks {
            let written = self.bitmap.write_all_at(&bits.to_ne_bytes(), word * 8);
            written.context("marking pages as idle")?;
        }
        Ok(())
    }

    fn seen(&self, entry: PageEntry, word: &mut (u64, u64)) -> Result<Seen> {
        let Some(frame) = entry.frame() else {
            return Ok(Seen::Not);
        };
        // Parts of larger pages have no mark of their own.
        if self.flags.is_large(frame) {
            return Ok(Seen::Not);
        }
        if word.0 != frame / WORD {
            let mut bytes = [0; 8];
            let read = self.bitmap.read_exact_at(&mut bytes, frame / WORD * 8);
            read.context("reading idle pages")?;
            *word = (frame / WORD, u64::from_ne_bytes(bytes));
        }
        Ok(match word.1 >> (frame % WORD) & 1 {
            0 => Seen::Accessed,
            _ => Seen::Not,
        })
    }
}

impl AccessedBits for IdleBits {
    fn name(&self) -> &'static str {
        "idle-page tracking"
    }

    fn clear(&mut self, pid: u32, range: Range) -> Result<()> {
        self.mark(&self.entries(pid, range))
    }

    fn take(&mut self, pid: u32, range: Range, seen: &mut Vec<Seen>) -> Result<()> {
        let entries = self.entries(pid, range);
        let mut word = (u64::MAX, 0);
        for entry in &entries {
            seen.push(self.seen(*entry, &mut word)?);
        }
        self.mark(&entries)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const FRAMES: usize = 256;
    const PRESENT: u64 = 1 << 63;

    /// A guest with a process whose page `n` has the frame of the list's place `n`, and no frame idle.
    fn guest(frames: &[u64]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let put = |name: &str, bytes: Vec<u8>| {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, bytes).unwrap();
        };
        let bytes = |numbers: Vec<u64>| numbers.into_iter().flat_map(u64::to_ne_bytes).collect();
        let entries = frames
            .iter()
            .map(|frame| if *frame > 0 { PRESENT | frame } else { 0 });
        put("proc/7/pagemap", bytes(entries.collect()));
        let mut flags = vec![0; FRAMES];
        flags[130] = 1 << 22;
        put("proc/kpageflags", bytes(flags));
        put(BITMAP, bytes(vec![0; FRAMES / 64]));
        dir
    }

    fn taken(bits: &mut IdleBits, pages: u64) -> Vec<Seen> {
        let mut seen = Vec::new();
        let range = Range {
            start: 0,
            end: pages,
        };
        bits.take(7, range, &mut seen).unwrap();
        seen
    }

    #[test]
    fn what_the_kernel_took_the_mark_from_was_accessed() {
        let dir = guest(&[5, 0, 6, 200, 130]);
        let root = HostRoot::new(dir.path());
        let mut bits = IdleBits::open(&root).unwrap().unwrap();
        bits.clear(7, Range { start: 0, end: 5 }).unwrap();
        let bitmap = |dir: &tempfile::TempDir| fs::read(dir.path().join(BITMAP)).unwrap();
        let mut marked = bitmap(&dir);
        assert_eq!((marked[0], marked[16], marked[25]), (0b0110_0000, 0b100, 1));
        assert_eq!(taken(&mut bits, 5), [Seen::Not; 5]);
        // Frame 6 was accessed; frame 130 is part of a larger page.
        marked[0] = 0b0010_0000;
        marked[16] = 0;
        fs::write(dir.path().join(BITMAP), &marked).unwrap();
        let seen = [Seen::Not, Seen::Not, Seen::Accessed, Seen::Not, Seen::Not];
        assert_eq!(taken(&mut bits, 5), seen);
        assert_eq!(bitmap(&dir)[0], 0b0110_0000, "and is marked again");
        let ended = Range { start: 0, end: 5 };
        let mut none = Vec::new();
        bits.take(8, ended, &mut none).unwrap();
        assert_eq!(none, []);
    }

    #[test]
    fn kernels_without_it_have_none() {
        let dir = tempfile::tempdir().unwrap();
        assert!(
            IdleBits::open(&HostRoot::new(dir.path()))
                .unwrap()
                .is_none()
        );
    }
}
