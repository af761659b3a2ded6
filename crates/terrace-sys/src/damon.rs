//! DAMON's sysfs interface: regions of a process's memory, and how often they were accessed.
//!
//! Responsible for: starting one kernel thread (`kdamond`) per watched process, reading what it found,
//! and stopping it. It leaves to others: which process, and what the regions mean.
//!
//! The interface has one owner at a time: the number of kdamonds is one file, and it cannot change while
//! one of them runs. So whoever comes first sets it for all that may come ([`SLOTS`]); where it is set
//! already, it is ours only if the number is ours and every context there bears [`MARK`], which a
//! crashed predecessor leaves behind. Anything else belongs to somebody else and is not touched.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::SysError;

/// Kdamonds that are asked for at once: as many processes can be watched. An odd number, so that others
/// are not likely to ask for as many.
const SLOTS: u64 = 61;
/// The update interval of our contexts, microseconds. Fixed address ranges are never updated, so it has no
/// effect and serves to tell our contexts from others'.
const MARK: u64 = 132_205_262;
/// Watches fixed address ranges of a process (Linux 5.19); `vaddr` would replace them by its own.
const OPERATIONS: &str = "fvaddr";

/// What went wrong with DAMON.
#[derive(Debug, thiserror::Error)]
pub enum DamonError {
    /// The kernel has no such interface.
    #[error(
        "{} is missing: the kernel lacks DAMON (CONFIG_DAMON_SYSFS and CONFIG_DAMON_VADDR, Linux 6.2 or later)",
        .0.display()
    )]
    Missing(PathBuf),
    /// It is somebody else's.
    #[error("DAMON is in use by somebody else ({0}); end that, or leave the VM to it")]
    Foreign(String),
    /// More processes than kdamonds.
    #[error("all {SLOTS} kdamonds are in use")]
    Full,
    /// A file could not be read or written.
    #[error(transparent)]
    Sys(#[from] SysError),
}

/// How a process is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DamonAttrs {
    /// How often a page of each region is looked at, microseconds.
    pub sample_us: u64,
    /// After how long these looks are summed up, microseconds.
    pub aggregation_us: u64,
    /// Fewest regions.
    pub min_regions: u64,
    /// Most regions.
    pub max_regions: u64,
}

/// Addresses that DAMON takes to be accessed alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DamonRegion {
    /// First address.
    pub start: u64,
    /// First address behind it.
    pub end: u64,
    /// Samples of the last aggregation interval that found it accessed.
    pub nr_accesses: u64,
}

/// The host's interface.
#[derive(Debug)]
pub struct Damon {
    kdamonds: PathBuf,
    /// Held while slots are taken and given back.
    slots: Mutex<()>,
}

/// A kernel thread that watches one process. Dropping it stops it.
#[derive(Debug)]
pub struct Kdamond {
    host: Arc<Damon>,
    slot: u64,
}

impl Damon {
    /// The interface below a root folder (`/`). Nothing is touched yet.
    #[must_use]
    pub fn new(root: &Path) -> Arc<Self> {
        Arc::new(Self {
            kdamonds: root.join("sys/kernel/mm/damon/admin/kdamonds"),
            slots: Mutex::default(),
        })
    }

    /// Stops what a predecessor that crashed left running. Others' are not touched.
    ///
    /// # Errors
    /// Where ours could not be stopped.
    pub fn stop_leftovers(&self) -> Result<(), DamonError> {
        let _taking = self.lock();
        if self.count().is_ok_and(|count| count > 0) && self.foreign()?.is_none() {
            for slot in 0..SLOTS {
                self.free(slot)?;
            }
            self.write("nr_kdamonds", 0)?;
        }
        Ok(())
    }

    /// Starts to watch address ranges of a process: whole pages, ascending, apart.
    ///
    /// # Errors
    /// Where the kernel has no DAMON, it is in use by somebody else, or a setting is refused.
    pub fn start(
        self: &Arc<Self>,
        pid: u32,
        ranges: &[(u64, u64)],
        attrs: DamonAttrs,
    ) -> Result<Kdamond, DamonError> {
        let _taking = self.lock();
        if self.count()? == 0 {
            self.write("nr_kdamonds", SLOTS)?;
        } else if let Some(what) = self.foreign()? {
            return Err(DamonError::Foreign(what));
        }
        let mut slots = 0..SLOTS;
        let slot = slots.find(|slot| self.contexts(*slot).is_ok_and(|n| n == 0));
        let slot = slot.ok_or(DamonError::Full)?;
        match self.configure(slot, pid, ranges, attrs) {
            Ok(()) => Ok(Kdamond {
                host: Arc::clone(self),
                slot,
            }),
            Err(error) => {
                // The first error is the one to tell.
                let _ = self.give_back(slot);
                Err(error)
            }
        }
    }

