//! Page cache of a live guest: given in small steps to VMs that swap, while the guest does not miss it.
//!
//! Linux calls little memory free: what programs do not use holds files. How much of that is missed no statistic tells
//! before it is gone. So a guest gives a little, is watched for as long as other changes are judged, and gets it back at
//! once if it reads more. Reads are counted by the hypervisor; a guest whose reads nobody counts gives no cache. One that
//! reads anyhow gives none either: each step would add a little, and none would be to blame.

use terrace_proto::{GuestMemory, PAGE_SIZE, Tick};

use super::percent;
use crate::config::ArbiterConfig;

/// Steps that what a guest could drop has to hold: the balloon takes no program's memory then.
const STEPS_THERE: u64 = 4;
/// Part of a step that a guest may read again while it is watched, and while it has to be quiet before: an eighth.
const QUIET_PART: u64 = 8;
/// Part of a guest's memory that it may read in the time in which a change is judged, beyond what it read before, while it lacks
/// what its programs do not use by its age, percent: Linux may have given the balloon files instead.
const READ_PERCENT: u8 = 2;
/// Doublings of the pause after steps that were missed.
const MOST_DOUBLINGS: u32 = 4;
/// Samples that are kept at most: of more than two minutes, one in two seconds.
const MOST_SAMPLES: usize = 64;

/// The bytes that a guest had brought in from its disks by then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sample {
    at: Tick,
    read: u64,
}

/// A step that is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Step {
    begun: Sample,
    /// The VM's size before, and after, bytes.
    sizes: (u64, u64),
    /// When it had that size first.
    reached: Option<Tick>,
    /// The bytes that it may read until it is judged.
    may_read: u64,
}

/// A step that a guest misses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Missed {
    /// The VM's size before the step, bytes.
    pub from: u64,
    /// The bytes that it read since; 0: nobody counts its reads any more.
    pub read: u64,
    /// Until when no cache is taken, and the VM is held at that size.
    pub until: Tick,
}

/// The page cache of one guest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cache {
    /// The last samples, oldest first: of as long as a change is judged, and one before.
    samples: Vec<Sample>,
    /// Bytes that the guest could drop.
    droppable: u64,
    step: Option<Step>,
    /// When the first of the steps was taken that it did not get back, and its size before.
    given: Option<(Tick, u64)>,
    /// The VM's size before the first of what was taken by its age and did not come back, and what it read then, bytes.
    aged: Option<(u64, u64)>,
    /// When it was not quiet last.
    read_at: Option<Tick>,
    /// The time for which it has to be quiet before it gives anything, ns, if that is more than a change is judged.
    waits: u64,
    /// The last step that was missed, while nothing is taken for it.
    rests: Option<Missed>,
    /// Steps that were missed.
    missed: u32,
}

impl Cache {
    /// Takes in the statistics of a guest whose VM has this size. Returns what it misses.
    pub fn see(
        &mut self,
        now: Tick,
        seen: &GuestMemory,
        size: u64,
        config: &ArbiterConfig,
    ) -> Option<Missed> {
        self.rests = self.rests.filter(|missed| missed.until > now);
        self.given = self.given.filter(|(_, from)| size < *from);
        self.aged = self.aged.filter(|(from, _)| size < *from);
        let (Some(disk), Some(faults)) = (seen.disk_read_bytes, seen.major_faults) else {
            return self.see_nothing(now, config);
        };
        let read = disk.saturating_add(faults.saturating_mul(PAGE_SIZE));
        let available = seen.available_bytes.unwrap_or(0);
        let beside_free = available.saturating_sub(seen.free_bytes.unwrap_or(0));
        self.droppable = seen.cache_bytes.unwrap_or(0).min(beside_free);
        // A guest that started anew.
        if self.samples.last().is_some_and(|last| read < last.read) {
            *self = Self::default();
        }
        self.push(Sample { at: now, read }, config);
        let missed = self.judge(now, read, size, config);
        let missed = missed.or_else(|| self.misses_all(now, size, config));
        missed.or_else(|| self.misses_aged(now, config))
    }

    /// Nobody counts its reads: nothing is taken, and what it gave is not watched any more, so it gets that back.
    fn see_nothing(&mut self, now: Tick, config: &ArbiterConfig) -> Option<Missed> {
        let last = self.samples.last()?.at;
        let review = ArbiterConfig::ns(config.review_ms);
        if now.0.saturating_sub(last.0) < review {
            return None;
        }
        self.samples.clear();
        self.droppable = 0;
        let given = self.given.map(|(_, from)| from);
        let aged = self.aged.map(|(from, _)| from);
        let from = given.max(aged)?;
        Some(self.miss(now, from, 0, config))
    }

    fn push(&mut self, sample: Sample, config: &ArbiterConfig) {
        self.samples.push(sample);
        let review = ArbiterConfig::ns(config.review_ms);
        let is_past = |of: &Sample| sample.at.0.saturating_sub(of.at.0) >= review;
        // The oldest one that is kept is as old as that.
        while self.samples.get(1).is_some_and(is_past) || self.samples.len() > MOST_SAMPLES {
            self.samples.remove(0);
        }
    }

