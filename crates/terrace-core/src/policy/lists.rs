//! The parameters of hot lists (HMvisor §3.2).
//!
//! Responsible for: their defaults, what is allowed, and how they are written in a policy's table. It leaves to
//! others: what they mean ([`crate::estimate`], [`crate::place`]).

use std::fmt;
use std::ops::RangeInclusive;

use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize, Serializer};

use super::{Estimate, Policy, PolicyStages};
use crate::error::ConfigError;

/// The most lists: a unit's state has four bits for its list, and none is one of them.
const MAX_LISTS: u64 = 15;
/// The most epochs of decay: a unit's state has three bits for the epochs since it was found.
const MAX_DECAY: u64 = 7;
/// The longest sub-epoch, ms.
const MAX_SUB_EPOCH_MS: u64 = 60_000;
/// Epochs of decay if nothing is said.
const DECAY: u8 = 2;

/// The count that a page's accesses in an epoch must exceed for the page to be hot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HotnessThreshold {
    /// This count.
    Above(u8),
    /// The lowest whose pages fit into the first tier and repay their copies, chosen anew in each epoch.
    Auto,
}

/// The word for [`HotnessThreshold::Auto`].
const AUTO: &str = "auto";

impl fmt::Display for HotnessThreshold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Above(count) => count.fmt(f),
            Self::Auto => f.write_str(AUTO),
        }
    }
}

impl Serialize for HotnessThreshold {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Above(count) => serializer.serialize_u8(*count),
            Self::Auto => serializer.serialize_str(AUTO),
        }
    }
}

impl<'de> Deserialize<'de> for HotnessThreshold {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Count;
        impl Visitor<'_> for Count {
            type Value = HotnessThreshold;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a count from 1 to 254, or \"auto\"")
            }

            fn visit_u64<E: de::Error>(self, count: u64) -> Result<HotnessThreshold, E> {
                // A counter saturates at 255, so nothing would exceed that.
                let allowed = u8::try_from(count).ok().filter(|n| (1..=254).contains(n));
                let wrong = || E::invalid_value(de::Unexpected::Unsigned(count), &self);
                allowed.map(HotnessThreshold::Above).ok_or_else(wrong)
            }

            fn visit_i64<E: de::Error>(self, count: i64) -> Result<HotnessThreshold, E> {
                match u64::try_from(count) {
                    Ok(count) => self.visit_u64(count),
                    Err(_) => Err(E::invalid_value(de::Unexpected::Signed(count), &self)),
                }
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<HotnessThreshold, E> {
                match text {
                    AUTO => Ok(HotnessThreshold::Auto),
                    _ => Err(E::invalid_value(de::Unexpected::Str(text), &self)),
                }
            }
        }
        deserializer.deserialize_any(Count)
    }
}

/// The directions of moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Sides {
    /// Hot pages go up and cold ones down, each as room allows (§3.2.2).
    #[default]
    Single,
    /// Hot pages fill room of the first tier; where it is full, equal numbers change places (§3.2.2).
    Double,
}

impl Sides {
    /// Name in a policy's table.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Single => "single",
            Self::Double => "double",
        }
    }
}

/// The parameters of hot lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HotLists {
    /// Lists of each kind: 3, called active, warm and hot (§3.2.1). 1 to 15.
    pub lists: u8,
    /// Length of a sub-epoch, ms: 100 (§3.2.1).
    pub sub_epoch_ms: u64,
    /// Sub-epochs in an epoch: 50 (§3.2.1). 1 to 250.
    pub sub_epochs: u8,
    /// The count that makes a page hot: 30. It is the one that the paper shows with 50 sub-epochs (§4.3): the pages
    /// above it are few and stay the same, where lower ones were compared in other settings.
    pub threshold: HotnessThreshold,
    /// Epochs in which a page must be found again: 2. The paper has no figure. One epoch would let a page fall that a
    /// single epoch missed; of two, one may miss it. 1 to 7. As a time it is rounded down to whole epochs.
    pub decay_epochs: u8,
    /// The directions of moves: single-sided (§3.3).
    pub sides: Sides,
}

