//! A trace as a load: [`TraceSpec`] is its description in a scenario, [`Loaded`] its form in a run.
//!
//! One access of 8 bytes for each 64-byte line that a record touches and that the cache filter misses. Addresses are
//! compacted: each aligned 2 MiB region that is touched becomes the next 512 pages, in order of address. So pages
//! that shared a huge page still do, and memory that is not touched takes no room.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use bytesize::ByteSize;
use serde::Deserialize;
use terrace_proto::PAGE_SIZE;

use crate::base::access::{Access, LINES_PER_PAGE, Source};
use crate::base::load::{Context, MAX_PAGES};
use crate::base::number::{low, to_usize};
use crate::base::random::{Purpose, stream};

use super::copies::Copies;
use super::footprint::{MAX_REGIONS, REGION_PAGES};
use super::play::Played;
use super::{Cache, Format, OnBroken, Reader, TraceError};

/// Most accesses that are held: 2 GiB of memory.
pub const MAX_ACCESSES: u64 = 1 << 28;
/// Accesses that share one pace, and are played together to one copy of their pages.
pub(super) const BLOCK: usize = 1024;

/// A recorded trace as a load. All accesses are vCPU 0's unless there are more players, because a trace records no
/// other; the load ends with the trace. Needs `scale = 1`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TraceSpec {
    /// The file, relative to the scenario's.
    pub file: PathBuf,
    /// The format; if it is not given, it is recognised by content.
    #[serde(default)]
    pub format: Option<Format>,
    /// Accesses of the program that a record stands for, 1 or more (50 if one in 50 was recorded). The recorded one
    /// is simulated, the others are taken to hit the processor's caches: they cost `compute_ns` each and nothing
    /// else. `ops` and results count those simulated.
    #[serde(default = "one")]
    pub accesses_per_record: u32,
    /// Time that the program computes for each of its accesses, ns; 1 if it is not given.
    #[serde(default = "one_ns")]
    pub compute_ns: f64,
    /// Size of a processor cache in front (see [`Cache`]); `None` if there is none. The time of records that the
    /// cache holds passes.
    #[serde(default)]
    pub cache: Option<ByteSize>,
    /// Whether the machine's last-level cache sees the accesses, or they are its misses already. If it is not given,
    /// the cache sees the accesses of a format that records each one ([`Format::records_all`]), without a `cache` here
    /// and with one access per record.
    #[serde(default)]
    pub before_cache: Option<bool>,
    /// Number of times that the whole trace is played, 1 or more.
    #[serde(default = "one")]
    pub repeat: u32,
    /// Number of pages that a recorded page stands for, 1 or more. Each access is played to all of them, some accesses to
    /// one copy after another, and each time costs its records' time; the pages are whole 2 MiB regions apart.
    #[serde(default = "one")]
    pub inflate: u32,
    /// Number of vCPUs that play the trace, over the same memory, 1 or more. Each begins at another part of the trace,
    /// goes round it and plays it `repeat` times.
    #[serde(default = "one")]
    pub players: u32,
    /// The treatment of records that cannot be read.
    #[serde(default)]
    pub on_broken: OnBroken,
    #[serde(skip)]
    shared: SharedTrace,
}

fn one() -> u32 {
    1
}

fn one_ns() -> f64 {
    1.0
}

/// The parameters that decide the accesses.
type Key = (PathBuf, Option<Format>, Option<ByteSize>, OnBroken);

/// A cache of the loaded trace, shared by all clones of a spec: the runs of a comparison read the file once.
#[derive(Clone, Debug, Default)]
struct SharedTrace(Arc<Mutex<Option<KeyedTrace>>>);

#[derive(Debug)]
struct KeyedTrace {
    key: Key,
    loaded: Arc<Loaded>,
}

impl PartialEq for SharedTrace {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

/// A trace in the memory of a run.
#[derive(Debug, PartialEq)]
pub struct Loaded {
    accesses: Vec<Access>,
    /// Number of records read until the end of each block of accesses.
    records_until: Vec<u64>,
    /// Number of 4 KiB pages, below which all accesses are: 512 for each touched 2 MiB region.
    pub pages: u64,
    /// Number of records read.
    pub records: u64,
    /// Number of broken records left out.
    pub skipped: u64,
    /// The format of the file.
    pub format: Format,
}

impl Loaded {
    /// The accesses in order.
    #[must_use]
    pub fn accesses(&self) -> &[Access] {
        &self.accesses
    }

