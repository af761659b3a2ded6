//! Numbers with units, as people write them in a scenario. A number that does not fit is refused, never clamped.

use std::fmt;

use serde::de::{self, Deserialize, Deserializer, Visitor};

const UNITS: [(&str, u64); 9] = [
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    // Last: the others end with it.
    ("B", 1),
];

/// Reads a size: `8GiB`, `1.5 GiB`, `4096B`.
///
/// # Errors
/// If the text is not a size, the size is not a whole number of bytes, or it does not fit.
pub fn size(text: &str) -> Result<u64, String> {
    let wrong = || {
        format!(
            "\"{text}\" is not a size: write a number with B, KiB, MiB, GiB or TiB, as \"8GiB\""
        )
    };
    let found = UNITS
        .iter()
        .find_map(|(unit, bytes)| Some((text.strip_suffix(unit)?, *bytes)));
    let (number, unit) = found.ok_or_else(wrong)?;
    let number = number.trim();
    let (whole, part) = number.split_once('.').unwrap_or((number, "0"));
    let digits = |d: &str| !d.is_empty() && d.bytes().all(|b| b.is_ascii_digit());
    if !digits(whole) || !digits(part) {
        return Err(wrong());
    }
    let too_much = || format!("\"{text}\" is too much: at most 16777215TiB can be written");
    let whole: u64 = whole.parse().map_err(|_| too_much())?;
    // With 12 digits after the point, the product still fits 128 bits.
    let (Ok(places), true) = (u32::try_from(part.len()), part.len() <= 12) else {
        return Err(format!(
            "\"{text}\" has more than 12 digits after the point"
        ));
    };
    let part: u64 = part.parse().map_err(|_| too_much())?;
    let (unit, ten) = (u128::from(unit), 10_u128.pow(places));
    if u128::from(part) * unit % ten != 0 {
        return Err(format!("\"{text}\" is no whole number of bytes"));
    }
    let bytes = u128::from(whole) * unit + u128::from(part) * unit / ten;
    u64::try_from(bytes).map_err(|_| too_much())
}

/// Reads a time: `600s`, `10m 30s`, `50ms`; ns.
///
/// # Errors
/// If the text is not a time, or the time does not fit.
pub fn time(text: &str) -> Result<u64, String> {
    let parsed = humantime::parse_duration(text).map_err(|e| {
        format!("\"{text}\" is not a time ({e}): write it as \"600s\", \"10m\" or \"50ms\"")
    })?;
    u64::try_from(parsed.as_nanos())
        .map_err(|_| format!("\"{text}\" is too long: at most 584 years can be written"))
}

/// A number of bytes, written as `"8GiB"`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Size(pub u64);

/// A number of ns, written as `"60s"`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Time(pub u64);

/// A whole number, 0 or more.
#[derive(Clone, Copy, Debug)]
pub(super) struct Whole(pub u64);

/// A number that is neither infinite nor NaN.
#[derive(Clone, Copy, Debug)]
pub(super) struct Number(pub f64);

/// A deserializer of text that a function reads.
struct Text {
    expected: &'static str,
    read: fn(&str) -> Result<u64, String>,
}

impl Visitor<'_> for Text {
    type Value = u64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expected)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<u64, E> {
        (self.read)(text).map_err(E::custom)
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Text {
            expected: "a size with its unit in quotes, as \"8GiB\"",
            read: size,
        };
        deserializer.deserialize_str(text).map(Self)
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Text {
            expected: "a time with its unit in quotes, as \"60s\"",
            read: time,
        };
        deserializer.deserialize_str(text).map(Self)
    }
}

impl<'de> Deserialize<'de> for Whole {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Count;
        impl Visitor<'_> for Count {
            type Value = u64;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a whole number, 0 or more")
            }

            fn visit_i64<E: de::Error>(self, n: i64) -> Result<u64, E> {
                u64::try_from(n).map_err(|_| E::invalid_value(de::Unexpected::Signed(n), &self))
            }

            fn visit_u64<E: de::Error>(self, n: u64) -> Result<u64, E> {
                Ok(n)
            }
        }
        deserializer.deserialize_u64(Count).map(Self)
    }
}

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Real;
        impl Visitor<'_> for Real {
            type Value = f64;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number that is neither infinite nor nan")
            }

            fn visit_i64<E: de::Error>(self, n: i64) -> Result<f64, E> {
                match i32::try_from(n) {
                    Ok(n) => Ok(f64::from(n)),
                    Err(_) => Err(E::invalid_value(
                        de::Unexpected::Signed(n),
                        &"a smaller number",
                    )),
                }
            }

            fn visit_f64<E: de::Error>(self, n: f64) -> Result<f64, E> {
                if n.is_finite() {
                    Ok(n)
                } else {
                    Err(E::invalid_value(de::Unexpected::Float(n), &self))
                }
            }
        }
        deserializer.deserialize_f64(Real).map(Self)
    }
}

/// A number of bytes for people, exactly: in the largest unit of which it is a whole number.
#[must_use]
pub fn size_text(bytes: u64) -> String {
    let whole = |unit: &&(&str, u64)| bytes >= unit.1 && bytes.is_multiple_of(unit.1);
    match UNITS[..4].iter().rev().find(whole) {
        Some((name, unit)) => format!("{}{name}", bytes / unit),
        None => format!("{bytes}B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_exactly() {
        assert_eq!(size("8GiB"), Ok(8 << 30));
        assert_eq!(size("1.5 GiB"), Ok(3 << 29));
        assert_eq!(size("0.0009765625KiB"), Ok(1));
        assert_eq!(size("4096B"), Ok(4096));
        assert_eq!(size("2KB"), Ok(2000));
        assert_eq!(size("16777215TiB"), Ok(16_777_215 << 40));
    }

    #[test]
    fn a_size_that_is_none_or_does_not_fit_is_refused() {
        let texts = [
            "", "B", "GiB", "8", "8 G", "-1GiB", "+1GiB", "1e3GiB", "nanGiB", "1.GiB", ".5GiB",
            "1.2.3GiB", "infGiB", "0x10KiB",
        ];
        for text in texts {
            let error = size(text).unwrap_err();
            assert!(error.contains("is not a size"), "{text}: {error}");
        }
        for text in ["16777216TiB", "99999999999999999999999B"] {
            assert!(size(text).unwrap_err().contains("too much"), "{text}");
        }
        assert!(size("0.3KiB").unwrap_err().contains("no whole number"));
        assert!(
            size("0.0000000000001TiB")
                .unwrap_err()
                .contains("12 digits")
        );
    }

    #[test]
    fn a_time_that_is_none_or_does_not_fit_is_refused() {
        assert_eq!(time("1m 30s"), Ok(90_000_000_000));
        for text in ["", "5", "-1s", "1 parsec"] {
            assert!(time(text).unwrap_err().contains("is not a time"), "{text}");
        }
        assert!(time("585years").unwrap_err().contains("too long"));
    }

    #[test]
    fn words_say_bytes_exactly() {
        assert_eq!(size_text(0), "0B");
        assert_eq!(size_text(3 << 29), "1536MiB");
        assert_eq!(size_text(4097), "4097B");
        for bytes in [1, 1024, 1 << 30, 123_456_789] {
            assert_eq!(size(&size_text(bytes)), Ok(bytes));
        }
    }
}
