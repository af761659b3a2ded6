//! The loaded latency of tiers: measured curves by kind of memory, and a user's own.
//!
//! The presets' curves and where they come from: docs/loaded-latency.md.

use terrace_core::TierKind;

use super::error::Fault;
use super::quantity::{Number, Whole};
use crate::base::service::{Curve, Points, Service, USES};

/// Longest latency under load, over the idle one: ten times what any machine showed, and less than a latency in ns.
const MOST_TIMES: f64 = 40.0;

/// Local DRAM of Cascade Lake and machines like it (vTMM's).
pub const DRAM: Service = Service {
    curve: Curve {
        reads: [1.10, 1.19, 1.30, 1.51, 1.80, 1.91, 2.36],
        mixed: [1.06, 1.12, 1.23, 1.53, 1.87, 2.25, 3.34],
    },
    duplex: None,
    writers: None,
};

/// Local DRAM of Ice Lake (HyperTier's).
pub const DRAM_68: Service = Service {
    curve: Curve {
        reads: [1.09, 1.15, 1.35, 1.62, 1.90, 2.21, 2.89],
        mixed: [1.06, 1.14, 1.35, 1.71, 2.07, 2.44, 3.32],
    },
    duplex: None,
    writers: None,
};

/// DRAM of another socket behind a link of two directions: two reads for a write reach 1.45 times as much as reads.
pub const REMOTE: Service = Service {
    curve: Curve {
        reads: [1.03, 1.06, 1.12, 1.23, 1.42, 1.55, 2.96],
        mixed: [1.02, 1.06, 1.14, 1.30, 1.72, 2.14, 4.07],
    },
    duplex: Some(1.45),
    writers: None,
};

/// DRAM of another socket behind a link that is hardly narrower than itself: it serves reads and writes one after another,
/// as vTMM's does (97 of 120 GB/s).
pub const REMOTE_WIDE: Service = Service {
    duplex: None,
    ..REMOTE
};

/// Memory behind a CXL device whose DRAM is its limit, not the link.
const CXL: Service = Service {
    curve: Curve {
        reads: [1.02, 1.06, 1.12, 1.23, 1.36, 1.40, 2.96],
        mixed: [1.02, 1.06, 1.12, 1.23, 1.46, 1.70, 3.70],
    },
    duplex: None,
    writers: None,
};

/// Persistent memory: nobody published a curve, so it has local DRAM's. Four threads reach the highest write bandwidth
/// (Izraelevitz et al., arXiv:1903.05714, §3.2).
pub const PMEM: Service = Service {
    writers: Some(4),
    ..DRAM
};

/// The service of memory of a kind.
fn usual(kind: TierKind) -> Service {
    match kind {
        TierKind::Cxl => CXL,
        TierKind::Pmem => PMEM,
        TierKind::Dram | TierKind::Generic => DRAM,
    }
}

/// A tier's service as written: what is left out is as usual for the tier's kind.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(
    deny_unknown_fields,
    expecting = "a table of measured, measured_mixed, reads, mixed, duplex, writers"
)]
pub(super) struct Raw {
    measured: Option<Vec<(Number, Number)>>,
    measured_mixed: Option<Vec<(Number, Number)>>,
    reads: Option<Vec<Number>>,
    mixed: Option<Vec<Number>>,
    duplex: Option<Number>,
    writers: Option<Whole>,
}

impl Raw {
    /// The checked service of a tier.
    pub fn check(self, kind: TierKind, path: &str) -> Result<Service, Fault> {
        let mut service = usual(kind);
        let reads = either(path, ["measured", "reads"], &self.measured, &self.reads)?;
        if let Some(reads) = reads {
            // Whoever measured reads alone has no other figure for the rest.
            service.curve = Curve {
                reads,
                mixed: reads,
            };
        }
        let keys = ["measured_mixed", "mixed"];
        if let Some(mixed) = either(path, keys, &self.measured_mixed, &self.mixed)? {
            service.curve.mixed = mixed;
        }
        if let Some(Number(gain)) = self.duplex {
            if !(1.0..=2.0).contains(&gain) {
                let what = format!(
                    "{gain} is out of range: allowed is 1 to 2, what reads and writes together reach over reads alone"
                );
                return Err(Fault::new(format!("{path}.duplex"), what));
            }
            service.duplex = Some(gain);
        }
        if let Some(Whole(writers)) = self.writers {
            let number = u32::try_from(writers).ok().filter(|n| *n > 0);
            service.writers = Some(number.ok_or_else(|| {
                let what = format!("{writers} is out of range: allowed is 1 to {}", u32::MAX);
                Fault::new(format!("{path}.writers"), what)
            })?);
        }
        Ok(service)
    }
}

