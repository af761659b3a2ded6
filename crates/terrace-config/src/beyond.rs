//! Sizes that no VM of this host can have: a unit that was mistaken, or the configuration of another host.

use anyhow::{Context as _, Result, ensure};
use bytesize::ByteSize;
use terrace_core::config::EngineConfig;
use terrace_host::topology::Topology;
use terrace_proto::TierLimit;

use crate::balance::RawBalance;
use crate::config::{Config, TierNodes, VmConfig};
use crate::sizes::Sizes;

/// Least size above 0 that is no mistake, bytes: a page.
const MIN_BYTES: u64 = 4096;

/// Whether a size is plausible: 0, or a page and more. A smaller one was written without its unit.
///
/// # Errors
/// If it is not: a message with the size, and how to write one.
pub fn has_a_unit(what: &str, bytes: u64) -> Result<(), String> {
    if bytes == 0 || bytes >= MIN_BYTES {
        return Ok(());
    }
    Err(format!(
        "{what} = {bytes} bytes is less than a page: write a size with its unit, as 512MiB or 2GiB"
    ))
}

/// A tier of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TierBytes {
    /// The tier's name.
    pub name: String,
    /// All memory of the tier, bytes; 0 if that is not known.
    pub total_bytes: u64,
}

impl TierBytes {
    /// Whether the tier is large enough for a size.
    ///
    /// # Errors
    /// If it is not: a message with both sizes.
    pub fn has(&self, what: &str, bytes: u64) -> Result<(), String> {
        if self.total_bytes == 0 || bytes <= self.total_bytes {
            return Ok(());
        }
        Err(format!(
            "{what} = {} is more than tier {} of this host has, which is {}",
            ByteSize(bytes),
            self.name,
            ByteSize(self.total_bytes)
        ))
    }

    /// Whether the tier is large enough for limits; no ceiling is allowed, too.
    ///
    /// # Errors
    /// If it is not: a message with the limit and the tier's size.
    pub fn has_limit(&self, limit: &TierLimit) -> Result<(), String> {
        self.has("floor", limit.floor_bytes)?;
        match limit.ceiling_bytes {
            u64::MAX => Ok(()),
            ceiling => self.has("ceiling", ceiling),
        }
    }
}

impl Config {
    /// Checks all sizes against the host that the daemon runs on; the tiers are known.
    ///
    /// # Errors
    /// If a size is larger than the host's: a message with the key, its value, and the host's size.
    pub fn check_host(&self, topology: &Topology) -> Result<()> {
        let tiers = topology.tiers.iter().map(|tier| TierBytes {
            name: tier.name.clone(),
            total_bytes: tier.total_bytes,
        });
        let tiers: Vec<TierBytes> = tiers.collect();
        for (defined, tier) in self.tiers.iter().zip(&tiers) {
            let capacity = defined.engine.capacity_bytes.unwrap_or(0);
            let checked = tier.has("capacity", capacity).map_err(anyhow::Error::msg);
            checked.context("tier")?;
        }
        let total = tiers.iter().map(|tier| tier.total_bytes);
        let total = total.fold(0, u64::saturating_add);
        let budgets = [
            ("engine", self.engine.move_budget_bytes_per_s),
            ("agent", self.agent.budgets.bytes_per_s()),
        ];
        // The default is allowed, however small the host.
        let most = total.max(EngineConfig::default().move_budget_bytes_per_s);
        for (section, budget) in budgets {
            ensure!(
                total == 0 || budget <= most,
                "{section}.move_budget_bytes_per_s = {budget} is more in a second than all memory of this host, which \
                 is {total}: 0 under [engine] is no limit"
            );
        }
        for name in self.vms.keys() {
            let vm = self.vm(name)?;
            let floor = vm.balance.floor_bytes.unwrap_or(0);
            ensure!(
                total == 0 || floor <= total,
                "vm.{name}: memory_floor = {} is more than all memory of this host, which is {}",
                ByteSize(floor),
                ByteSize(total)
            );
            vm.sizes
                .fits(&tiers)
                .map_err(anyhow::Error::msg)
                .with_context(|| format!("vm.{name}"))?;
        }
        // A VM that has no section.
        let other = self.vm("another")?;
        other
            .sizes
            .fits(&tiers)
            .map_err(anyhow::Error::msg)
            .context("defaults")
    }
}

