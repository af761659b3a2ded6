//! The processor's last-level cache, as a scenario writes it: a size, a size and ways, or none.

use serde::de::value::MapAccessDeserializer;
use serde::de::{self, Deserialize, Deserializer, MapAccess, Visitor};

use super::error::Fault;
use super::quantity::{Size, Whole, size_text};
use crate::base::access::LINE;
use crate::machine::last_level::{MAX_WAYS, MIN_SETS};

/// Size of the cache of vTMM's processors (Cascade Lake, 24 cores of 1.375 MiB), bytes.
const SIZE: u64 = 33 << 20;

/// Ways of that cache (Intel's optimization manual, Skylake server).
const WAYS: u32 = 11;

/// Largest cache, bytes.
const MAX_SIZE: u64 = 1 << 30;

/// Part of the cache that holds data, in quarters: page tables have the other one (`table_cache_bytes`, docs/machine.md).
const DATA_QUARTERS: u64 = 3;

/// The last-level cache of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cache {
    /// Size of the full-size machine's cache, bytes.
    pub size: u64,
    /// Ways of a set.
    pub ways: u32,
}

impl Cache {
    /// Bytes of data that the cache holds at a scale.
    #[must_use]
    pub fn data_bytes(&self, scale: u64) -> u64 {
        self.size / 4 * DATA_QUARTERS / scale.max(1)
    }
}

impl Default for Cache {
    fn default() -> Self {
        Self {
            size: SIZE,
            ways: WAYS,
        }
    }
}

/// A cache as written.
#[derive(Debug)]
pub(super) enum RawCache {
    None,
    Some(RawTable),
}

#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawTable {
    size: Size,
    ways: Option<Whole>,
}

impl<'de> Deserialize<'de> for RawCache {
    /// Deserializes by hand: a derived untagged enum would hide which key is wrong.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = RawCache;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a size, a table of size and ways, or \"none\"")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<RawCache, E> {
                if text == "none" {
                    return Ok(RawCache::None);
                }
                let size = Size::deserialize(de::value::StrDeserializer::new(text))?;
                Ok(RawCache::Some(RawTable { size, ways: None }))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<RawCache, A::Error> {
                RawTable::deserialize(MapAccessDeserializer::new(map)).map(RawCache::Some)
            }
        }
        deserializer.deserialize_any(Either)
    }
}

/// Checks the cache of a machine; without the key it has the default.
pub(super) fn check(raw: Option<RawCache>) -> Result<Option<Cache>, Fault> {
    let table = match raw {
        None => return Ok(Some(Cache::default())),
        Some(RawCache::None) => return Ok(None),
        Some(RawCache::Some(table)) => table,
    };
    let ways = table.ways.map_or(u64::from(WAYS), |ways| ways.0);
    let ways = u32::try_from(ways).unwrap_or(u32::MAX);
    if !(1..=MAX_WAYS).contains(&crate::base::number::index(ways)) {
        let what = format!("{ways} is out of range: allowed is 1 to {MAX_WAYS} ways");
        return Err(Fault::new("machine.cache.ways", what));
    }
    let least = u64::from(ways) * LINE * MIN_SETS * 4;
    if !(least..=MAX_SIZE).contains(&table.size.0) {
        let what = format!(
            "{} is out of range: allowed with {ways} ways is {} to {}, or \"none\"",
            size_text(table.size.0),
            size_text(least),
            size_text(MAX_SIZE)
        );
        return Err(Fault::new("machine.cache", what));
    }
    Ok(Some(Cache {
        size: table.size.0,
        ways,
    }))
}
