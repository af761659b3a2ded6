//! Values as people write them: each is read with its bounds, so that no load has a value outside of them.

use bytesize::ByteSize;
use serde::de::Error;
use serde::{Deserialize, Deserializer};

use super::WorkloadError;

/// Bytes of a page.
pub(super) const PAGE: u64 = 4096;

/// Most bytes of a size: 1 PiB.
const MAX_BYTES: u64 = 1 << 50;

/// Largest count: 2^40.
const MAX: u64 = 1 << 40;

/// Deserializes a size of at least one byte, as text.
pub(super) fn bytes<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    let text = String::deserialize(from)?;
    let size: ByteSize = text.parse().map_err(|why| {
        D::Error::custom(format!(
            "{text:?} is no size ({why}): sizes are text like \"16GiB\""
        ))
    })?;
    let bytes = size.as_u64();
    if bytes == 0 || bytes > MAX_BYTES {
        return Err(D::Error::custom(format!(
            "{text:?} is out of bounds: allowed is more than 0 and at most 1PiB"
        )));
    }
    Ok(bytes)
}

/// Deserializes a size of whole 4 KiB pages, at least one.
pub(super) fn size<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    let bytes = bytes(from)?;
    if !bytes.is_multiple_of(PAGE) {
        return Err(D::Error::custom(format!(
            "{bytes} bytes are no whole number of 4KiB pages"
        )));
    }
    Ok(bytes)
}

/// Number of 4 KiB pages of `bytes` at `scale`.
pub(super) fn pages(key: &str, bytes: u64, scale: u64) -> Result<u64, WorkloadError> {
    let unit = scale.checked_mul(PAGE).filter(|unit| *unit > 0);
    match unit {
        Some(unit) if bytes.is_multiple_of(unit) && bytes > 0 => Ok(bytes / unit),
        _ => Err(WorkloadError(format!(
            "{key} = {bytes} bytes is no whole number of 4KiB pages at scale {scale}: \
             take a multiple of 4KiB times the scale, or another scale"
        ))),
    }
}

/// Deserializes a time of more than 0, as text; ns.
pub(super) fn time<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    let text = String::deserialize(from)?;
    let time = humantime::parse_duration(&text).map_err(|why| {
        D::Error::custom(format!(
            "{text:?} is no time ({why}): times are text like \"600s\" or \"1h 30m\""
        ))
    })?;
    match u64::try_from(time.as_nanos()) {
        Ok(ns) if ns > 0 => Ok(ns),
        _ => Err(D::Error::custom(format!(
            "{text:?} is out of bounds: allowed is more than 0 and at most 500 years"
        ))),
    }
}

/// Deserializes a [`time`] that may be left out.
pub(super) fn optional_time<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    time(from).map(Some)
}

fn number<'de, D: Deserializer<'de>>(
    from: D,
    allowed: &str,
    fits: impl Fn(f64) -> bool,
) -> Result<f64, D::Error> {
    let value = f64::deserialize(from)?;
    if value.is_finite() && fits(value) {
        Ok(value)
    } else {
        Err(D::Error::custom(format!(
            "{value} is out of bounds: allowed is {allowed}"
        )))
    }
}

/// Deserializes a share above 0.
pub(super) fn share<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    number(from, "more than 0 and at most 1", |x| x > 0.0 && x <= 1.0)
}

/// Deserializes a [`share`] that may be left out.
pub(super) fn optional_share<'de, D: Deserializer<'de>>(from: D) -> Result<Option<f64>, D::Error> {
    share(from).map(Some)
}

/// Deserializes a share that may be 0.
pub(super) fn fraction<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    number(from, "0 to 1", |x| (0.0..=1.0).contains(&x))
}

/// Deserializes a rate or weight.
pub(super) fn up_to_a_million<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    number(from, "0 to 1000000", |x| (0.0..=1e6).contains(&x))
}

/// Deserializes the exponent of a power law.
pub(super) fn exponent<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    number(from, "more than 0 and at most 10", |x| x > 0.0 && x <= 10.0)
}

/// Deserializes a memory-level parallelism.
pub(super) fn parallelism<'de, D: Deserializer<'de>>(from: D) -> Result<Option<f64>, D::Error> {
    number(from, "1 to 1000", |x| (1.0..=1000.0).contains(&x)).map(Some)
}

/// Deserializes the time of the processor per access, ns.
pub(super) fn compute_ns<'de, D: Deserializer<'de>>(from: D) -> Result<Option<f64>, D::Error> {
    up_to_a_million(from).map(Some)
}

/// Deserializes a number of things, at least 1.
pub(super) fn count<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    let value = i64::deserialize(from)?;
    match u64::try_from(value) {
        Ok(count) if (1..=MAX).contains(&count) => Ok(count),
        _ => Err(D::Error::custom(format!(
            "{value} is out of bounds: allowed is 1 to {MAX}"
        ))),
    }
}

/// Deserializes a number of accesses, at least 1.
pub(super) fn operations<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    let value = i64::deserialize(from)?;
    match u64::try_from(value) {
        Ok(count) if count > 0 => Ok(Some(count)),
        _ => Err(D::Error::custom(format!(
            "{value} is out of bounds: allowed is 1 or more"
        ))),
    }
}

/// The default share of reads: a half.
pub(super) fn half() -> f64 {
    0.5
}

/// A length, as any other number.
pub(super) fn from_usize(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}
