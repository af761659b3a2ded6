//! Every parameter of the engine, with its unit and source.
//!
//! Responsible for: the configuration as people write it ([`EngineConfig`]), its defaults (the
//! papers' values if there is one) and its rules. It leaves to others: reading files, and
//! durations and sizes as text (the daemon turns them into these numbers).

mod arbiter;
mod terrace;

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};
use terrace_proto::TierId;

use crate::demand::DemandConfig;
use crate::error::ConfigError;
use crate::policy::{Estimate, PolicyChoice};
use crate::provision::ProvisionConfig;
use crate::tier::{TierConfig, TierKind};

pub use arbiter::{ArbiterConfig, Rule};
pub use terrace::TerraceConfig;

/// When a VM releases fast memory to the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PoolRelease {
    /// As soon as another VM can use it: fast memory that is free serves no VM.
    #[default]
    OnDemand,
    /// As soon as the VM itself cannot use it (vTMM §3.5).
    Always,
}

/// The place of a guest's page tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TablePlace {
    /// By what their leaves' accesses are worth, which is before the data that they map.
    #[default]
    First,
    /// They stay.
    Stay,
}

/// The engine's parameters. Written by people: validated by [`crate::Engine::new`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EngineConfig {
    /// The tiers, fastest first, two to four.
    pub tiers: Vec<TierConfig>,
    /// The policy of every VM.
    pub policy: PolicyChoice,
    /// Other policies for some VMs, by name.
    pub vm_policies: BTreeMap<String, PolicyChoice>,
    /// Length of a monitoring window, ms: 600 (vTMM §4.3, sensitivity study).
    pub window_ms: u64,
    /// Windows in a round: 8 (vTMM §3.2.1). 1 to 30.
    pub windows: u8,
    /// Every how many windows a scan reads all leaves instead of pruning by non-leaf accessed bits; 0:
    /// only the last window's. 4 (our estimate: upper bits are a hint on real hardware).
    pub full_pass_every: u8,
    /// Parts of a guest's page tables that a round looks at in turn, each for `windows` windows: 1, all of it at once. A power of
    /// two, up to 1024. With more, a pass costs a part of a whole one, so `window_ms` may be a few ms; a round takes as many times
    /// as long, no page rests in the multi-level queue, and a log cannot be replayed with another policy.
    pub scan_parts: u16,
    /// Highest level of the multi-level queue: 7 (its rest of 64 windows outlives any round). 1 to 7.
    pub max_level: u8,
    /// Every scan re-arms every page, so that a log of the answers has for each window the pages accessed
    /// in it (`record = "full"`). It costs scans time. The definition of a visit stays; which visits of pages
    /// at rest were writes is seen more exactly. Off.
    pub rearm_all: bool,
    /// From one period tick to the next, ms, if pages are ranked as 4 KiB: 60 s (vTMM §3.2.3).
    pub period_ms: u64,
    /// The same if they are ranked as 2 MiB: 120 s (vTMM §3.2.3).
    pub huge_period_ms: u64,
    /// From a VM's arrival to its first round, ms: 0.
    pub first_round_after_ms: u64,
    /// A round is quiet if it moved fewer bytes: 256 MiB (vTMM §3.2.3) …
    pub quiet_bytes: u64,
    /// … or fewer than the VM's memory divided by this, whichever is less: 160 (256 MiB of the paper's
    /// 40 GiB VM).
    pub quiet_vm_divisor: u64,
    /// Most that the intermittent counter rises to: 3 (vTMM §3.2.3). 0 turns skipping off.
    pub quiet_counter_max: u8,
    /// Pages whose degree is lower are never promoted: 1, so a page that was not accessed stays. At
    /// least 1.
    pub min_hot_degree: u8,
    /// A page is exchanged only for one whose degree is lower by more than this: 0.
    pub hysteresis: u8,
    /// Visits that make a page hot under `fixed-threshold`: 4 (half the windows; vTMM §4.5 profiles it).
    pub fixed_threshold: u8,
    /// Seed of the policy `random`.
    pub random_seed: u64,
    /// A page counts for the hot set, whose size a VM wants of the pool, if its degree is above this:
    /// 3 (vTMM §3.5). In rounds of fewer than 4 windows, reads alone do not exceed 3.
    pub base_degree: u8,
    /// The hottest so many percent of these pages are the hot set: 80 (vTMM §3.5). 1 to 100.
    pub share_hot_percent: u8,
    /// Least bytes that the pool leaves to a VM, percent of its nominal size: 75 (vTMM §3.5). 0 to 100. A floor that
    /// is set goes before it.
    pub share_lower_percent: u16,
    /// Most bytes that the pool gives to a VM, percent of its nominal size: 125 (vTMM §3.5). 100 to 1000. A ceiling
    /// that is set goes before it.
    pub share_upper_percent: u16,
    /// When a VM releases fast memory to the pool: on demand (our choice).
    pub pool_release: PoolRelease,
    /// No VM's heat takes what is the others' (docs/operating.md, "Neighbours"): fast memory where there is
    /// no nominal size, the move budget and CPU time for scans are shared by weight. On; logs that were
    /// recorded before this was there are replayed without.
    pub fair_shares: bool,
    /// Bytes that the lists of `hmvisor` may name in a second for one VM, in either direction: 4 MiB, which are 1,024
    /// pages of 4 KiB (HMvisor §3.2.1).
    pub list_bytes_per_s: u64,
    /// The place of guests' page tables under a policy of rates (`terrace`): first. Logs that were recorded before this was there are
    /// replayed with them where they are.
    pub tables: TablePlace,
    /// The parameters of the policy `terrace`.
    pub terrace: TerraceConfig,
    /// Rounds for which a page that moved is left alone afterwards: 1 (our estimate). 0 to 2.
    pub cool_down_rounds: u8,
    /// One in how many pages a round may promote at most, against as many demoted; the rest comes in
    /// the next round: 4. Bounds the engine's memory (2 bytes a page). At least 4.
    pub plan_share_divisor: u64,
    /// Most pages in one plan: 1024 (measured: 1024 4-KiB pages a call keep it under 35 ms).
    pub plan_max_pages: u64,
    /// Most bytes in one plan: 64 MiB (32 pages of 2 MiB).
    pub plan_max_bytes: u64,
    /// Plans of one VM under way at the same time: 4 (vTMM §3.4 moves with 4 threads). 1 to 64.
    pub plans_in_flight: u8,
    /// Bytes that all moves together may copy in a second: 1 GiB/s (our estimate: a small part of what
    /// any tier delivers); 0: no limit.
    pub move_budget_bytes_per_s: u64,
    /// Share of one CPU that scanning one VM may take during a round, percent; longer scans stretch
    /// the windows: 50 (our estimate; with 8 windows of 600 ms a minute it is 4 % over all). 1 to 100.
    pub scan_cpu_share_max_percent: u8,
    /// CPU time that scanning all VMs may take together, percent of one CPU: 100 (our estimate: one core of
    /// a host). Shared by weight if `fair_shares` is on. 1 to 100000.
    pub scan_cpu_budget_percent: u32,
    /// How long an answer may take before the round continues without it, ms: 60 s.
    pub answer_timeout_ms: u64,
    /// Reasons that a VM's list holds: 64. Called `reasons_kept` before.
    #[serde(alias = "reasons_kept")]
    pub max_reasons: usize,
    /// How VMs are resized.
    pub provision: ProvisionConfig,
    /// How the demand of VMs is tracked, under policies that do.
    pub demand: DemandConfig,
    /// How VMs share the memory that they have together.
    pub arbiter: ArbiterConfig,
}