impl Default for HotLists {
    fn default() -> Self {
        Self {
            lists: 3,
            sub_epoch_ms: 100,
            sub_epochs: 50,
            threshold: HotnessThreshold::Above(30),
            decay_epochs: DECAY,
            sides: Sides::default(),
        }
    }
}

impl HotLists {
    /// Length of an epoch, ms.
    #[must_use]
    pub fn epoch_ms(self) -> u64 {
        self.sub_epoch_ms.saturating_mul(self.sub_epochs.into())
    }

    /// Checks that a page can exceed the threshold: a sub-epoch adds one read or one write to its count.
    ///
    /// # Errors
    /// If none can; `write` is the weight of a write, `key` the policy's own.
    fn check_threshold(self, write: u8, key: &str) -> Result<(), ConfigError> {
        let HotnessThreshold::Above(threshold) = self.threshold else {
            return Ok(());
        };
        let most = self.sub_epochs.saturating_mul(write.max(1));
        if threshold < most {
            return Ok(());
        }
        Err(ConfigError::Range {
            key: format!("{key}.hotness_threshold"),
            value: threshold.to_string(),
            allowed: format!(
                "up to {}, because no count exceeds {most}: {} sub-epochs, in each of which a page counts {write} at most",
                most.saturating_sub(1),
                self.sub_epochs
            ),
        })
    }

    /// The values of a policy's table, beside the defaults; `key` is the policy's own, for the error.
    pub(super) fn of(stages: &PolicyStages, key: &str) -> Result<Self, ConfigError> {
        let own = |name: &str| format!("{key}.{name}");
        let mut lists = Self::default();
        if let Some(n) = stages.lists {
            lists.lists = within(&own("lists"), n.into(), 1..=MAX_LISTS)?;
        }
        if let Some(text) = &stages.sub_epoch {
            let key = own("sub_epoch");
            lists.sub_epoch_ms = within(&key, milliseconds(&key, text)?, 1..=MAX_SUB_EPOCH_MS)?;
        }
        if let Some(n) = stages.sub_epochs {
            lists.sub_epochs = within(&own("sub_epochs"), n.into(), 1..=250)?;
        }
        if let Some(threshold) = stages.hotness_threshold {
            lists.threshold = threshold;
        }
        if let Some(text) = &stages.decay_time {
            let key = own("decay_time");
            let epochs = milliseconds(&key, text)? / lists.epoch_ms();
            lists.decay_epochs = decay(&key, text, epochs, lists.epoch_ms())?;
        }
        if let Some(name) = &stages.sides {
            lists.sides = sides(&own("sides"), name)?;
        }
        Ok(lists)
    }
}

impl Policy {
    /// Checks that some page can be hot, where the slowest tier has these weights of a read and a write.
    ///
    /// # Errors
    /// If no page can exceed the hotness threshold; `key` is the policy's own, for the error.
    pub fn check_threshold(&self, weights: (u8, u8), key: &str) -> Result<(), ConfigError> {
        if self.estimate != Estimate::HotLists {
            return Ok(());
        }
        let write = write_weight(weights.0, weights.1);
        self.lists.check_threshold(write, key)
    }
}

impl PolicyStages {
    /// A key of lists that is set, if one is.
    pub(super) fn list_key(&self) -> Option<&'static str> {
        let set = self.list_keys().into_iter();
        set.flatten().next().map(|(key, _)| key)
    }

    /// The keys of lists that are set, each with its value.
    #[must_use]
    pub fn list_keys(&self) -> [Option<(&'static str, String)>; 6] {
        [
            self.lists.map(|n| ("lists", n.to_string())),
            self.sub_epoch.clone().map(|time| ("sub_epoch", time)),
            self.sub_epochs.map(|n| ("sub_epochs", n.to_string())),
            self.hotness_threshold
                .map(|t| ("hotness_threshold", t.to_string())),
            self.decay_time.clone().map(|time| ("decay_time", time)),
            self.sides.clone().map(|sides| ("sides", sides)),
        ]
    }
}

/// The weight of a write beside a read of 1: the ratio of their latencies to the nearest whole number, never under 1.
#[must_use]
pub(crate) fn write_weight(read: u8, write: u8) -> u8 {
    let (read, write) = (u16::from(read.max(1)), u16::from(write));
    u8::try_from((write + read / 2) / read).map_or(u8::MAX, |weight| weight.max(1))
}

