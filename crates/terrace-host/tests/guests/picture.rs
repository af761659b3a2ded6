//! The contents of a stopped guest's RAM, before and after.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt};

use terrace_proto::{PAGE_SIZE, ScanAnswer};
use terrace_sys::data_extents;

use crate::guest::Guest;

const PRESENT_USER: u64 = 0x5;
const ACCESSED: u64 = 0x20;
/// D, and the bit that Linux 6.6 and later take for D as well.
const DIRTY: u64 = 1 << 58 | 0x40;
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;
/// Present, writable, for users, not executable: a page of plain data.
const DATA: u64 = 1 << 63 | 0x7;
/// Bits that the processor leaves to the kernel.
const SOFTWARE: u64 = 0xe00;

/// All that a file holds.
pub struct Picture(Vec<(u64, Vec<u8>)>);

/// A word that differs.
pub struct Change {
    /// The offset in the file.
    pub offset: u64,
    pub before: u64,
    pub after: u64,
}

impl Picture {
    pub fn of(ram: &File) -> Self {
        let extents = data_extents(ram.as_fd()).unwrap();
        let read = |extent: &terrace_sys::Extent| {
            let mut bytes = vec![0; extent.len as usize];
            ram.read_exact_at(&mut bytes, extent.start).unwrap();
            (extent.start, bytes)
        };
        Self(extents.iter().map(read).collect())
    }

    /// The words that are others in the file now; nothing may have been allocated.
    pub fn changes(&self, ram: &File) -> Vec<Change> {
        assert_eq!(
            self.extents(),
            Self::of(ram).extents(),
            "memory was allocated"
        );
        self.changes_of_what_was_there(ram)
    }

    /// The same, whatever was allocated.
    pub fn changes_of_what_was_there(&self, ram: &File) -> Vec<Change> {
        let mut changes = Vec::new();
        for (start, before) in &self.0 {
            let mut after = vec![0; before.len()];
            ram.read_exact_at(&mut after, *start).unwrap();
            let pages = before.chunks(4096).zip(after.chunks(4096)).enumerate();
            for (page, (before, after)) in pages.filter(|(_, (before, after))| before != after) {
                let words = words(before).zip(words(after)).enumerate();
                changes.extend(
                    words
                        .filter(|(_, (b, a))| b != a)
                        .map(|(word, (b, a))| Change {
                            offset: start + (page * 4096 + word * 8) as u64,
                            before: b,
                            after: a,
                        }),
                );
            }
        }
        changes
    }

    fn extents(&self) -> Vec<(u64, usize)> {
        self.0
            .iter()
            .map(|(at, bytes)| (*at, bytes.len()))
            .collect()
    }
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u64> {
    let words = bytes.as_chunks::<8>().0.iter();
    words.map(|word| u64::from_le_bytes(*word))
}

/// Bytes that the file takes up.
pub fn allocated(ram: &File) -> u64 {
    ram.metadata().unwrap().blocks() * 512
}

/// Scans a stopped guest, clearing all, and fails if anything else in its RAM changed than accessed bits
/// of entries for users, or anything in a page that a process maps or in a top-level table. Returns the
/// answer and the number of bits.
pub fn only_accessed_bits_change(guest: &mut Guest) -> (ScanAnswer, usize) {
    guest.stop();
    let tops: Vec<u64> = guest.registers().iter().map(|r| r.cr3 >> 12).collect();
    let picture = Picture::of(&guest.ram);
    let answer = guest.scan(crate::guest::SEARCH_AND_CLEAR);
    let changes = picture.changes(&guest.ram);
    guest.go_on();
    for change in &changes {
        let Change {
            offset,
            before,
            after,
        } = *change;
        let frame = guest.frame_at(offset).expect("a frame of RAM");
        assert!(
            before ^ after == ACCESSED && before & ACCESSED != 0,
            "at {offset:#x} (guest page {frame:#x}) {before:#x} became {after:#x}"
        );
        assert_eq!(
            before & PRESENT_USER,
            PRESENT_USER,
            "{before:#x} at {offset:#x} is no entry for users"
        );
        assert!(
            !answer.known.get(frame),
            "guest page {frame:#x} is data of a process and was written to"
        );
        // With isolation the two tables of a process lie side by side.
        assert!(
            !tops.contains(&frame) && !tops.contains(&(frame ^ 1)),
            "a top-level table was written to, at guest page {frame:#x}"
        );
    }
    assert!(
        changes.len() as u64 >= answer.stats.cleared && answer.stats.cleared > 0,
        "{} bits changed, {:?}",
        changes.len(),
        answer.stats
    );
    (answer, changes.len())
}

/// Clears the dirty bits of the entries that map these frames, as no scan of the product does; the guest
/// must be stopped. Returns the frames that had one.
///
/// Frames are counted, not words: a stack of the guest's kernel may hold a copy of an entry.
pub fn clear_dirty_bits(guest: &Guest, frames: &[u64]) -> BTreeSet<u64> {
    let mut cleared = BTreeSet::new();
    for (start, bytes) in Picture::of(&guest.ram).0 {
        for (number, word) in words(&bytes).enumerate() {
            let is_leaf = word & !(ADDRESS | SOFTWARE | ACCESSED | DIRTY) == DATA;
            let frame = (word & ADDRESS) / PAGE_SIZE;
            if is_leaf && word & DIRTY != 0 && frames.contains(&frame) {
                let at = start + number as u64 * 8;
                let entry = (word & !DIRTY).to_le_bytes();
                guest.ram.write_all_at(&entry, at).unwrap();
                cleared.insert(frame);
            }
        }
    }
    cleared
}
