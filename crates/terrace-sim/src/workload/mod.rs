//! Loads: what a VM's program does with its memory.
//!
//! Responsible for: every `kind` of a scenario's `workload`, its parameters, and the accesses that they
//! stand for. It leaves to others: what an access costs ([`crate::machine`]), and files of recorded
//! accesses ([`crate::trace`]).

use std::path::Path;

use crate::access::Source;
use crate::scenario::Stop;

/// What a load needs to know to make its accesses.
#[derive(Clone, Copy, Debug)]
pub struct Context<'a> {
    /// Divisor of sizes.
    pub scale: u64,
    /// Seed of the run.
    pub seed: u64,
    /// Name of the VM.
    pub vm: &'a str,
    /// The VM's vCPUs.
    pub vcpus: u32,
    /// The scenario's folder.
    pub folder: &'a Path,
}

/// Every `kind`, and what it is.
pub const KINDS: &[(&str, &str)] = &[("hotset", "a hot set among uniform accesses")];

/// A load: its kind and parameters, checked.
#[derive(Clone, Debug, PartialEq)]
pub enum Workload {
    /// A hot set.
    Hotset {
        /// Bytes.
        size: u64,
    },
}

/// A load and when it ends.
#[derive(Clone, Debug, PartialEq)]
pub struct Load {
    /// The load.
    pub workload: Workload,
    /// Its end.
    pub stop: Stop,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct RawLoad {
    kind: String,
    size: bytesize::ByteSize,
    hot: f64,
    hot_access: f64,
    write: f64,
    ops: Option<u64>,
    duration: Option<String>,
}

impl<'de> serde::Deserialize<'de> for Load {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let raw = RawLoad::deserialize(d)?;
        let _ = (raw.kind, raw.hot, raw.hot_access, raw.write);
        let time = raw.duration.map(|t| humantime::parse_duration(&t));
        let stop = match (raw.ops, time) {
            (Some(ops @ 1..), None) => Stop::Ops(ops),
            (None, Some(Ok(t))) => Stop::Duration(u64::try_from(t.as_nanos()).unwrap_or(u64::MAX)),
            _ => return Err(serde::de::Error::custom("duration or ops, above 0")),
        };
        Ok(Self {
            workload: Workload::Hotset {
                size: raw.size.as_u64(),
            },
            stop,
        })
    }
}

/// A load that cannot be made.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct WorkloadError(pub String);

impl Workload {
    /// 4 KiB pages of its memory at that scale: its accesses are to pages below this.
    #[must_use]
    pub fn pages(&self, scale: u64) -> u64 {
        let Self::Hotset { size } = self;
        size / 4096 / scale
    }

    /// Whether it cannot be scaled.
    #[must_use]
    pub fn needs_full_size(&self) -> bool {
        false
    }

    /// One source for each vCPU.
    ///
    /// # Errors
    /// Where a file that it needs cannot be read.
    pub fn sources(&self, context: &Context) -> Result<Vec<Box<dyn Source>>, WorkloadError> {
        let pages = self.pages(context.scale);
        let source = |vcpu| -> Box<dyn Source> {
            let random = crate::random::stream(
                context.seed,
                context.vm,
                vcpu,
                crate::random::Purpose::Accesses,
            );
            Box::new(Mixed(random, pages))
        };
        Ok((0..context.vcpus).map(source).collect())
    }
}

#[derive(Clone)]
struct Mixed(rand_xoshiro::Xoshiro256PlusPlus, u64);

impl Source for Mixed {
    fn fill(&mut self, _now_ns: u64, batch: &mut [crate::access::Access]) -> usize {
        use rand_xoshiro::rand_core::Rng;
        for access in batch.iter_mut() {
            let r = self.0.next_u64();
            let hot = (r >> 8) % 10 < 9;
            let page = if hot {
                self.1 / 2 + (r >> 20) % (self.1 / 5)
            } else {
                (r >> 20) % self.1
            };
            *access = crate::access::Access::new(page, r & 63, r & 64 != 0);
        }
        batch.len()
    }

    fn pace(&self) -> crate::access::Pace {
        crate::access::Pace {
            compute_ns: 0.0,
            parallelism: 1.0,
        }
    }

    fn fork(&self) -> Box<dyn Source> {
        Box::new(self.clone())
    }
}
