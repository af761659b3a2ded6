//! The sharing of the machine's memory among VMs: `[host]` of a scenario.

use serde::Deserialize;
use terrace_core::Share;

use super::error::Fault;
use super::quantity::Number;

/// The rule by which the host shares memory among VMs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostShare {
    /// Fixed sizes.
    Island,
    /// A pool of fast memory; total memory stays.
    Pool,
    /// Least lost time, by dynamic programming (HPMBS §4.3).
    Dp,
    /// Trade of fast memory for slow at a price (HMvisor §3.3).
    Trade,
    /// The smallest largest weighted slowdown.
    Fair,
}

impl HostShare {
    /// All rules.
    pub const ALL: [Self; 5] = [Self::Island, Self::Pool, Self::Dp, Self::Trade, Self::Fair];

    /// The rule's name in scenarios.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Island => "island",
            Self::Pool => "pool",
            Self::Dp => "dp",
            Self::Trade => "trade",
            Self::Fair => "fair",
        }
    }

    /// Whether the rule changes the total memory of VMs, by the devices that size them.
    #[must_use]
    pub fn sizes_vms(self) -> bool {
        matches!(self, Self::Dp | Self::Trade | Self::Fair)
    }

    /// The way in which the engine's policies share the first tier under this rule.
    #[must_use]
    pub fn of_policies(self) -> Share {
        match self {
            // Under `dp` and `fair` the engine divides the pool by the time that it saves.
            Self::Pool | Self::Dp | Self::Fair => Share::Pool,
            Self::Island | Self::Trade => Share::Island,
        }
    }

    /// The rule of this name.
    ///
    /// # Errors
    /// If there is none.
    pub(super) fn by_name(name: &str, path: &str) -> Result<Self, Fault> {
        let found = Self::ALL.into_iter().find(|share| share.name() == name);
        found.ok_or_else(|| {
            let all = Self::ALL.map(Self::name).join(", ");
            let what = format!("\"{name}\" cannot be simulated: allowed is {all}");
            Fault::new(path, what)
        })
    }
}

/// The sharing of the machine's memory by the host.
#[derive(Clone, Debug, PartialEq)]
pub struct Host {
    /// The rule.
    pub share: HostShare,
    /// Part of the memory that two or more VMs leave free: of the first tier, or of each tier if the rule sizes VMs.
    pub reserve: f64,
    /// Price of the first tier's memory over the last one's; `None`: as the tiers' prices are.
    pub price_ratio: Option<f64>,
    /// Whether the processors' counters sample VMs' misses for the engine, under policies that have use for samples.
    pub samples: bool,
}

impl Host {
    /// Checks that a rule which sizes VMs can keep the reserve: the arbiter's is in whole percent.
    pub(super) fn check_reserve(&self) -> Result<(), Fault> {
        let percent = self.reserve * 100.0;
        if !self.share.sizes_vms() || (percent - percent.round()).abs() < 1e-9 {
            return Ok(());
        }
        let what = format!(
            "{} is no whole percent, and share = \"{}\" keeps whole ones: round it",
            self.reserve,
            self.share.name()
        );
        Err(Fault::new("host.reserve", what))
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(
    deny_unknown_fields,
    expecting = "a table [host] of share, reserve, price_ratio and samples"
)]
pub(super) struct RawHost {
    share: Option<String>,
    reserve: Option<Number>,
    price_ratio: Option<Number>,
    samples: Option<String>,
}

impl RawHost {
    pub(super) fn check(self) -> Result<Host, Fault> {
        let name = self.share.as_deref().unwrap_or(HostShare::Pool.name());
        let share = HostShare::by_name(name, "host.share")?;
        let reserve = self.reserve.map_or(0.05, |r| r.0);
        if !(0.0..=0.5).contains(&reserve) {
            let what =
                format!("{reserve} is out of range: allowed is 0 to 0.5, a part of the memory");
            return Err(Fault::new("host.reserve", what));
        }
        let price_ratio = self.price_ratio.map(|ratio| ratio.0);
        if let Some(ratio) = price_ratio.filter(|ratio| !(1.0..=MAX_PRICE_RATIO).contains(ratio)) {
            let what = format!(
                "{ratio} is out of range: allowed is 1 to {MAX_PRICE_RATIO}, the price of fast memory over that of slow"
            );
            return Err(Fault::new("host.price_ratio", what));
        }
        let samples = match self.samples.as_deref() {
            None | Some("off") => false,
            Some("pmu") => true,
            Some(other) => {
                let what = format!("\"{other}\" is no source of samples: allowed is off, pmu");
                return Err(Fault::new("host.samples", what));
            }
        };
        Ok(Host {
            share,
            reserve,
            price_ratio,
            samples,
        })
    }
}

/// Highest price of fast memory over slow.
pub const MAX_PRICE_RATIO: f64 = 1000.0;
