//! `damos`: DAMON's monitoring of physical memory with the schemes `migrate_hot` and `migrate_cold` (Linux 6.16:
//! mm/damon/core.c, mm/damon/paddr.c, mm/damon/ops-common.c).
//!
//! - Trigger: a kdamond for each node samples one page of each of its regions every 5 ms, and counts for 100 ms; each
//!   second its scheme is applied.
//! - Threshold: `migrate_hot`, on slower nodes: regions whose sampled page was accessed in 5 % of the samples or more.
//!   `migrate_cold`, on all nodes but the last: regions of which no sample was accessed for 30 s.
//!   Then each page's A bit is looked at again (filter `young`).
//! - Rate limit: 200 MiB a second for each scheme ([`quota`]); the regions with the highest scores first.
//! - Victim: none is searched for: regions that are cold for long leave, whether there is room or not.
//!
//! Regions are of physical addresses ([`frames`]): a page that moves gets other neighbours.

mod frames;
mod quota;
mod regions;
mod schemes;

use frames::Frames;
use rand_xoshiro::Xoshiro256PlusPlus;
use regions::Regions;
use schemes::{Action, Scheme};

use super::linux::marks::{full_pages, of_tiers};
use super::{Context, Mechanism, MigrationMode, Moved, Setup, Stage, Unit};
use crate::base::number::to_usize;
use crate::base::random::{Purpose, stream};

/// The parameters that a scenario may set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damos {
    /// Time between two samples of a region (`sample_us`), ms.
    pub sample_ms: u32,
    /// Time for which samples are counted (`aggr_us`), ms.
    pub aggregate_ms: u32,
    /// Least and most regions of a node (`nr_regions`).
    pub regions: (u32, u32),
    /// Most that a scheme goes through a second (`quotas/bytes`), MiB.
    pub quota_mb: u32,
    /// Most time that a scheme takes in a second (`quotas/ms`), ms; 0: no limit.
    pub quota_ms: u32,
    /// Time without an access after which a region is cold (`access_pattern/age`), ms.
    pub cold_age_ms: u64,
    /// Whether the quotas follow how full the first node is (`quotas/goals`).
    pub goals: bool,
    /// Whether each page's A bit is looked at again before it moves.
    pub young: bool,
}

impl Damos {
    /// The intervals and numbers of regions that DAMON has by default (Documentation/admin-guide/mm/damon/usage.rst),
    /// the access patterns and filters of HMSDK (tools/gen_migpol.py), and the quota of damo's scripts/mem_tier.sh.
    pub const DEFAULT: Self = Self {
        sample_ms: 5,
        aggregate_ms: 100,
        regions: (10, 1000),
        quota_mb: 200,
        quota_ms: 0,
        cold_age_ms: 30_000,
        goals: false,
        young: true,
    };

    fn sample_ns(self) -> u64 {
        u64::from(self.sample_ms) * 1_000_000
    }

    /// Samples that are counted together.
    fn samples(self) -> u32 {
        (self.aggregate_ms / self.sample_ms).max(1)
    }
}

/// Time between two applications of a scheme (`apply_interval_us` of damo's scripts/mem_tier.sh), ms.
const APPLY_MS: u32 = 1000;

/// A kernel thread that monitors a node and applies schemes to it.
#[derive(Debug)]
struct Kdamond {
    regions: Regions,
    schemes: Vec<Scheme>,
    /// When the sample is due that was prepared, ns; `None` if none was.
    due: Option<u64>,
    /// Samples since the last aggregation, and aggregations since the last application.
    samples: u32,
    aggregations: u32,
    /// Pages that the thread migrates: it waits for them.
    pending: u64,
    /// When it began to migrate them, ns.
    began: u64,
}

/// DAMON with schemes for tiering.
#[derive(Debug)]
pub struct Damon {
    parameters: Damos,
    frames: Frames,
    kdamonds: Vec<Kdamond>,
    random: Xoshiro256PlusPlus,
    rounds: u64,
}

impl Damon {
    /// A mechanism that monitors from its first quantum on.
    #[must_use]
    pub fn new(setup: &Setup, parameters: Damos) -> Self {
        Self {
            parameters,
            frames: Frames::new(setup),
            kdamonds: Vec::new(),
            random: stream(setup.seed, &setup.vm, 0, Purpose::Monitoring),
            rounds: 0,
        }
    }

    fn begin(&mut self, context: &mut Context) {
        self.frames.fill(context);
        let tiers = u8::try_from(context.setup().tiers).unwrap_or(1);
        for tier in 0..tiers {
            let promotes = (tier > 0).then_some(Action::MigrateHot { to: 0 });
            let demotes = (tier + 1 < tiers).then(|| Action::MigrateCold { to: tier + 1 });
            let actions = [promotes, demotes].into_iter().flatten();
            self.kdamonds.push(Kdamond {
                regions: Regions::new(self.frames.len(tier), self.parameters.regions),
                schemes: actions.map(|a| Scheme::new(a, self.parameters)).collect(),
                due: None,
                samples: 0,
                aggregations: 0,
                pending: 0,
                began: 0,
            });
        }
        // Each kdamond migrates by itself.
        context.set_movers(self.kdamonds.len());
    }

