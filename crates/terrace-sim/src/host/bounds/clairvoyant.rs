//! `clairvoyant`: the most costly pages of each coming window are in the fastest tier, and moves are free. So pages
//! are prefetched, which no policy can do.
//!
//! It reads ahead with copies of the load's own sources, for as many accesses as each vCPU made in the window before, and
//! with a copy of the last-level cache: what that serves costs no memory access. Other VMs' use of it is not known.
//! Page tables are ranked by the lines that the window before read of them.

use serde::Deserialize;
use terrace_proto::PAGES_PER_HUGE;

use super::estimate::Demand;
use super::profiled::uses;
use super::split::{Ranking, Use, Weights, best_part};
use crate::base::access::{Access, Source};
use crate::base::number::{index, low, to_usize};
use crate::base::tier::Tier;
use crate::host::vm::Vm;
use crate::machine::last_level::{LastLevel, Touched};

/// Accesses read together.
const BATCH: usize = 256;

/// The costs by which the bound chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum By {
    /// The cost under the tiers' load: the first tier is not filled beyond its bandwidth, and page tables are ranked
    /// with the other pages.
    #[default]
    Load,
    /// Idle latencies: the first tier is always filled, and page tables lie in it, above the VM's size.
    Latency,
}

/// The bound's state of one VM.
pub struct Clairvoyant {
    by: By,
    /// Number of units that fit into each tier.
    fit: Vec<u64>,
    window_ps: u64,
    next: u64,
    /// Number of windows placed so far.
    windows: u64,
    /// Accesses that each vCPU had left, and its clock, when the last window began.
    then: Vec<(u64, u64)>,
    /// Most bytes of a window's ranking.
    ranking_bytes: usize,
}

impl Clairvoyant {
    /// A bound for a VM with room for `fit` units in the tiers.
    #[must_use]
    pub fn new(by: By, fit: Vec<u64>, window_ps: u64) -> Self {
        Self {
            by,
            fit,
            window_ps,
            next: 0,
            windows: 0,
            then: Vec::new(),
            ranking_bytes: 0,
        }
    }

    /// Number of windows placed so far.
    #[must_use]
    pub fn windows(&self) -> u64 {
        self.windows
    }

    /// Bytes on the heap: the ranking while it is made.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        self.ranking_bytes
    }

    fn is_due(&self, vm: &Vm, now: u64) -> bool {
        now >= self.next && vm.ended().is_none()
    }

    /// Ranks the units of the window that begins now.
    fn rank(
        &mut self,
        vm: &mut Vm,
        weights: Weights,
        now_ns: u64,
        cache: Option<LastLevel>,
    ) -> Ranking {
        let cache_bytes = cache.as_ref().map_or(0, LastLevel::heap_bytes);
        let pages = self.count_ahead(vm, now_ns, cache);
        let demand = self.demand(vm);
        let uses = match self.by {
            By::Load => uses(&vm.space, &pages, &self.table_lines(vm, &pages, demand)),
            By::Latency => data_only(uses(&vm.space, &pages, &[]), vm),
        };
        if let (By::Load, Some(profile)) = (self.by, &mut vm.space.profile) {
            profile.clear();
        }
        let demand = demand.filter(|_| self.by == By::Load);
        let is_first = |unit| vm.space.second.tier(unit) == Some(0);
        let ranking = Ranking::new(&uses, weights, &self.fit, demand, is_first);
        self.ranking_bytes = self
            .ranking_bytes
            .max(ranking.peak_bytes() + pages.len() * 8 + to_usize(cache_bytes));
        ranking
    }

    /// Reads and writes of each page in the coming window that reach memory.
    fn count_ahead(&self, vm: &Vm, now_ns: u64, cache: Option<LastLevel>) -> Vec<[u32; 2]> {
        let mut count = Count {
            pages: vec![[0_u32; 2]; to_usize(vm.space.guest.pages())],
            cache,
        };
        let mut running: Vec<Ahead> = Vec::new();
        for (at, vcpu) in vm.vcpus.iter().enumerate() {
            let left = vcpu.progress().left();
            let made = self.then.get(at).map(|(then, _)| then - left);
            // Of the first window nothing is known: an access each 100 ns, a guess on the high side.
            let coming = made.unwrap_or(self.window_ps / 100_000).min(left);
            let (at_hand, before_cache) = vcpu.at_hand();
            let at_hand = &at_hand[..at_hand.len().min(to_usize(coming))];
            count.add(at_hand, before_cache);
            running.push(Ahead {
                source: vcpu.fork_source(),
                coming: coming - at_hand.len() as u64,
            });
        }
        // In turns, because vCPUs share the cache.
        while !running.is_empty() {
            running.retain_mut(|ahead| ahead.count(now_ns, &mut count));
        }
        count.pages
    }

    /// The demand of the window before; `None` if there was none.
    fn demand(&mut self, vm: &Vm) -> Option<Demand> {
        let now = vm.vcpus.iter().map(|vcpu| {
            let progress = vcpu.progress();
            (progress.left(), progress.clock())
        });
        let now: Vec<(u64, u64)> = now.collect();
        let then = std::mem::replace(&mut self.then, now);
        let clocks = then.iter().zip(&self.then);
        let spent = clocks.map(|((_, then), (_, now))| now.saturating_sub(*then));
        let worked = spent.filter(|ps| *ps > 0);
        let profile = vm.space.profile.as_deref()?;
        Demand::measured(profile.totals(), worked.clone().count(), worked.sum())
    }

    /// Lines of each table that the coming window may read: those of the window before, or one for each access if
    /// there was none.
    fn table_lines(&self, vm: &Vm, pages: &[[u32; 2]], demand: Option<Demand>) -> Vec<u32> {
        let profile = vm.space.profile.as_deref();
        if let (Some(_), Some(profile)) = (demand, profile) {
            return profile.tables().to_vec();
        }
        let mut lines = vec![0_u32; index(vm.space.guest.first_data())];
        let blocks = pages.chunks(to_usize(PAGES_PER_HUGE));
        for (block, pages) in (0..).zip(blocks) {
            let accesses = pages
                .iter()
                .flatten()
                .fold(0_u32, |sum, n| sum.saturating_add(*n));
            for frame in vm.space.guest.tables_above(low(block * PAGES_PER_HUGE)) {
                let of = &mut lines[index(frame)];
                *of = of.saturating_add(accesses);
            }
        }
        lines
    }
}