/// A curve's points, from rows of bandwidth and latency or from ratios; the two keys' names.
fn either(
    path: &str,
    [rows_key, ratios_key]: [&str; 2],
    rows: &Option<Vec<(Number, Number)>>,
    ratios: &Option<Vec<Number>>,
) -> Result<Option<Points>, Fault> {
    match (rows, ratios) {
        (Some(_), Some(_)) => {
            let what =
                format!("{rows_key} and {ratios_key} stand for each other: give either, not both");
            Err(Fault::new(format!("{path}.{rows_key}"), what))
        }
        (Some(rows), None) => rows_of(&format!("{path}.{rows_key}"), rows).map(Some),
        (None, Some(ratios)) => points(&format!("{path}.{ratios_key}"), ratios).map(Some),
        (None, None) => Ok(None),
    }
}

/// The points of a curve that was measured as rows of bandwidth (GB/s) and latency (ns).
fn rows_of(path: &str, rows: &[(Number, Number)]) -> Result<Points, Fault> {
    let rows: Vec<(f64, f64)> = rows.iter().map(|(gb_s, ns)| (gb_s.0, ns.0)).collect();
    let rises = |pair: &[(f64, f64)]| pair[0].0 < pair[1].0 && pair[0].1 <= pair[1].1;
    let (Some(idle), Some(full)) = (rows.first(), rows.last()) else {
        return Err(wrong_rows(path));
    };
    let is_possible =
        rows.len() >= 3 && idle.0 >= 0.0 && idle.1 > 0.0 && full.1 <= MOST_TIMES * idle.1;
    if !is_possible || !rows.windows(2).all(rises) {
        return Err(wrong_rows(path));
    }
    Ok(USES.map(|used| latency_at(&rows, used * full.0) / idle.1))
}

fn wrong_rows(path: &str) -> Fault {
    let what = format!(
        "expected three or more rows of bandwidth and latency, as [[5, 89], [120, 104], [225, 240]] in GB/s and ns, the idle \
         one first: bandwidth rises from row to row, latency never falls and ends at {MOST_TIMES} times the first one at the most"
    );
    Fault::new(path, what)
}

/// The latency at a bandwidth, linear between the rows.
fn latency_at(rows: &[(f64, f64)], gb_s: f64) -> f64 {
    let between = rows.windows(2).find(|pair| gb_s <= pair[1].0);
    let Some([(from, low), (to, high)]) = between else {
        return rows.last().map_or(0.0, |(_, ns)| *ns);
    };
    let part = ((gb_s - from) / (to - from)).max(0.0);
    low + part * (high - low)
}

/// Checks the points of a curve.
fn points(path: &str, given: &[Number]) -> Result<Points, Fault> {
    let wrong = |found: String| {
        let uses = USES.map(|used| format!("{used}")).join(", ");
        let what = format!(
            "{found}: expected {} ratios from 1 to {MOST_TIMES} that never fall: the latency of a read over its idle \
             latency, at {uses} of the highest bandwidth (rows of GB/s and ns go into measured)",
            USES.len()
        );
        Fault::new(path, what)
    };
    let mut points = Points::default();
    if given.len() != points.len() {
        return Err(wrong(format!("{} numbers", given.len())));
    }
    let mut before = 1.0;
    for (point, Number(times)) in points.iter_mut().zip(given) {
        if !(before..=MOST_TIMES).contains(times) {
            return Err(wrong(format!(
                "{times}, where at least {before} is expected"
            )));
        }
        *point = *times;
        before = *times;
    }
    Ok(points)
}
