//! The split of memory between the tiers: the units that cost most come first, and as many of them are fast as pays.

use super::estimate::{Demand, Shares, access_ns};
use crate::base::number::{float, low, to_usize, whole};
use crate::base::tier::Tier;
use crate::machine::TIERS;

/// Parts of the first tier that are tried, twice: the second time around the best one.
const PARTS: u32 = 24;

/// Gain below which the first tier is filled whole.
const WORTH: f64 = 0.001;

/// The use of a unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Use {
    /// The unit.
    pub unit: u32,
    /// Reads of it.
    pub reads: u32,
    /// Writes to it.
    pub writes: u32,
    /// Lines read of it as a page table.
    pub lines: u32,
}

/// The additional cost of each kind of access in the last tier over the first, in tenths of a ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Weights {
    /// The latency of a read.
    pub read: u32,
    /// The latency of a write, and the time of the medium that it takes.
    pub write: u32,
}

impl Weights {
    /// The weights on these tiers.
    #[must_use]
    pub fn new(tiers: &[Tier]) -> Self {
        let (Some(first), Some(last)) = (tiers.first(), tiers.last()) else {
            return Self { read: 1, write: 1 };
        };
        let way_back = |tier: &Tier| float(tier.line) / tier.write_gb_s;
        let read = last.read_ns - first.read_ns;
        let write = read + way_back(last) - way_back(first);
        let tenths = |ns: f64| low(whole(ns * 10.0).clamp(1, 1 << 20));
        Self {
            read: tenths(read),
            write: tenths(write),
        }
    }

    /// The cost of a use: data waits for a part of its latency, walks for another.
    fn cost(self, of: &Use, demand: Option<&Demand>) -> f64 {
        let [data, walks] = demand.map_or([1.0, 1.0], Demand::overlaps);
        let costs = float(u64::from(of.reads) * u64::from(self.read))
            + float(u64::from(of.writes) * u64::from(self.write));
        costs / data + float(u64::from(of.lines) * u64::from(self.read)) / walks
    }
}

/// A VM's units, the most costly first.
#[derive(Debug)]
pub struct Ranking {
    units: Vec<u32>,
    /// Sums over the units before each place: cost, reads, writes, lines.
    before: Vec<[f64; 4]>,
    /// Units that fit into each tier.
    fit: Vec<u64>,
    demand: Option<Demand>,
}

impl Ranking {
    /// The ranking of a VM's units. `is_there` says whether a unit is in the first tier already, which decides between
    /// equals. Without a demand, nothing is known of the load.
    #[must_use]
    pub fn new(
        uses: &[Use],
        weights: Weights,
        fit: &[u64],
        demand: Option<Demand>,
        is_there: impl Fn(u32) -> bool,
    ) -> Self {
        let cost = |of: &Use| weights.cost(of, demand.as_ref());
        let mut ranked: Vec<(f64, bool, &Use)> = uses
            .iter()
            .map(|of| (cost(of), is_there(of.unit), of))
            .collect();
        ranked.sort_unstable_by(|a, b| {
            let order = b.0.total_cmp(&a.0).then(b.1.cmp(&a.1));
            order.then(a.2.unit.cmp(&b.2.unit))
        });
        let mut sum = [0.0; 4];
        let mut before = vec![sum];
        for (cost, _, of) in &ranked {
            let more = [of.reads, of.writes, of.lines].map(|n| float(u64::from(n)));
            sum = [
                sum[0] + cost,
                sum[1] + more[0],
                sum[2] + more[1],
                sum[3] + more[2],
            ];
            before.push(sum);
        }
        Self {
            units: ranked.into_iter().map(|(.., of)| of.unit).collect(),
            before,
            fit: fit.to_vec(),
            demand,
        }
    }