fn within<T: TryFrom<u64>>(
    key: &str,
    value: u64,
    allowed: RangeInclusive<u64>,
) -> Result<T, ConfigError> {
    let fits = T::try_from(value).ok();
    fits.filter(|_| allowed.contains(&value))
        .ok_or_else(|| ConfigError::Range {
            key: key.into(),
            value: value.to_string(),
            allowed: format!("{} to {}", allowed.start(), allowed.end()),
        })
}

fn decay(key: &str, text: &str, epochs: u64, epoch_ms: u64) -> Result<u8, ConfigError> {
    let allowed = u8::try_from(epochs).ok();
    let allowed = allowed.filter(|n| (1..=MAX_DECAY).contains(&u64::from(*n)));
    allowed.ok_or_else(|| ConfigError::Range {
        key: key.into(),
        value: format!("\"{text}\""),
        allowed: format!(
            "1 to {MAX_DECAY} epochs, which are {epoch_ms} ms to {} ms here",
            MAX_DECAY.saturating_mul(epoch_ms)
        ),
    })
}

fn sides(key: &str, name: &str) -> Result<Sides, ConfigError> {
    let all = [Sides::Single, Sides::Double];
    let found = all.into_iter().find(|sides| sides.name() == name);
    found.ok_or_else(|| ConfigError::Name {
        key: key.into(),
        value: name.into(),
        allowed: all.map(Sides::name).join(", "),
    })
}

/// A time, as `100ms`, `5s` or `1m`, in ms.
fn milliseconds(key: &str, text: &str) -> Result<u64, ConfigError> {
    let digits = text.find(|c: char| !c.is_ascii_digit());
    let (number, unit) = text.split_at(digits.unwrap_or(text.len()));
    let factor = match unit.trim() {
        "ms" => Some(1),
        "s" => Some(1000),
        "m" => Some(60_000),
        _ => None,
    };
    let number: Option<u64> = number.parse().ok();
    let product = number.zip(factor).and_then(|(n, f)| n.checked_mul(f));
    product.ok_or_else(|| ConfigError::Name {
        key: key.into(),
        value: text.into(),
        allowed: "a time, as \"100ms\", \"5s\" or \"1m\"".into(),
    })
}

#[cfg(test)]
mod tests {
    use super::super::{Observe, Place, PolicyChoice, PolicyName, Registry};
    use super::*;

    fn resolved(json: &str) -> Result<HotLists, String> {
        let choice: PolicyChoice = serde_json::from_str(json).map_err(|e| e.to_string())?;
        let policy = choice.resolve("policy").map_err(|e| e.to_string())?;
        Ok(policy.lists)
    }

    #[test]
    fn the_papers_comparison_is_a_table_of_keys() {
        let table = r#"{"base": "hmvisor", "lists": 8, "sub_epochs": 10, "hotness_threshold": 3,
            "sub_epoch": "100ms", "decay_time": "5s", "sides": "double"}"#;
        let want = HotLists {
            lists: 8,
            sub_epoch_ms: 100,
            sub_epochs: 10,
            threshold: HotnessThreshold::Above(3),
            decay_epochs: 5,
            sides: Sides::Double,
        };
        assert_eq!(resolved(table), Ok(want));
        let auto = resolved(r#"{"base": "hmvisor", "hotness_threshold": "auto"}"#).unwrap();
        assert_eq!(auto.threshold, HotnessThreshold::Auto);
    }

