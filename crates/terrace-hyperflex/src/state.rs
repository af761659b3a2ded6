//! The state that survives a restart of this process: the balloons page by page, targets, and the position in each
//! ring.
//!
//! Responsible for: one mapped file (or memory of this process), of which each word is stored on its own. A process
//! that is killed leaves the words that it stored; [`State::in_flight`] finds the entry that it worked on. It leaves to
//! others: the meaning of the words to the guest. Memory is one bit per page of the VM, and one page.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use terrace_proto::PageBitmap;
use vm_memory::{FileOffset, MmapRegion, VolatileMemory as _};

use crate::abi::{MAX_TIERS, queues};
use crate::config::Config;
use crate::error::FlexError;

const WORD: usize = 8;
const HEADER_WORDS: usize = 512;
const MAGIC: u64 = u64::from_le_bytes(*b"TRHFSTA1");

const AT_MAGIC: usize = 0;
const AT_LAYOUT: usize = 1;
const AT_GENERATION: usize = 2;
const AT_RESETS: usize = 3;
const AT_TARGETS: usize = 8;
const AT_POSITIONS: usize = AT_TARGETS + MAX_TIERS;
const AT_IN_FLIGHT: usize = AT_POSITIONS + queues(MAX_TIERS);
/// Zero in a state of an earlier version, which did not store it.
const AT_FROM_EMPTY: usize = AT_IN_FLIGHT + queues(MAX_TIERS);
/// As above; per tier.
const AT_WITHHELD: usize = AT_FROM_EMPTY + queues(MAX_TIERS);

/// The state of a device, shared between its threads.
#[derive(Debug)]
pub struct State {
    words: MmapRegion<()>,
    /// Per tier: pages, and the first word of its bits.
    tiers: Vec<(u64, usize)>,
    /// The same of the bits of pages that were punched and not yet proven to be held by no other process (`lease.rs`).
    unproven: Vec<(u64, usize)>,
    /// Keeps the lock on the file.
    _file: Option<File>,
}

impl State {
    /// A state in memory of this process, with empty balloons.
    ///
    /// # Errors
    /// If there is no memory.
    pub fn in_memory(config: &Config) -> Result<Self, FlexError> {
        let (tiers, unproven, words) = all_places(config)?;
        let map = MmapRegion::new(words * WORD).map_err(|e| cannot_map(config, &e))?;
        let state = Self {
            words: map,
            tiers,
            unproven,
            _file: None,
        };
        state.start(config);
        Ok(state)
    }

