//! Conversions between whole numbers and floats that the standard library leaves to casts.

/// The float nearest to a whole number.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "rounding is what is wanted")]
pub fn float(x: u64) -> f64 {
    x as f64
}

/// The whole number nearest below a float; 0 for negative ones and for NaN, `u64::MAX` for floats above it.
#[must_use]
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a cast saturates, and that is what is wanted"
)]
pub fn whole(x: f64) -> u64 {
    x as u64
}

/// A 32-bit number as an index.
#[must_use]
#[inline]
pub fn index(x: u32) -> usize {
    usize::try_from(x).unwrap_or(usize::MAX)
}

/// A 64-bit number as an index.
#[must_use]
#[inline]
pub fn to_usize(x: u64) -> usize {
    usize::try_from(x).unwrap_or(usize::MAX)
}

/// The low 32 bits.
#[must_use]
#[inline]
pub fn low(x: u64) -> u32 {
    u32::try_from(x & 0xffff_ffff).unwrap_or(u32::MAX)
}

/// The upper 64 bits of a product: a draw of 64 random bits times a bound is a number below the bound.
#[must_use]
#[inline]
pub fn multiply_high(a: u64, b: u64) -> u64 {
    a.carrying_mul(b, 0).1
}