impl Default for EngineConfig {
    fn default() -> Self {
        let tier = |name: &str, kind| TierConfig {
            name: name.into(),
            kind,
            ..TierConfig::default()
        };
        Self {
            tiers: vec![
                tier("fast", TierKind::Dram),
                tier("slow", TierKind::Generic),
            ],
            policy: PolicyChoice::default(),
            vm_policies: BTreeMap::new(),
            window_ms: 600,
            windows: 8,
            full_pass_every: 4,
            scan_parts: 1,
            max_level: 7,
            rearm_all: false,
            period_ms: 60_000,
            huge_period_ms: 120_000,
            first_round_after_ms: 0,
            quiet_bytes: 256 << 20,
            quiet_vm_divisor: 160,
            quiet_counter_max: 3,
            min_hot_degree: 1,
            hysteresis: 0,
            fixed_threshold: 4,
            random_seed: 1,
            base_degree: 3,
            share_hot_percent: 80,
            share_lower_percent: 75,
            share_upper_percent: 125,
            pool_release: PoolRelease::default(),
            fair_shares: true,
            list_bytes_per_s: 4 << 20,
            tables: TablePlace::default(),
            terrace: TerraceConfig::default(),
            cool_down_rounds: 1,
            plan_share_divisor: 4,
            plan_max_pages: 1024,
            plan_max_bytes: 64 << 20,
            plans_in_flight: 4,
            move_budget_bytes_per_s: 1 << 30,
            scan_cpu_share_max_percent: 50,
            scan_cpu_budget_percent: 100,
            answer_timeout_ms: 60_000,
            max_reasons: 64,
            provision: ProvisionConfig::default(),
            demand: DemandConfig::default(),
            arbiter: ArbiterConfig::default(),
        }
    }
}