    fn configure(
        &self,
        slot: u64,
        pid: u32,
        ranges: &[(u64, u64)],
        attrs: DamonAttrs,
    ) -> Result<(), DamonError> {
        self.write(&format!("{slot}/contexts/nr_contexts"), 1)?;
        let context = format!("{slot}/contexts/0");
        let set = |file: &str, value: &dyn ToString| {
            self.write(&format!("{context}/{file}"), value.to_string())
        };
        // First of all, so that whatever is left behind is known to be ours.
        set("monitoring_attrs/intervals/update_us", &MARK)?;
        set("monitoring_attrs/intervals/sample_us", &attrs.sample_us)?;
        set("monitoring_attrs/intervals/aggr_us", &attrs.aggregation_us)?;
        set("monitoring_attrs/nr_regions/max", &attrs.max_regions)?;
        set("monitoring_attrs/nr_regions/min", &attrs.min_regions)?;
        set("operations", &OPERATIONS)?;
        set("targets/nr_targets", &1)?;
        set("targets/0/pid_target", &pid)?;
        set("targets/0/regions/nr_regions", &ranges.len())?;
        for (n, (start, end)) in ranges.iter().enumerate() {
            set(&format!("targets/0/regions/{n}/start"), start)?;
            set(&format!("targets/0/regions/{n}/end"), end)?;
        }
        // A scheme that does nothing but count lets regions be read; those never accessed are left out.
        set("schemes/nr_schemes", &1)?;
        set("schemes/0/action", &"stat")?;
        let pattern = |what: &str, min: u64, max: u64| {
            set(&format!("schemes/0/access_pattern/{what}/min"), &min)?;
            set(&format!("schemes/0/access_pattern/{what}/max"), &max)
        };
        pattern("sz", 0, u64::MAX)?;
        pattern("nr_accesses", 1, u32::MAX.into())?;
        pattern("age", 0, u32::MAX.into())?;
        self.write(&format!("{slot}/state"), "on")
    }

    /// What shows that the interface is somebody else's; it has kdamonds.
    fn foreign(&self) -> Result<Option<String>, DamonError> {
        let count = self.count()?;
        if count != SLOTS {
            return Ok(Some(format!("nr_kdamonds = {count}")));
        }
        for slot in 0..SLOTS {
            let contexts = self.contexts(slot)?;
            let mark = || {
                self.number(&format!(
                    "{slot}/contexts/0/monitoring_attrs/intervals/update_us"
                ))
            };
            if contexts > 0 && !mark().is_ok_and(|mark| mark == MARK) {
                return Ok(Some(format!("kdamond {slot} is not ours")));
            }
        }
        Ok(None)
    }

    fn lock(&self) -> MutexGuard<'_, ()> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self) -> Result<u64, DamonError> {
        self.number("nr_kdamonds")
    }

    fn contexts(&self, slot: u64) -> Result<u64, DamonError> {
        self.number(&format!("{slot}/contexts/nr_contexts"))
    }

    /// Stops a kdamond of ours and forgets its context.
    fn free(&self, slot: u64) -> Result<(), DamonError> {
        if self.read(&format!("{slot}/state"))? == "on" {
            self.write(&format!("{slot}/state"), "off")?;
        }
        self.write(&format!("{slot}/contexts/nr_contexts"), 0)
    }

    /// The same, and leaves the interface to others with the last one.
    fn give_back(&self, slot: u64) -> Result<(), DamonError> {
        self.free(slot)?;
        if (0..SLOTS).all(|slot| self.contexts(slot).is_ok_and(|n| n == 0)) {
            self.write("nr_kdamonds", 0)?;
        }
        Ok(())
    }

    fn read(&self, file: &str) -> Result<String, DamonError> {
        let path = self.kdamonds.join(file);
        match fs::read_to_string(&path) {
            Ok(text) => Ok(text.trim().into()),
            Err(error) => Err(failed("read", path, error)),
        }
    }

    fn number(&self, file: &str) -> Result<u64, DamonError> {
        let text = self.read(file)?;
        text.parse().map_err(|_| {
            let source = io::Error::other(format!("'{text}' is no number"));
            failed("read", self.kdamonds.join(file), source)
        })
    }

    fn write(&self, file: &str, value: impl ToString) -> Result<(), DamonError> {
        let (path, value) = (self.kdamonds.join(file), value.to_string());
        let written = fs::OpenOptions::new()
            .write(true)
            .truncate(true)
            .open(&path);
        let written =
            written.and_then(|mut file| io::Write::write_all(&mut file, value.as_bytes()));
        written.map_err(|error| failed("write", path.join(value), error))
    }
}

fn failed(call: &'static str, path: PathBuf, source: io::Error) -> DamonError {
    if source.kind() == io::ErrorKind::NotFound {
        return DamonError::Missing(path);
    }
    SysError {
        call,
        what: path.display().to_string(),
        source,
    }
    .into()
}

impl Kdamond {
    /// The regions that were accessed in an aggregation interval that ends after this call began. Waits
    /// for its end: one interval, or two.
    ///
    /// # Errors
    /// Where the kdamond does not run (the process ended, or somebody stopped it).
    pub fn accessed(&self) -> Result<Vec<DamonRegion>, DamonError> {
        let (host, slot) = (&self.host, self.slot);
        host.write(&format!("{slot}/state"), "update_schemes_tried_regions")?;
        let folder = format!("{slot}/contexts/0/schemes/0/tried_regions");
        let path = host.kdamonds.join(&folder);
        let entries = fs::read_dir(&path).map_err(|error| failed("read", path, error))?;
        let mut regions = Vec::new();
        for entry in entries.flatten() {
            let name = entry.file_name();
            // Beside the regions' folders there is a file with their sum.
            let Some(number) = name.to_str().and_then(|name| name.parse::<u64>().ok()) else {
                continue;
            };
            let field = |name: &str| host.number(&format!("{folder}/{number}/{name}"));
            regions.push(DamonRegion {
                start: field("start")?,
                end: field("end")?,
                nr_accesses: field("nr_accesses")?,
            });
        }
        regions.sort_by_key(|region| region.start);
        Ok(regions)
    }
}

impl Drop for Kdamond {
    fn drop(&mut self) {
        let _taking = self.host.lock();
        // Where it cannot be stopped, the next start of the daemon tries again; it also ends with the
        // process that it watches.
        let _ = self.host.give_back(self.slot);
    }
}

#[cfg(test)]
#[path = "damon_tests.rs"]
mod tests;
