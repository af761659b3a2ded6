//! One hot set over one window: which pages came to the fast node and left it, and at what cost.

use std::collections::{BTreeMap, HashSet};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use terrace_lab_programs::pages::PageRange;

use super::cpu::{self, CpuTime};
use crate::control::daemon::{FAST, HotOnFast, VM};
use crate::control::lab::Lab;

type Frames = HashSet<u64>;

/// The figures of one window.
#[derive(Debug, Serialize)]
pub struct Measured {
    pub hot_set: &'static str,
    pub hot: usize,
    pub hot_on_fast: usize,
    /// Pages of the guest on the fast node at the end that are not hot.
    pub others_on_fast: usize,
    /// Pages that L1's kernel moved, in either direction and for whatever reason.
    pub migrated: u64,
    /// Arrivals on the fast node of pages that are not hot, as far as the samples show them.
    pub useless: usize,
    /// Hot pages that left the fast node, as far as the samples show them.
    pub demoted_hot: usize,
    pub cpu: CpuTime,
    /// Passes of the guest over its hot set.
    pub passes: u64,
    pub seconds: f64,
    /// The counters of L1's kernel, by its names.
    pub vmstat: BTreeMap<String, u64>,
}

/// A window in progress.
pub struct Watch {
    hot_set: &'static str,
    hot: Frames,
    fast: Frames,
    useless: usize,
    demoted_hot: usize,
    vmstat: BTreeMap<String, u64>,
    cpu: CpuTime,
    passes: u64,
    begin: Instant,
}

impl Watch {
    /// Starts from the hot pages and their places now.
    pub fn begin(lab: &mut Lab, hot_set: &'static str) -> Result<Self> {
        Ok(Self {
            hot_set,
            hot: frames(&lab.hot_pages(VM)?),
            fast: frames(&lab.frames_on(VM, FAST)?),
            useless: 0,
            demoted_hot: 0,
            vmstat: vmstat(lab)?,
            cpu: cpu::read(lab)?,
            passes: passes(lab)?,
            begin: Instant::now(),
        })
    }

    /// Samples the pages' places and counts those that changed sides since the last sample.
    pub fn sample(&mut self, lab: &mut Lab) -> Result<HotOnFast> {
        let now = frames(&lab.frames_on(VM, FAST)?);
        let came = now.difference(&self.fast);
        self.useless += came.filter(|frame| !self.hot.contains(frame)).count();
        let left = self.fast.difference(&now);
        self.demoted_hot += left.filter(|frame| self.hot.contains(frame)).count();
        self.fast = now;
        Ok(HotOnFast {
            fast: u64::try_from(self.hot_on_fast())?,
            hot: u64::try_from(self.hot.len())?,
        })
    }

    /// The figures since the beginning.
    pub fn end(mut self, lab: &mut Lab) -> Result<Measured> {
        self.sample(lab)?;
        ensure!(
            frames(&lab.hot_pages(VM)?) == self.hot,
            "the guest's kernel moved hot pages during the window: what is hot is not known"
        );
        let vmstat = since(&vmstat(lab)?, &self.vmstat);
        let migrated = vmstat.get("pgmigrate_success").copied();
        Ok(Measured {
            hot_set: self.hot_set,
            hot: self.hot.len(),
            hot_on_fast: self.hot_on_fast(),
            others_on_fast: self.fast.len() - self.hot_on_fast(),
            migrated: migrated.context("no pgmigrate_success in /proc/vmstat")?,
            useless: self.useless,
            demoted_hot: self.demoted_hot,
            cpu: cpu::read(lab)?.since(self.cpu),
            passes: passes(lab)?.saturating_sub(self.passes),
            seconds: self.begin.elapsed().as_secs_f64(),
            vmstat,
        })
    }

    fn hot_on_fast(&self) -> usize {
        self.hot.intersection(&self.fast).count()
    }
}

fn frames(ranges: &[PageRange]) -> Frames {
    ranges.iter().flat_map(|range| range.frames()).collect()
}

fn passes(lab: &mut Lab) -> Result<u64> {
    let passes = lab.guest("stats")?["passes"].as_u64();
    passes.context("the guest counts no passes")
}

/// The counters of migration and NUMA hints.
fn vmstat(lab: &mut Lab) -> Result<BTreeMap<String, u64>> {
    let text =
        lab.check("grep -E '^(pgpromote|pgdemote|pgmigrate|numa_hint|numa_pte)' /proc/vmstat")?;
    let lines = text.lines().map(|line| {
        let (name, value) = line.split_once(' ').context("a line of /proc/vmstat")?;
        Ok((name.to_owned(), value.trim().parse()?))
    });
    lines.collect()
}

fn since(now: &BTreeMap<String, u64>, before: &BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    let difference = |(name, value): (&String, &u64)| {
        let old = before.get(name).copied().unwrap_or(0);
        (name.clone(), value.saturating_sub(old))
    };
    now.iter().map(difference).collect()
}
