//! Presets of tiers, by name.

use serde::de::value::MapAccessDeserializer;
use serde::de::{self, Deserialize, Deserializer, MapAccess, Visitor};
use terrace_core::TierKind;

use super::error::Fault;
use super::loaded;
use super::quantity::{Number, Whole};
use crate::base::service::Service;
use crate::base::tier::Tier;

/// Highest price: with it, sums of prices stay finite.
const MAX_PRICE: f64 = 1e9;

/// A tier as measured in a paper; without a size.
struct Preset {
    name: &'static str,
    kind: TierKind,
    /// Latency of reads and of writes, ns.
    ns: [f64; 2],
    /// Bandwidth of reads and of writes, GB/s.
    gb_s: [f64; 2],
    line: u64,
    /// Price relative to DRAM's; `None` if none is known.
    price_per_gib: Option<f64>,
    service: Service,
}

/// The presets. `dram`, `cxl`, `pmem`: vTMM, Table 1. The others: HyperTier, Table 2, which gives one figure for
/// reads and writes. Remote DRAM has the weights that vTMM measured on it (§3.3.1), as CXL memory has, and its price,
/// because it stands for it; and vTMM's CXL memory is remote DRAM, so both have its loaded latency. Prices: HyperTier, §1: memory doubled by persistent or CXL memory costs half of what
/// DRAM would. `hbm` is `dram` with the bandwidth of HBM2e over that of DDR5 on a Xeon Max (McCalpin, 2023): docs/machine.md.
const PRESETS: [Preset; 7] = [
    Preset {
        name: "dram",
        kind: TierKind::Dram,
        ns: [81.0, 82.0],
        gb_s: [120.0, 82.0],
        line: 64,
        price_per_gib: Some(1.0),
        service: loaded::DRAM,
    },
    Preset {
        name: "cxl",
        kind: TierKind::Cxl,
        ns: [153.0, 162.0],
        gb_s: [97.0, 63.0],
        line: 64,
        price_per_gib: Some(0.5),
        service: loaded::REMOTE_WIDE,
    },
    Preset {
        name: "pmem",
        kind: TierKind::Pmem,
        ns: [310.0, 94.0],
        gb_s: [37.0, 13.0],
        line: 256,
        price_per_gib: Some(0.5),
        service: loaded::PMEM,
    },
    Preset {
        name: "dram-68",
        kind: TierKind::Dram,
        ns: [68.7, 68.7],
        gb_s: [88.2, 88.2],
        line: 64,
        price_per_gib: Some(1.0),
        service: loaded::DRAM_68,
    },
    Preset {
        name: "remote",
        kind: TierKind::Cxl,
        ns: [121.9, 121.9],
        gb_s: [53.5, 53.5],
        line: 64,
        price_per_gib: Some(0.5),
        service: loaded::REMOTE,
    },
    Preset {
        name: "pmem-177",
        kind: TierKind::Pmem,
        ns: [176.6, 176.6],
        gb_s: [21.4, 21.4],
        line: 256,
        price_per_gib: Some(0.5),
        service: loaded::PMEM,
    },
    Preset {
        name: "hbm",
        kind: TierKind::Dram,
        ns: [81.0, 82.0],
        gb_s: [276.0, 287.0],
        line: 64,
        price_per_gib: None,
        service: loaded::DRAM,
    },
];

/// All presets, with size 0.
#[must_use]
pub fn presets() -> Vec<Tier> {
    PRESETS.iter().map(Preset::tier).collect()
}

impl Preset {
    fn tier(&self) -> Tier {
        Tier {
            name: self.name.into(),
            kind: self.kind,
            bytes: 0,
            read_ns: self.ns[0],
            write_ns: self.ns[1],
            read_gb_s: self.gb_s[0],
            write_gb_s: self.gb_s[1],
            line: self.line,
            price_per_gib: self.price_per_gib,
            service: Some(self.service),
        }
    }
}

/// A tier as written: a preset's name, or a table with all keys.
#[derive(Debug)]
pub(super) enum RawTier {
    Preset(String),
    Table(Box<RawTable>),
}

#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawTable {
    name: String,
    #[serde(default)]
    kind: TierKind,
    read_ns: Number,
    write_ns: Number,
    read_gb_s: Number,
    write_gb_s: Number,
    #[serde(default = "line")]
    line: Whole,
    price_per_gib: Option<Number>,
    #[serde(default)]
    loaded: loaded::Raw,
    effective: Option<Number>,
}

fn line() -> Whole {
    Whole(64)
}

impl<'de> Deserialize<'de> for RawTier {
    /// Deserializes by hand: a derived untagged enum would hide which key is wrong.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = RawTier;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a preset's name, or a table of the tier's figures")
            }

            fn visit_str<E: de::Error>(self, name: &str) -> Result<RawTier, E> {
                Ok(RawTier::Preset(name.into()))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<RawTier, A::Error> {
                let table = RawTable::deserialize(MapAccessDeserializer::new(map))?;
                Ok(RawTier::Table(Box::new(table)))
            }
        }
        deserializer.deserialize_any(Either)
    }
}

impl RawTier {
    /// The checked tier, with size 0.
    pub fn check(self, path: &str) -> Result<Tier, Fault> {
        let raw = match self {
            Self::Table(raw) => raw,
            Self::Preset(name) => {
                let preset = PRESETS.iter().find(|p| p.name == name);
                return preset.map(Preset::tier).ok_or_else(|| {
                    let names: Vec<&str> = PRESETS.iter().map(|p| p.name).collect();
                    let what = format!(
                        "there is no tier \"{name}\": allowed is {}, or a table of the tier's figures",
                        names.join(", ")
                    );
                    Fault::new(path, what)
                });
            }
        };
        super::check_name(&raw.name, &format!("{path}.name"))?;
        let within = |key: &str, n: f64, least: f64, most: f64, unit: &str| {
            if (least..=most).contains(&n) {
                return Ok(n);
            }
            let what = format!("{n} is out of range: allowed is {least} to {most} {unit}");
            Err(Fault::new(format!("{path}.{key}"), what))
        };
        let price = raw.price_per_gib.map(|price| price.0);
        if let Some(price) = price.filter(|p| !(*p > 0.0 && *p <= MAX_PRICE)) {
            let what = format!(
                "{price} is no price: allowed is a number above 0 and at most {MAX_PRICE}, in any currency or relative to another tier's"
            );
            return Err(Fault::new(format!("{path}.price_per_gib"), what));
        }
        if !(64..=4096).contains(&raw.line.0) || !raw.line.0.is_power_of_two() {
            let what = format!(
                "{} is no line's size: allowed is a power of two from 64 to 4096, in bytes",
                raw.line.0
            );
            return Err(Fault::new(format!("{path}.line"), what));
        }
        let effective = raw.effective.map_or(1.0, |part| part.0);
        within("effective", effective, 0.01, 1.0, "of the bandwidth")?;
        Ok(Tier {
            name: raw.name,
            kind: raw.kind,
            bytes: 0,
            read_ns: within("read_ns", raw.read_ns.0, 1.0, 1e7, "ns")?,
            write_ns: within("write_ns", raw.write_ns.0, 1.0, 1e7, "ns")?,
            read_gb_s: within("read_gb_s", raw.read_gb_s.0, 0.001, 1e5, "GB/s")? * effective,
            write_gb_s: within("write_gb_s", raw.write_gb_s.0, 0.001, 1e5, "GB/s")? * effective,
            line: raw.line.0,
            price_per_gib: price,
            service: Some(raw.loaded.check(raw.kind, &format!("{path}.loaded"))?),
        })
    }
}