    /// Lets the kdamond of a node do what is due.
    fn work(&mut self, context: &mut Context, tier: u8) {
        let kdamond = &mut self.kdamonds[usize::from(tier)];
        let now = context.now_ns();
        if kdamond.pending > 0 || !context.has_time() {
            return;
        }
        match kdamond.due {
            Some(due) if due > now => return,
            Some(_) => self.sample(context, tier),
            None => {}
        }
        let kdamond = &mut self.kdamonds[usize::from(tier)];
        if kdamond.pending > 0 {
            kdamond.due = None;
            return;
        }
        // The page is made old, and looked at again when the interval is over.
        let frames = &self.frames;
        kdamond.regions.prepare(&mut self.random, |slot| {
            if let Some(unit) = frames.unit(tier, slot) {
                context.young(unit);
            }
        });
        kdamond.due = Some(now + self.parameters.sample_ns());
    }

    /// Takes a sample of each region; aggregates and applies schemes if that is due.
    fn sample(&mut self, context: &mut Context, tier: u8) {
        let kdamond = &mut self.kdamonds[usize::from(tier)];
        let frames = &self.frames;
        kdamond.regions.check(|slot| {
            let unit = frames.unit(tier, slot);
            unit.is_some_and(|unit| context.accessed(unit))
        });
        // Frame and reverse mapping are found to make the page old, and again to look at it.
        let looks = 2 * kdamond.regions.len() as u64;
        context.spend_by_clock(Stage::Track, looks * context.costs().lru_page);
        kdamond.samples += 1;
        if kdamond.samples < self.parameters.samples() {
            return;
        }
        kdamond.samples = 0;
        kdamond.regions.merge(self.parameters.samples());
        kdamond.aggregations += 1;
        if kdamond.aggregations * self.parameters.aggregate_ms >= APPLY_MS {
            kdamond.aggregations = 0;
            self.rounds += u64::from(tier == 0);
            self.apply(context, tier);
        }
        let regions = &mut self.kdamonds[usize::from(tier)].regions;
        regions.reset();
        regions.split(&mut self.random);
        context.spend_by_clock(
            Stage::Classify,
            regions.len() as u64 * context.costs().classify_page,
        );
    }

    /// Applies the schemes of a node's kdamond.
    fn apply(&mut self, context: &mut Context, tier: u8) {
        let samples = self.parameters.samples();
        for at in 0..self.kdamonds[usize::from(tier)].schemes.len() {
            let kdamond = &mut self.kdamonds[usize::from(tier)];
            let scheme = &mut kdamond.schemes[at];
            let slots = scheme.choose(context, &mut kdamond.regions, samples);
            let (action, to) = (scheme.action(), scheme.action().to());
            let mut pages = Vec::new();
            for slot in slots.into_iter().flatten() {
                let Some(unit) = self.frames.unit(tier, slot) else {
                    continue;
                };
                context.spend(Stage::Classify, context.costs().lru_page);
                let passes = !self.parameters.young || context.young(unit) == action.is_hot();
                if passes && !context.is_migrating(unit) {
                    pages.push((unit, to));
                }
            }
            self.send(context, tier, pages, to);
        }
    }

    /// Migrates pages as far as the target has memory above its min watermark: nothing is reclaimed for them.
    fn send(&mut self, context: &mut Context, tier: u8, mut pages: Vec<(Unit, u8)>, to: u8) {
        let min = of_tiers(context)[usize::from(to)].min / full_pages(context.setup());
        let room = context.free(to).saturating_sub(min);
        pages.truncate(to_usize(room));
        let kdamond = &mut self.kdamonds[usize::from(tier)];
        kdamond.pending += pages.len() as u64;
        kdamond.began = context.now_ns();
        context.submit(&pages, MigrationMode::Unmap);
    }

    /// Notes that a page of a node's kdamond has arrived, or stayed.
    fn arrived(&mut self, now: u64, tier: u8) {
        let Some(kdamond) = self.kdamonds.get_mut(usize::from(tier)) else {
            return;
        };
        kdamond.pending = kdamond.pending.saturating_sub(1);
        if kdamond.pending == 0 {
            let took = now - kdamond.began;
            kdamond.schemes.iter_mut().for_each(|s| s.took(took));
        }
    }
}

impl Mechanism for Damon {
    fn run_quantum(&mut self, context: &mut Context) {
        if self.kdamonds.is_empty() {
            self.begin(context);
        }
        for tier in (0_u8..).take(self.kdamonds.len()) {
            self.work(context, tier);
        }
    }

    fn moved(&mut self, context: &mut Context, moved: &[Moved]) {
        for moved in moved {
            let from = self.frames.tier(moved.unit);
            self.arrived(context.now_ns(), from);
            if let Some(now) = moved.outcome.now {
                self.frames.put(moved.unit, now);
            }
        }
    }

    fn displaced(&mut self, context: &mut Context, unit: Unit, to: u8) {
        // Of a page under way, its own migration reports where it is.
        if !context.is_migrating(unit) {
            self.frames.put(unit, to);
        }
    }

    fn rounds(&self) -> u64 {
        self.rounds
    }

    fn heap_bytes(&self) -> usize {
        let regions: usize = self.kdamonds.iter().map(|k| k.regions.heap_bytes()).sum();
        self.frames.heap_bytes() + regions
    }
}
