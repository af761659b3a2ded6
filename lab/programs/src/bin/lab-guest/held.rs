//! Memory full of words that resemble page-table entries: a program that takes a page of it for a table finds entries
//! that lead to more of it, and each bit that is changed there is noticed.

use anyhow::Result;
use serde_json::{Value, json};
use terrace_lab_programs::pages::coalesce;

use crate::anonymous::Anonymous;
use crate::pagemap;

/// Flags of a word like an entry: present, writable, for users, accessed, dirty.
const LIKE_AN_ENTRY: u64 = 0x67;

/// Pages of this process that are full of such words.
pub struct Held {
    parts: Vec<Anonymous>,
    /// Frames of RAM, to which the words point.
    frames: u64,
}

impl Held {
    /// Maps and fills `pages` pages.
    pub fn new(pages: usize) -> Result<Self> {
        // SAFETY: sysconf has no preconditions.
        let frames = u64::try_from(unsafe { libc::sysconf(libc::_SC_PHYS_PAGES) })?.max(1);
        let mut held = Self {
            parts: Vec::new(),
            frames,
        };
        held.add(pages)?;
        Ok(held)
    }

    /// Maps and fills so many more pages.
    pub fn add(&mut self, pages: usize) -> Result<()> {
        let part = Anonymous::new(pages)?;
        for page in 0..pages {
            part.fill(page, |word| self.word(self.parts.len(), page, word));
        }
        self.parts.push(part);
        Ok(())
    }

    /// The frames, as ranges.
    pub fn ranges(&self) -> Result<Value> {
        let mut frames = Vec::new();
        for part in &self.parts {
            frames.extend(pagemap::frames(part.address(), part.pages())?);
        }
        Ok(json!({ "ranges": coalesce(frames) }))
    }

    /// Number of pages and words that are not as they were filled, and a sum over all words, which shows what
    /// another program wrote there.
    pub fn state(&self) -> Value {
        let (mut pages, mut words, mut sum) = (0_u64, 0_u64, 0_u64);
        for (number, part) in self.parts.iter().enumerate() {
            for page in 0..part.pages() {
                let before = words;
                part.each(page, |word, found| {
                    words += u64::from(found != self.word(number, page, word));
                    sum = (sum.rotate_left(5) ^ found).wrapping_mul(0x517C_C1B7_2722_0A95);
                });
                pages += u64::from(words != before);
            }
        }
        json!({ "changed_pages": pages, "changed_words": words, "sum": sum.to_string() })
    }

    /// A word like an entry that maps a frame of RAM.
    fn word(&self, part: usize, page: usize, word: usize) -> u64 {
        let place = (part << 32 | page << 9 | word) as u64;
        let mixed = place.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        ((mixed * self.frames) >> 32) << 12 | LIKE_AN_ENTRY
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flipped_bit_is_counted_and_patterns_name_frames_of_ram() {
        let mut held = Held::new(1).unwrap();
        held.add(2).unwrap();
        let changed = |state: &Value| {
            let count = |key: &str| state[key].as_u64().unwrap();
            [count("changed_pages"), count("changed_words")]
        };
        let clean = held.state();
        assert_eq!(changed(&clean), [0, 0]);
        let word = held.word(1, 1, 7);
        assert!(word & 0xfff == LIKE_AN_ENTRY && word >> 12 < held.frames);
        let lost = |word| u64::from(word == 7 || word == 9) << 5;
        held.parts[1].fill(1, |word| held.word(1, 1, word) & !lost(word));
        let damaged = held.state();
        assert_eq!(changed(&damaged), [1, 2]);
        assert_ne!(clean["sum"], damaged["sum"]);
    }
}
