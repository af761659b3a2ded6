//! The reader of a guest's statistics: it has QEMU ask for them while it is needed, and knows how old they are.

use std::time::{Duration, Instant};

use terrace_proto::{GuestMemory, ProviderId};

use crate::qemu::{BalloonSetup, GuestStats, Monitor, QemuError};

/// Time between two requests of QEMU for statistics, if nobody else had QEMU ask for them, s.
const INTERVAL_S: u64 = 2;

/// The reader of one VM's statistics.
#[derive(Debug, Default)]
pub struct StatsReader {
    /// The balloon in QEMU's object tree; `None` until it was found.
    path: Option<String>,
    /// The settings of that balloon.
    setup: Option<BalloonSetup>,
    /// The balloon about which this reader had QEMU ask.
    set: Option<String>,
    /// The last statistics, and when they were first seen so.
    last: Option<(GuestStats, Instant)>,
}

impl StatsReader {
    /// Reads the statistics of a VM's balloon. Without a balloon there are none.
    ///
    /// # Errors
    /// If QEMU does not answer.
    pub fn read(&mut self, monitor: &mut Monitor, now: Instant) -> Result<GuestMemory, QemuError> {
        if self.path.is_none() {
            self.path = monitor.balloon_path()?;
            self.setup = None;
        }
        let Some(path) = self.path.clone() else {
            return Ok(said(None));
        };
        if self.setup.is_none() {
            self.setup = Some(monitor.balloon_setup(&path)?);
        }
        // Each time: a client of before may have switched it off when it left.
        let interval = monitor.stats_interval(&path)?;
        if interval == Some(0) {
            monitor.set_stats_interval(&path, INTERVAL_S)?;
        }
        // Ours, or that of a daemon before this one.
        if matches!(interval, Some(0 | INTERVAL_S)) {
            self.set = Some(path.clone());
        }
        let Some(stats) = monitor.guest_stats(&path)? else {
            // A balloon that is there no more is looked for again.
            (self.path, self.last) = (None, None);
            return Ok(said(None));
        };
        let age = self.age(stats, now);
        // Sizes and statistics matter more than what was read.
        let disk_read_bytes = monitor.disk_read_bytes().unwrap_or_default();
        Ok(GuestMemory {
            disk_read_bytes,
            ..said(Some((stats, age)))
        })
    }

    /// Time since these statistics came. QEMU's clock, and the guest's, may be wrong or jump: ours says how long they have
    /// been the same.
    fn age(&mut self, stats: GuestStats, now: Instant) -> Duration {
        let same = self
            .last
            .filter(|(last, _)| last.last_update == stats.last_update);
        let since = same.map_or(now, |(_, since)| since);
        self.last = Some((stats, since));
        now.saturating_duration_since(since)
    }

    /// Has QEMU ask no more, if it was this reader that had it ask.
    ///
    /// # Errors
    /// If QEMU does not answer.
    pub fn put_back(&mut self, monitor: &mut Monitor) -> Result<(), QemuError> {
        let Some(path) = self.set.take() else {
            return Ok(());
        };
        // Whoever set another interval since wants it.
        if monitor.stats_interval(&path)? == Some(INTERVAL_S) {
            monitor.set_stats_interval(&path, 0)?;
        }
        Ok(())
    }

    /// The settings of the balloon, if one was found.
    #[must_use]
    pub fn setup(&self) -> Option<BalloonSetup> {
        self.setup
    }

    /// Whether it has QEMU ask the guest, so that this is to be put back.
    #[must_use]
    pub fn has_set(&self) -> bool {
        self.set.is_some()
    }
}

fn said(seen: Option<(GuestStats, Duration)>) -> GuestMemory {
    let (stats, age) = seen.unzip();
    let stats = stats.unwrap_or_default();
    GuestMemory {
        // Whoever asks knows whose they are.
        provider: ProviderId::default(),
        age_ms: age.map(|age| u64::try_from(age.as_millis()).unwrap_or(u64::MAX)),
        free_bytes: stats.free_bytes,
        available_bytes: stats.available_bytes,
        cache_bytes: stats.cache_bytes,
        total_bytes: stats.total_bytes,
        major_faults: stats.major_faults,
        swapped_in_bytes: stats.swapped_in_bytes,
        swapped_out_bytes: stats.swapped_out_bytes,
        waited_ns: None,
        disk_read_bytes: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(last_update: u64) -> GuestStats {
        GuestStats {
            last_update,
            ..GuestStats::default()
        }
    }

    #[test]
    fn statistics_age_by_our_clock_whatever_theirs_says() {
        let start = Instant::now();
        let after = |s| start + Duration::from_secs(s);
        let mut reader = StatsReader::default();
        let mut age = |update, s| reader.age(at(update), after(s)).as_secs();
        assert_eq!((age(100, 0), age(100, 4), age(100, 9)), (0, 4, 9));
        // A clock that was set back, or far ahead.
        assert_eq!(
            (age(3, 10), age(u64::MAX, 12), age(u64::MAX, 13)),
            (0, 0, 1)
        );
    }
}
