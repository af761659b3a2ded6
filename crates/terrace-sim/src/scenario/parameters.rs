//! The parameters of mechanisms that a policy's table sets.

use super::error::Fault;
use super::policy::RawTable;
use crate::host::bounds::clairvoyant::By;
use crate::mechanisms::{Balance, Name, PromotionLimits, Tuning};

/// A parameter in a table.
struct Parameter {
    key: &'static str,
    /// The mechanisms that have the parameter.
    of: &'static [&'static str],
    value: Value,
}

/// The value of a parameter, if the table has one.
enum Value {
    /// A number of which a range is allowed.
    Number(Option<u64>, std::ops::RangeInclusive<u64>),
    /// A switch.
    Flag(Option<bool>),
}

impl Value {
    fn is_given(&self) -> bool {
        match self {
            Self::Number(value, _) => value.is_some(),
            Self::Flag(value) => value.is_some(),
        }
    }
}

/// The longest epoch, and the longest time from hint to fault that is hot, ms.
const MAX_MS: u64 = 60_000;

/// All parameters, with the values that the table sets.
fn parameters(raw: Option<&RawTable>) -> [Parameter; 8] {
    let number = |of, key, value: fn(&RawTable) -> Option<u64>, range| Parameter {
        key,
        of,
        value: Value::Number(raw.and_then(value), range),
    };
    let flag = |of, key, value: fn(&RawTable) -> Option<bool>| Parameter {
        key,
        of,
        value: Value::Flag(raw.and_then(value)),
    };
    let (hyperplace, numab2, balance): (&[_], &[_], &[_]) =
        (&["hyperplace"], &["numab2"], &["balance"]);
    let limited: &[_] = &["numab2", "balance"];
    [
        flag(hyperplace, "literal", |t| t.literal),
        number(hyperplace, "period", |t| t.period, 1..=1_000_000_000),
        number(
            hyperplace,
            "epoch_ms",
            |t| t.epoch_ms.map(u64::from),
            1..=MAX_MS,
        ),
        number(
            hyperplace,
            "tau_split",
            |t| t.tau_split.map(u64::from),
            1..=1_000_000,
        ),
        number(
            numab2,
            "hot_threshold_ms",
            |t| t.hot_threshold_ms.map(u64::from),
            1..=MAX_MS,
        ),
        number(
            limited,
            "rate_limit_mb_s",
            |t| t.rate_limit_mb_s.map(u64::from),
            1..=1_000_000,
        ),
        number(
            balance,
            "interval_ms",
            |t| t.interval_ms.map(u64::from),
            1..=MAX_MS,
        ),
        flag(numab2, "adapt", |t| t.adapt),
    ]
}

/// The parameters of a mechanism for a list of policies, as `; keys: period, literal`.
pub(super) fn text(base: &str) -> String {
    let all = parameters(None);
    let keys: Vec<&str> = all
        .iter()
        .filter(|p| p.of.contains(&base))
        .map(|p| p.key)
        .collect();
    if keys.is_empty() {
        return String::new();
    }
    format!("; keys: {}", keys.join(", "))
}

/// A mechanism with the parameters that the table sets.
pub(super) fn tuned(raw: &RawTable, name: Option<Name>, path: &str) -> Result<Option<Name>, Fault> {
    for parameter in parameters(Some(raw)) {
        let path = format!("{path}.{}", parameter.key);
        if !parameter.value.is_given() {
            continue;
        }
        if name.is_none_or(|name| !parameter.of.contains(&name.name())) {
            let what = format!(
                "belongs to base = \"{}\" alone: leave it out",
                parameter.of.join("\" or \"")
            );
            return Err(Fault::new(path, what));
        }
        if let Value::Number(Some(value), range) = parameter.value
            && !range.contains(&value)
        {
            let what = format!("{value} is not within {} to {}", range.start(), range.end());
            return Err(Fault::new(path, what));
        }
    }
    Ok(name.map(|name| set(raw, name)))
}

/// The mechanism with the table's values in place of its defaults.
fn set(raw: &RawTable, name: Name) -> Name {
    match name {
        Name::Hyperplace(tuning) => Name::Hyperplace(Tuning {
            period: raw.period.unwrap_or(tuning.period),
            epoch_ms: raw.epoch_ms.unwrap_or(tuning.epoch_ms),
            tau_split: raw.tau_split.unwrap_or(tuning.tau_split),
            literal: raw.literal.unwrap_or(tuning.literal),
        }),
        Name::Numab2(limits) => Name::Numab2(PromotionLimits {
            hot_threshold_ms: raw.hot_threshold_ms.unwrap_or(limits.hot_threshold_ms),
            rate_limit_mb_s: raw.rate_limit_mb_s.unwrap_or(limits.rate_limit_mb_s),
            adapt: raw.adapt.unwrap_or(limits.adapt),
        }),
        Name::Balance(balance) => Name::Balance(Balance {
            interval_ms: raw.interval_ms.unwrap_or(balance.interval_ms),
            rate_limit_mb_s: raw.rate_limit_mb_s.unwrap_or(balance.rate_limit_mb_s),
        }),
        other => other,
    }
}

/// The policy's name with its parameters, as `hyperplace@host period=1021`.
pub(super) fn label(raw: &RawTable) -> String {
    let mut label = raw.base.clone();
    if let Some(at) = &raw.side {
        label += &format!("@{at}");
    }
    if raw.by == Some(By::Latency) {
        label += " by=latency";
    }
    for parameter in parameters(Some(raw)) {
        if let Value::Number(Some(value), _) = parameter.value {
            label += &format!(" {}={value}", parameter.key);
        }
    }
    if raw.literal == Some(true) {
        label += " literal";
    }
    if raw.adapt == Some(false) {
        label += " adapt=false";
    }
    label
}
