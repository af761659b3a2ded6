//! The sharing of memory between VMs: who takes part, by which rule, and how far at once.

use anyhow::{Result, ensure};
use bytesize::ByteSize;
use serde::Deserialize;
use terrace_core::EngineConfig;
use terrace_core::arbiter::{ArbiterConfig, Rule};

use crate::wording;

/// Whether sizes that the rule finds are ordered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BalanceMode {
    /// Nothing is decided.
    Off,
    /// Sizes are said, and not ordered.
    #[default]
    Observe,
    /// Sizes are ordered.
    On,
}

/// The rule of `share`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum BalanceShare {
    #[default]
    Dp,
    Fair,
    Trade,
}

/// Memory of which huge pages are made in a second, bytes: none, as how long it keeps a VM and its host busy was not measured on
/// large ones.
const COLLAPSE_PER_S: u64 = 0;
/// The least of it: one huge page.
const LEAST_COLLAPSE: u64 = 2 << 20;

/// The section `[balance]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct RawBalance {
    #[serde(deserialize_with = "wording::mode")]
    pub(crate) mode: BalanceMode,
    #[serde(deserialize_with = "wording::share")]
    pub(crate) share: BalanceShare,
    pub(crate) price_ratio: f64,
    #[serde(deserialize_with = "wording::percent")]
    pub(crate) reserve_percent: u8,
    #[serde(deserialize_with = "wording::percent")]
    pub(crate) dead_band_percent: u8,
    #[serde(deserialize_with = "wording::percent")]
    pub(crate) cache_percent: u8,
    #[serde(deserialize_with = "wording::ms")]
    pub(crate) age_window_ms: u64,
    pub(crate) age_sample: u16,
    #[serde(deserialize_with = "wording::percent")]
    pub(crate) shrink_percent: u8,
    pub(crate) least_shrink: ByteSize,
    #[serde(deserialize_with = "wording::ms")]
    pub(crate) cycle_ms: u64,
    #[serde(deserialize_with = "wording::ms")]
    pub(crate) turn_ms: u64,
    #[serde(deserialize_with = "wording::ms")]
    pub(crate) valley_ms: u64,
    #[serde(deserialize_with = "wording::ms")]
    pub(crate) relief_ms: u64,
    #[serde(deserialize_with = "wording::ms")]
    pub(crate) lend_again_ms: u64,
    #[serde(deserialize_with = "wording::ms")]
    pub(crate) review_ms: u64,
    pub(crate) retry_factor: u32,
    #[serde(deserialize_with = "wording::percent")]
    pub(crate) host_reserve_percent: u8,
    #[serde(deserialize_with = "wording::percent")]
    pub(crate) host_waits_percent: u8,
    #[serde(deserialize_with = "wording::ms")]
    pub(crate) settle_ms: u64,
    #[serde(deserialize_with = "wording::ms")]
    pub(crate) boot_ms: u64,
    pub(crate) collapse_per_s: ByteSize,
}

impl Default for RawBalance {
    fn default() -> Self {
        let arbiter = ArbiterConfig::default();
        Self {
            mode: BalanceMode::default(),
            share: BalanceShare::default(),
            price_ratio: f64::from(arbiter.price_ratio_milli) / 1000.0,
            reserve_percent: arbiter.reserve_percent,
            dead_band_percent: arbiter.dead_band_percent,
            cache_percent: arbiter.cache_percent,
            age_window_ms: arbiter.age_window_ms,
            age_sample: arbiter.age_sample,
            shrink_percent: arbiter.shrink_percent,
            least_shrink: ByteSize(arbiter.least_shrink_bytes),
            cycle_ms: arbiter.cycle_ms,
            turn_ms: arbiter.turn_ms,
            valley_ms: arbiter.valley_ms,
            relief_ms: arbiter.relief_ms,
            lend_again_ms: arbiter.lend_again_ms,
            review_ms: arbiter.review_ms,
            retry_factor: arbiter.retry_factor,
            host_reserve_percent: arbiter.host_reserve_percent,
            host_waits_percent: arbiter.host_waits_percent,
            settle_ms: arbiter.settle_ms,
            boot_ms: arbiter.boot_ms,
            collapse_per_s: ByteSize(COLLAPSE_PER_S),
        }
    }
}

