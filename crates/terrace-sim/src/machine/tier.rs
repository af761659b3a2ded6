//! A tier of memory under load: latency that grows with the use of its bandwidth.
//!
//! A tier serves lines one after another, each for its bytes divided by the bandwidth of its kind; a link of two
//! directions serves reads and writes at the same time. The share of time that it serves is its load. Below saturation a
//! request waits as long as measured machines let it ([`crate::base::service::Service`]), or as in an M/D/1 queue whose service time is a part
//! of the idle latency (banks work in parallel). At saturation the wait grows until the requesters slow down to the
//! rate that the tier can serve.

use super::{PS, TIERS};
use crate::base::access::{Access, LINE};
use crate::base::number::{float, whole};
use crate::base::tier::Tier;

/// Service time of the queue before saturation, as a part of the idle latency: our estimate, from the
/// shape of loaded-latency curves (docs/machine.md).
const SERVICE: f64 = 0.3;

/// Load at which a queue counts as saturated. A measured tier is at 1: its bandwidth is the highest that was measured.
const SATURATED: f64 = 0.97;

/// Time constant of the load's mean, ns: how fast older load is forgotten.
const MEMORY_NS: f64 = 100.0 * 1000.0;

/// Bytes that go over a tier in some time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Traffic {
    /// Bytes read.
    pub read: u64,
    /// Bytes written.
    pub written: u64,
}

/// The medium's line that a vCPU accessed last, per tier, times two; plus one if it was written.
#[derive(Clone, Copy, Debug)]
pub struct LastLines([u64; TIERS]);

impl Default for LastLines {
    fn default() -> Self {
        Self([u64::MAX - 1; TIERS])
    }
}

impl LastLines {
    /// The traffic of an access on the medium of a tier, whose lines have `bytes` bytes. The medium serves a line
    /// once while it is read several times in a row. While it is written several times it takes it once, and besides
    /// `rewrite` bytes each further time.
    #[inline]
    pub fn take(&mut self, access: Access, tier: usize, bytes: u64, rewrite: u64) -> Traffic {
        let write = u64::from(access.is_write());
        let line = medium_line(access, bytes) << 1;
        let last = self.0[tier];
        let again = last & !1 == line;
        let dirty = if again { last & 1 } else { 0 };
        self.0[tier] = line | dirty | write;
        Traffic {
            read: if again { 0 } else { bytes },
            written: write * if dirty == 0 { bytes } else { rewrite },
        }
    }

    /// The traffic of the way back of a line that was written in the processor's cache, bytes: `rewrite` if the vCPU's
    /// last access to the tier was to the same line of the medium, and that is written anyway.
    #[inline]
    pub fn write_back(&mut self, access: Access, tier: usize, bytes: u64, rewrite: u64) -> u64 {
        let last = &mut self.0[tier];
        if *last >> 1 != medium_line(access, bytes) {
            return bytes;
        }
        let dirty = *last & 1;
        *last |= 1;
        if dirty == 0 { bytes } else { rewrite }
    }
}

/// The line of a medium that an access goes to. `bytes`: of a line of the medium, a power of two, at least [`LINE`] (a
/// scenario with another is refused); a shift is faster than a division.
#[inline]
fn medium_line(access: Access, bytes: u64) -> u64 {
    access.line_number() >> (bytes.trailing_zeros() - LINE.trailing_zeros())
}

/// A tier's load.
#[derive(Clone, Debug)]
pub struct Load {
    tier: Tier,
    /// Mean share of time in which the tier served.
    load: f64,
    /// Mean bytes that went over the tier per ns, read and written.
    rates: [f64; 2],
    /// Number of processors that write, in the mean.
    writers: f64,
    /// Wait beyond the queue's, ns: the part that slows the requesters down.
    backlog_ns: f64,
}

impl Load {
    /// An idle tier.
    #[must_use]
    pub fn new(tier: &Tier) -> Self {
        Self {
            tier: tier.clone(),
            load: 0.0,
            rates: [0.0; 2],
            writers: 0.0,
            backlog_ns: 0.0,
        }
    }