/// Longest time that a parameter may name, ms (a year).
const MAX_MS: u64 = 366 * 24 * 3_600_000;

impl EngineConfig {
    /// A tier's name, for people.
    #[must_use]
    pub fn tier_name(&self, tier: TierId) -> String {
        let named = self.tiers.get(tier.index());
        named.map_or_else(|| tier.to_string(), |tier| tier.name.clone())
    }

    /// Least and most that the pool gives to a VM, percent of its nominal size. Where the first tier goes by gain, floors
    /// and ceilings that an operator set are the only bounds.
    pub(crate) fn fast_percents(&self) -> (u16, u16) {
        match self.arbiter.divides_fast_by_gain() {
            true => (0, u16::MAX),
            false => (self.share_lower_percent, self.share_upper_percent),
        }
    }

    /// The policies that go by an old name, one message each.
    #[must_use]
    pub fn renamed_policies(&self) -> Vec<String> {
        let all = self.policy.renamed("engine.policy");
        // A VM that has the policy of all adds nothing.
        let own = self.vm_policies.iter();
        let own = own.filter(|(_, policy)| policy.base() != self.policy.base());
        let own =
            own.filter_map(|(vm, policy)| policy.renamed(&format!("engine.vm_policies.{vm}")));
        all.into_iter().chain(own).collect()
    }

    /// Windows in a round of a VM of this name.
    #[must_use]
    pub fn windows_of(&self, vm: &str) -> u8 {
        let choice = self.vm_policies.get(vm).unwrap_or(&self.policy);
        match choice.resolve("policy") {
            Ok(policy) if policy.estimate == Estimate::HotLists => policy.lists.sub_epochs,
            _ => self.windows,
        }
    }

    /// Weights of one read and one write. One pair serves all pages, so that degrees compare: the
    /// slowest tier's, where a page in the wrong place costs most.
    #[must_use]
    pub fn weights(&self) -> (u8, u8) {
        self.tiers.last().map_or((1, 1), |tier| {
            let (read, write) = tier.kind.weights();
            (
                tier.read_weight.unwrap_or(read),
                tier.write_weight.unwrap_or(write),
            )
        })
    }

    /// Binary logarithm of the number of parts of a round.
    #[must_use]
    pub fn scan_shift(&self) -> u8 {
        u8::try_from(self.scan_parts.trailing_zeros()).unwrap_or(0)
    }

    /// Checks every rule.
    ///
    /// # Errors
    /// If a value breaks one: the first such value, with its key and what is allowed.
    pub fn validate(&self) -> Result<(), ConfigError> {
        within("tiers", self.tiers.len() as u64, 2..=TierId::MAX as u64)?;
        self.validate_monitoring()?;
        self.validate_ranking()?;
        self.validate_sharing()?;
        self.validate_moving()?;
        self.validate_demand()?;
        self.validate_arbiter()?;
        self.terrace.validate()?;
        self.policy.resolve("policy")?;
        for (vm, choice) in &self.vm_policies {
            choice.resolve(&format!("vm_policies.{vm}"))?;
        }
        Ok(())
    }

    /// Checks that under each policy of hot lists some page can be hot. Apart from [`EngineConfig::validate`], because
    /// logs of engines that could not do anything are replayed.
    ///
    /// # Errors
    /// If no page can exceed a policy's threshold: the first such one, with what is allowed.
    pub fn check_thresholds(&self) -> Result<(), ConfigError> {
        let own = self.vm_policies.iter();
        let own = own.map(|(vm, choice)| (format!("vm_policies.{vm}"), choice));
        let all = std::iter::once(("policy".to_owned(), &self.policy)).chain(own);
        for (key, choice) in all {
            choice
                .resolve(&key)?
                .check_threshold(self.weights(), &key)?;
        }
        Ok(())
    }