impl RawBalance {
    /// Whether its size was written with its unit.
    pub(super) fn check_units(&self) -> Result<(), String> {
        has_a_unit("least_shrink", self.least_shrink.as_u64())
    }
}

impl TierNodes {
    /// Whether its capacity was written with its unit.
    pub(super) fn check_units(&self) -> Result<(), String> {
        has_a_unit("capacity", self.engine.capacity_bytes.unwrap_or(0))
    }
}

impl VmConfig {
    /// Whether all sizes were written with their units.
    pub(super) fn check_units(&self) -> Result<(), String> {
        has_a_unit("memory_floor", self.balance.floor_bytes.unwrap_or(0))?;
        has_a_unit("memory_ceiling", self.balance.ceiling_bytes.unwrap_or(0))?;
        self.sizes.check_units()
    }
}

impl Sizes {
    /// Whether all sizes were written with their units.
    pub(super) fn check_units(&self) -> Result<(), String> {
        has_a_unit("fast", self.fast_bytes)?;
        self.limits.iter().try_for_each(|limit| {
            has_a_unit("floor", limit.floor_bytes)?;
            has_a_unit("ceiling", limit.ceiling_bytes)
        })
    }

    fn fits(&self, tiers: &[TierBytes]) -> Result<(), String> {
        for (tier, limit) in tiers.iter().zip(&self.limits) {
            tier.has_limit(limit)?;
        }
        match tiers.first() {
            Some(first) => first.has("fast", self.fast_bytes),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use terrace_host::topology::{Tier, TierSource};
    use terrace_proto::TierId;

    use super::*;

    fn host(text: &str) -> Result<()> {
        let tier = |id, name: &str| Tier {
            id,
            name: name.into(),
            nodes: Vec::new(),
            total_bytes: 8 << 30,
        };
        let topology = Topology {
            nodes: Vec::new(),
            tiers: vec![tier(TierId::FAST, "fast"), tier(TierId::SLOW, "slow")],
            source: TierSource::Operator,
            findings: Vec::new(),
        };
        let mut config = Config::parse(text).unwrap();
        if config.tiers.is_empty() {
            config.follow(&topology).unwrap();
        }
        config.check_host(&topology)
    }

    #[test]
    fn sizes_without_a_unit_are_refused() {
        for (text, key) in [
            ("[vm.a]\nfast = 4", "vm.a: fast"),
            ("[vm.a]\nfast = \"4\"", "vm.a: fast"),
            ("[vm.a]\nfloor = { fast = 1 }", "vm.a: floor"),
            ("[vm.a]\nceiling = { slow = 8 }", "vm.a: ceiling"),
        ] {
            let refused = format!("{:#}", Config::parse(text).unwrap_err());
            assert!(refused.contains(key), "{refused}");
            assert!(refused.contains("512MiB"), "{refused}");
        }
        Config::parse("[vm.a]\nceiling = { fast = 0, slow = \"4KiB\" }").unwrap();
    }

    #[test]
    fn sizes_beyond_the_host_are_refused_with_the_figures() {
        for (text, key) in [
            ("[vm.a]\nfast = \"9GiB\"", "vm.a: fast"),
            ("[vm.a]\nfloor = { fast = \"9GiB\" }", "vm.a: floor"),
            ("[vm.a]\nceiling = { slow = \"9GiB\" }", "vm.a: ceiling"),
            ("[defaults]\nfloor = { slow = \"9GiB\" }", "defaults: floor"),
            (
                "[[tier]]\nname = \"fast\"\nnodes = [0]\ncapacity = \"9GiB\"\n\
                 [[tier]]\nname = \"slow\"\nnodes = [1]\n",
                "tier: capacity",
            ),
        ] {
            let refused = format!("{:#}", host(text).unwrap_err());
            assert!(refused.starts_with(key), "{refused}");
            let figures = refused.contains("9.0 GiB") && refused.contains("8.0 GiB");
            assert!(figures, "{refused}");
            host(&text.replace("9GiB", "8GiB")).unwrap();
        }
        for section in ["engine", "agent"] {
            let text = |bytes: u64| format!("[{section}]\nmove_budget_bytes_per_s = {bytes}");
            let refused = host(&text(17 << 30)).unwrap_err().to_string();
            assert!(refused.contains(&(16_u64 << 30).to_string()), "{refused}");
            host(&text(16 << 30)).unwrap();
        }
    }
}