    /// Takes in the traffic of the tier in `ns`. `access_ns` is the mean time of one access of the requesters:
    /// it determines how far a longer wait slows them down.
    pub fn add_traffic(&mut self, ns: f64, traffic: Traffic, access_ns: f64) {
        let [read, written] = [float(traffic.read), float(traffic.written)];
        let [reads, writes] = [read / self.tier.read_gb_s, written / self.tier.write_gb_s];
        let busy = self.tier.service.map_or(reads + writes, |service| {
            let both = (read + written) / self.tier.read_gb_s;
            service.busy([reads, writes], both)
        });
        let share = (ns / MEMORY_NS).min(1.0);
        self.load += share * (busy / ns - self.load);
        for (rate, bytes) in self.rates.iter_mut().zip([read, written]) {
            *rate += share * (bytes / ns - *rate);
        }
        let excess = self.load / self.saturated() - 1.0;
        self.backlog_ns = (self.backlog_ns + share * excess * access_ns).max(0.0);
    }

    /// Takes in that so many processors wrote to the tier in `ns`.
    pub fn add_writers(&mut self, ns: f64, writers: u64) {
        let share = (ns / MEMORY_NS).min(1.0);
        self.writers += share * (float(writers) - self.writers);
    }

    /// Bytes that each further write to a medium's line takes while so many processors write as in the mean now.
    #[must_use]
    pub fn rewrite_bytes(&self) -> u64 {
        let apart = self
            .tier
            .service
            .map_or(0.0, |s| s.uncombined(self.writers));
        whole(apart * float(self.tier.line))
    }

    /// The load at which the tier serves all that it can.
    fn saturated(&self) -> f64 {
        if self.tier.service.is_some() {
            1.0
        } else {
            SATURATED
        }
    }

    /// The time that a request waits now beyond the idle latency, ns.
    #[must_use]
    pub fn wait_ns(&self) -> f64 {
        let load = self.load.min(self.saturated());
        let wait = if let Some(service) = &self.tier.service {
            let [read, written] = self.rates;
            let writes = written / (read + written).max(f64::MIN_POSITIVE);
            self.tier.read_ns * (service.curve.times(load, writes) - 1.0)
        } else {
            SERVICE * self.tier.read_ns * load / (2.0 * (1.0 - load))
        };
        wait + self.backlog_ns
    }

    /// The latency of a read now, ps.
    #[must_use]
    pub fn read_ps(&self) -> u64 {
        whole((self.tier.read_ns + self.wait_ns()) * float(PS))
    }

    /// The time of a write now, ps: the read for ownership. In a queue the way back to memory waits too; a measured
    /// latency of mixed traffic has it in it already.
    #[must_use]
    pub fn write_ps(&self) -> u64 {
        let waits = if self.tier.service.is_some() {
            1.0
        } else {
            2.0
        };
        whole((self.tier.read_ns + waits * self.wait_ns()) * float(PS))
    }

    /// The time that one processor takes to read or write 4 KiB as part of a copy, ps: so many lines in flight, each
    /// for the latency of the moment.
    #[must_use]
    pub fn copy_ps(&self, writes: bool, lines_in_flight: u64) -> u64 {
        let idle = if writes {
            self.tier.write_ns
        } else {
            self.tier.read_ns
        };
        let lines = float(crate::base::access::LINES_PER_PAGE) / float(lines_in_flight);
        whole(lines * (idle + self.wait_ns()) * float(PS))
    }

    /// Share of time in which the tier serves, 0 to 1 and a little over in a burst.
    #[must_use]
    pub fn utilization(&self) -> f64 {
        self.load
    }
}

#[cfg(test)]
mod tests {
    use terrace_core::TierKind;

    use super::*;
    use crate::base::service::{Curve, Service};

    fn pmem() -> Tier {
        Tier {
            name: "pmem".into(),
            kind: TierKind::Pmem,
            bytes: 1 << 30,
            read_ns: 310.0,
            write_ns: 94.0,
            read_gb_s: 37.0,
            write_gb_s: 13.0,
            line: 256,
            price_per_gib: None,
            service: None,
        }
    }

    #[test]
    fn an_idle_tier_has_its_idle_latency() {
        let load = Load::new(&pmem());
        assert_eq!((load.read_ps(), load.write_ps()), (310_000, 310_000));
    }