    /// Records for each access around the `at`-th.
    pub(super) fn records_per_access(&self, at: usize) -> f64 {
        let block = at / BLOCK;
        let until = |block: usize| self.records_until.get(block).copied().unwrap_or(0);
        let before = block.checked_sub(1).map_or(0, until);
        let accesses = BLOCK.min(self.accesses.len() - block * BLOCK);
        (until(block) - before) as f64 / accesses as f64
    }
}

/// Reads a whole trace, with `cache` bytes of processor cache in front of memory, if given.
///
/// # Errors
/// If the trace cannot be read or is too large, or the cache cannot have that size.
pub fn load(mut reader: Reader, cache: Option<u64>) -> Result<Loaded, TraceError> {
    let mut cache = cache.map(checked_cache).transpose()?;
    let mut loaded = Loaded {
        accesses: Vec::new(),
        records_until: Vec::new(),
        pages: 0,
        records: 0,
        skipped: 0,
        format: reader.format(),
    };
    let mut regions = BTreeSet::new();
    let mut last_region = u64::MAX;
    let too_large = |reader: &Reader, what, limit| TraceError::TooLarge {
        file: reader.file().to_owned(),
        what,
        limit,
    };
    while let Some(record) = reader.next_record()? {
        for line in record.lines() {
            if cache.as_mut().is_some_and(|cache| !cache.misses(line)) {
                continue;
            }
            let page = line / LINES_PER_PAGE;
            if page / REGION_PAGES != last_region {
                last_region = page / REGION_PAGES;
                regions.insert(last_region);
                if regions.len() as u64 > MAX_REGIONS {
                    return Err(too_large(&reader, "touched 2 MiB regions", MAX_REGIONS));
                }
            }
            if loaded.accesses.len().is_multiple_of(BLOCK) && !loaded.accesses.is_empty() {
                loaded.records_until.push(reader.records() - 1);
            }
            if loaded.accesses.len() as u64 == MAX_ACCESSES {
                return Err(too_large(&reader, "accesses", MAX_ACCESSES));
            }
            let access = Access::new(page, line % LINES_PER_PAGE, record.writes());
            loaded.accesses.push(access);
        }
    }
    loaded.records = reader.records();
    loaded.records_until.push(loaded.records);
    loaded.skipped = reader.skipped();
    let regions: Vec<u64> = regions.into_iter().collect();
    compact(&mut loaded.accesses, &regions);
    loaded.accesses.shrink_to_fit();
    loaded.pages = regions.len() as u64 * REGION_PAGES;
    Ok(loaded)
}

fn checked_cache(bytes: u64) -> Result<Cache, TraceError> {
    Cache::new(bytes).map_err(|e| TraceError::Parameter {
        key: "cache",
        value: ByteSize(bytes).to_string(),
        expected: e.to_string(),
    })
}

/// Numbers the touched regions densely; `regions` must be in order.
fn compact(accesses: &mut [Access], regions: &[u64]) {
    let mut last = (u64::MAX, 0);
    for access in accesses {
        let (region, within) = (access.page() / REGION_PAGES, access.page() % REGION_PAGES);
        if region != last.0 {
            let dense = regions.partition_point(|r| *r < region);
            last = (region, dense as u64);
        }
        *access = Access::new(
            last.1 * REGION_PAGES + within,
            access.line(),
            access.is_write(),
        );
    }
}

impl TraceSpec {
    /// A trace with default parameters: every record one access of its program, no cache, played once.
    #[must_use]
    pub fn new(file: PathBuf) -> Self {
        Self {
            file,
            format: None,
            accesses_per_record: one(),
            compute_ns: one_ns(),
            cache: None,
            before_cache: None,
            repeat: one(),
            inflate: one(),
            players: one(),
            on_broken: OnBroken::Stop,
            shared: SharedTrace::default(),
        }
    }

    /// Checks the parameters, but does not read the file.
    ///
    /// # Errors
    /// If a parameter has no meaning.
    pub fn check(&self) -> Result<(), TraceError> {
        let wrong = |key, value: String, expected: &str| {
            Err(TraceError::Parameter {
                key,
                value,
                expected: expected.to_owned(),
            })
        };
        if self.accesses_per_record == 0 {
            return wrong("accesses_per_record", "0".into(), "expected 1 or more");
        }
        let counts = [
            ("repeat", self.repeat),
            ("inflate", self.inflate),
            ("players", self.players),
        ];
        if let Some((key, _)) = counts.into_iter().find(|(_, count)| *count == 0) {
            return wrong(key, "0".into(), "expected 1 or more");
        }
        if !(0.0..=1e9).contains(&self.compute_ns) {
            let value = self.compute_ns.to_string();
            return wrong("compute_ns", value, "expected 0 to 1e9");
        }
        // Records that the cache takes in are added to the next one's time, which is counted in ps.
        let record_ns = self.compute_ns * f64::from(self.accesses_per_record);
        if record_ns > 1e9 {
            let value = format!("{} x accesses_per_record", self.compute_ns);
            return wrong("compute_ns", value, "expected at most 1 s a record");
        }
        if let Some(cache) = self.cache {
            checked_cache(cache.as_u64())?;
            if self.before_cache == Some(true) {
                let beside =
                    "expected false or nothing beside cache, which filters the accesses already";
                return wrong("before_cache", "true".into(), beside);
            }
        }
        Ok(())
    }