    /// Most units that the first tier can have, and least: the other tiers hold no more than they can.
    fn limits(&self) -> (usize, usize) {
        let all = self.units.len();
        let most = to_usize(self.fit[0]).min(all);
        let others = to_usize(self.fit[1..].iter().sum());
        (all.saturating_sub(others).min(most), most)
    }

    /// The number of units in the first tier, if that is to have `part` of the cost that it can take.
    fn count(&self, part: f64) -> usize {
        let (least, most) = self.limits();
        if part >= 1.0 {
            return most;
        }
        let wanted = self.before[most][0] * part;
        let count = self.before[..=most].partition_point(|sum| sum[0] < wanted);
        count.clamp(least, most)
    }

    /// The places where each tier ends if the first one has so many units; the last tier takes the rest.
    fn ends(&self, count: usize) -> Vec<usize> {
        let all = self.units.len();
        let mut end = count;
        let mut ends = vec![end];
        for (at, fit) in self.fit.iter().enumerate().skip(1) {
            let is_last = at + 1 == self.fit.len();
            end = if is_last {
                all
            } else {
                (end + to_usize(*fit)).min(all)
            };
            ends.push(end);
        }
        ends
    }

    fn shares(&self, count: usize) -> Shares {
        let mut shares = Shares::default();
        let [_, reads, writes, _] = self.before[self.units.len()];
        let accesses = (reads + writes).max(1.0);
        let mut start = 0;
        for (tier, end) in self.ends(count).into_iter().enumerate().take(TIERS) {
            let part = |of: usize| (self.before[end][of] - self.before[start][of]) / accesses;
            shares.reads[tier] = part(1);
            shares.writes[tier] = part(2);
            shares.lines[tier] = part(3);
            start = end;
        }
        shares
    }

    /// Each unit with its tier, if the first tier has `part` of the cost that it can take.
    pub fn places(&self, part: f64) -> impl Iterator<Item = (u32, u8)> {
        let ends = self.ends(self.count(part));
        let tier = move |at: usize| ends.partition_point(|end| *end <= at);
        let units = self.units.iter().enumerate();
        units.map(move |(at, unit)| (*unit, u8::try_from(tier(at)).unwrap_or(0)))
    }

    /// Bytes on the heap while the ranking was made, the uses that it was made of and their order among them.
    #[must_use]
    pub fn peak_bytes(&self) -> usize {
        let ranked = size_of::<Use>() + size_of::<(f64, bool, &Use)>();
        self.units.capacity() * (size_of::<u32>() + ranked)
            + self.before.capacity() * size_of::<[f64; 4]>()
    }
}

/// The part of the cost that each VM's first tier should take: 1, unless the VMs together run faster with less,
/// because the first tier's bandwidth is used up.
#[must_use]
pub fn best_part(tiers: &[Tier], vms: &[Ranking]) -> f64 {
    if vms.is_empty() || vms.iter().any(|vm| vm.demand.is_none()) {
        return 1.0;
    }
    let time = |part: f64| {
        let demands = vms.iter().filter_map(|vm| {
            let demand = vm.demand?;
            Some((demand, vm.shares(vm.count(part))))
        });
        let demands: Vec<_> = demands.collect();
        // The logarithm of the product, so that no VM counts for more than another.
        let times = access_ns(tiers, &demands).into_iter();
        times.map(libm::log).sum::<f64>()
    };
    let whole = time(1.0);
    let (mut best, mut least) = (1.0, whole);
    let mut step = 1.0 / f64::from(PARTS);
    for _ in 0..2 {
        let middle = best;
        for at in 0..=2 * PARTS {
            let part = middle + (f64::from(at) - f64::from(PARTS)) * step;
            if (0.0..1.0).contains(&part) {
                let found = time(part);
                if found < least {
                    (best, least) = (part, found);
                }
            }
        }
        step /= f64::from(PARTS);
    }
    let vms = float(vms.len() as u64);
    if whole - least > WORTH * vms {
        best
    } else {
        1.0
    }
}
