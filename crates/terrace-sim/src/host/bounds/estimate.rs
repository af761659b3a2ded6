//! The run time of VMs under a placement, estimated: the machine's tiers, with accesses that flow instead of being
//! made one by one.

use crate::base::number::{float, whole};
use crate::base::tier::Tier;
use crate::machine::profile::Totals;
use crate::machine::tier::{Load, Traffic};
use crate::machine::{PS, TIERS};

/// Length of a step, ns: the machine's quantum. Longer steps swing at saturation, where a wait that is too long makes
/// the next one too short.
const STEP_NS: f64 = 10_000.0;

/// Number of steps until the tiers' loads have settled.
const SETTLING: u32 = 400;

/// Number of steps after these over which the mean is taken.
const STEADY: u32 = 200;

/// The demand of a VM on memory, per access to its data.
#[derive(Clone, Copy, Debug)]
pub struct Demand {
    /// Number of vCPUs.
    vcpus: f64,
    /// Time of a vCPU beside waiting for data and for page tables, ns.
    other_ns: f64,
    /// Misses to data that overlap.
    parallelism: f64,
    /// Reads of tables that overlap.
    walkers: f64,
    /// Lines of the second stage's tables, which lie in the first tier.
    host_lines: f64,
    /// Bytes that the access reads from each tier's medium if it goes there.
    read_bytes: [f64; TIERS],
    /// Bytes that a write writes to each tier's medium if it goes there and lines are combined.
    written_bytes: [f64; TIERS],
}

/// The use of each tier by a VM under a placement, per access to its data.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Shares {
    /// Reads.
    pub reads: [f64; TIERS],
    /// Writes.
    pub writes: [f64; TIERS],
    /// Lines of the guest's tables.
    pub lines: [f64; TIERS],
}

impl Demand {
    /// The demand that was measured while `vcpus` spent `vcpu_ps` in all. `None` if no access was made.
    #[must_use]
    pub fn measured(totals: &Totals, vcpus: usize, vcpu_ps: u64) -> Option<Self> {
        let accesses = totals.data[0] + totals.data[1];
        if accesses == 0 {
            return None;
        }
        let part = |a: u64, b: u64| float(a) / float(b.max(1));
        let other = vcpu_ps.saturating_sub(totals.waited_ps + totals.walked_ps);
        Some(Self {
            vcpus: float(vcpus as u64),
            other_ns: part(other, accesses) / float(PS),
            parallelism: part(totals.latency_ps, totals.waited_ps).max(1.0),
            walkers: part(totals.walk_latency_ps, totals.walked_ps).max(1.0),
            host_lines: part(totals.host_lines, accesses),
            read_bytes: totals.traffic.map(|medium| part(medium.read, accesses)),
            written_bytes: totals.traffic.map(|m| part(m.written, totals.data[1])),
        })
    }

    /// Misses to data that overlap, and reads of tables that do.
    #[must_use]
    pub fn overlaps(&self) -> [f64; 2] {
        [self.parallelism, self.walkers]
    }

    /// Time of a vCPU for one access, ns.
    fn access_ns(&self, shares: &Shares, loads: &[Load]) -> f64 {
        let mut ns = self.other_ns;
        for (tier, load) in loads.iter().enumerate() {
            let [read, write] = [load.read_ps(), load.write_ps()].map(|ps| float(ps) / float(PS));
            let data = shares.reads[tier] * read + shares.writes[tier] * write;
            ns += data / self.parallelism + self.lines(shares, tier) * read / self.walkers;
        }
        ns
    }

    /// Lines of either stage's tables in a tier.
    fn lines(&self, shares: &Shares, tier: usize) -> f64 {
        let host = if tier == 0 { self.host_lines } else { 0.0 };
        shares.lines[tier] + host
    }

    /// Traffic of so many accesses on a tier whose medium has lines of `line` bytes, `rewrite` of which each write takes
    /// that could have been combined.
    fn traffic(
        &self,
        shares: &Shares,
        tier: usize,
        [line, rewrite]: [u64; 2],
        made: f64,
    ) -> Traffic {
        let data = shares.reads[tier] + shares.writes[tier];
        let read = data * self.read_bytes[tier] + self.lines(shares, tier) * float(line);
        let combined = self.written_bytes[tier];
        let apart = (1.0 - combined / float(line)).max(0.0) * float(rewrite);
        Traffic {
            read: whole(read * made),
            written: whole(shares.writes[tier] * (combined + apart) * made),
        }
    }

    /// Number of vCPUs that write to a tier while so many accesses are made.
    fn writers(&self, shares: &Shares, tier: usize, made: f64) -> u64 {
        whole(self.vcpus.min(shares.writes[tier] * made))
    }
}

