//! Schemes (DAMOS): which regions are hot or cold, and which of them come first where the quota is short.

use std::ops::Range;

use super::Damos;
use super::quota::{MET, Quota};
use super::regions::{Region, Regions};
use crate::base::number::{low, to_usize};
use crate::mechanisms::Context;

/// Highest score of a region (`DAMOS_MAX_SCORE`), the number of scores, and the highest one of count or age
/// (`DAMON_MAX_SUBSCORE`).
const MAX_SCORE: u64 = 99;
const SCORES: usize = 100;
const MAX_SUBSCORE: i64 = 100;

/// Highest logarithm of an age (`DAMON_MAX_AGE_IN_LOG`).
const MAX_AGE_LOG: i64 = 32;

/// Least part of samples with an access of a hot region, percent (HMSDK, tools/gen_migpol.py; damo, scripts/mem_tier.sh).
const HOT_PERCENT: u32 = 5;

/// Goals for the first node (damo, scripts/mem_tier.sh), 10,000ths of it: free memory for `migrate_cold`, memory in use
/// for `migrate_hot`.
const FREE_GOAL: u64 = 50;
const USED_GOAL: u64 = 9970;

/// The action of a scheme.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Hot regions are migrated, the hottest first.
    MigrateHot { to: u8 },
    /// Cold regions are migrated, the coldest first.
    MigrateCold { to: u8 },
}

impl Action {
    pub(super) fn is_hot(self) -> bool {
        matches!(self, Self::MigrateHot { .. })
    }

    pub(super) fn to(self) -> u8 {
        match self {
            Self::MigrateHot { to } | Self::MigrateCold { to } => to,
        }
    }
}

/// A scheme of a kdamond.
#[derive(Debug)]
pub(super) struct Scheme {
    action: Action,
    quota: Quota,
    parameters: Damos,
    /// The frame behind the last one that was charged, where the last window's quota ended.
    resume: Option<u32>,
}

impl Scheme {
    pub(super) fn new(action: Action, parameters: Damos) -> Self {
        let bytes = u64::from(parameters.quota_mb) << 20;
        Self {
            action,
            quota: Quota::new(bytes, u64::from(parameters.quota_ms)),
            parameters,
            resume: None,
        }
    }

    pub(super) fn action(&self) -> Action {
        self.action
    }

    /// Adds time that migrations took, ns.
    pub(super) fn took(&mut self, ns: u64) {
        self.quota.took(ns);
    }

    /// The frames to which the scheme is applied now (`kdamond_apply_schemes`). `samples`: the highest count.
    pub(super) fn choose(
        &mut self,
        context: &Context,
        regions: &mut Regions,
        samples: u32,
    ) -> Vec<Range<u32>> {
        let setup = context.setup();
        let per_frame = 4096 * setup.pages_per_unit * setup.scale;
        let score = self.parameters.goals.then(|| self.goal(context));
        self.quota.set_frame(per_frame);
        self.quota.renew(context.now_ns(), score);
        let least = self.least_score(regions, samples, per_frame);
        let (mut chosen, mut at) = (Vec::new(), 0);
        while let Some(region) = regions.get(at) {
            at += 1;
            let frames = low(self.quota.left() / per_frame);
            if frames == 0 {
                break;
            }
            if self.is_charged(region, at == regions.len())
                || !self.is_target(&region, samples)
                || self.score(&region, samples) < least
            {
                continue;
            }
            regions.split_at(at - 1, frames);
            let region = regions.get(at - 1).unwrap_or(region);
            self.quota.charge(u64::from(region.len()) * per_frame);
            if self.quota.left() < per_frame {
                self.resume = Some(region.end);
            }
            regions.applied(at - 1);
            chosen.push(region.start..region.end);
        }
        chosen
    }

    /// Whether a region was charged in the last window (`damos_skip_charged_region`), which then goes on behind it.
    fn is_charged(&mut self, region: Region, is_last: bool) -> bool {
        let Some(resume) = self.resume else {
            return false;
        };
        if is_last {
            self.resume = None;
            return true;
        }
        if region.end <= resume {
            return true;
        }
        self.resume = None;
        false
    }

    /// Whether a region's count is what the scheme looks for.
    fn is_target(&self, region: &Region, samples: u32) -> bool {
        if self.action.is_hot() {
            region.accesses * 100 >= samples * HOT_PERCENT && region.accesses > 0
        } else {
            region.accesses == 0 && self.age_ms(region) >= self.parameters.cold_age_ms
        }
    }