    /// The state in a file, which is made if it is not there.
    ///
    /// # Errors
    /// If it is of another layout or version, in use by another device, or cannot be mapped.
    pub fn open(path: &Path, config: &Config) -> Result<Self, FlexError> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path)
            .map_err(FlexError::file(path))?;
        let refuse = |why: &str| FlexError::State {
            what: path.display().to_string(),
            why: why.into(),
        };
        if !is_locked_soon(&file) {
            return Err(refuse("another device uses it"));
        }
        let (tiers, unproven, words) = all_places(config)?;
        let bytes = words * WORD;
        // An earlier version knew of nothing that is not proven.
        let (_, earlier) = places(config, HEADER_WORDS)?;
        let found = file.metadata().map_err(FlexError::file(path))?.len();
        if ![0, (earlier * WORD) as u64, bytes as u64].contains(&found) {
            return Err(refuse("it is of a VM of another size"));
        }
        file.set_len(bytes as u64).map_err(FlexError::file(path))?;
        let mapped = file.try_clone().map_err(FlexError::file(path))?;
        let map = MmapRegion::from_file(FileOffset::new(mapped, 0), bytes)
            .map_err(|e| cannot_map(config, &e))?;
        let state = Self {
            words: map,
            tiers,
            unproven,
            _file: Some(file),
        };
        match state.get(AT_MAGIC) {
            // New, or its maker was killed before it held anything.
            0 => state.start(config),
            MAGIC if state.get(AT_LAYOUT) == fingerprint(config) => {}
            MAGIC => return Err(refuse("it is of a VM with other tiers")),
            _ => return Err(refuse("it is no state of this version")),
        }
        state.check(config).map_err(|why| refuse(&why))?;
        Ok(state)
    }

    fn start(&self, config: &Config) {
        self.put(AT_LAYOUT, fingerprint(config));
        self.put(AT_MAGIC, MAGIC);
    }

    /// Checks for contents of a damaged file that no device stores.
    fn check(&self, config: &Config) -> Result<(), String> {
        let targets = self.targets();
        for (tier, (target, of)) in targets.iter().zip(config.tiers()).enumerate() {
            if *target > of.pages() {
                return Err(format!("the target of tier {tier} is larger than the tier"));
            }
            let words = self.bitmap_words(tier);
            PageBitmap::from_words(of.pages(), words).map_err(|e| e.to_string())?;
            let words = self.words_in(self.unproven.get(tier));
            PageBitmap::from_words(of.pages(), words).map_err(|e| e.to_string())?;
        }
        Ok(())
    }

    #[inline]
    fn word(&self, index: usize) -> Option<&AtomicU64> {
        self.words.get_atomic_ref(index * WORD).ok()
    }

    #[inline]
    fn get(&self, index: usize) -> u64 {
        self.word(index).map_or(0, |w| w.load(Ordering::Relaxed))
    }

    #[inline]
    fn put(&self, index: usize, value: u64) {
        if let Some(word) = self.word(index) {
            // Release: the entry in flight is noted before its bits change.
            word.store(value, Ordering::Release);
        }
    }

    /// Tiers.
    #[must_use]
    pub fn tiers(&self) -> usize {
        self.tiers.len()
    }

    /// Number of the targets: grows with each change of them.
    #[must_use]
    pub fn generation(&self) -> u32 {
        u32::try_from(self.get(AT_GENERATION)).unwrap_or(u32::MAX)
    }

    /// Pages that shall be in each balloon.
    #[must_use]
    pub fn targets(&self) -> Vec<u64> {
        (0..self.tiers())
            .map(|i| self.get(AT_TARGETS + i))
            .collect()
    }

    /// New targets; the generation becomes `now_s`, or one more than it was if that is larger, so that it grows
    /// also if a state was lost.
    pub fn set_targets(&self, targets: &[u64], now_s: u32) {
        for (i, pages) in targets.iter().take(self.tiers()).enumerate() {
            self.put(AT_TARGETS + i, *pages);
        }
        let next = self.generation().saturating_add(1).max(now_s);
        self.put(AT_GENERATION, next.into());
    }

    /// How often the guest started anew.
    #[must_use]
    pub fn resets(&self) -> u64 {
        self.get(AT_RESETS)
    }

    /// The device's position in the ring of a queue; `None`: unknown.
    #[must_use]
    pub fn position(&self, queue: usize) -> Option<u16> {
        index(self.get(AT_POSITIONS + queue))
    }

    /// Notes the device's position in the ring of a queue.
    pub fn set_position(&self, queue: usize, position: u16) {
        self.put(AT_POSITIONS + queue, u64::from(position) + 1);
    }

    /// The ring index of the chain that was begun and, as far as is known, not answered.
    #[must_use]
    pub fn in_flight(&self, queue: usize) -> Option<u16> {
        index(self.get(AT_IN_FLIGHT + queue))
    }

    /// Notes a chain as begun, or none.
    pub fn set_in_flight(&self, queue: usize, position: Option<u16>) {
        self.put(
            AT_IN_FLIGHT + queue,
            position.map_or(0, |p| u64::from(p) + 1),
        );
    }

    /// Whether the balloon was empty when the chain in flight was begun: the pages in it now are that chain's alone.
    #[must_use]
    pub fn is_from_empty(&self, queue: usize) -> bool {
        self.get(AT_FROM_EMPTY + queue) == 1
    }

    /// Notes it; before the chain is noted.
    pub fn set_from_empty(&self, queue: usize, is_empty: bool) {
        self.put(AT_FROM_EMPTY + queue, is_empty.into());
    }

    /// Forgets the positions in the rings: the next ones are of another guest.
    pub fn forget_rings(&self) {
        (AT_POSITIONS..AT_IN_FLIGHT + queues(MAX_TIERS)).for_each(|i| self.put(i, 0));
    }

    /// Empties all balloons and forgets the rings: the guest was reset, and the pages withheld from it are its own
    /// again.
    pub fn reset(&self) {
        for (pages, at) in self.tiers.iter().chain(&self.unproven) {
            (*at..at + words_of(*pages)).for_each(|i| self.put(i, 0));
        }
        (0..self.tiers()).for_each(|tier| self.put(AT_WITHHELD + tier, 0));
        self.forget_rings();
        self.put(AT_RESETS, self.resets() + 1);
    }

    /// Whether each of these pages of a tier is in its balloon (`on`), or none of them.
    #[must_use]
    #[inline]
    pub fn all_are(&self, tier: usize, first: u64, pages: u64, on: bool) -> bool {
        let mut all = true;
        let place = self.tiers.get(tier);
        for_words(place, first, pages, |index, mask| {
            let bits = self.get(index) & mask;
            all &= bits == if on { mask } else { 0 };
        });
        all
    }

    /// Puts these pages of a tier into its balloon, or takes them out.
    #[inline]
    pub fn put_all(&self, tier: usize, first: u64, pages: u64, on: bool) {
        self.put_at(self.tiers.get(tier), first, pages, on);
    }

    #[inline]
    fn put_at(&self, place: Option<&(u64, usize)>, first: u64, pages: u64, on: bool) {
        for_words(place, first, pages, |index, mask| {
            let bits = self.get(index);
            self.put(index, if on { bits | mask } else { bits & !mask });
        });
    }

    /// Notes pages of a tier as punched and not proven to be free of other holders (`on`), or as proven.
    pub fn put_unproven(&self, tier: usize, first: u64, pages: u64, on: bool) {
        self.put_at(self.unproven.get(tier), first, pages, on);
    }

    /// Pages of a tier that are not proven, withheld ones with them.
    #[must_use]
    pub fn unproven(&self, tier: usize) -> u64 {
        self.count_at(self.unproven.get(tier), 0, u64::MAX)
    }

    /// Whether the pages that are not proven are withheld from the guest, because another process appeared.
    #[must_use]
    pub fn is_withheld(&self, tier: usize) -> bool {
        self.get(AT_WITHHELD + tier) == 1
    }

    /// Withholds them, until the guest starts anew.
    pub fn withhold(&self, tier: usize) {
        self.put(AT_WITHHELD + tier, 1);
    }

    /// How many of these pages of a tier are in its balloon.
    #[must_use]
    pub fn count(&self, tier: usize, first: u64, pages: u64) -> u64 {
        self.count_at(self.tiers.get(tier), first, pages)
    }

    fn count_at(&self, place: Option<&(u64, usize)>, first: u64, pages: u64) -> u64 {
        let mut count = 0;
        for_words(place, first, pages, |index, mask| {
            count += u64::from((self.get(index) & mask).count_ones());
        });
        count
    }

    /// The first page of a tier from `from` on and before `end` that is in its balloon (`on`), or is not.
    #[must_use]
    pub fn next(&self, tier: usize, from: u64, end: u64, on: bool) -> Option<u64> {
        let (pages, at) = *self.tiers.get(tier)?;
        let end = end.min(pages);
        let mut page = from;
        while page < end {
            let bits = self.get(at + usize::try_from(page / 64).ok()?);
            let rest = if on { bits } else { !bits } >> (page % 64);
            if rest != 0 {
                return Some(page + u64::from(rest.trailing_zeros())).filter(|found| *found < end);
            }
            page = (page / 64 + 1) * 64;
        }
        None
    }

    /// Pages in the balloon of a tier.
    #[must_use]
    pub fn pages_in(&self, tier: usize) -> u64 {
        self.count(tier, 0, u64::MAX)
    }

    fn bitmap_words(&self, tier: usize) -> Vec<u64> {
        self.words_in(self.tiers.get(tier))
    }

    fn words_in(&self, place: Option<&(u64, usize)>) -> Vec<u64> {
        let (pages, at) = place.copied().unwrap_or_default();
        (at..at + words_of(pages)).map(|i| self.get(i)).collect()
    }

    /// The balloon of a tier as a set.
    #[must_use]
    pub fn bitmap(&self, tier: usize) -> PageBitmap {
        let pages = self.tiers.get(tier).map_or(0, |(pages, _)| *pages);
        // No bit beyond the end is ever stored.
        PageBitmap::from_words(pages, self.bitmap_words(tier)).unwrap_or_default()
    }

    /// Takes over the balloon of a tier; false if it is of another size.
    #[must_use]
    pub fn set_bitmap(&self, tier: usize, bitmap: &PageBitmap) -> bool {
        match self.tiers.get(tier) {
            Some((pages, at)) if *pages == bitmap.pages() => {
                let words = bitmap.words().iter();
                words
                    .enumerate()
                    .for_each(|(i, word)| self.put(at + i, *word));
                true
            }
            _ => false,
        }
    }
}