    /// Bytes per ns that the tier serves while 64 requests are always under way; each writes one medium line and reads
    /// one.
    fn served(tier: &Tier) -> f64 {
        let mut load = Load::new(tier);
        let mut served = 0.0;
        for step in 0..20_000 {
            let access_ns = 20.0 + load.wait_ns() + 310.0;
            let accesses = 64.0 * 10_000.0 / access_ns;
            let bytes = whole(accesses) * 256;
            if step >= 10_000 {
                served += float(bytes);
            }
            let traffic = Traffic {
                read: bytes,
                written: bytes,
            };
            load.add_traffic(10_000.0, traffic, access_ns);
        }
        served / (10_000.0 * 10_000.0)
    }

    fn measured() -> Tier {
        let service = Service {
            curve: Curve {
                reads: [1.1, 1.19, 1.3, 1.51, 1.8, 1.91, 2.36],
                mixed: [1.06, 1.12, 1.23, 1.53, 1.87, 2.25, 3.34],
            },
            duplex: None,
            writers: Some(4),
        };
        Tier {
            service: Some(service),
            ..pmem()
        }
    }

    #[test]
    fn those_who_ask_too_much_are_slowed_down_to_the_bandwidth() {
        let limit = 1.0 / (1.0 / 37.0 + 1.0 / 13.0);
        let queue = served(&pmem());
        assert!(
            (queue / limit - SATURATED).abs() < 0.01,
            "{queue} of {limit}"
        );
        let curve = served(&measured());
        assert!((curve / limit - 1.0).abs() < 0.01, "{curve} of {limit}");
    }

    #[test]
    fn a_link_of_two_directions_serves_reads_beside_writes() {
        let mut tier = measured();
        tier.service = tier.service.map(|service| Service {
            duplex: Some(1.45),
            ..service
        });
        let served = served(&tier);
        assert!((served / 13.0 - 1.0).abs() < 0.01, "{served}");
    }

    #[test]
    fn a_measured_tier_is_as_slow_as_its_curve() {
        let tier = measured();
        for (writes, times) in [(0.0, 1.51), (0.5, 1.53)] {
            let mut load = Load::new(&tier);
            for _ in 0..1000 {
                let bytes = 0.8 * 10_000.0 / ((1.0 - writes) / 37.0 + writes / 13.0);
                let traffic = Traffic {
                    read: whole(bytes * (1.0 - writes)),
                    written: whole(bytes * writes),
                };
                load.add_traffic(10_000.0, traffic, 400.0);
            }
            let found = float(load.read_ps()) / 310_000.0;
            assert!((found - times).abs() < 0.01, "{writes}: {found}");
            // The way back is in the latency of mixed traffic.
            assert_eq!(load.read_ps(), load.write_ps());
        }
    }

    #[test]
    fn many_writers_leave_the_lines_of_persistent_memory_apart() {
        let mut load = Load::new(&measured());
        for (writers, bytes) in [(4, 0), (8, 128), (16, 192)] {
            for _ in 0..1000 {
                load.add_writers(10_000.0, writers);
            }
            assert!(load.rewrite_bytes().abs_diff(bytes) <= 1, "{writers}");
        }
        let mut lines = LastLines::default();
        let store = |line| Access::new(7, line, true);
        let first = lines.take(store(0), 1, 256, 128);
        let again = lines.take(store(1), 1, 256, 128);
        assert_eq!((first.written, again.written), (256, 128));
        assert_eq!((first.read, again.read), (256, 0));
    }

    #[test]
    fn a_write_costs_bandwidth_not_its_idle_latency() {
        let mut load = Load::new(&pmem());
        for _ in 0..1000 {
            let traffic = Traffic {
                read: 0,
                written: 90_000,
            };
            load.add_traffic(10_000.0, traffic, 400.0);
        }
        assert!(load.utilization() > 0.6 && load.write_ps() > load.read_ps());
    }

    #[test]
    fn half_the_quantum_gives_the_same_wait() {
        let run = |quantum: f64, steps: u32| {
            let mut load = Load::new(&pmem());
            for _ in 0..steps {
                let bytes = whole(quantum * 20.0);
                let traffic = Traffic {
                    read: bytes,
                    written: 0,
                };
                load.add_traffic(quantum, traffic, 400.0);
            }
            load.wait_ns()
        };
        let (whole, half) = (run(10_000.0, 500), run(5_000.0, 1000));
        assert!((whole / half - 1.0).abs() < 0.001, "{whole} {half}");
    }
}
