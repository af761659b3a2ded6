//! DAMON's sysfs interface: regions of a process's memory, and how often they were accessed.
//!
//! Responsible for: starting one kernel thread (`kdamond`) per watched process, reading what it found,
//! and stopping it. It leaves to others: which process, and what the regions mean.
//!
//! The interface has one owner at a time: the number of kdamonds is one file, and it cannot change while one of them
//! runs. So the first program sets it for all that may come ([`SLOTS`]). If it is set already, it is ours only if
//! the number is ours and every context there bears [`MARK`], which a crashed predecessor leaves behind. Anything
//! else belongs to another program and is not touched. This is checked again before each use of a kdamond: another may
//! have taken the interface meanwhile.
//!
//! The kernel serves one request at a time for all kdamonds and answers EBUSY to the others at once. So files are
//! reached only through a [`Turn`], of which there is one at a time, and which tries again for a while if another
//! request is served.

use std::cell::Cell;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::opener::{self, How};
use crate::{Process, SysError};

/// Kdamonds that are asked for at once: so many processes can be watched. An odd number, so that others are not
/// likely to ask for as many.
const SLOTS: u64 = 61;
/// The update interval of our contexts, microseconds. Fixed address ranges are never updated, so it has no
/// effect and serves to distinguish our contexts from others'.
const MARK: u64 = 132_205_262;
/// The mark of the guest's agent: if it runs beside a daemon, neither takes the other's contexts.
const AGENT_MARK: u64 = 132_205_263;
/// Most retries while the kernel is busy, and the pause before each: two seconds in all.
const RETRIES: u32 = 200;
const PAUSE: Duration = Duration::from_millis(10);
/// DAMON's operations for fixed address ranges of a process (Linux 5.19); `vaddr` would replace them by its own.
const OPERATIONS: &str = "fvaddr";

/// Most regions of a process that are read: far more than we have DAMON keep.
const MAX_REGIONS: usize = 1 << 16;

/// An error of DAMON's interface.
#[derive(Debug, thiserror::Error)]
pub enum DamonError {
    /// The kernel has no such interface.
    #[error(
        "{} is missing: the kernel lacks DAMON (CONFIG_DAMON_SYSFS and CONFIG_DAMON_VADDR, Linux 6.2 or later)",
        .0.display()
    )]
    Missing(PathBuf),
    /// The interface is another program's.
    #[error("DAMON is in use by another program ({0}); end that, or leave the VM to it")]
    Foreign(String),
    /// More processes are to be watched than there are kdamonds.
    #[error("all {SLOTS} kdamonds are in use")]
    Full,
    /// Another request was served each time until the tries ran out.
    #[error(
        "{} was busy for two seconds: end what else uses DAMON (a tool, DAMON_RECLAIM, DAMON_LRU_SORT)",
        .0.display()
    )]
    Busy(PathBuf),
    /// A kdamond that was started here was taken by another program.
    #[error("kdamond {0} was stopped or taken by another program ({1} changed); it is left alone")]
    Lost(u64, String),
    /// The process ended before it was watched.
    #[error("process {0} has ended")]
    Ended(u32),
    /// No kdamond is started any more.
    #[error("the daemon is ending")]
    Stopping,
    /// A file could not be read or written.
    #[error(transparent)]
    Sys(#[from] SysError),
}

/// Settings with which a process is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DamonAttrs {
    /// Time between two checks of a page of each region, microseconds.
    pub sample_us: u64,
    /// Time after which these checks are summed up, microseconds.
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
    /// First address behind the region.
    pub end: u64,
    /// Samples of the last aggregation interval that found the region accessed.
    pub nr_accesses: u64,
}

/// DAMON's interface on this machine.
#[derive(Debug)]
pub struct Damon {
    kdamonds: PathBuf,
    files: Box<dyn Files>,
    mark: u64,
    /// Whether no kdamond may be started any more; held by the [`Turn`].
    stopping: Mutex<bool>,
}

/// Access to the interface's files, one try each.
trait Files: fmt::Debug + Send + Sync {
    fn read(&self, path: &Path) -> io::Result<String>;
    fn write(&self, path: &Path, value: &str) -> io::Result<()>;
    /// Pauses, so that others can finish.
    fn pause(&self);
}

/// The kernel's own files.
#[derive(Debug)]
struct Sysfs;