/// Time of a vCPU for one access of each VM, ns: the mean once the tiers' loads have settled.
#[must_use]
pub fn access_ns(tiers: &[Tier], vms: &[(Demand, Shares)]) -> Vec<f64> {
    let mut loads: Vec<Load> = tiers.iter().map(Load::new).collect();
    let each = |loads: &[Load]| -> Vec<f64> {
        let ns = vms
            .iter()
            .map(|(demand, shares)| demand.access_ns(shares, loads));
        ns.collect()
    };
    let mut rates = vec![0.0; vms.len()];
    for step in 0..SETTLING + STEADY {
        let access_ns = each(&loads);
        if step >= SETTLING {
            for (rate, ns) in rates.iter_mut().zip(&access_ns) {
                *rate += 1.0 / ns.max(1e-3);
            }
        }
        let (mut accesses, mut vcpus) = (0.0, 0.0);
        let mut traffic = [Traffic::default(); TIERS];
        let mut writers = [0; TIERS];
        for ((demand, shares), ns) in vms.iter().zip(&access_ns) {
            let made = STEP_NS * demand.vcpus / ns.max(1e-3);
            accesses += made;
            vcpus += demand.vcpus;
            for (at, tier) in tiers.iter().enumerate() {
                let bytes = [tier.line, loads[at].rewrite_bytes()];
                let more = demand.traffic(shares, at, bytes, made);
                writers[at] += demand.writers(shares, at, made);
                traffic[at].read += more.read;
                traffic[at].written += more.written;
            }
        }
        let mean_ns = STEP_NS * vcpus / accesses.max(1.0);
        for ((load, traffic), writers) in loads.iter_mut().zip(traffic).zip(writers) {
            load.add_traffic(STEP_NS, traffic, mean_ns);
            load.add_writers(STEP_NS, writers);
        }
    }
    rates
        .into_iter()
        .map(|rate| f64::from(STEADY) / rate)
        .collect()
}

#[cfg(test)]
mod tests {
    use terrace_core::TierKind;

    use super::*;

    fn tier(read_ns: f64, read_gb_s: f64, write_gb_s: f64, line: u64) -> Tier {
        Tier {
            name: "tier".into(),
            kind: TierKind::Dram,
            bytes: 1 << 30,
            read_ns,
            write_ns: read_ns,
            read_gb_s,
            write_gb_s,
            line,
            price_per_gib: None,
            service: None,
        }
    }

    /// Writes alone, by so many vCPUs, of which the first tier takes `part`.
    fn write_ns(vcpus: f64, part: f64) -> f64 {
        let tiers = [tier(81.0, 120.0, 82.0, 64), tier(310.0, 37.0, 13.0, 256)];
        let demand = Demand {
            vcpus,
            other_ns: 20.0,
            parallelism: 8.0,
            walkers: 2.0,
            host_lines: 0.0,
            read_bytes: [64.0, 256.0, 0.0, 0.0],
            written_bytes: [64.0, 256.0, 0.0, 0.0],
        };
        let shares = Shares {
            writes: [part, 1.0 - part, 0.0, 0.0],
            ..Shares::default()
        };
        access_ns(&tiers, &[(demand, shares)])[0]
    }

    #[test]
    fn saturated_tiers_settle_at_what_they_serve() {
        for vcpus in [8.0, 64.0, 256.0] {
            // Every write reads and writes a line of 256 bytes in the second tier.
            let served = 256.0 / 37.0 + 256.0 / 13.0;
            let found = write_ns(vcpus, 0.0) / vcpus;
            let is_bound = vcpus > 8.0;
            assert!(
                !is_bound || (found * 0.97 / served - 1.0).abs() < 0.03,
                "{vcpus}: {found}"
            );
        }
    }

    #[test]
    fn time_falls_until_the_first_tier_is_used_up_then_rises() {
        for vcpus in [8.0, 64.0] {
            let times: Vec<f64> = (0..=20)
                .map(|n| write_ns(vcpus, f64::from(n) / 20.0))
                .collect();
            let least = times.iter().copied().fold(f64::INFINITY, f64::min);
            let best = times.iter().position(|ns| *ns == least).unwrap();
            let falls = times[..=best]
                .windows(2)
                .all(|pair| pair[1] <= pair[0] * 1.005);
            let rises = times[best..]
                .windows(2)
                .all(|pair| pair[1] >= pair[0] * 0.995);
            assert!(falls && rises && best > 10, "{vcpus}: {times:?}");
        }
    }
}
