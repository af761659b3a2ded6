//! A row's figures, and the moments that they lie between.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use super::SLOW;
use crate::control::daemon::HotOnFast;
use crate::control::lab::Lab;
use crate::machine::slow_node::{Counts, SlowNode};
use crate::measure::compare::CpuTime;

/// Latencies of the nodes by the lab's HMAT, ns.
const LATENCY_NS: [f64; 2] = [80.0, 300.0];

/// The figures of one way to place pages.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Row {
    pub name: String,
    /// The run that it is of, from 1 on.
    pub run: u32,
    /// Pages of the hot set, and those of them in fast memory at the end.
    pub hot: u64,
    pub hot_on_fast: u64,
    /// Passes of the guest over its hot set while misses were counted, and that time, s.
    pub passes: u64,
    pub seconds: f64,
    /// Accesses in that time, of the guest and of its host.
    pub fast: Counts,
    pub slow: Counts,
    /// Pages that L1's kernel moved since the row began.
    pub moved: u64,
    /// Time from the row's beginning until 90 % of the hot pages that end in fast memory were there, s; looked at every 4 s. None if nobody places pages, or none
    /// came.
    pub settled_s: Option<f64>,
    /// CPU time of the daemon and of the kernel's threads since the row began.
    pub cpu: CpuTime,
    /// Memory of the daemon and its workers at the end, KiB.
    pub daemon_kib: u64,
}

impl Row {
    /// The figures of the time between two moments of a row.
    ///
    /// # Errors
    /// If the guest made no pass in that time.
    pub fn between(
        start: &Moment,
        begin: &Moment,
        end: &Moment,
        placed: HotOnFast,
    ) -> Result<Self> {
        let passes = end.passes_since(begin);
        ensure!(
            passes > 0,
            "the guest made no pass over its hot set while misses were counted"
        );
        Ok(Self {
            hot: placed.hot,
            hot_on_fast: placed.fast,
            passes,
            seconds: (end.at - begin.at).as_secs_f64(),
            fast: end.counts[0] - begin.counts[0],
            slow: end.counts[SLOW] - begin.counts[SLOW],
            moved: end.moved.saturating_sub(start.moved),
            ..Self::default()
        })
    }

    /// Misses in fast and in slow memory for each pass.
    pub fn misses(&self) -> [f64; 2] {
        [self.fast, self.slow].map(|counts| counts.misses() as f64 / self.passes as f64)
    }

    /// Time of a pass's misses by the nodes' latencies, µs.
    pub fn modelled_us(&self) -> f64 {
        let times = self.misses().into_iter().zip(LATENCY_NS);
        times.map(|(misses, ns)| misses * ns).sum::<f64>() / 1e3
    }

    /// Pages that were moved beyond the hot ones that are in fast memory at the end, all of which began in slow memory.
    pub fn moved_in_vain(&self) -> u64 {
        self.moved.saturating_sub(self.hot_on_fast)
    }

    /// Passes a second.
    pub fn rate(&self) -> f64 {
        self.passes as f64 / self.seconds
    }
}

/// The counts up to a moment.
pub struct Moment {
    at: Instant,
    passes: u64,
    counts: [Counts; 2],
    moved: u64,
}

impl Moment {
    /// Passes that the guest made since an earlier moment.
    pub fn passes_since(&self, before: &Self) -> u64 {
        self.passes.saturating_sub(before.passes)
    }

    /// Now.
    ///
    /// # Errors
    /// If the guest, L1 or the plugin's file does not say.
    pub fn now(lab: &mut Lab, node: &SlowNode) -> Result<Self> {
        let vmstat = lab.check("grep '^pgmigrate_success ' /proc/vmstat")?;
        let moved = vmstat.split_whitespace().nth(1);
        let passes = lab.guest("stats")?["passes"].as_u64();
        Ok(Self {
            moved: moved
                .context("no pgmigrate_success in /proc/vmstat")?
                .parse()?,
            passes: passes.context("the guest counts no passes")?,
            counts: node.counts()?,
            at: Instant::now(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pass_takes_what_its_misses_take() {
        let counts = |load_misses| Counts {
            load_misses,
            ..Counts::default()
        };
        let row = Row {
            passes: 10,
            fast: counts(1_000),
            slow: counts(500),
            ..Row::default()
        };
        assert_eq!(row.misses(), [100.0, 50.0]);
        assert!((row.modelled_us() - 23.0).abs() < 1e-9);
    }
}
