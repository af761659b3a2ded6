//! Who has the RAM of the VMs besides their hypervisors, as the keepers ask it.
//!
//! Responsible for: one census for all VMs where they ask at once, what of the processes is the VM's own or the
//! daemon's, and what a device is told. It leaves to others: the census itself (`terrace_host::sharers`), and what
//! follows from it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use terrace_host::HostRoot;
use terrace_host::sharers::{Census, Found, Known, process_id, programs, ram_files};
use terrace_host::worker;
use terrace_sys::{FileId, ProcessId};

use super::Place;
use crate::config::PinConfig;
use crate::confine::{self, Role};

/// Looks that nobody waits for take at most this part of the time.
const SELDOM: u32 = 20;
/// Looks that chains wait for.
const OFTEN: u32 = 3;

/// What all keepers share: the last census.
#[derive(Clone, Debug, Default)]
pub struct Lookout(Arc<Mutex<Shared>>);

#[derive(Debug, Default)]
struct Shared {
    /// By keeper.
    files: BTreeMap<u64, BTreeSet<FileId>>,
    last: Option<Last>,
}

#[derive(Clone, Debug)]
struct Last {
    census: Arc<Census>,
    files: BTreeSet<FileId>,
    began: Instant,
    took: Duration,
}

impl Lookout {
    /// A census with these files that began at `since` or later.
    fn census(
        &self,
        root: &HostRoot,
        keeper: u64,
        files: &BTreeSet<FileId>,
        since: Instant,
    ) -> Last {
        let mut shared = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        shared.files.insert(keeper, files.clone());
        let fits = |last: &&Last| last.began >= since && files.is_subset(&last.files);
        if let Some(last) = shared.last.as_ref().filter(fits) {
            return last.clone();
        }
        let all: BTreeSet<FileId> = shared.files.values().flatten().copied().collect();
        // While it runs no worker is started, which would have what the daemon has open for a moment.
        let _workers = worker::started();
        let began = Instant::now();
        let none = Census::default();
        let before = shared.last.as_ref().map_or(&none, |last| &*last.census);
        let census = Arc::new(Census::take(root, &all, before));
        let last = Last {
            census,
            files: all,
            began,
            took: began.elapsed(),
        };
        shared.last = Some(last.clone());
        last
    }

    fn forget(&self, keeper: u64) {
        let mut shared = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        shared.files.remove(&keeper);
    }

    /// How long the last one took.
    fn took(&self) -> Duration {
        let shared = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        shared
            .last
            .as_ref()
            .map_or(Duration::ZERO, |last| last.took)
    }
}

/// Looks for one keeper.
pub struct Sharers {
    keeper: u64,
    lookout: Lookout,
    root: HostRoot,
    /// The operator's word.
    pins: PinConfig,
    hypervisor: Option<ProcessId>,
    /// The VM's device, and the files that it would punch.
    device: Option<ProcessId>,
    told: BTreeSet<FileId>,
}

impl Sharers {
    /// Has not looked yet.
    pub fn new(keeper: u64, place: &Place) -> Self {
        Self {
            keeper,
            lookout: place.lookout.clone(),
            root: place.root.clone(),
            pins: place.config.pins.clone(),
            hypervisor: None,
            device: None,
            told: BTreeSet::new(),
        }
    }

    /// What the VM's device says of itself.
    pub fn hear(&mut self, device: Option<u32>, files: BTreeSet<FileId>) {
        if self.device.map(|known| known.pid) != device {
            self.device = device.and_then(|pid| process(&self.root, pid));
        }
        self.told = files;
    }

    /// Who else has the RAM, by a look that began at `since` or later.
    pub fn look(&mut self, hypervisor: Option<u32>, since: Instant) -> Found {
        if self.pins.nobody_pins {
            return Found::Nobody;
        }
        let Some(pid) = hypervisor else {
            return Found::Unknown("the hypervisor's process is not known".into());
        };
        if self.hypervisor.is_none_or(|known| known.pid != pid) {
            self.hypervisor = process(&self.root, pid);
        }
        let look = OneLook {
            keeper: self.keeper,
            lookout: self.lookout.clone(),
            root: self.root.clone(),
            do_not_pin: self.pins.do_not_pin.clone(),
            pid,
            known: [self.hypervisor, self.device]
                .into_iter()
                .flatten()
                .collect(),
            told: self.told.clone(),
            since,
        };
        let found = confine::run(Role::Census, move || look.find());
        found.unwrap_or_else(|error| Found::Unknown(format!("nobody could look: {error}")))
    }

    /// How old a look may be that nobody waits for.
    pub fn may_be_old(&self, pace: Duration) -> Duration {
        pace.max(self.lookout.took().saturating_mul(SELDOM))
    }

    /// How long to pause between looks that chains wait for.
    pub fn pause(&self, least: Duration) -> Duration {
        least.max(self.lookout.took().saturating_mul(OFTEN))
    }
}

/// A process's number and when it started, by a thread that may look at others.
fn process(root: &HostRoot, pid: u32) -> Option<ProcessId> {
    let root = root.clone();
    let found = confine::run(Role::Census, move || process_id(&root, pid));
    found.ok().flatten()
}

/// One look for one keeper, done by a thread that may look at other processes and hears nobody.
struct OneLook {
    keeper: u64,
    lookout: Lookout,
    root: HostRoot,
    do_not_pin: Vec<PathBuf>,
    /// The hypervisor's.
    pid: u32,
    /// The hypervisor and the VM's device.
    known: Vec<ProcessId>,
    told: BTreeSet<FileId>,
    since: Instant,
}

impl OneLook {
    fn find(self) -> Found {
        let mut files = match ram_files(&self.root, self.pid) {
            Ok(files) => files,
            Err(error) => return Found::Unknown(error.to_string()),
        };
        files.extend(&self.told);
        if files.is_empty() {
            return Found::Nobody;
        }
        let census = self
            .lookout
            .census(&self.root, self.keeper, &files, self.since)
            .census;
        let mut known: Vec<ProcessId> = worker::started().clone();
        known.extend(self.known);
        known.extend(process_id(&self.root, std::process::id()));
        let programs = programs(&self.do_not_pin);
        census.who_else(
            &files,
            Known {
                processes: &known,
                programs: &programs,
            },
        )
    }
}

impl Drop for Sharers {
    fn drop(&mut self) {
        self.lookout.forget(self.keeper);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_census_serves_all_who_ask_for_what_is_not_newer() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("proc")).unwrap();
        let (root, lookout) = (HostRoot::new(folder.path()), Lookout::default());
        let file = |inode| BTreeSet::from([FileId::new(0, 1, inode)]);
        let start = Instant::now();
        let first = lookout.census(&root, 1, &file(1), start);
        let again = lookout.census(&root, 1, &file(1), start);
        assert!(Arc::ptr_eq(&first.census, &again.census));
        // It knows nothing of another VM's files, and nothing of what came since.
        let other = lookout.census(&root, 2, &file(2), start);
        assert!(!Arc::ptr_eq(&first.census, &other.census));
        let both = lookout.census(&root, 1, &file(1), start);
        assert!(Arc::ptr_eq(&both.census, &other.census));
        let later = lookout.census(&root, 1, &file(1), Instant::now());
        assert!(!Arc::ptr_eq(&both.census, &later.census));
    }
}