impl RawBalance {
    /// Sets the engine's parameters by this section and the capacities of tiers, bytes; none unless each has one.
    pub(crate) fn apply(self, engine: &mut EngineConfig, capacities: Vec<u64>) -> Result<()> {
        ensure!(
            engine.arbiter == ArbiterConfig::default(),
            "engine.arbiter is not set here: memory is shared between VMs by the section [balance]"
        );
        ensure!(
            (1.0..=1000.0).contains(&self.price_ratio),
            "balance.price_ratio = {} is out of range: allowed is 1 to 1000",
            self.price_ratio
        );
        let collapse = self.collapse_per_s.as_u64();
        ensure!(
            collapse == 0 || collapse >= LEAST_COLLAPSE,
            "balance.collapse_per_s = {} is out of range: allowed is 0, or 2 MiB and more",
            self.collapse_per_s
        );
        ensure!(
            engine.provision.collapse_bytes_per_s == 0,
            "engine.provision.collapse_bytes_per_s is not set here: write collapse_per_s under [balance]"
        );
        engine.provision.collapse_bytes_per_s = collapse;
        engine.arbiter = ArbiterConfig {
            rule: match (self.mode, self.share) {
                (BalanceMode::Off, _) => Rule::Off,
                (_, BalanceShare::Dp) => Rule::Dp,
                (_, BalanceShare::Fair) => Rule::Fair,
                (_, BalanceShare::Trade) => Rule::Trade,
            },
            observe: self.mode == BalanceMode::Observe,
            // No counter of this host says which accesses reach memory.
            live: true,
            capacity_bytes: capacities
                .iter()
                .fold(0, |sum, bytes| sum.saturating_add(*bytes)),
            capacity_tiers_bytes: capacities,
            price_ratio_milli: milli(self.price_ratio),
            reserve_percent: self.reserve_percent,
            dead_band_percent: self.dead_band_percent,
            cache_percent: self.cache_percent,
            age_window_ms: self.age_window_ms,
            age_sample: self.age_sample,
            shrink_percent: self.shrink_percent,
            least_shrink_bytes: self.least_shrink.as_u64(),
            cycle_ms: self.cycle_ms,
            turn_ms: self.turn_ms,
            valley_ms: self.valley_ms,
            relief_ms: self.relief_ms,
            lend_again_ms: self.lend_again_ms,
            review_ms: self.review_ms,
            retry_factor: self.retry_factor,
            host_reserve_percent: self.host_reserve_percent,
            host_waits_percent: self.host_waits_percent,
            settle_ms: self.settle_ms,
            boot_ms: self.boot_ms,
            ..ArbiterConfig::default()
        };
        Ok(())
    }
}

/// A ratio that was checked, in thousandths.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "1 to 1000 before"
)]
fn milli(ratio: f64) -> u32 {
    (ratio * 1000.0).round() as u32
}

/// The part of a VM in the sharing of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Balance {
    /// Whether the VM may be resized; it is known all the same, and its memory counts.
    pub is_on: bool,
    /// The least memory that it is left, bytes; `None`: it does not take part.
    pub floor_bytes: Option<u64>,
    /// The most that it is given, bytes; `None`: the size that it was started with.
    pub ceiling_bytes: Option<u64>,
}

impl Balance {
    /// The part of a VM of these limits.
    pub(crate) fn new(
        is_on: bool,
        floor: Option<ByteSize>,
        ceiling: Option<ByteSize>,
    ) -> Result<Self> {
        if let (Some(floor), Some(ceiling)) = (floor, ceiling) {
            ensure!(
                floor <= ceiling,
                "memory_floor ({floor}) is above memory_ceiling ({ceiling})"
            );
        }
        Ok(Self {
            is_on,
            floor_bytes: floor.map(|size| size.as_u64()).filter(|floor| *floor > 0),
            ceiling_bytes: ceiling.map(|size| size.as_u64()),
        })
    }

    /// The same; nothing of it if no memory is shared.
    pub(crate) fn unless_off(self, rule: Rule) -> Self {
        let floor_bytes = self.floor_bytes.filter(|_| rule != Rule::Off);
        Self {
            floor_bytes,
            ..self
        }
    }

