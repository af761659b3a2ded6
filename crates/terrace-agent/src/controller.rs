//! The controller of ranges, its clock and its log.

use std::path::Path;

use anyhow::{Result, ensure};
use terrace_core::ranges::{Config, Ranges};
use terrace_core::session::Session;
use terrace_proto::Tick;
use terrace_proto::ranges::{RangeSample, RangesAction, RangesEvent};
use terrace_sys::MonotonicClock;

use crate::record::FileLog;

/// The part that decides.
#[derive(Debug)]
pub struct Controller {
    session: Session<Option<FileLog>, Ranges>,
    clock: MonotonicClock,
}

impl Controller {
    /// A controller that has heard nothing yet. Its clock starts now.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self {
            session: Session::new(Ranges::new(config), None),
            clock: MonotonicClock::start(),
        }
    }

    /// The controller's state, to read.
    #[must_use]
    pub fn ranges(&self) -> &Ranges {
        self.session.controller()
    }

    /// Time since the start.
    #[must_use]
    pub fn now(&self) -> Tick {
        self.clock.now()
    }

    /// The number of the epoch that ended last.
    #[must_use]
    pub fn epoch(&self) -> u32 {
        self.ranges().epoch()
    }

    /// The number of the epoch that ends next.
    #[must_use]
    pub fn coming_epoch(&self) -> u32 {
        self.epoch().saturating_add(1)
    }

    /// Passes an event to the controller. Returns its decisions in order.
    #[must_use = "what was decided must be done"]
    pub fn hear(&mut self, event: RangesEvent) -> Vec<RangesAction> {
        self.session.hear(self.clock.now(), event)
    }

    /// Passes samples to the controller as of a time.
    pub fn count(&mut self, at: Tick, seen: Vec<RangeSample>) {
        // Samples are only counted: nothing is decided before the epoch ends.
        let _ = self.session.hear(at, RangesEvent::Sampled(seen));
    }

    /// Records all that the controller hears and decides, in a new file.
    ///
    /// # Errors
    /// If the file cannot be made, or epochs ended already.
    pub fn record(&mut self, file: &Path) -> Result<()> {
        let ranges = self.ranges();
        ensure!(
            ranges.epoch() == 0 && ranges.programs().is_empty(),
            "a log begins before the first epoch"
        );
        let log = FileLog::start(file, ranges.config())?;
        *self.session.log_mut() = Some(log);
        Ok(())
    }

    /// Writes out what is left of the log, if one is written.
    ///
    /// # Errors
    /// If it could not be written.
    pub fn finish(&mut self) -> Result<()> {
        self.session
            .log_mut()
            .as_mut()
            .map_or(Ok(()), FileLog::finish)
    }
}
