//! What is read of a VM whose memory is shared with others: the statistics of its guest, and whether it runs.
//!
//! What follows from them is the engine's to decide (`terrace_core::arbiter`).

use std::time::Instant;

use terrace_host::providers::StatsReader;
use terrace_host::qemu::{BalloonSetup, Monitor, QemuError};
use terrace_host::{HostRoot, process_memory};
use terrace_proto::{Event, GuestMemory, MemoryStanding, ProviderId};

use super::qemu::Door;

/// The readings of one look at a VM.
#[derive(Clone, Copy, Debug, Default)]
pub struct Readings {
    /// The statistics; `None` if the provider reports them itself.
    pub memory: Option<GuestMemory>,
    /// The settings of the VM's balloon, if it has one.
    pub balloon: Option<BalloonSetup>,
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
        [Event::MemoryStanding(standing)]
            .into_iter()
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
    last: Option<Readings>,
}

impl GuestReader {
    /// Nothing was read yet.
    pub fn new(monitor: Door, is_wanted: bool) -> Self {
        Self {
            monitor,
            is_wanted,
            stats: StatsReader::default(),
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
        Ok(Readings {
            memory: memory.ok(),
            balloon: self.stats.setup(),
            is_paused: Some(!status.running),
            is_migrating: Some(migration.is_some()),
        })
    }

    /// The readings of the last look, once.
    pub fn take(&mut self) -> Option<Readings> {
        self.last.take()
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