/// The accesses that a vCPU will make.
struct Ahead {
    source: Box<dyn Source>,
    /// Number of those that are not counted yet.
    coming: u64,
}

impl Ahead {
    /// Counts the next accesses; returns whether there were any.
    fn count(&mut self, now_ns: u64, count: &mut Count) -> bool {
        let mut batch = [Access::default(); BATCH];
        let wanted = to_usize(self.coming).min(BATCH);
        if wanted == 0 {
            return false;
        }
        let got = self.source.fill(now_ns, &mut batch[..wanted]);
        count.add(&batch[..got], self.source.pace().before_cache);
        self.coming -= got as u64;
        got > 0
    }
}

/// Reads and writes of each page that reach memory.
struct Count {
    pages: Vec<[u32; 2]>,
    /// A copy of the last-level cache, if there is one.
    cache: Option<LastLevel>,
}

impl Count {
    fn add(&mut self, accesses: &[Access], before_cache: bool) {
        for access in accesses {
            let cache = self.cache.as_mut().filter(|_| before_cache);
            if cache.is_some_and(|cache| cache.touch(*access) != Touched::Miss) {
                continue;
            }
            let of = &mut self.pages[to_usize(access.page())][usize::from(access.is_write())];
            *of = of.saturating_add(1);
        }
    }
}

fn data_only(mut uses: Vec<Use>, vm: &Vm) -> Vec<Use> {
    let first = vm.space.second.first_data();
    uses.retain(|of| of.unit >= first);
    uses
}

/// Places the pages of the windows that begin now. `now` is in ps as simulated, `now_ns` in ns of the full-size
/// machine; `cache` is the machine's last-level cache. Returns whether there were any windows.
pub fn place_windows(
    vms: &mut [Vm],
    tiers: &[Tier],
    (now, now_ns): (u64, u64),
    cache: Option<&LastLevel>,
) -> bool {
    let is_due = |vm: &Vm| {
        vm.clairvoyant
            .as_ref()
            .is_some_and(|bound| bound.is_due(vm, now))
    };
    if !vms.iter().any(is_due) {
        return false;
    }
    let weights = Weights::new(tiers);
    let mut placed = Vec::new();
    let mut rankings = Vec::new();
    for (at, vm) in vms.iter_mut().enumerate() {
        if !is_due(vm) {
            continue;
        }
        let Some(mut bound) = vm.clairvoyant.take() else {
            continue;
        };
        bound.next = now + bound.window_ps;
        let cache = cache.cloned().map(|mut cache| {
            cache.serve(at);
            cache
        });
        rankings.push(bound.rank(vm, weights, now_ns, cache));
        bound.windows += 1;
        vm.clairvoyant = Some(bound);
        placed.push(at);
    }
    let part = best_part(tiers, &rankings);
    for (at, ranking) in placed.into_iter().zip(&rankings) {
        put(&mut vms[at], ranking, part);
    }
    true
}

/// Moves a VM's units, for free.
fn put(vm: &mut Vm, ranking: &Ranking, part: f64) {
    let second = &mut vm.space.second;
    if vm
        .clairvoyant
        .as_ref()
        .is_some_and(|bound| bound.by == By::Latency)
    {
        (0..second.tables()).for_each(|unit| second.put(unit, Some(0)));
    }
    for (unit, tier) in ranking.places(part) {
        if second.tier(unit) != Some(tier) {
            second.put(unit, Some(tier));
        }
    }
    let (guest, second) = (&vm.space.guest, &vm.space.second);
    let shift = if guest.huge() && second.huge() { 9 } else { 0 };
    let tier = |key: u32| {
        let frame = guest.frame(key << shift);
        let unit = frame.map(|frame| second.unit_of(frame));
        unit.and_then(|unit| second.tier(unit)).unwrap_or(0)
    };
    for vcpu in &mut vm.vcpus {
        vcpu.mmu().retier(tier);
    }
}