    fn validate_monitoring(&self) -> Result<(), ConfigError> {
        within("window_ms", self.window_ms, 1..=MAX_MS)?;
        within("windows", self.windows, 1..=30)?;
        power_of_two("scan_parts", self.scan_parts)?;
        within("max_level", self.max_level, 1..=7)?;
        within("period_ms", self.period_ms, 1..=MAX_MS)?;
        within("huge_period_ms", self.huge_period_ms, 1..=MAX_MS)?;
        within(
            "first_round_after_ms",
            self.first_round_after_ms,
            0..=MAX_MS,
        )?;
        within("quiet_vm_divisor", self.quiet_vm_divisor, 1..=u64::MAX)?;
        within("quiet_counter_max", self.quiet_counter_max, 0..=100)?;
        within(
            "scan_cpu_share_max_percent",
            self.scan_cpu_share_max_percent,
            1..=100,
        )?;
        within(
            "scan_cpu_budget_percent",
            self.scan_cpu_budget_percent,
            1..=100_000,
        )?;
        within("answer_timeout_ms", self.answer_timeout_ms, 1..=MAX_MS)?;
        within("max_reasons", self.max_reasons as u64, 1..=100_000)
    }

    fn validate_ranking(&self) -> Result<(), ConfigError> {
        let (read, write) = self.weights();
        let most = 250 / u64::from(self.windows);
        let last = self.tiers.len() - 1;
        within(&format!("tiers[{last}].read_weight"), read, 1..=most)?;
        within(&format!("tiers[{last}].write_weight"), write, 1..=most)?;
        within("min_hot_degree", self.min_hot_degree, 1..=250)?;
        within("hysteresis", self.hysteresis, 0..=250)?;
        within(
            "fixed_threshold",
            self.fixed_threshold,
            1..=self.windows.into(),
        )?;
        within("cool_down_rounds", self.cool_down_rounds, 0..=2)
    }

    fn validate_sharing(&self) -> Result<(), ConfigError> {
        within("base_degree", self.base_degree, 0..=250)?;
        within("share_hot_percent", self.share_hot_percent, 1..=100)?;
        within("share_lower_percent", self.share_lower_percent, 0..=100)?;
        within("share_upper_percent", self.share_upper_percent, 100..=1000)
    }

    fn validate_demand(&self) -> Result<(), ConfigError> {
        let demand = &self.demand;
        within("demand.hot_set_pages", demand.hot_set_pages, 1..=1 << 24)?;
        let percent = demand.max_hot_set_percent;
        within("demand.max_hot_set_percent", percent, 1..=100)?;
        let percent = demand.max_tracking_percent;
        within("demand.max_tracking_percent", percent, 1..=100)?;
        demand.phases().map(|_| ())
    }

    fn validate_arbiter(&self) -> Result<(), ConfigError> {
        let arbiter = &self.arbiter;
        within("arbiter.reserve_percent", arbiter.reserve_percent, 0..=50)?;
        within("arbiter.cycle_ms", arbiter.cycle_ms, 100..=MAX_MS)?;
        within("arbiter.shrink_percent", arbiter.shrink_percent, 1..=100)?;
        let dead_band = arbiter.dead_band_percent;
        within("arbiter.dead_band_percent", dead_band, 0..=50)?;
        within("arbiter.cache_percent", arbiter.cache_percent, 0..=10)?;
        within("arbiter.age_window_ms", arbiter.age_window_ms, 0..=60_000)?;
        power_of_two("arbiter.age_sample", arbiter.age_sample)?;
        within("arbiter.turn_ms", arbiter.turn_ms, 0..=MAX_MS)?;
        within("arbiter.valley_ms", arbiter.valley_ms, 0..=MAX_MS)?;
        within("arbiter.relief_ms", arbiter.relief_ms, 0..=250_000)?;
        within("arbiter.lend_again_ms", arbiter.lend_again_ms, 0..=MAX_MS)?;
        within("arbiter.review_ms", arbiter.review_ms, 1..=MAX_MS)?;
        within("arbiter.retry_factor", arbiter.retry_factor, 1..=1000)?;
        within("arbiter.fault_ns", arbiter.fault_ns, 1..=10_000_000_000)?;
        let waits = arbiter.host_waits_percent;
        within("arbiter.host_waits_percent", waits, 1..=100)?;
        let reserve = arbiter.host_reserve_percent;
        within("arbiter.host_reserve_percent", reserve, 0..=50)?;
        within("arbiter.settle_ms", arbiter.settle_ms, 0..=MAX_MS)?;
        within("arbiter.boot_ms", arbiter.boot_ms, 0..=MAX_MS)?;
        let ratio = arbiter.price_ratio_milli;
        within("arbiter.price_ratio_milli", ratio, 1_000..=1_000_000)?;
        let extra = arbiter.slow_access_extra_ns;
        within("arbiter.slow_access_extra_ns", extra, 1..=1_000_000)?;
        within("arbiter.scale", arbiter.scale, 1..=1 << 32)
    }

