//! Readings of a VM whose memory is shared with others: the statistics of its guest, and whether it runs.
//!
//! What follows from them is the engine's to decide (`terrace_core::arbiter`).

use std::time::{Duration, Instant};

use terrace_host::page_walks::PageWalks;
use terrace_host::providers::StatsReader;
use terrace_host::qemu::{Monitor, QemuError};
use terrace_host::{HostRoot, process_memory};
use terrace_proto::{Event, GuestMemory, GuestWalks, MemoryStanding, ProviderId};

use super::provider::plain;
use super::qemu::Door;
use crate::confine::{self, Role};
use crate::messages::GuestSetup;

/// Time after which it is tried again to count page walks, if they could not be.
const COUNT_AGAIN: Duration = Duration::from_secs(600);

/// The readings of one look at a VM.
#[derive(Clone, Debug, Default)]
pub struct Readings {
    /// The statistics; `None` if the provider reports them itself.
    pub memory: Option<GuestMemory>,
    /// The page walks of its programs, if they are counted.
    pub walks: Option<u64>,
    /// How it is set up.
    pub setup: GuestSetup,
    /// Whether the VM is stopped, if that is known.
    pub is_paused: Option<bool>,
    /// Whether the VM migrates, if that is known.
    pub is_migrating: Option<bool>,
}

impl Readings {
    /// The events for the engine. `pid`: the VM's process.
    pub fn events(
        self,
        provider: ProviderId,
        has_floor: bool,
        root: &HostRoot,
        pid: Option<u32>,
    ) -> Vec<Event> {
        let standing = MemoryStanding {
            provider,
            has_floor,
            is_paused: self.is_paused,
            is_migrating: self.is_migrating,
            is_hugetlb: pid.and_then(|pid| process_memory::has_hugetlb(root, pid)) == Some(true),
            up_ms: pid.and_then(|pid| process_memory::up_ms(root, pid)),
        };
        let memory = self.memory.map(|memory| GuestMemory { provider, ..memory });
        let memory = memory.map(|memory| Event::GuestMemory(Box::new(memory)));
        let walks = self.walks.map(|walks| GuestWalks { provider, walks });
        [Event::MemoryStanding(standing)]
            .into_iter()
            // Statistics are judged by the phase.
            .chain(walks.map(Event::GuestWalks))
            .chain(memory)
            .collect()
    }
}

/// The reader of a VM by its monitor.
pub struct GuestReader {
    monitor: Door,
    /// Whether somebody wants to know.
    is_wanted: bool,
    stats: StatsReader,
    walks: WalkReader,
    last: Option<Readings>,
}

/// The reader of a VM's page walks.
#[derive(Default)]
enum WalkReader {
    /// Nothing was tried yet.
    #[default]
    New,
    /// They are counted.
    Counts(PageWalks),
    /// They are not, for this reason, as it was found then.
    Missing(String, Instant),
}

impl GuestReader {
    /// Nothing was read yet.
    pub fn new(monitor: Door, is_wanted: bool) -> Self {
        Self {
            monitor,
            is_wanted,
            stats: StatsReader::default(),
            walks: WalkReader::default(),
            last: None,
        }
    }

    /// Reads by an open monitor. What QEMU does not answer is not known: sizes matter more.
    pub fn read(&mut self, monitor: &mut Monitor) {
        self.last = None;
        if self.is_wanted {
            self.last = self.readings(monitor).ok();
        }
    }

    fn readings(&mut self, monitor: &mut Monitor) -> Result<Readings, QemuError> {
        let status = monitor.status()?;
        let migration = monitor.migration()?;
        // Whether it runs counts, whatever its statistics.
        let memory = self.stats.read(monitor, Instant::now());
        let walks = self.read_walks(monitor);
        Ok(Readings {
            memory: memory.ok(),
            walks,
            setup: GuestSetup {
                balloon: self.stats.setup(),
                walks_missing: self.walks.missing(),
            },
            is_paused: Some(!status.running),
            is_migrating: Some(migration.is_some()),
        })
    }

    /// The page walks so far.
    fn read_walks(&mut self, monitor: &mut Monitor) -> Option<u64> {
        if self.walks.is_to_begin(Instant::now()) {
            self.walks = match self.count_walks(monitor) {
                Ok(walks) => WalkReader::Counts(walks),
                Err(why) => WalkReader::Missing(plain(&why), Instant::now()),
            };
        }
        let WalkReader::Counts(walks) = &mut self.walks else {
            return None;
        };
        let seen = walks.read();
        seen.unwrap_or_else(|why| {
            self.walks = WalkReader::Missing(why, Instant::now());
            None
        })
    }

    /// Begins to count.
    fn count_walks(&self, monitor: &mut Monitor) -> Result<PageWalks, String> {
        let Door { process, root, .. } = self.monitor.clone();
        let process = process.ok_or("its process is not known")?;
        let threads = monitor.vcpu_threads().map_err(|error| error.to_string())?;
        // By a thread that may, and that reads nothing of QEMU's.
        let open = move || {
            let walks = PageWalks::open(&root, process.pid, &threads);
            let walks = walks.map_err(|error| error.to_string())?;
            // Another process may have its number by now.
            let exists = process.exists(&root.proc());
            exists.then_some(walks).ok_or("it has ended".to_owned())
        };
        confine::run(Role::Count, open).map_err(|error| error.to_string())?
    }

    /// The readings of the last look, once.
    pub fn take(&mut self) -> Option<Readings> {
        self.last.take()
    }
}

impl WalkReader {
    fn is_to_begin(&self, now: Instant) -> bool {
        match self {
            Self::New => true,
            Self::Counts(_) => false,
            Self::Missing(_, at) => now.duration_since(*at) >= COUNT_AGAIN,
        }
    }

    fn missing(&self) -> Option<String> {
        match self {
            Self::Missing(why, _) => Some(why.clone()),
            Self::New | Self::Counts(_) => None,
        }
    }
}

/// QEMU asks the guest no more for what nobody reads.
impl Drop for GuestReader {
    fn drop(&mut self) {
        if self.stats.has_set()
            && let Ok(mut monitor) = self.monitor.connect()
        {
            // A monitor that does not answer leaves it as it is: a request of the guest each two seconds.
            let _ = self.stats.put_back(&mut monitor);
        }
    }
}