    #[test]
    fn what_is_not_allowed_is_named_with_what_is() {
        for (table, said) in [
            (
                r#""lists": 0"#,
                "policy.lists = 0 is out of range: allowed is 1 to 15",
            ),
            (
                r#""sub_epochs": 251"#,
                "policy.sub_epochs = 251 is out of range: allowed is 1 to 250",
            ),
            (
                r#""sub_epoch": "1h""#,
                "policy.sub_epoch = \"1h\" is unknown: allowed is a time",
            ),
            (
                r#""decay_time": "4s""#,
                "allowed is 1 to 7 epochs, which are 5000 ms to 35000 ms here",
            ),
            (
                r#""decay_time": "40s""#,
                "policy.decay_time = \"40s\" is out of range",
            ),
            (
                r#""sides": "both""#,
                "policy.sides = \"both\" is unknown: allowed is single, double",
            ),
            (
                r#""hotness_threshold": 0"#,
                "a count from 1 to 254, or \"auto\"",
            ),
            (
                r#""hotness_threshold": "low""#,
                "a count from 1 to 254, or \"auto\"",
            ),
            (
                r#""observe": "guest-scan""#,
                "policy.estimate: hot-lists needs observe",
            ),
            (
                r#""place": "exchange""#,
                "policy.estimate: hot-lists needs place = \"top-lists\" as well",
            ),
        ] {
            let error = resolved(&format!(r#"{{"base": "hmvisor", {table}}}"#)).unwrap_err();
            assert!(error.contains(said), "{table}: {error}");
        }
        let error = resolved(r#"{"base": "vtmm", "lists": 3}"#).unwrap_err();
        assert!(
            error.contains("policy.lists: a key of lists needs base = \"hmvisor\""),
            "{error}"
        );
        let error = resolved(r#"{"base": "vtmm", "place": "top-lists"}"#).unwrap_err();
        assert!(
            error.contains("policy.place: top-lists needs estimate"),
            "{error}"
        );
    }

    #[test]
    fn a_threshold_that_no_count_exceeds_is_refused() {
        let checked = |lists: HotLists, weights| {
            let policy = Policy {
                lists,
                ..Registry::Simulator.stages(PolicyName::Hmvisor)
            };
            policy.check_threshold(weights, "policy")
        };
        let short = |threshold| HotLists {
            sub_epochs: 10,
            threshold,
            ..HotLists::default()
        };
        assert_eq!(checked(HotLists::default(), (1, 1)), Ok(()));
        assert_eq!(checked(short(HotnessThreshold::Auto), (1, 1)), Ok(()));
        assert_eq!(checked(short(HotnessThreshold::Above(29)), (1, 3)), Ok(()));
        let error = checked(short(HotnessThreshold::Above(30)), (1, 3)).unwrap_err();
        assert_eq!(
            error.to_string(),
            "policy.hotness_threshold = 30 is out of range: allowed is up to 29, because no count exceeds 30: 10 \
             sub-epochs, in each of which a page counts 3 at most"
        );
        // Counters saturate at 255.
        let long = HotLists {
            sub_epochs: 250,
            threshold: HotnessThreshold::Above(254),
            ..HotLists::default()
        };
        assert_eq!(checked(long, (1, 3)), Ok(()));
        assert!(checked(long, (1, 1)).is_err());
        let vtmm = Policy {
            lists: short(HotnessThreshold::Above(200)),
            ..PolicyName::Vtmm.stages()
        };
        assert_eq!(vtmm.check_threshold((1, 1), "policy"), Ok(()));
    }

    #[test]
    fn a_write_weighs_its_latency_over_that_of_a_read() {
        assert_eq!(write_weight(1, 3), 3);
        assert_eq!(write_weight(2, 3), 2);
        assert_eq!(write_weight(1, 1), 1);
        assert_eq!(write_weight(4, 1), 1);
    }

    #[test]
    fn live_it_scans_the_guests_tables_simulated_the_second_stage() {
        let live = Registry::Live.stages(PolicyName::Hmvisor);
        let simulated = Registry::Simulator.stages(PolicyName::Hmvisor);
        assert_eq!(live.observe, Observe::GuestScanPlain);
        assert_eq!(simulated.observe, Observe::EptScan);
        assert_eq!(
            (live.estimate, live.place),
            (Estimate::HotLists, Place::TopLists)
        );
        assert_eq!(Registry::Live.lacks(&live), None);
        assert_eq!(Registry::Simulator.lacks(&simulated), None);
    }

    #[test]
    fn a_table_survives_json() {
        let table = r#"{"base":"hmvisor","lists":8,"hotness_threshold":"auto","sides":"double"}"#;
        let choice: PolicyChoice = serde_json::from_str(table).unwrap();
        assert_eq!(serde_json::to_string(&choice).unwrap(), table);
    }
}