    fn validate_moving(&self) -> Result<(), ConfigError> {
        within("plan_share_divisor", self.plan_share_divisor, 4..=u64::MAX)?;
        within("plan_max_pages", self.plan_max_pages, 1..=16_384)?;
        within("plan_max_bytes", self.plan_max_bytes, 2 << 20..=1 << 40)?;
        within("plans_in_flight", self.plans_in_flight, 1..=64)?;
        within("list_bytes_per_s", self.list_bytes_per_s, 1..=1 << 50)?;
        if self.move_budget_bytes_per_s == 0 {
            return Ok(());
        }
        within(
            "move_budget_bytes_per_s",
            self.move_budget_bytes_per_s,
            1 << 20..=1 << 50,
        )
    }
}

fn power_of_two(key: &str, value: u16) -> Result<(), ConfigError> {
    if value.is_power_of_two() && value <= 1024 {
        return Ok(());
    }
    Err(ConfigError::Range {
        key: key.into(),
        value: value.to_string(),
        allowed: "a power of two from 1 to 1024".into(),
    })
}

fn within(
    key: &str,
    value: impl Into<u64>,
    allowed: RangeInclusive<u64>,
) -> Result<(), ConfigError> {
    let value = value.into();
    if allowed.contains(&value) {
        return Ok(());
    }
    let (least, most) = allowed.into_inner();
    Err(ConfigError::Range {
        key: key.into(),
        value: value.to_string(),
        allowed: if most == u64::MAX {
            format!("{least} or more")
        } else {
            format!("{least} to {most}")
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_valid_and_survive_json() {
        let config = EngineConfig::default();
        config.validate().unwrap();
        let json = serde_json::to_string(&config).unwrap();
        assert_eq!(serde_json::from_str::<EngineConfig>(&json).unwrap(), config);
        assert_eq!(
            serde_json::from_str::<EngineConfig>("{}").unwrap(),
            config,
            "what is not written has its default"
        );
    }

    #[test]
    fn an_error_names_key_value_and_allowed_range() {
        let config = EngineConfig {
            windows: 31,
            ..EngineConfig::default()
        };
        assert_eq!(
            config.validate().unwrap_err().to_string(),
            "windows = 31 is out of range: allowed is 1 to 30"
        );
    }

    #[test]
    fn weights_that_overflow_a_degree_are_refused() {
        let mut config = EngineConfig {
            windows: 30,
            ..EngineConfig::default()
        };
        config.tiers[1].write_weight = Some(9);
        assert!(
            config
                .validate()
                .unwrap_err()
                .to_string()
                .contains("tiers[1].write_weight = 9 is out of range: allowed is 1 to 8")
        );
    }

    #[test]
    fn keys_of_demand_are_refused_at_their_own_names() {
        let refused = |demand: &str| {
            let text = format!(r#"{{"demand": {{{demand}}}}}"#);
            let config: EngineConfig = serde_json::from_str(&text).unwrap();
            config.validate().unwrap_err().to_string()
        };
        for (demand, allowed) in [
            (r#""max_hot_set_percent": 0"#, "1 to 100"),
            (r#""max_hot_set_percent": 101"#, "1 to 100"),
            (r#""phase_windows": 601"#, "1 to 600"),
            (r#""phase_lower_milli": 1000"#, "0 to 999"),
            (r#""phase_upper_milli": 1000"#, "1001 to 1000000"),
        ] {
            let (key, value) = demand.split_once(": ").unwrap();
            let key = key.trim_matches('"');
            let error = format!("demand.{key} = {value} is out of range: allowed is {allowed}");
            assert_eq!(refused(demand), error);
        }
    }

    #[test]
    fn unknown_keys_are_refused() {
        let err = serde_json::from_str::<EngineConfig>(r#"{"windos": 8}"#).unwrap_err();
        assert!(err.to_string().contains("unknown field `windos`"), "{err}");
    }

    #[test]
    fn weights_come_from_the_slowest_tier() {
        let mut config = EngineConfig::default();
        config.tiers[1].kind = TierKind::Cxl;
        assert_eq!(config.weights(), (2, 3));
        config.tiers.push(TierConfig {
            kind: TierKind::Pmem,
            ..TierConfig::default()
        });
        assert_eq!(config.weights(), (1, 3));
    }
}
