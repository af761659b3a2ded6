//! `ksampled`: the configuration of the processor's counters, and the share of a processor that it may take.

use crate::mechanisms::{Context, Pmu};

/// Loads per sample that `ksampled` goes through (`pebs_period_list`).
const PERIODS: [u64; 30] = [
    199, 293, 401, 499, 599, 701, 797, 907, 997, 1201, 1399, 1601, 1801, 1999, 2503, 3001, 3499,
    4001, 4507, 4999, 6007, 7001, 7993, 9001, 10007, 12007, 13999, 16001, 17989, 19997,
];

/// Stores per sample (`pebs_inst_period_list`).
const STORE_PERIOD: u64 = 100_003;

/// Records that a buffer of 64 KiB takes (`PEBS_BUFFER_SIZE`; 200 bytes each, `struct pebs_record_skl`): with the
/// fields that are asked of a sample, the kernel takes many with one interrupt.
const BUFFER: usize = 327;

/// The processor's share for `ksampled` (`ksampled_soft_cpu_quota`), and the deviation at which the period stays,
/// thousandths of a processor.
const QUOTA: (u64, u64) = (30, 5);

/// Time between two checks of the processor time of `ksampled`, ns.
const QUOTA_EVERY: u64 = 15_000_000_000;

/// The thread that takes samples.
#[derive(Debug)]
pub(in crate::mechanisms) struct Ksampled {
    /// Index of the period; `None` before it has begun.
    period: Option<usize>,
    /// Processor time taken since the last check of it, ps.
    used_ps: u64,
    quota_at: u64,
}

impl Ksampled {
    pub(in crate::mechanisms) fn new() -> Self {
        Self {
            period: None,
            used_ps: 0,
            quota_at: QUOTA_EVERY,
        }
    }

    pub(in crate::mechanisms) fn has_begun(&self) -> bool {
        self.period.is_some()
    }

    /// Begins with the shortest period.
    pub(in crate::mechanisms) fn begin(&mut self, context: &mut Context) {
        self.sample_by(context, 0);
    }

    fn sample_by(&mut self, context: &mut Context, period: usize) {
        self.period = Some(period);
        context.sample(Some(Pmu {
            load_period: PERIODS[period],
            store_period: STORE_PERIOD,
            buffer: BUFFER,
            divisor: 1,
        }));
    }

    /// Counts processor time that `ksampled` took.
    pub(in crate::mechanisms) fn spent(&mut self, ps: u64) {
        self.used_ps += ps;
    }

    /// Adapts the period to the share of the processor that was taken, if a check of it is due.
    pub(in crate::mechanisms) fn keep_quota(&mut self, context: &mut Context) {
        let Some(period) = self.period.filter(|_| context.now_ns() >= self.quota_at) else {
            return;
        };
        let quota_ps = Context::ps(QUOTA_EVERY / context.setup().scale);
        let used = self.used_ps * 1000 / quota_ps.max(1);
        self.used_ps = 0;
        self.quota_at += QUOTA_EVERY;
        if used > QUOTA.0 + QUOTA.1 && period + 1 < PERIODS.len() {
            self.sample_by(context, period + 1);
        } else if used < QUOTA.0 - QUOTA.1 && period > 0 {
            self.sample_by(context, period - 1);
        }
    }
}
