//! The parameters of mechanisms that a policy's table sets.

use std::ops::RangeInclusive;

use super::error::Fault;
use super::policy::RawTable;
use crate::host::bounds::clairvoyant::By;
use crate::mechanisms::{Balance, Cork, Damos, Name, PromotionLimits, Tuning};

/// A parameter of mechanisms.
struct Parameter<V: 'static> {
    /// The mechanisms that have the parameter.
    of: &'static [&'static str],
    key: &'static str,
    /// The value that a table sets.
    value: fn(&RawTable) -> Option<V>,
}

/// A number of which a range is allowed.
type Number = (Parameter<u64>, RangeInclusive<u64>);

/// The longest epoch, interval and time from hint to fault, ms.
const MAX_MS: u64 = 60_000;

/// The parameters that are numbers.
const NUMBERS: [Number; 16] = [
    number(&["hyperplace"], "period", |t| t.period, 1..=1_000_000_000),
    number(
        &["hyperplace"],
        "epoch_ms",
        |t| wide(t.epoch_ms),
        1..=MAX_MS,
    ),
    number(
        &["hyperplace"],
        "tau_split",
        |t| wide(t.tau_split),
        1..=1_000_000,
    ),
    number(
        &["numab2"],
        "hot_threshold_ms",
        |t| wide(t.hot_threshold_ms),
        1..=MAX_MS,
    ),
    number(
        &["numab2", "balance"],
        "rate_limit_mb_s",
        |t| wide(t.rate_limit_mb_s),
        1..=1_000_000,
    ),
    number(
        &["balance"],
        "interval_ms",
        |t| wide(t.interval_ms),
        1..=MAX_MS,
    ),
    number(&["raminate"], "scan_ms", |t| wide(t.scan_ms), 1..=MAX_MS),
    number(
        &["raminate"],
        "migrate_ms",
        |t| wide(t.migrate_ms),
        1..=MAX_MS,
    ),
    number(&["raminate"], "decay_ms", |t| wide(t.decay_ms), 1..=MAX_MS),
    number(&["damos"], "sample_ms", |t| wide(t.sample_ms), 1..=MAX_MS),
    number(
        &["damos"],
        "aggregate_ms",
        |t| wide(t.aggregate_ms),
        1..=MAX_MS,
    ),
    number(
        &["damos"],
        "min_regions",
        |t| wide(t.min_regions),
        3..=100_000,
    ),
    number(
        &["damos"],
        "max_regions",
        |t| wide(t.max_regions),
        3..=100_000,
    ),
    number(&["damos"], "quota_mb", |t| wide(t.quota_mb), 1..=1_000_000),
    number(&["damos"], "quota_ms", |t| wide(t.quota_ms), 0..=1000),
    number(
        &["damos"],
        "cold_age_ms",
        |t| wide(t.cold_age_ms),
        0..=3_600_000,
    ),
];

/// The parameters that are switches.
const FLAGS: [Parameter<bool>; 4] = [
    flag(&["hyperplace"], "literal", |t| t.literal),
    flag(&["numab2"], "adapt", |t| t.adapt),
    flag(&["damos"], "goals", |t| t.goals),
    flag(&["damos"], "young", |t| t.young),
];

const fn number(
    of: &'static [&'static str],
    key: &'static str,
    value: fn(&RawTable) -> Option<u64>,
    range: RangeInclusive<u64>,
) -> Number {
    (Parameter { of, key, value }, range)
}

const fn flag(
    of: &'static [&'static str],
    key: &'static str,
    value: fn(&RawTable) -> Option<bool>,
) -> Parameter<bool> {
    Parameter { of, key, value }
}

fn wide(value: Option<u32>) -> Option<u64> {
    value.map(u64::from)
}

/// The keys of a mechanism's parameters.
pub(super) fn keys(base: &str) -> Vec<&'static str> {
    let numbers = NUMBERS.iter().map(|(number, _)| (number.of, number.key));
    let flags = FLAGS.iter().map(|flag| (flag.of, flag.key));
    let keys = numbers.chain(flags).filter(|(of, _)| of.contains(&base));
    keys.map(|(_, key)| key).collect()
}

/// The parameters of a mechanism for a list of policies, as `; keys: period, literal`.
pub(super) fn text(base: &str) -> String {
    let keys = keys(base);
    if keys.is_empty() {
        return String::new();
    }
    format!("; keys: {}", keys.join(", "))
}

/// A mechanism with the parameters that the table sets.
pub(super) fn tuned(raw: &RawTable, name: Option<Name>, path: &str) -> Result<Option<Name>, Fault> {
    for (Parameter { of, key, value }, range) in &NUMBERS {
        let Some(value) = value(raw) else { continue };
        check_owner(name, of, key, path)?;
        if !range.contains(&value) {
            let what = format!("{value} is not within {} to {}", range.start(), range.end());
            return Err(Fault::new(format!("{path}.{key}"), what));
        }
    }
    for Parameter { of, key, value } in &FLAGS {
        if value(raw).is_some() {
            check_owner(name, of, key, path)?;
        }
    }
    let tuned = name.map(|name| set(raw, name));
    if let Some(Name::Damos(damos)) = tuned {
        check_damos(damos, path)?;
    }
    Ok(tuned)
}

/// Refuses a parameter of another mechanism.
fn check_owner(name: Option<Name>, of: &[&str], key: &str, path: &str) -> Result<(), Fault> {
    if name.is_some_and(|name| of.contains(&name.name())) {
        return Ok(());
    }
    let what = format!(
        "belongs to base = \"{}\" alone: leave it out",
        of.join("\" or \"")
    );
    Err(Fault::new(format!("{path}.{key}"), what))
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
        Name::Raminate(cork) => Name::Raminate(Cork {
            scan_ms: raw.scan_ms.unwrap_or(cork.scan_ms),
            migrate_ms: raw.migrate_ms.unwrap_or(cork.migrate_ms),
            decay_ms: raw.decay_ms.unwrap_or(cork.decay_ms),
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
    for (number, _) in &NUMBERS {
        if let Some(value) = (number.value)(raw) {
            label += &format!(" {}={value}", number.key);
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