    /// Judges the step that is watched, from when the memory is gone.
    fn judge(&mut self, now: Tick, read: u64, size: u64, config: &ArbiterConfig) -> Option<Missed> {
        let step = self.step.as_mut()?;
        let since = read.saturating_sub(step.begun.read);
        if size <= step.sizes.1 {
            step.reached.get_or_insert(now);
        }
        if since > step.may_read {
            let from = step.sizes.0;
            return Some(self.miss(now, from, since, config));
        }
        let review = ArbiterConfig::ns(config.review_ms);
        // One that cannot give it all is not watched for ever.
        let passed = |at: Tick, ns: u64| now.0.saturating_sub(at.0) >= ns;
        let is_judged = step.reached.is_some_and(|at| passed(at, review));
        if is_judged || passed(step.begun.at, config.pause_ns()) {
            self.step = None;
        }
        None
    }

    /// Looks whether a guest reads again that gave steps which it did not miss at once: it gets all of them back, and
    /// has to be quiet for twice as long as that took before it gives any.
    fn misses_all(&mut self, now: Tick, size: u64, config: &ArbiterConfig) -> Option<Missed> {
        let (first, last) = (self.samples.first()?, self.samples.last()?);
        let read = last.read.saturating_sub(first.read);
        if read <= Self::step_bytes(size, config) / QUIET_PART {
            return None;
        }
        self.read_at = Some(now);
        let (begun, from) = self.given?;
        // What it gets back is on its way.
        if self.step.is_some() || self.rests.is_some_and(|missed| missed.from >= from) {
            return None;
        }
        let took = now.0.saturating_sub(begun.0).saturating_mul(2);
        self.waits = self
            .waits
            .max(took.min(pause_after(MOST_DOUBLINGS, config)));
        Some(self.miss(now, from, read, config))
    }

    /// Looks whether a guest reads more than before memory was taken of it by its age.
    fn misses_aged(&mut self, now: Tick, config: &ArbiterConfig) -> Option<Missed> {
        let (from, before) = self.aged?;
        let more = self.quiet_read(config)?.saturating_sub(before);
        let is_on_its_way = self.rests.is_some_and(|missed| missed.from >= from);
        let misses = !is_on_its_way && more > percent(from, READ_PERCENT);
        misses.then(|| self.miss(now, from, more, config))
    }

    fn miss(&mut self, now: Tick, from: u64, read: u64, config: &ArbiterConfig) -> Missed {
        self.step = None;
        let until = Tick(now.0.saturating_add(pause_after(self.missed, config)));
        self.missed = self.missed.saturating_add(1);
        *self.rests.insert(Missed { from, read, until })
    }

    /// The bytes that may be taken now of a guest of this size in whole blocks, beyond what it calls free.
    #[must_use]
    pub fn gives(&self, now: Tick, size: u64, block: u64, config: &ArbiterConfig) -> u64 {
        let least = Self::step_bytes(size, config);
        let Some(step) = least.checked_next_multiple_of(block.max(1)) else {
            return 0;
        };
        let is_large = step > least.saturating_mul(2);
        let rests = self.rests.is_some();
        let is_there = self.droppable >= step.saturating_mul(STEPS_THERE);
        let is_quiet = self
            .quiet_read(config)
            .is_some_and(|read| read <= least / QUIET_PART);
        let has_waited = self
            .read_at
            .is_none_or(|at| now.0.saturating_sub(at.0) >= self.waits);
        match self.step.is_none() && !is_large && !rests && is_there && is_quiet && has_waited {
            true => step,
            false => 0,
        }
    }

    /// Notes that a VM gives some of its cache now: its sizes before and after, bytes.
    pub fn give(&mut self, sizes: (u64, u64), config: &ArbiterConfig) {
        let (Some(begun), Some(read)) = (self.samples.last(), self.quiet_read(config)) else {
            return;
        };
        let again = Self::step_bytes(sizes.0, config) / QUIET_PART;
        self.given.get_or_insert((begun.at, sizes.0));
        self.step = Some(Step {
            begun: *begun,
            sizes,
            reached: None,
            may_read: read.saturating_add(again),
        });
    }

    /// Notes that a VM of this size gives what its programs do not use by its age.
    pub fn give_by_age(&mut self, from: u64, config: &ArbiterConfig) {
        if let Some(read) = self.quiet_read(config) {
            self.aged.get_or_insert((from, read));
        }
    }

    /// The size to which a VM that misses its cache is to come back, bytes.
    #[must_use]
    pub fn missed(&self) -> Option<u64> {
        self.rests.map(|missed| missed.from)
    }

    /// Bytes that the guest could drop, by its own count.
    #[must_use]
    pub fn droppable(&self) -> u64 {
        self.droppable
    }

    fn step_bytes(size: u64, config: &ArbiterConfig) -> u64 {
        match config.cache_percent {
            0 => 0,
            // A smaller change is none.
            some => percent(size, some.max(config.dead_band_percent)),
        }
    }

    /// Bytes that were read in the time in which a change is judged; `None` before so much has passed.
    pub fn quiet_read(&self, config: &ArbiterConfig) -> Option<u64> {
        let (first, last) = (self.samples.first()?, self.samples.last()?);
        let passed = last.at.0.saturating_sub(first.at.0);
        let is_whole = passed >= ArbiterConfig::ns(config.review_ms);
        is_whole.then(|| last.read.saturating_sub(first.read))
    }
}

/// The pause after so many steps that were missed before, ns.
fn pause_after(missed: u32, config: &ArbiterConfig) -> u64 {
    config
        .pause_ns()
        .saturating_mul(1 << missed.min(MOST_DOUBLINGS))
}

#[cfg(test)]
mod tests;