/// The words of a tier's place and the bits in them that are these pages, cut off at the tier's end.
#[inline]
fn for_words(
    place: Option<&(u64, usize)>,
    first: u64,
    pages: u64,
    mut each: impl FnMut(usize, u64),
) {
    let Some((of, at)) = place else {
        return;
    };
    let end = first.saturating_add(pages).min(*of);
    let mut page = first;
    while page < end {
        let upto = (page / 64 + 1).saturating_mul(64).min(end);
        let ones = u64::MAX >> (64 - (upto - page));
        each(
            at + usize::try_from(page / 64).unwrap_or(usize::MAX),
            ones << (page % 64),
        );
        page = upto;
    }
}

fn index(word: u64) -> Option<u16> {
    u16::try_from(word.checked_sub(1)?).ok()
}

fn words_of(pages: u64) -> usize {
    usize::try_from(pages.div_ceil(64)).unwrap_or(usize::MAX)
}

/// Per tier pages and first word.
type Places = Vec<(u64, usize)>;

/// The places of the balloons and, behind them, of the unproven pages, and the words of all.
fn all_places(config: &Config) -> Result<(Places, Places, usize), FlexError> {
    let (tiers, at) = places(config, HEADER_WORDS)?;
    let (unproven, words) = places(config, at)?;
    Ok((tiers, unproven, words))
}

