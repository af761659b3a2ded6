//! The parameters of mechanisms that a policy's table sets.

use super::error::Fault;
use super::policy::RawTable;
use crate::host::bounds::clairvoyant::By;
use crate::mechanisms::{Balance, Damos, Name, PromotionLimits, Tuning};

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
fn parameters(raw: Option<&RawTable>) -> [Parameter; 17] {
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
    let damos: &[_] = &["damos"];
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
        number(
            damos,
            "sample_ms",
            |t| t.sample_ms.map(u64::from),
            1..=MAX_MS,
        ),
        number(
            damos,
            "aggregate_ms",
            |t| t.aggregate_ms.map(u64::from),
            1..=MAX_MS,
        ),
        number(
            damos,
            "min_regions",
            |t| t.min_regions.map(u64::from),
            3..=100_000,
        ),
        number(
            damos,
            "max_regions",
            |t| t.max_regions.map(u64::from),
            3..=100_000,
        ),
        number(
            damos,
            "quota_mb",
            |t| t.quota_mb.map(u64::from),
            1..=1_000_000,
        ),
        number(damos, "quota_ms", |t| t.quota_ms.map(u64::from), 0..=1000),
        number(
            damos,
            "cold_age_ms",
            |t| t.cold_age_ms.map(u64::from),
            0..=3_600_000,
        ),
        flag(damos, "goals", |t| t.goals),
        flag(damos, "young", |t| t.young),
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
    let tuned = name.map(|name| set(raw, name));
    if let Some(Name::Damos(damos)) = tuned {
        check_damos(damos, path)?;
    }
    Ok(tuned)
}

/// Checks intervals and numbers of regions as the kernel does (`damon_set_attrs`).
fn check_damos(damos: Damos, path: &str) -> Result<(), Fault> {
    if damos.sample_ms > damos.aggregate_ms {
        let what = format!(
            "{} ms are shorter than sample_ms, {} ms: a sample is taken in each aggregation",
            damos.aggregate_ms, damos.sample_ms
        );
        return Err(Fault::new(format!("{path}.aggregate_ms"), what));
    }
    let (least, most) = damos.regions;
    if least > most {
        let what = format!("{most} is less than min_regions, {least}: give as many at least");
        return Err(Fault::new(format!("{path}.max_regions"), what));
    }
    Ok(())
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
        Name::Damos(damos) => Name::Damos(Damos {
            sample_ms: raw.sample_ms.unwrap_or(damos.sample_ms),
            aggregate_ms: raw.aggregate_ms.unwrap_or(damos.aggregate_ms),
            regions: (
                raw.min_regions.unwrap_or(damos.regions.0),
                raw.max_regions.unwrap_or(damos.regions.1),
            ),
            quota_mb: raw.quota_mb.unwrap_or(damos.quota_mb),
            quota_ms: raw.quota_ms.unwrap_or(damos.quota_ms),
            cold_age_ms: raw.cold_age_ms.map_or(damos.cold_age_ms, u64::from),
            goals: raw.goals.unwrap_or(damos.goals),
            young: raw.young.unwrap_or(damos.young),
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
    for (key, value) in [("literal", raw.literal), ("goals", raw.goals)] {
        if value == Some(true) {
            label += &format!(" {key}");
        }
    }
    for (key, value) in [("adapt", raw.adapt), ("young", raw.young)] {
        if value == Some(false) {
            label += &format!(" {key}=false");
        }
    }
    label
}
