//! The loaded latency of tiers: measured curves by kind of memory, and a user's own.
//!
//! The presets' curves and where they come from: docs/loaded-latency.md.

use terrace_core::TierKind;

use super::error::Fault;
use super::quantity::{Number, Whole};
use crate::base::service::{Curve, Points, Service, USES};

/// Longest latency under load, over the idle one.
const MOST_TIMES: f64 = 1000.0;

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
    expecting = "a table of reads, mixed, duplex, writers"
)]
pub(super) struct Raw {
    reads: Option<Vec<Number>>,
    mixed: Option<Vec<Number>>,
    duplex: Option<Number>,
    writers: Option<Whole>,
}

impl Raw {
    /// The checked service of a tier.
    pub fn check(self, kind: TierKind, path: &str) -> Result<Service, Fault> {
        let mut service = usual(kind);
        if let Some(reads) = &self.reads {
            // Whoever measured reads alone has no other figure for the rest.
            service.curve = Curve {
                reads: points(&format!("{path}.reads"), reads)?,
                mixed: points(&format!("{path}.reads"), reads)?,
            };
        }
        if let Some(mixed) = &self.mixed {
            service.curve.mixed = points(&format!("{path}.mixed"), mixed)?;
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

/// Checks the points of a curve.
fn points(path: &str, given: &[Number]) -> Result<Points, Fault> {
    let wrong = |found: String| {
        let uses = USES.map(|used| format!("{used}")).join(", ");
        let what = format!(
            "{found}: expected {} numbers from 1 to {MOST_TIMES} that never fall: the latency of a read over its idle \
             latency, at {uses} of the highest bandwidth",
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
            return Err(wrong(format!("{times} after {before}")));
        }
        *point = *times;
        before = *times;
    }
    Ok(points)
}
