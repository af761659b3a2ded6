//! Page tables that a process forges in memory of its own, written from outside: what matters is what is in
//! the guest's memory, not who wrote it.

use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;

use crate::guest::{Frames, Guest};

/// Present, writable, for users, accessed, dirty: an entry that leads on, or seems to.
const USED: u64 = 0x67;
const ACCESSED: u64 = 0x20;
const DIRTY: u64 = 0x40;

/// The words of a page.
pub type Page = [u64; 512];
/// Entries 256 to 511 of a top-level table.
pub type Half = [u64; 256];

/// Pages that a process in the guest holds, and what was last written to them.
pub struct Forgery {
    /// Not used yet.
    free: Vec<u64>,
    /// The content that each page is to hold.
    expected: BTreeMap<u64, Box<Page>>,
    /// The checksum that the guest read before any scan.
    sum: Option<String>,
}

/// The differences from what was written.
pub struct Damage {
    pub words: usize,
    pub pages: usize,
}

impl Forgery {
    /// Has the guest hold `pages` pages full of words that resemble entries.
    pub fn hold(guest: &mut Guest, pages: usize) -> Self {
        let frames = guest.frames(&format!("hold {pages}"));
        assert_eq!(frames.len(), pages);
        Self {
            expected: read_all(guest, &frames),
            free: frames.into_iter().collect(),
            sum: None,
        }
    }

    /// A page that nothing was written to yet.
    pub fn take(&mut self) -> u64 {
        self.free.pop().expect("enough pages are held")
    }

    /// The same for many.
    pub fn take_all(&mut self, pages: usize) -> Vec<u64> {
        (0..pages).map(|_| self.take()).collect()
    }

    /// Writes a page.
    pub fn write(&mut self, guest: &Guest, frame: u64, page: &Page) {
        let expected = self.expected.get_mut(&frame).expect("a page that is held");
        **expected = *page;
        let bytes: Vec<u8> = page.iter().flat_map(|word| word.to_le_bytes()).collect();
        let at = guest.offset(frame);
        guest.ram.write_all_at(&bytes, at).unwrap();
    }

    /// Writes tables of a tree with `levels` levels below the top, each entry of the lowest of which names
    /// one of `named`; returns the page that a top-level entry is to name.
    pub fn tree(&mut self, guest: &Guest, levels: u8, named: &[u64]) -> u64 {
        let mut below = named.to_vec();
        for _ in 0..levels {
            let tables: Vec<(u64, Box<Page>)> = below
                .chunks(512)
                .map(|named| (self.take(), Box::new(table(named))))
                .collect();
            below = tables.iter().map(|(frame, _)| *frame).collect();
            for (frame, page) in &tables {
                self.write(guest, *frame, page);
            }
        }
        assert_eq!(below.len(), 1, "one table leads to all of them");
        below[0]
    }

    /// Writes a top-level table: one entry for users, and that kernel half.
    pub fn top(&mut self, guest: &Guest, users: u64, half: &Half) -> u64 {
        let mut page = [0; 512];
        page[0] = users << 12 | USED;
        page[256..].copy_from_slice(half);
        let frame = self.take();
        self.write(guest, frame, &page);
        frame
    }

    /// The lowest of the pages.
    pub fn first(&self) -> u64 {
        *self.expected.keys().next().expect("pages are held")
    }

    /// To be called if all is written while the guest runs: it reads its pages.
    pub fn seal(&mut self, guest: &mut Guest) {
        self.sum = Some(sum(guest));
    }

    /// The differences from what was written, seen from outside.
    pub fn damage(&self, guest: &Guest) -> Damage {
        let frames: Frames = self.expected.keys().copied().collect();
        let (mut words, mut pages) = (0, 0);
        for (frame, page) in read_all(guest, &frames) {
            let differ = page.iter().zip(self.expected[&frame].iter());
            let differ = differ.filter(|(now, before)| now != before).count();
            words += differ;
            pages += usize::from(differ > 0);
        }
        Damage { words, pages }
    }

    /// Fails unless every byte is what was written, from outside and, if it was sealed, by the word of the guest,
    /// which must be running.
    pub fn expect_untouched(&self, guest: &mut Guest) {
        let Damage { words, pages } = self.damage(guest);
        let same = self.sum.as_ref().is_none_or(|before| *before == sum(guest));
        assert!(
            words == 0 && same,
            "{words} words in {pages} pages of a process changed (the guest reads the same: {same})"
        );
    }
}

fn sum(guest: &mut Guest) -> String {
    guest.ask("held")["sum"].as_str().unwrap().to_owned()
}

/// A table whose entries, from the first on, name these frames.
fn table(named: &[u64]) -> Page {
    std::array::from_fn(|entry| named.get(entry).map_or(0, |frame| frame << 12 | USED))
}

/// The words of a frame of RAM.
pub fn read(guest: &Guest, frame: u64) -> Box<Page> {
    let mut bytes = [0; 4096];
    let at = guest.offset(frame);
    guest.ram.read_exact_at(&mut bytes, at).unwrap();
    let words = bytes.as_chunks::<8>().0;
    Box::new(std::array::from_fn(|at| u64::from_le_bytes(words[at])))
}

/// The kernel half of the table that the first virtual CPU uses, as it is in all tables.
pub fn true_half(guest: &mut Guest) -> Half {
    let top = guest.registers()[0].cr3 >> 12;
    let table = read(guest, top);
    std::array::from_fn(|entry| table[256 + entry] & !(ACCESSED | DIRTY))
}

fn read_all(guest: &Guest, frames: &Frames) -> BTreeMap<u64, Box<Page>> {
    let page = |frame: &u64| (*frame, read(guest, *frame));
    frames.iter().map(page).collect()
}