    /// Whether the machine's last-level cache sees the accesses of a file in that format.
    fn is_before_cache(&self, format: Format) -> bool {
        let is_whole = self.cache.is_none() && self.accesses_per_record == 1;
        self.before_cache
            .unwrap_or(is_whole && format.records_all())
    }

    /// The whole trace, which is read once for all clones of this.
    ///
    /// # Errors
    /// If a parameter has no meaning, or the file cannot be read or is too large.
    pub fn loaded(&self, folder: &Path) -> Result<Arc<Loaded>, TraceError> {
        self.check()?;
        let file = folder.join(&self.file);
        let key = (file, self.format, self.cache, self.on_broken);
        let mut shared = self.shared.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(shared) = shared.as_ref().filter(|shared| shared.key == key) {
            return Ok(Arc::clone(&shared.loaded));
        }
        let reader = Reader::open(&key.0, self.format, self.on_broken)?;
        let loaded = Arc::new(load(reader, self.cache.map(|size| size.as_u64()))?);
        *shared = Some(KeyedTrace {
            key,
            loaded: Arc::clone(&loaded),
        });
        Ok(loaded)
    }

    /// Number of 4 KiB pages of the load's memory: 512 for each 2 MiB region that the trace touches, and as much for
    /// each copy of it.
    ///
    /// # Errors
    /// As [`TraceSpec::loaded`], and if there are more copies than can be simulated.
    pub fn pages(&self, folder: &Path) -> Result<u64, TraceError> {
        let pages = self.loaded(folder)?.pages;
        let most = MAX_PAGES / pages.max(1);
        if u64::from(self.inflate) > most {
            let bytes = |pages: u64| ByteSize(pages * PAGE_SIZE);
            return Err(TraceError::Parameter {
                key: "inflate",
                value: self.inflate.to_string(),
                expected: format!(
                    "expected at most {most}: one copy of the trace's memory is {}, and at most {} can be simulated",
                    bytes(pages),
                    bytes(MAX_PAGES)
                ),
            });
        }
        Ok(pages * u64::from(self.inflate))
    }

    /// Checks that the VM has a vCPU for each player.
    ///
    /// # Errors
    /// If it has fewer.
    pub fn check_players(&self, vcpus: u32) -> Result<(), TraceError> {
        if self.players <= vcpus {
            return Ok(());
        }
        Err(TraceError::Parameter {
            key: "players",
            value: self.players.to_string(),
            expected: format!(
                "expected at most {vcpus}, the number of the VM's vCPUs (machine.vcpus_per_vm)"
            ),
        })
    }

    /// One source for each vCPU: the first ones play the trace, the others are at their end.
    ///
    /// # Errors
    /// As [`TraceSpec::pages`] and [`TraceSpec::check_players`].
    pub fn sources(&self, context: &Context) -> Result<Vec<Box<dyn Source>>, TraceError> {
        let pages = self.pages(context.folder)?;
        self.check_players(context.vcpus)?;
        let loaded = self.loaded(context.folder)?;
        let record_ns = self.compute_ns * f64::from(self.accesses_per_record);
        let before_cache = self.is_before_cache(loaded.format);
        let copies = (self.inflate > 1).then(|| {
            let regions = low(pages / REGION_PAGES) / self.inflate;
            let mut random = stream(context.seed, context.vm, 0, Purpose::Layout);
            Arc::new(Copies::new(regions, self.inflate, &mut random))
        });
        let sources = (0..context.vcpus).map(|vcpu| {
            let repeat = if vcpu < self.players { self.repeat } else { 0 };
            let (number, players) = (u64::from(vcpu), u64::from(self.players));
            let begins = loaded.accesses.len() as u64 * number / players;
            let begins = if repeat > 0 { to_usize(begins) } else { 0 };
            let played = Played::new(Arc::clone(&loaded), record_ns, begins, repeat);
            let played = played.before_cache(before_cache);
            Box::new(played.to(copies.clone())) as Box<dyn Source>
        });
        Ok(sources.collect())
    }
}