impl Files for Sysfs {
    fn read(&self, path: &Path) -> io::Result<String> {
        let bytes = opener::read(path)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn write(&self, path: &Path, value: &str) -> io::Result<()> {
        let mut file = opener::open(path, How::Write)?;
        io::Write::write_all(&mut file, value.as_bytes())
    }

    fn pause(&self) {
        std::thread::sleep(PAUSE);
    }
}

/// A kernel thread that watches one process. Dropping it stops it.
#[derive(Debug)]
pub struct Kdamond {
    host: Arc<Damon>,
    slot: u64,
    pid: u32,
}

impl Damon {
    /// The interface below a root folder (`/`). Nothing is touched yet.
    #[must_use]
    pub fn new(root: &Path) -> Arc<Self> {
        Self::by(root, Box::new(Sysfs), MARK)
    }

    /// The interface with the mark of the guest's agent.
    #[must_use]
    pub fn of_agent(root: &Path) -> Arc<Self> {
        Self::by(root, Box::new(Sysfs), AGENT_MARK)
    }

    fn by(root: &Path, files: Box<dyn Files>, mark: u64) -> Arc<Self> {
        Arc::new(Self {
            kdamonds: root.join("sys/kernel/mm/damon/admin/kdamonds"),
            files,
            mark,
            stopping: Mutex::default(),
        })
    }

    /// Whether a process could be watched now.
    ///
    /// # Errors
    /// If the kernel has no such interface, or if another program uses it.
    pub fn available(&self) -> Result<(), DamonError> {
        self.turn().available()
    }

    /// Stops kdamonds that a crashed predecessor left running. Those of others are not touched.
    ///
    /// # Errors
    /// If some of ours could not be stopped: the first error; the others are stopped.
    pub fn stop_leftovers(&self) -> Result<(), DamonError> {
        self.turn().stop_all()
    }

    /// Stops all kdamonds of ours, whichever thread holds them, and starts none any more.
    ///
    /// # Errors
    /// If some could not be stopped: the first error; the others are stopped.
    pub fn shut_down(&self) -> Result<(), DamonError> {
        let mut turn = self.turn();
        *turn.stopping = true;
        turn.stop_all()
    }

    /// Starts to watch address ranges of a process: whole pages, ascending, apart.
    ///
    /// # Errors
    /// If the kernel has no DAMON, if it is in use by another program, if a setting is refused, or if the process has
    /// ended.
    pub fn start(
        self: &Arc<Self>,
        process: &Process,
        ranges: &[(u64, u64)],
        attrs: DamonAttrs,
    ) -> Result<Kdamond, DamonError> {
        let turn = self.turn();
        if *turn.stopping {
            return Err(DamonError::Stopping);
        }
        turn.available()?;
        if turn.count()? == 0 {
            turn.write("nr_kdamonds", SLOTS)?;
        }
        let mut slots = 0..SLOTS;
        let slot = slots.find(|slot| turn.contexts(*slot).is_ok_and(|n| n == 0));
        let slot = slot.ok_or(DamonError::Full)?;
        let pid = process.pid();
        let started = turn.configure(slot, pid, ranges, attrs);
        // The kernel looked up the number: it was the process's own if the process runs even now.
        let started = started.and_then(|()| match process.is_alive() {
            true => Ok(()),
            false => Err(DamonError::Ended(pid)),
        });
        match started {
            Ok(()) => Ok(Kdamond {
                host: Arc::clone(self),
                slot,
                pid,
            }),
            Err(error) => {
                turn.retries.set(RETRIES);
                // The first error is the one to report.
                let _ = turn.give_back(slot);
                Err(error)
            }
        }
    }

    fn turn(&self) -> Turn<'_> {
        Turn {
            damon: self,
            stopping: self.stopping.lock().unwrap_or_else(PoisonError::into_inner),
            retries: Cell::new(RETRIES),
        }
    }
}

/// The right to use the interface's files; threads of this process wait for each other's.
struct Turn<'a> {
    damon: &'a Damon,
    stopping: MutexGuard<'a, bool>,
    /// Tries that are left.
    retries: Cell<u32>,
}