    /// Time for which a region's count has hardly changed, ms.
    fn age_ms(&self, region: &Region) -> u64 {
        u64::from(region.age) * u64::from(self.parameters.aggregate_ms)
    }

    /// How far the goal for the first node is met, of [`MET`].
    fn goal(&self, context: &Context) -> u64 {
        let (all, free) = (context.node(0).max(1), context.free(0));
        let part = |units: u64| units * MET / all;
        if self.action.is_hot() {
            part(all.saturating_sub(free)) * MET / USED_GOAL
        } else {
            part(free) * MET / FREE_GOAL
        }
    }

    /// The least score of the regions for which the quota is enough (`damos_adjust_quota`).
    fn least_score(&self, regions: &Regions, samples: u32, per_frame: u64) -> u64 {
        let mut bytes = [0; SCORES];
        for region in regions.iter().filter(|r| self.is_target(r, samples)) {
            let score = to_usize(self.score(region, samples));
            bytes[score] += u64::from(region.len()) * per_frame;
        }
        let (mut sum, mut least) = (0, 0);
        for score in (0..=MAX_SCORE).rev() {
            sum += bytes[to_usize(score)];
            least = score;
            if sum >= self.quota.bytes() {
                break;
            }
        }
        least
    }

    /// The priority of a region (`damon_hot_score`, `damon_cold_score`): its count and its age weigh the same.
    fn score(&self, region: &Region, samples: u32) -> u64 {
        let count = i64::from(region.accesses) * MAX_SUBSCORE / i64::from(samples.max(1));
        let seconds = self.age_ms(region) / 1000;
        let log = i64::from(seconds.checked_ilog2().map_or(0, |log| log + 1)).min(MAX_AGE_LOG);
        // The longer a region was not accessed, the colder it is.
        let signed = if count == 0 { -log } else { log };
        let age = (signed + MAX_AGE_LOG) * MAX_SUBSCORE / MAX_AGE_LOG / 2;
        let hotness = i64::midpoint(count, age) * 99 / MAX_SUBSCORE;
        let hotness = hotness.clamp(0, 99).unsigned_abs();
        if self.action.is_hot() {
            hotness
        } else {
            MAX_SCORE - hotness
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scheme(action: Action) -> Scheme {
        Scheme::new(action, Damos::DEFAULT)
    }

    fn region(accesses: u32, age: u32) -> Region {
        Region {
            end: 10,
            accesses,
            age,
            ..Region::default()
        }
    }

    #[test]
    fn hot_regions_come_first_by_count_and_age() {
        let hot = scheme(Action::MigrateHot { to: 0 });
        let scores = [(20, 3000), (20, 0), (2, 3000), (2, 0)]
            .map(|(accesses, age)| hot.score(&region(accesses, age), 20));
        assert_eq!(scores, [81, 74, 36, 29]);
        assert!(hot.is_target(&region(1, 0), 20) && !hot.is_target(&region(0, 0), 20));
    }

    #[test]
    fn a_region_without_accesses_for_longer_is_demoted_first() {
        let cold = scheme(Action::MigrateCold { to: 1 });
        let [old, new] = [3000, 0].map(|age| cold.score(&region(0, age), 20));
        assert!(old > new, "{old} {new}");
        // 30 s of 100 ms.
        assert!(cold.is_target(&region(0, 300), 20) && !cold.is_target(&region(0, 299), 20));
        assert!(!cold.is_target(&region(1, 300), 20));
    }

    #[test]
    fn the_least_score_leaves_what_the_quota_is_enough_for() {
        let mut hot = scheme(Action::MigrateHot { to: 0 });
        hot.quota = Quota::new(8, 0);
        hot.quota.renew(0, None);
        let mut regions = Regions::new(10, (1, 10));
        regions.check(|_| true);
        // Ten frames of a byte each, more than the quota.
        let least = hot.least_score(&regions, 20, 1);
        assert_eq!(least, hot.score(&region(1, 0), 20));
        // With room for more, no region is left out.
        hot.quota = Quota::new(1 << 20, 0);
        hot.quota.renew(0, None);
        assert_eq!(hot.least_score(&regions, 20, 1), 0);
    }
}