/// Places from a word on, and the words up to their end.
fn places(config: &Config, mut at: usize) -> Result<(Places, usize), FlexError> {
    let mut tiers = Vec::new();
    for tier in config.tiers() {
        tiers.push((tier.pages(), at));
        at = at
            .checked_add(words_of(tier.pages()))
            .ok_or_else(|| cannot_map(config, &"too large"))?;
    }
    // Whole pages, as only these are mapped.
    Ok((tiers, at.next_multiple_of(HEADER_WORDS)))
}

fn cannot_map(config: &Config, why: &dyn std::fmt::Display) -> FlexError {
    FlexError::Map {
        pages: config.pages(),
        why: why.to_string(),
    }
}

/// Tells VMs with other tiers apart (FNV-1a over nodes and ranges).
fn fingerprint(config: &Config) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut mix = |value: u64| {
        for byte in value.to_le_bytes() {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
    };
    for tier in config.tiers() {
        mix(tier.node.into());
        mix(tier.ranges.len() as u64);
        for range in &tier.ranges {
            mix(range.start);
            mix(range.len);
        }
    }
    hash
}

/// Takes the lock of a state. The device before this one may just have been killed: until the kernel has let go of all
/// that it had, a moment after, the lock is its.
fn is_locked_soon(file: &File) -> bool {
    const PATIENCE: Duration = Duration::from_secs(1);
    const PAUSE: Duration = Duration::from_millis(5);
    let end = Instant::now() + PATIENCE;
    while file.try_lock().is_err() {
        if Instant::now() >= end {
            return false;
        }
        std::thread::sleep(PAUSE);
    }
    true
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::config::{GpaRange, Limits, TierConfig};

    fn config(pages: &[u64]) -> Config {
        let mut start = 0;
        let mut tier = |pages: u64| {
            let len = pages * 4096;
            start += len;
            TierConfig {
                node: 0,
                host_node: None,
                ranges: vec![GpaRange {
                    start: start - len,
                    len,
                }],
            }
        };
        let limits = Limits {
            total_pages: None,
            entries_per_s: None,
            statistics_s: 0,
        };
        Config::new(pages.iter().map(|n| tier(*n)).collect(), 1, limits).unwrap()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]
        #[test]
        fn the_bits_behave_like_a_set_of_pages_of_each_tier(
            sizes in prop::collection::vec(1u64..200, 1..4),
            ops in prop::collection::vec((0usize..4, 0u64..220, 0u64..140, any::<bool>()), 0..30),
        ) {
            let state = State::in_memory(&config(&sizes)).unwrap();
            let mut naive: BTreeSet<(usize, u64)> = BTreeSet::new();
            for (tier, first, pages, on) in ops {
                let end = (first + pages).min(sizes.get(tier).copied().unwrap_or(0));
                let set = |p: &u64| naive.contains(&(tier, *p));
                prop_assert_eq!(state.all_are(tier, first, pages, on), (first..end).all(|p| set(&p) == on));
                let count = (first..end).filter(set).count();
                prop_assert_eq!(state.count(tier, first, pages), count as u64);
                prop_assert_eq!(state.next(tier, first, first + pages, on), (first..end).find(|p| set(p) == on));
                state.put_all(tier, first, pages, on);
                for page in first..end {
                    if on { naive.insert((tier, page)); } else { naive.remove(&(tier, page)); }
                }
            }
            for tier in 0..sizes.len() {
                let want: Vec<u64> = naive.iter().filter(|(t, _)| *t == tier).map(|(_, p)| *p).collect();
                prop_assert_eq!(state.bitmap(tier).iter().collect::<Vec<_>>(), want);
            }
            prop_assert_eq!(state.targets(), vec![0; sizes.len()]);
        }
    }

    #[test]
    fn a_state_is_found_again_by_the_next_process() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("vm.state");
        let config = config(&[100, 70]);
        let state = State::open(&path, &config).unwrap();
        state.set_targets(&[5, 6], 1000);
        state.put_all(1, 60, 10, true);
        state.set_position(3, 65535);
        state.set_in_flight(2, Some(0));
        let busy = State::open(&path, &config).unwrap_err().to_string();
        assert!(busy.contains("another device"), "{busy}");
        drop(state);
        let state = State::open(&path, &config).unwrap();
        assert_eq!((state.targets(), state.generation()), (vec![5, 6], 1000));
        assert_eq!(
            state.bitmap(1).iter().collect::<Vec<_>>(),
            (60..70).collect::<Vec<_>>()
        );
        assert_eq!((state.position(3), state.position(0)), (Some(65535), None));
        assert_eq!((state.in_flight(2), state.in_flight(3)), (Some(0), None));
        state.set_targets(&[5, 7], 10);
        assert_eq!(state.generation(), 1001);
        state.reset();
        assert_eq!(
            (state.pages_in(1), state.resets(), state.position(3)),
            (0, 1, None)
        );
        assert_eq!(state.targets(), [5, 7]);
    }

    #[test]
    fn a_state_of_another_vm_or_a_damaged_one_is_refused() {
        use std::os::unix::fs::FileExt as _;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("vm.state");
        drop(State::open(&path, &config(&[100, 70])).unwrap());
        let refused = |of: &[u64]| State::open(&path, &config(of)).unwrap_err().to_string();
        assert!(refused(&[70, 100]).contains("other tiers"));
        assert!(refused(&[100, 1 << 20]).contains("another size"));
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        let store = |word: usize, value: u64| {
            file.write_all_at(&value.to_le_bytes(), (word * WORD) as u64)
                .unwrap();
        };
        store(AT_TARGETS, 101);
        assert!(refused(&[100, 70]).contains("target of tier 0"));
        store(AT_TARGETS, 100);
        store(HEADER_WORDS + 1, 1 << 40);
        assert!(refused(&[100, 70]).contains("beyond its end"));
        store(HEADER_WORDS + 1, 1);
        drop(State::open(&path, &config(&[100, 70])).unwrap());
        store(AT_MAGIC, 7);
        assert!(refused(&[100, 70]).contains("version"));
    }
}