impl Turn<'_> {
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
        set("monitoring_attrs/intervals/update_us", &self.damon.mark)?;
        set("targets/nr_targets", &1)?;
        set("targets/0/pid_target", &pid)?;
        set("monitoring_attrs/intervals/sample_us", &attrs.sample_us)?;
        set("monitoring_attrs/intervals/aggr_us", &attrs.aggregation_us)?;
        set("monitoring_attrs/nr_regions/max", &attrs.max_regions)?;
        set("monitoring_attrs/nr_regions/min", &attrs.min_regions)?;
        set("operations", &OPERATIONS)?;
        self.ranges(slot, ranges)?;
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

    fn ranges(&self, slot: u64, ranges: &[(u64, u64)]) -> Result<(), DamonError> {
        let regions = format!("{slot}/contexts/0/targets/0/regions");
        self.write(&format!("{regions}/nr_regions"), ranges.len())?;
        for (n, (start, end)) in ranges.iter().enumerate() {
            self.write(&format!("{regions}/{n}/start"), start)?;
            self.write(&format!("{regions}/{n}/end"), end)?;
        }
        Ok(())
    }

    fn available(&self) -> Result<(), DamonError> {
        if self.count()? == 0 {
            return Ok(());
        }
        self.foreign()?
            .map_or(Ok(()), |what| Err(DamonError::Foreign(what)))
    }

    /// The evidence that the interface is another program's; `None` if it is ours. To be called only if it has
    /// kdamonds.
    fn foreign(&self) -> Result<Option<String>, DamonError> {
        let count = self.count()?;
        if count != SLOTS {
            return Ok(Some(format!("nr_kdamonds = {count}")));
        }
        for slot in 0..SLOTS {
            let contexts = self.contexts(slot)?;
            if contexts > 0 && !self.holds(&mark(slot), self.damon.mark)? {
                return Ok(Some(format!("kdamond {slot} is not ours")));
            }
        }
        Ok(None)
    }

    /// Checks that a kdamond still is ours, and watches that process if one is named.
    fn check(&self, slot: u64, pid: Option<u32>) -> Result<(), DamonError> {
        let target = |pid: u32| {
            (
                format!("{slot}/contexts/0/targets/0/pid_target"),
                pid.into(),
            )
        };
        let ours = [
            ("nr_kdamonds".into(), SLOTS),
            (format!("{slot}/contexts/nr_contexts"), 1),
            (mark(slot), self.damon.mark),
        ];
        for (file, value) in ours.into_iter().chain(pid.map(target)) {
            if !self.holds(&file, value)? {
                return Err(DamonError::Lost(slot, file));
            }
        }
        Ok(())
    }

    /// Whether a file exists and holds a value.
    fn holds(&self, file: &str, value: u64) -> Result<bool, DamonError> {
        match self.read(file) {
            Ok(text) => Ok(text == value.to_string()),
            Err(DamonError::Missing(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn count(&self) -> Result<u64, DamonError> {
        self.number("nr_kdamonds")
    }

    fn contexts(&self, slot: u64) -> Result<u64, DamonError> {
        self.number(&format!("{slot}/contexts/nr_contexts"))
    }

    /// Stops all kdamonds that bear the mark, unless the interface is another program's, and leaves it to others.
    fn stop_all(&self) -> Result<(), DamonError> {
        match self.count() {
            Ok(0) | Err(DamonError::Missing(_)) => return Ok(()),
            count => drop(count?),
        }
        if self.foreign()?.is_some() {
            return Ok(());
        }
        let stop = |slot| match self.contexts(slot)? {
            0 => Ok(()),
            _ => self.check(slot, None).and_then(|()| self.free(slot)),
        };
        // One that fails does not keep the others running.
        (0..SLOTS).map(stop).fold(Ok(()), Result::and)?;
        self.leave()
    }

    /// Stops a kdamond of ours and forgets its context.
    fn free(&self, slot: u64) -> Result<(), DamonError> {
        let state = format!("{slot}/state");
        if self.read(&state)? == "on" {
            let stopped = self.write(&state, "off");
            // One that ended meanwhile, with its process, cannot be stopped any more.
            if stopped.is_err() && self.read(&state)? == "on" {
                return stopped;
            }
        }
        self.write(&format!("{slot}/contexts/nr_contexts"), 0)
    }

    /// Does the same as [`Turn::free`], and leaves the interface to others with the last kdamond.
    fn give_back(&self, slot: u64) -> Result<(), DamonError> {
        self.free(slot)?;
        self.leave()
    }

    /// Leaves the interface to others if no process is watched.
    fn leave(&self) -> Result<(), DamonError> {
        if self.holds("nr_kdamonds", SLOTS)?
            && (0..SLOTS).all(|slot| self.contexts(slot).is_ok_and(|n| n == 0))
        {
            self.write("nr_kdamonds", 0)?;
        }
        Ok(())
    }

    fn read(&self, file: &str) -> Result<String, DamonError> {
        let path = self.damon.kdamonds.join(file);
        match self.patiently(|| self.damon.files.read(&path)) {
            Ok(text) => Ok(text.trim().into()),
            Err(error) => Err(failed("read", path, error)),
        }
    }

    fn number(&self, file: &str) -> Result<u64, DamonError> {
        let text = self.read(file)?;
        text.parse().map_err(|_| {
            let source = io::Error::other(format!("'{text}' is no number"));
            failed("read", self.damon.kdamonds.join(file), source)
        })
    }

    fn write(&self, file: &str, value: impl ToString) -> Result<(), DamonError> {
        let (path, value) = (self.damon.kdamonds.join(file), value.to_string());
        self.patiently(|| self.damon.files.write(&path, &value))
            .map_err(|error| failed("write", path.join(value), error))
    }

    /// Tries again while the kernel is busy and retries are left.
    fn patiently<T>(&self, mut attempt: impl FnMut() -> io::Result<T>) -> io::Result<T> {
        loop {
            let done = attempt();
            let left = self.retries.get();
            let busy = |error: &io::Error| error.kind() == io::ErrorKind::ResourceBusy;
            if left == 0 || !done.as_ref().is_err_and(busy) {
                return done;
            }
            self.retries.set(left - 1);
            self.damon.files.pause();
        }
    }
}

/// The file of a context that bears [`MARK`].
fn mark(slot: u64) -> String {
    format!("{slot}/contexts/0/monitoring_attrs/intervals/update_us")
}

fn failed(call: &'static str, path: PathBuf, source: io::Error) -> DamonError {
    if source.kind() == io::ErrorKind::NotFound {
        return DamonError::Missing(path);
    }
    if source.kind() == io::ErrorKind::ResourceBusy {
        return DamonError::Busy(path);
    }
    SysError {
        call,
        what: path.display().to_string(),
        source,
    }
    .into()
}

impl Kdamond {
    /// Replaces the address ranges that are watched; the kernel keeps what it learned of those that stay
    /// (`damon_set_regions`, Linux 5.19).
    ///
    /// # Errors
    /// If the kdamond does not run, if it is not ours any more, or if the kernel refuses.
    pub fn set_ranges(&self, ranges: &[(u64, u64)]) -> Result<(), DamonError> {
        let (turn, slot) = (self.host.turn(), self.slot);
        turn.check(slot, Some(self.pid))?;
        turn.ranges(slot, ranges)?;
        turn.write(&format!("{slot}/state"), "commit")
    }

    /// The regions that were accessed in an aggregation interval that ends after this call began. Waits for the end
    /// of that interval: one interval, or two, after those of others.
    ///
    /// # Errors
    /// If the kdamond does not run (the process ended, or another program stopped it) or is not ours any more.
    pub fn accessed(&self) -> Result<Vec<DamonRegion>, DamonError> {
        let (turn, slot) = (self.host.turn(), self.slot);
        turn.check(slot, Some(self.pid))?;
        turn.write(&format!("{slot}/state"), "update_schemes_tried_regions")?;
        let folder = format!("{slot}/contexts/0/schemes/0/tried_regions");
        let path = self.host.kdamonds.join(&folder);
        let entries = opener::entries(&path, MAX_REGIONS);
        let entries = entries.map_err(|error| failed("read", path, error))?;
        let mut regions = Vec::new();
        for entry in entries {
            let name = entry.file_name().and_then(|name| name.to_str());
            // Beside the regions' folders there is a file with their sum.
            let Some(number) = name.and_then(|name| name.parse::<u64>().ok()) else {
                continue;
            };
            let field = |name: &str| turn.number(&format!("{folder}/{number}/{name}"));
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
        let turn = self.host.turn();
        // If it cannot be stopped, the next start of the daemon tries again; it also ends with the
        // process that it watches. One that is not ours any more is left alone.
        let _ = turn
            .check(self.slot, Some(self.pid))
            .and_then(|()| turn.give_back(self.slot));
    }
}

#[cfg(test)]
mod tests;