    /// Whether its guest is to be asked what it needs.
    #[must_use]
    pub fn takes_part(&self) -> bool {
        self.floor_bytes.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;

    fn refused(text: &str) -> String {
        format!("{:#}", Config::parse(text).unwrap_err())
    }

    #[test]
    fn sizes_are_only_said_unless_an_operator_wants_more() {
        let arbiter = |text| Config::parse(text).unwrap().engine.arbiter;
        let default = arbiter("");
        assert!(default.rule == Rule::Dp && default.observe && default.live);
        let on = arbiter("[balance]\nmode = \"on\"\nshare = \"fair\"\nleast_shrink = \"16MiB\"\n");
        assert!(on.rule == Rule::Fair && !on.observe && on.least_shrink_bytes == 16 << 20);
        assert_eq!(arbiter("[balance]\nmode = \"off\"").rule, Rule::Off);
    }

    #[test]
    fn huge_pages_are_made_if_switched_on() {
        let rate = |text| {
            let config = Config::parse(text).unwrap();
            config.engine.provision.collapse_bytes_per_s
        };
        assert_eq!(rate(""), 0);
        assert_eq!(rate("[balance]\ncollapse_per_s = \"64MiB\""), 64 << 20);
        assert_eq!(
            rate("[balance]\nmode = \"off\"\ncollapse_per_s = \"2MiB\""),
            2 << 20
        );
    }

    #[test]
    fn capacities_of_all_tiers_bound_what_vms_have_together() {
        let tier = |n: u32, capacity: &str| {
            format!("[[tier]]\nname = \"t{n}\"\nnodes = [{n}]\n{capacity}\n")
        };
        let arbiter = |text: String| Config::parse(&text).unwrap().engine.arbiter;
        let both = arbiter(tier(0, "capacity = \"1GiB\"") + &tier(1, "capacity = \"2GiB\""));
        assert_eq!(both.capacity_tiers_bytes, [1 << 30, 2 << 30]);
        assert_eq!(both.capacity_bytes, 3 << 30);
        let one = arbiter(tier(0, "capacity = \"1GiB\"") + &tier(1, ""));
        assert_eq!((one.capacity_bytes, one.capacity_tiers_bytes.len()), (0, 0));
        // A host of one tier may bound its VMs, too.
        let only = arbiter(tier(0, "capacity = \"1GiB\""));
        assert_eq!(only.capacity_bytes, 1 << 30);
    }

    #[test]
    fn a_vm_takes_part_by_its_floor() {
        let text = "[defaults]\nmemory_ceiling = \"4GiB\"\n[vm.a]\nmemory_floor = \"1GiB\"\nbalance = false\n";
        let config = Config::parse(text).unwrap();
        let of = |vm| config.vm(vm).unwrap().balance;
        assert!(of("a").takes_part() && !of("a").is_on && !of("b").takes_part());
        assert_eq!(
            (of("a").floor_bytes, of("b").ceiling_bytes),
            (Some(1 << 30), Some(4 << 30))
        );
    }

    #[test]
    fn errors_name_the_key() {
        let swapped = "[vm.a]\nmemory_floor = \"2GiB\"\nmemory_ceiling = \"1GiB\"";
        assert!(refused(swapped).contains("memory_floor (2.0 GiB) is above"));
        assert!(refused("[vm.a]\nmemory_floor = 4").contains("memory_floor = 4 bytes"));
        assert!(refused("[engine.arbiter]\nrule = \"dp\"").contains("[balance]"));
        assert!(refused("[balance]\nprice_ratio = 0.5").contains("balance.price_ratio"));
        assert!(
            refused("[balance]\nreserve_percent = 60").contains("balance.reserve_percent = 60")
        );
        let little = "[balance]\ncollapse_per_s = \"1MiB\"";
        assert!(refused(little).contains("balance.collapse_per_s = 1.0 MiB"));
        let here = "[engine.provision]\ncollapse_bytes_per_s = 2097152";
        assert!(refused(here).contains("[balance]"));
        let whole_percent = "a whole number of percent, such as 5";
        for (wrong, expected) in [
            ("[balance]\nreserve_percent = 500", whole_percent),
            ("[balance]\nreserve_percent = 0.05", whole_percent),
            ("[balance]\nreserve_percent = -1", whole_percent),
            ("[balance]\nreserve_percent = \"5 %\"", whole_percent),
            (
                "[balance]\ncycle_ms = \"5s\"",
                "a whole number of milliseconds without a unit",
            ),
            (
                "[balance]\nmode = true",
                "\"off\", \"observe\" or \"on\", in quotation",
            ),
            (
                "[balance]\nshare = 1",
                "\"dp\", \"fair\" or \"trade\", in quotation",
            ),
            (
                "[vm.a]\nbalance = \"off\"",
                "true or false, without quotation marks",
            ),
        ] {
            let said = refused(wrong);
            assert!(said.contains(expected), "{said}");
        }
        assert!(refused("[balance]\nmode = \"auto\"").contains("unknown variant `auto`"));
    }
}
